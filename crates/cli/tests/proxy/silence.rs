//! What clients send stays between them and the upstream, whatever becomes of a request.

use semel_core::EventId;
use serde_json::Value;

use super::client::{Reply, post};
use super::program::{Program, insist, sqlite};
use super::upstream::Upstream;

/// Words that are in no other place.
struct Secrets {
    key: String,
    token: String,
    body: String,
}

impl Secrets {
    fn new() -> Self {
        let [key, token, body] = ["key", "token", "body"]
            .map(|what| format!("{what}-{}", EventId::now().to_string().replace('-', "")));
        Self { key, token, body }
    }

    async fn send(&self, proxy: &Program, path: &str, more: &str) -> Reply {
        proxy.client.ask(&self.words(path, more)).await
    }

    fn words(&self, path: &str, more: &str) -> String {
        let body = format!("{{\"card\":\"{}\",\"more\":\"{more}\"}}", self.body);
        post(path, Some(&self.key), &body).replace("acme", &self.token)
    }

    /// That none of them is in what was said.
    fn are_not_in(&self, place: &str, said: &str) {
        for secret in [&self.key, &self.token, &self.body] {
            assert!(!said.contains(secret), "{secret} is in {place}: {said}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_tokens_and_bodies_are_told_to_nobody() {
    let (upstream, folder) = (Upstream::start().await, tempfile::tempdir().unwrap());
    let (store, secrets) = (sqlite(folder.path()), Secrets::new());
    let proxy = Program::start(&upstream.address, &store, "wait = \"0s\"");
    let first = secrets.send(&proxy, "/echo", "").await;
    assert!(first.text().contains(&secrets.token), "the upstream has it: {first:?}");
    assert!(secrets.send(&proxy, "/echo", "").await.is_replayed());
    assert_eq!(secrets.send(&proxy, "/echo", "other").await.problem(), "key-reused");
    let running = proxy.client.open(secrets.words("/gated", "").as_bytes()).await;
    upstream.until_taken(2).await;
    assert_eq!(secrets.send(&proxy, "/gated", "").await.problem(), "in-progress");
    assert_eq!(secrets.send(&proxy, "/lost", "").await.problem(), "upstream-lost");
    let long =
        Secrets { key: secrets.key.repeat(10), token: secrets.token.clone(), ..Secrets::new() };
    assert_eq!(long.send(&proxy, "/echo", "").await.problem(), "key-invalid");

    let metrics = proxy.admin.get("/metrics").await;
    assert!(metrics.text().contains("outcome=\"replayed\""), "{metrics:?}");
    secrets.are_not_in("the metrics", metrics.text());
    let (list, hashes) = (["list", "--store", &store], hashes(&store));
    assert_eq!(hashes.len(), 3, "stored, running, abandoned: {hashes:?}");
    secrets.are_not_in("the list", &printed(&list));
    for hash in &hashes {
        for format in ["text", "json"] {
            let show = ["show", hash, "--store", &store, "--output", format];
            secrets.are_not_in("what is shown", &printed(&show));
        }
    }
    upstream.open_gate();
    drop(running);
    let log = proxy.log();
    assert!(hashes.iter().any(|hash| log.contains(hash.as_str())), "it tells of them: {log}");
    secrets.are_not_in("the log", &log);
}

fn printed(arguments: &[&str]) -> String {
    let output = insist(&[&["keys"], arguments].concat());
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn hashes(store: &str) -> Vec<String> {
    let page: Value =
        serde_json::from_str(&printed(&["list", "--store", store, "--output", "json"])).unwrap();
    let keys = page["keys"].as_array().unwrap();
    keys.iter().map(|key| key["key"].as_str().unwrap().to_owned()).collect()
}
