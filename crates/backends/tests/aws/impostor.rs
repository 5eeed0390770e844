//! Neither AWS nor moto: a small HTTP server that answers with error bodies as AWS writes them, for
//! what moto cannot be made to say.

use std::sync::{Arc, Mutex};

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Status, further header lines, and body; `None` for no answer at all.
pub(super) type Answer = Option<(u16, &'static str, String)>;

pub(super) struct Impostor {
    pub(super) url: String,
    requests: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Impostor {
    /// Answers every request by its body.
    pub(super) async fn start(answer: impl Fn(&str) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::default();
        let (answer, heard) = (Arc::new(answer), Arc::clone(&requests));
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(converse(stream, Arc::clone(&answer), Arc::clone(&heard)));
            }
        });
        Self { url, requests, task }
    }

    /// An error of a service that speaks JSON (SQS, EventBridge).
    pub(super) fn error(status: u16, code: &str) -> Answer {
        let body = serde_json::json!({ "__type": code, "message": "as AWS says it" });
        Some((status, "content-type: application/x-amz-json-1.0\r\n", body.to_string()))
    }

    /// The bodies of all requests.
    pub(super) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

impl Drop for Impostor {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn converse(
    stream: TcpStream,
    answer: Arc<impl Fn(&str) -> Answer>,
    heard: Arc<Mutex<Vec<String>>>,
) {
    let mut stream = BufReader::new(stream);
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            match stream.read_line(&mut line).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            let line = line.trim().to_lowercase();
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        if stream.read_exact(&mut body).await.is_err() {
            return;
        }
        let body = String::from_utf8(body).unwrap();
        heard.lock().unwrap().push(body.clone());
        let Some((status, headers, body)) = answer(&body) else {
            std::future::pending::<()>().await;
            return;
        };
        let head =
            format!("HTTP/1.1 {status} X\r\n{headers}content-length: {}\r\n\r\n", body.len());
        if stream.write_all(format!("{head}{body}").as_bytes()).await.is_err() {
            return;
        }
    }
}

/// What SQS says to a batch: each message by its body.
pub(super) fn to_each(
    request: &str,
    failing: impl Fn(&str) -> Option<(&'static str, bool)>,
) -> Answer {
    let request: Value = serde_json::from_str(request).unwrap();
    let (mut successful, mut failed) = (Vec::new(), Vec::new());
    for entry in request["Entries"].as_array().unwrap() {
        match failing(entry["MessageBody"].as_str().unwrap()) {
            None => successful.push(serde_json::json!({
                "Id": entry["Id"], "MessageId": "1", "MD5OfMessageBody": "x",
            })),
            Some((code, sender_fault)) => failed.push(serde_json::json!({
                "Id": entry["Id"], "Code": code, "SenderFault": sender_fault, "Message": "no",
            })),
        }
    }
    let body = serde_json::json!({ "Successful": successful, "Failed": failed });
    Some((200, "content-type: application/x-amz-json-1.0\r\n", body.to_string()))
}
