//! What is said at the start about servers that may lose what they confirmed.

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};

use tokio::time::timeout;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::server::OwnServer;
use super::{PATIENCE, connect};

/// Keeps warnings.
#[derive(Clone, Default)]
struct Ear(Arc<Mutex<Vec<String>>>);

impl Subscriber for Ear {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        struct Words(String);
        impl Visit for Words {
            fn record_debug(&mut self, _: &Field, value: &dyn Debug) {
                write!(self.0, "{value:?}").unwrap();
            }
        }
        let mut words = Words(String::new());
        event.record(&mut words);
        self.0.lock().unwrap().push(words.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[tokio::test]
async fn a_server_that_may_lose_events_is_warned_of_once() {
    let Some(server) = OwnServer::start(&["--appendonly", "yes"]).await else { return };
    let reader = server.reader().await;
    let ear = Ear::default();
    let _listening = tracing::subscriber::set_default(ear.clone());
    let heard = || std::mem::take(&mut *ear.0.lock().unwrap());

    connect(server.config()).await.unwrap();
    assert_eq!(heard(), [""; 0], "it is safe");

    reader.set("maxmemory-policy", "allkeys-lru").await;
    connect(server.config()).await.unwrap();
    let words = heard();
    assert!(words.len() == 1 && words[0].contains("evicts"), "{words:?}");
    assert!(!words[0].contains("crash"), "{words:?}");

    reader.set("appendonly", "no").await;
    connect(server.config()).await.unwrap();
    let words = heard();
    assert!(words.len() == 1 && words[0].contains("evicts"), "{words:?}");
    assert!(words[0].contains("appendonly"), "{words:?}");
}

/// Every key has an expiry, so that the policies that spare streams do not spare keys.
#[tokio::test]
async fn a_server_that_may_lose_keys_is_warned_of_once() {
    let settings = ["--appendonly", "yes", "--maxmemory-policy", "volatile-lru"];
    let Some(server) = OwnServer::start(&settings).await else { return };
    let ear = Ear::default();
    let _listening = tracing::subscriber::set_default(ear.clone());
    connect(server.config()).await.unwrap();
    assert_eq!(*ear.0.lock().unwrap(), [""; 0], "streams are safe");
    timeout(PATIENCE, server.config().connect_keys()).await.expect("an answer").unwrap();
    let words = ear.0.lock().unwrap();
    assert!(words.len() == 1 && words[0].contains("evicts keys"), "{words:?}");
}
