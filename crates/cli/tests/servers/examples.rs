//! The examples in other languages, run as their readers would.

use std::env;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use semel_testkit::services::Service;

use super::server::{Folder, Server};

#[test]
fn python() {
    run("python", "", &Folder::new());
}

#[tokio::test]
async fn node() {
    let Some(server) = Server::start(Service::Postgres, "node").await else { return };
    run("node", &server.url, &server);
    server.remove().await;
}

fn run(language: &str, database: &str, folder: &Folder) {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/any-language");
    let semel = Path::new(env!("CARGO_BIN_EXE_semel")).parent().unwrap().to_owned();
    let path = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths([semel].into_iter().chain(env::split_paths(&path))).unwrap();
    let [service, proxy, admin] = free_ports();
    let output = Command::new("timeout")
        .args(["120".as_ref(), example.as_os_str(), language.as_ref()])
        .current_dir(folder.file(""))
        .envs([("PORT", service), ("PROXY_PORT", proxy), ("ADMIN_PORT", admin)])
        .env("PATH", path)
        .env("DATABASE_URL", database)
        .output()
        .unwrap();
    let [said, complained] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(output.status.success(), "{}\n{said}{complained}", output.status);
    assert!(said.contains("events published:   5"), "{said}{complained}");
}

/// Held all at once, so that they differ.
fn free_ports() -> [String; 3] {
    let held = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    held.map(|listener| listener.local_addr().unwrap().port().to_string())
}
