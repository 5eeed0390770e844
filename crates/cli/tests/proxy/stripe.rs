//! Stripe's own Python package, calling an API that has its keys from the proxy.

use std::process::Stdio;

use semel_testkit::proxy::Proxy;
use semel_testkit::services::python;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use super::PATIENCE;
use super::program::Program;
use super::upstream::Upstream;

/// Makes a charge for every line it reads; says which order it became, or why it did not.
const SHOP: &str = r#"
import sys, stripe
stripe.api_key, stripe.api_base = "sk_test_123", sys.argv[1]
stripe.max_network_retries, stripe.enable_telemetry = 4, False
for line in sys.stdin:
    amount, _, key = line.strip().partition(" ")
    options = {"idempotency_key": key} if key else {}
    try:
        charge = stripe.Charge.create(amount=int(amount), currency="eur", source="tok_visa", **options)
        print("order", charge["order"], flush=True)
    except stripe.StripeError as error:
        print(type(error).__name__, error.http_status, flush=True)
"#;

struct Shop {
    said: Lines<BufReader<ChildStdout>>,
    orders: ChildStdin,
    _process: Child,
}

impl Shop {
    fn open(python: &str, address: &str) -> Self {
        let mut process = Command::new(python)
            .args(["-c", SHOP, &format!("http://{address}")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let said = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { said, orders: process.stdin.take().unwrap(), _process: process }
    }

    async fn charge(&mut self, order: &str) {
        self.orders.write_all(format!("{order}\n").as_bytes()).await.unwrap();
    }

    async fn answer(&mut self) -> String {
        timeout(PATIENCE, self.said.next_line()).await.unwrap().unwrap().expect("an answer")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stripes_own_client_charges_once_although_answers_are_lost() {
    let Some(python) = python() else { return };
    let upstream = Upstream::start().await;
    let proxy = Program::start(&upstream.address, "memory:", "profile = \"stripe\"");
    let network = Proxy::start(&proxy.client.address).await;
    let mut shop = Shop::open(&python, &network.address());
    for number in 1..=3 {
        network.swallow_replies(true);
        shop.charge(&(100 + number).to_string()).await;
        upstream.until_taken(number).await;
        network.cut();
        network.swallow_replies(false);
        assert_eq!(shop.answer().await, format!("order {number}"));
        assert_eq!(upstream.taken(), number, "it was charged once");
    }
    let replayed = "semel_idempotency_requests_total{outcome=\"replayed\"}";
    assert_eq!(proxy.metric(replayed).await, 3, "it repeated each of them with its own key");

    shop.charge("100 order-7").await;
    assert_eq!(shop.answer().await, "order 4");
    shop.charge("100 order-7").await;
    assert_eq!(shop.answer().await, "order 4");
    shop.charge("200 order-7").await;
    assert_eq!(shop.answer().await, "IdempotencyError 400", "it knows our words for a reused key");
    assert_eq!(upstream.taken(), 4);
}
