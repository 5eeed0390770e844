//! A server with settings of the test's own.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use redis::{Cmd, cmd};
use semel_backends::redis::RedisConfig;
use semel_testkit::services::{Service, service};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::{BRIEFLY, PATIENCE, Reader};

/// Gone with this value.
pub(super) struct OwnServer {
    process: Child,
    settings: Vec<String>,
    port: u16,
    bus_port: u16,
    folder: TempDir,
}

impl OwnServer {
    /// Starts one with settings as on the command line of `redis-server`.
    pub(super) async fn start(settings: &[&str]) -> Option<Self> {
        service(Service::Redis)?;
        let folder = tempfile::tempdir().unwrap();
        let (port, bus_port) = (free_port(), free_port());
        let mut settings: Vec<_> = settings.iter().map(|&word| word.to_owned()).collect();
        if settings.iter().any(|word| word == "--cluster-enabled") {
            settings.extend(["--cluster-port".into(), bus_port.to_string()]);
        }
        let process = spawn(port, &folder, &settings);
        let server = Self { process, settings, port, bus_port, folder };
        server.until_it_listens().await;
        Some(server)
    }

    /// Ends it as a crash would, and starts it again with its data.
    pub(super) async fn restart(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        self.process = spawn(self.port, &self.folder, &self.settings);
        self.until_it_listens().await;
    }

    pub(super) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(super) fn config(&self) -> RedisConfig {
        RedisConfig::new(&self.url()).unwrap().timeout(BRIEFLY)
    }

    pub(super) async fn reader(&self) -> Reader {
        Reader::open(&self.url()).await
    }

    /// Puts a folder where the server wants to write a file.
    pub(super) fn spoil(&self, file: &str) {
        std::fs::create_dir(self.folder.path().join(file)).unwrap();
    }

    /// The command by which another node of a cluster meets this one.
    pub(super) fn meeting(&self) -> Cmd {
        let mut command = cmd("CLUSTER");
        command.arg("MEET").arg("127.0.0.1").arg(self.port).arg(self.bus_port);
        command
    }

    async fn until_it_listens(&self) {
        let up = async {
            while TcpStream::connect(("127.0.0.1", self.port)).await.is_err() {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(PATIENCE, up).await.expect("it listens");
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

fn spawn(port: u16, folder: &TempDir, settings: &[String]) -> Child {
    Command::new("redis-server")
        .args(["--bind", "127.0.0.1", "--save", "", "--port", &port.to_string(), "--dir"])
        .arg(folder.path())
        .args(settings)
        .stdout(Stdio::null())
        .spawn()
        .expect("redis-server starts")
}

pub(super) fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
