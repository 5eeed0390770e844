//! Those who buy: every order is sent twice with the same key, as by a client whose answer got lost,
//! and each of them again until there is an answer.

use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use reqwest::header::CONTENT_TYPE;
use semel::Schedule;
use semel::http::IdempotencyKey;
use semel::http::client::Client;

use crate::Outcome;
use crate::service::Order;

/// How many buy at the same time.
const BUYERS: usize = 8;

pub(crate) async fn buy(address: &str, orders: usize) -> Outcome {
    let (url, http) = (format!("http://{address}/orders"), reqwest::Client::new());
    let patience = Schedule::new(vec![Duration::from_millis(200); 500]);
    let client = Client::new(http.clone()).with_schedule(patience);
    let buying = stream::iter(0..orders).map(|number| {
        let (client, http, url) = (&client, &http, &url);
        async move {
            let body = serde_json::to_string(&order(number))?;
            let request = http.post(url).header(CONTENT_TYPE, "application/json").body(body);
            let request = request.build()?;
            let (key, copy) = (IdempotencyKey::new(), request.try_clone());
            let first = client.send_as(&key, request).await?.error_for_status()?.text().await?;
            let copy = copy.ok_or("the order cannot be repeated")?;
            let second = client.send_as(&key, copy).await?.error_for_status()?.text().await?;
            if first == second { Ok(()) } else { Err(format!("{first}, then {second}").into()) }
        }
    });
    buying.buffer_unordered(BUYERS).try_collect().await
}

fn order(number: usize) -> Order {
    let pick = |names: &[&str]| names[number % names.len()].to_owned();
    let number = i64::try_from(number).unwrap_or_default();
    Order {
        customer: pick(&["alice", "bob", "carol"]),
        product: pick(&["book", "pen"]),
        quantity: 1 + number % 3,
        cents: 100 + number % 900,
    }
}
