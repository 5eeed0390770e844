//! What is said on the command line and in the file is what it does.

use std::process::Command;

use super::program::{Program, command};
use super::upstream::Upstream;

const ROUTES: &str = r#"
keep = "1h"
[proxy.route.payments]
path = "/payments/**"
key = "required"
key_format = "uuid"
[proxy.route.legacy]
path = "/legacy/*"
profile = "stripe"
[proxy.route.hooks]
path = "/hooks"
key = "ignored"
"#;

#[tokio::test(flavor = "multi_thread")]
async fn routes_have_rules_of_their_own() {
    let upstream = Upstream::start().await;
    let proxy = Program::start(&upstream.address, "memory:", ROUTES);
    let client = &proxy.client;
    assert_eq!(client.post("/payments/1", None, "1").await.problem(), "key-missing");
    assert_eq!(client.post("/payments/1", Some("k"), "1").await.problem(), "key-invalid");
    assert_eq!(upstream.taken(), 0);
    assert_eq!(client.post("/orders", None, "1").await.status, 201);
    client.post("/legacy/a", Some("k"), "1").await;
    let reused = client.post("/legacy/a", Some("k"), "2").await;
    assert_eq!(reused.status, 400);
    assert!(reused.text().contains("idempotency_error"), "{reused:?}");
    for number in 3..5 {
        let reply = client.post("/hooks", Some("k"), "1").await;
        assert_eq!(reply.text(), format!("{{\"order\":{number}}}"), "keys mean nothing here");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn observing_holds_nothing_back() {
    let upstream = Upstream::start().await;
    let proxy = Program::with(&upstream.address, "memory:", ROUTES, &["--observe"]);
    let client = &proxy.client;
    for body in ["1", "1", "2"] {
        let reply = client.post("/orders", Some("k"), body).await;
        assert_eq!((reply.status, reply.is_replayed()), (201, false));
    }
    assert_eq!(client.post("/payments/1", None, "1").await.status, 201);
    assert_eq!(upstream.taken(), 4);
    for outcome in ["executed", "replayed", "mismatch", "rejected"] {
        let name = format!("semel_idempotency_observed_total{{outcome=\"{outcome}\"}}");
        assert_eq!(proxy.metric(&name).await, 1, "{outcome}");
    }
    assert!(proxy.log().contains("it would be refused: key-missing"), "{}", proxy.log());
    assert!(!proxy.log().contains("acme"));
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_do_not_share_keys() {
    let upstream = Upstream::start().await;
    let proxy = Program::start(&upstream.address, "memory:", "");
    let request = super::client::post("/orders", Some("k"), "1");
    let (acme, globex) = (request.clone(), request.replace("acme", "globex"));
    let nobody = request.replace("authorization: acme\r\n", "");
    assert_eq!(proxy.client.ask(&acme).await.text(), "{\"order\":1}");
    assert_eq!(proxy.client.ask(&globex).await.text(), "{\"order\":2}");
    assert_eq!(proxy.client.ask(&nobody).await.problem(), "caller-unknown");
    assert!(proxy.client.ask(&acme).await.is_replayed());
}

#[tokio::test(flavor = "multi_thread")]
async fn health_and_outcomes_can_be_asked_for() {
    let upstream = Upstream::start().await;
    let proxy = Program::start(&upstream.address, "memory:", "");
    assert_eq!(proxy.admin.get("/livez").await.text(), "alive\n");
    assert_eq!(proxy.admin.get("/readyz").await.text(), "ready\n");
    assert_eq!(proxy.client.get("/livez").await.status, 201, "the upstream's own");
    proxy.client.post("/orders", Some("k"), "1").await;
    proxy.client.post("/orders", Some("k"), "1").await;
    proxy.client.post("/status/503", Some("k"), "1").await;
    for (outcome, count) in [("executed", 1), ("replayed", 1), ("released", 1)] {
        let name = format!("semel_idempotency_requests_total{{outcome=\"{outcome}\"}}");
        assert_eq!(proxy.metric(&name).await, count, "{outcome}");
    }
    assert_eq!(proxy.metric("semel_proxy_requests_total{class=\"2xx\"}").await, 3);
    assert_eq!(proxy.metric("semel_proxy_requests_total{class=\"5xx\"}").await, 1);
}

#[test]
fn what_is_missing_or_wrong_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_path_buf();
    let upstream = ["--upstream", "http://127.0.0.1:1"];
    let scope = ["--scope", "single-tenant"];
    let store = ["--store", "memory:"];
    let cases: [(&[&[&str]], i32, &str); 7] = [
        (&[], 64, "--upstream http://127.0.0.1:3000"),
        (&[&upstream, &store], 64, "--scope header:Authorization"),
        (&[&upstream, &scope], 64, "--store redis://"),
        (&[&["--upstream", "ftp://a"], &scope, &store], 64, "E-PROXY-UPSTREAM"),
        (&[&upstream, &store, &["--scope", "tenant"]], 64, "is no scope"),
        (&[&upstream, &scope, &store, &["--admin", "0.0.0.0:0"]], 64, "--admin-open"),
        (&[&upstream, &scope, &["--store", "ftp://a"]], 78, "E-STORE-URL"),
    ];
    for (arguments, code, words) in cases {
        let output = command(&path).args(arguments.concat()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(words), "{arguments:?}: {said}");
    }
    let wrong = "[proxy]\nencryption_keys = \"hunter2\"\n[proxy.route.a]\nkee = \"1h\"\n";
    std::fs::write(folder.path().join("semel.toml"), wrong).unwrap();
    let output = command(&path).args(["--config", "semel.toml"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(78), "{said}");
    assert!(said.contains("\"path\"") && said.contains("\"kee\""), "{said}");
    assert!(said.contains("encryption_keys") && !said.contains("hunter2"), "{said}");
    // What the file lacks may come from the command line.
    std::fs::write(folder.path().join("semel.toml"), "[proxy]\nadmin = \"0.0.0.0:0\"\n").unwrap();
    let told = "--upstream http://";
    for (more, code, words) in [
        (&[][..], 78, "admin_open = true"),
        (&["--admin-open"], 64, told),
        (&["--admin", "127.0.0.1:0"], 64, told),
    ] {
        let output = command(&path).args(["--config", "semel.toml"]).args(more).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(words), "{said}");
    }
}

/// The old key reads until it is taken away; nothing is run again for what it wrote.
#[tokio::test(flavor = "multi_thread")]
async fn answers_are_encrypted_and_the_key_can_be_changed() {
    const OLD: &str = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";
    const NEW: &str = "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=";
    const KEY: &str = "a-key-that-is-found-wherever-it-is-written";
    let folder = tempfile::tempdir().unwrap();
    let (database, secrets) = (folder.path().join("keys.db"), folder.path().join("secrets"));
    let store = format!("sqlite://{}", database.display());
    migrate_up(&store, folder.path());
    let upstream = Upstream::start().await;
    let more = format!("encryption_keys_file = \"{}\"", secrets.display());
    for (keys, status) in
        [(OLD.to_owned(), 201), (format!("{NEW}\n{OLD}\n"), 201), (NEW.to_owned(), 409)]
    {
        std::fs::write(&secrets, keys).unwrap();
        let proxy = Program::start(&upstream.address, &store, &more);
        assert_eq!(proxy.client.post("/orders", Some(KEY), "1").await.status, status);
        let again = proxy.client.post("/orders", Some(KEY), "1").await;
        assert_eq!((again.status, again.is_replayed()), (status, status == 201));
        if status == 409 {
            assert_eq!(again.problem(), "not-retained");
        }
        assert!(!proxy.log().contains(OLD) && !proxy.log().contains(NEW));
    }
    assert_eq!(upstream.taken(), 1);
    for file in std::fs::read_dir(folder.path()).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        for secret in ["\"order\"", KEY] {
            assert!(!bytes.windows(secret.len()).any(|part| part == secret.as_bytes()), "{secret}");
        }
    }
}

fn migrate_up(database: &str, folder: &std::path::Path) {
    let up = Command::new(env!("CARGO_BIN_EXE_semel"))
        .args(["migrate", "up", "--database", database])
        .current_dir(folder)
        .status()
        .unwrap();
    assert!(up.success());
}

#[test]
fn tables_that_are_missing_are_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("keys.db"), "").unwrap();
    let output = command(&folder.path().to_path_buf())
        .args(["--upstream", "http://127.0.0.1:1", "--scope", "single-tenant"])
        .args(["--store", "sqlite://keys.db"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(78), "{said}");
    assert!(said.contains("semel migrate up"), "{said}");
    migrate_up("sqlite://keys.db", folder.path());
}
