//! TLS on both sides: one proxy shows a certificate, another one in front of it checks it.

use std::path::Path;

use rcgen::{CertifiedKey, generate_simple_self_signed};

use super::client::{Client, post, read};
use super::program::Program;
use super::upstream::Upstream;

/// A certificate for this host, and its key, in files.
fn certificate(folder: &Path, host: &str) -> [String; 2] {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed([host.to_owned()]).unwrap();
    let files = ["certificate", "key"].map(|name| folder.join(format!("{host}.{name}")));
    std::fs::write(&files[0], cert.pem()).unwrap();
    std::fs::write(&files[1], signing_key.serialize_pem()).unwrap();
    files.map(|path| path.display().to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_is_shown_and_checked() {
    let folder = tempfile::tempdir().unwrap();
    let [shown, key] = certificate(folder.path(), "localhost");
    let [other, _] = certificate(folder.path(), "other.example");
    let upstream = Upstream::start().await;
    let identity = ["--certificate-file", &shown, "--key-file", &key];
    let secured = Program::with(&upstream.address, "memory:", "", &identity);
    let (_, port) = secured.client.address.rsplit_once(':').unwrap();
    let url = format!("https://localhost:{port}");

    for (key, more) in [("k1", ""), ("k2", "upstream_http2 = true")] {
        let trusting = Program::with(&url, "memory:", more, &["--ca-file", &shown]);
        let before = upstream.taken();
        let first = trusting.client.post("/orders", Some(key), "{}").await;
        assert_eq!(first.status, 201, "{first:?}: {}", trusting.log());
        assert!(trusting.client.post("/orders", Some(key), "{}").await.is_replayed());
        assert_eq!(upstream.taken(), before + 1);
    }
    let taken = upstream.taken();
    let by_address = format!("https://127.0.0.1:{port}");
    for (url, ca) in [(&url, &other), (&by_address, &shown)] {
        let wary = Program::with(url, "memory:", "", &["--ca-file", ca]);
        let refused = wary.client.post("/orders", Some("w"), "{}").await;
        assert_eq!((refused.status, refused.problem()), (502, "upstream-unreachable"));
    }
    let plain = Client::new(secured.client.address.clone());
    assert_eq!(read(&plain.say(post("/orders", None, "{}").as_bytes()).await), None);
    assert_eq!(upstream.taken(), taken, "nothing was sent");
}

#[test]
fn a_certificate_that_cannot_be_used_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let [shown, _] = certificate(folder.path(), "localhost");
    let [_, key] = certificate(folder.path(), "other.example");
    let cases = [
        (vec!["--certificate-file", &shown, "--key-file", &key], "E-PROXY-CERTIFICATE"),
        (vec!["--certificate-file", &key, "--key-file", &key], "E-PROXY-CERTIFICATE"),
        (vec!["--certificate-file", "absent", "--key-file", &key], "E-PROXY-FILE"),
        (vec!["--ca-file", &key], "E-PROXY-CA"),
    ];
    for (arguments, code) in cases {
        let output = super::program::command(&folder.path().to_path_buf())
            .args(["--upstream", "https://localhost:1", "--store", "memory:"])
            .args(["--scope", "single-tenant", "--listen", "127.0.0.1:0"])
            .args(&arguments)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(code), "{arguments:?}: {said}");
    }
}
