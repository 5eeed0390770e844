//! The client against real sockets: servers that answer badly, late, or not at all.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::response::IntoResponse;
use http::StatusCode;
use semel_core::Schedule;
use semel_http::IdempotencyKey;
use semel_http::client::{CallError, Client};
use tokio::net::TcpListener;

use crate::support::*;

fn quick() -> Client {
    let waits = [0, 1, 2, 4].map(Duration::from_millis);
    Client::new(reqwest::Client::new()).with_schedule(Schedule::new(waits.to_vec()))
}

fn order(address: &str) -> reqwest::Request {
    let url = format!("http://{address}/orders").parse().unwrap();
    let mut request = reqwest::Request::new(reqwest::Method::POST, url);
    *request.body_mut() = Some("{\"total\":1}".into());
    request
}

async fn serve(app: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

/// Answers with these statuses, one after the other, and remembers the keys it saw.
async fn scripted(script: &[u16]) -> (String, Arc<Mutex<Vec<String>>>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (script, keys) = (script.to_vec(), Arc::clone(&seen));
    let app = Router::new().fallback(async move |request: Request| {
        let mut keys = keys.lock().unwrap();
        keys.push(request.headers()[KEY].to_str().unwrap().to_owned());
        let status = script[keys.len().min(script.len()) - 1];
        let status = StatusCode::from_u16(status).unwrap();
        match status {
            StatusCode::CONFLICT => (status, [("retry-after", "0")]).into_response(),
            _ => status.into_response(),
        }
    });
    (serve(app).await, seen)
}

#[tokio::test]
async fn one_key_over_all_attempts_and_another_for_the_next_call() {
    let (address, seen) = scripted(&[503, 409, 429, 201]).await;
    let client = quick();
    assert_eq!(client.send(order(&address)).await.unwrap().status(), StatusCode::CREATED);
    assert_eq!(seen.lock().unwrap().len(), 4);
    assert_eq!(client.send(order(&address)).await.unwrap().status(), StatusCode::CREATED);
    let seen = seen.lock().unwrap();
    assert!(seen[..4].iter().all(|key| *key == seen[0]));
    assert_eq!(seen.iter().collect::<HashSet<_>>().len(), 2);
}

#[tokio::test]
async fn a_refusal_is_returned_at_once() {
    for status in [400, 422] {
        let (address, seen) = scripted(&[status, 201]).await;
        let response = quick().send(order(&address)).await.unwrap();
        assert_eq!((response.status().as_u16(), seen.lock().unwrap().len()), (status, 1));
    }
}

#[tokio::test]
async fn when_attempts_are_spent_the_outcome_is_unknown_unless_nothing_can_have_run() {
    let (address, seen) = scripted(&[503]).await;
    let key: IdempotencyKey = "order-42".parse().unwrap();
    let Err(CallError::Unknown { key: told, attempts: 4, status: Some(status), .. }) =
        quick().send_as(&key, order(&address)).await
    else {
        panic!("not unknown")
    };
    assert_eq!((told, status.as_u16()), (key, 503));
    assert!(seen.lock().unwrap().iter().all(|key| key == "order-42"));

    let (address, _) = scripted(&[500, 429]).await;
    let outcome = quick().send(order(&address)).await;
    assert!(matches!(outcome, Err(CallError::Unknown { .. })), "the first may have run");

    let (address, _) = scripted(&[429]).await;
    assert_eq!(quick().send(order(&address)).await.unwrap().status().as_u16(), 429);
}

#[tokio::test]
async fn a_refused_connection_was_not_sent_and_a_lost_one_is_unknown() {
    let unused = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = unused.local_addr().unwrap().to_string();
    drop(unused);
    assert!(matches!(quick().send(order(&address)).await, Err(CallError::NotSent(_))));

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            socket.readable().await.unwrap();
            let _ = socket.try_read(&mut [0; 1024]); // has the request, and hangs up
        }
    });
    let lost = quick().send(order(&address)).await;
    assert!(matches!(lost, Err(CallError::Unknown { attempts: 4, status: None, .. })), "{lost:?}");
}

#[tokio::test]
async fn a_server_that_hangs_is_asked_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let hanging = tokio::spawn(async move {
        let mut held = Vec::new();
        loop {
            held.push(listener.accept().await.unwrap()); // and never says a word
        }
    });
    let hasty = quick().answer_within(Duration::from_millis(50));
    let silence = hasty.send(order(&address)).await;
    let Err(CallError::Unknown { attempts: 4, status: None, source: None, .. }) = silence else {
        panic!("{silence:?}")
    };
    hanging.abort();
}

#[tokio::test]
async fn no_attempt_is_made_after_the_time_is_over() {
    let (address, seen) = scripted(&[503]).await;
    let slow = Client::new(reqwest::Client::new())
        .with_schedule(Schedule::new(vec![Duration::ZERO, Duration::from_secs(3600)]))
        .within(Duration::from_secs(60));
    let outcome = slow.send(order(&address)).await;
    assert!(matches!(outcome, Err(CallError::Unknown { attempts: 1, .. })));
    assert_eq!(seen.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn against_the_layer_a_lost_response_is_one_execution() {
    let api = orders(ietf());
    let address = serve(api.app.clone()).await;
    let key = IdempotencyKey::new();
    let first = quick().send_as(&key, order(&address)).await.unwrap();
    let again = quick().send_as(&key, order(&address)).await.unwrap();
    assert_eq!(again.headers()[MARKER], "true");
    assert_eq!(again.content_length(), first.content_length());
    assert_eq!(first.text().await.unwrap(), again.text().await.unwrap());
    assert_eq!(api.runs(), 1);
}

#[tokio::test]
async fn hanging_up_on_a_real_connection_is_one_execution() {
    let gate = Gate::new();
    let held = gate.clone();
    let api = api(ietf(), move |number, request| {
        let gate = held.clone();
        async move {
            gate.pass().await;
            place_order(number, request).await
        }
    });
    let address = serve(api.app.clone()).await;
    let key = IdempotencyKey::new();
    let (sender, request) = (quick(), order(&address));
    let call = tokio::spawn({
        let key = key.clone();
        async move { sender.send_as(&key, request).await.map(|_| ()) }
    });
    gate.reached().await;
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    gate.open();
    let retry = quick().send_as(&key, order(&address)).await.unwrap();
    assert_eq!((retry.status(), api.runs()), (StatusCode::CREATED, 1));
    assert_eq!(retry.headers()[MARKER], "true");
}
