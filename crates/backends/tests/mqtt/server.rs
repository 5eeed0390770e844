//! Brokers of the test's own: a Mosquitto with other settings, and one that answers by a script.

use std::collections::HashMap;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::BytesMut;
use rumqttc::v5::mqttbytes::v5::Packet;
use semel_backends::mqtt::MqttConfig;
use semel_core::Secret;
use semel_testkit::services::{Service, service};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::{BRIEFLY, PATIENCE};

/// A Mosquitto with settings of the test's own; gone with this value.
pub(super) struct OwnServer {
    process: Child,
    pub(super) address: String,
    _folder: TempDir,
}

impl OwnServer {
    /// Starts one with lines of `mosquitto.conf`; `FOLDER` is a folder of its own.
    pub(super) async fn start(settings: &str) -> Option<Self> {
        Self::start_in(tempfile::tempdir().unwrap(), settings).await
    }

    /// One with the user `shop`, password `secret`, who may write to `allowed` alone.
    pub(super) async fn with_users() -> Option<Self> {
        service(Service::Mqtt)?;
        let folder = tempfile::tempdir().unwrap();
        let (users, rules) = (folder.path().join("users"), folder.path().join("rules"));
        let made = Command::new("mosquitto_passwd")
            .args(["-b", "-c"])
            .arg(&users)
            .args(["shop", "secret"])
            .status();
        assert!(made.expect("mosquitto_passwd runs").success());
        std::fs::write(&rules, "user shop\ntopic readwrite allowed\n").unwrap();
        let settings = "allow_anonymous false\npassword_file FOLDER/users\nacl_file FOLDER/rules";
        Self::start_in(folder, settings).await
    }

    async fn start_in(folder: TempDir, settings: &str) -> Option<Self> {
        service(Service::Mqtt)?;
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let file = folder.path().join("mosquitto.conf");
        let anonymous =
            if settings.contains("allow_anonymous") { "" } else { "allow_anonymous true\n" };
        let settings = settings.replace("FOLDER", &folder.path().display().to_string());
        // It runs as a user of its own if it was started as root.
        let user = "user root\n";
        let lines = format!("{user}listener {} 127.0.0.1\n{anonymous}{settings}\n", free.port());
        std::fs::write(&file, lines).unwrap();
        let process = Command::new("mosquitto")
            .arg("-c")
            .arg(file)
            .env("PATH", format!("{}:/usr/sbin", std::env::var("PATH").unwrap()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("mosquitto starts");
        let server = Self { process, address: free.to_string(), _folder: folder };
        let up = async {
            while TcpStream::connect(&server.address).await.is_err() {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(PATIENCE, up).await.expect("it listens");
        Some(server)
    }

    pub(super) fn config(&self) -> MqttConfig {
        MqttConfig::new(&format!("mqtt://{}", self.address)).unwrap().timeout(BRIEFLY)
    }

    pub(super) fn login(&self, user: &str, password: &str) -> MqttConfig {
        self.config().credentials(user, Secret::new(password))
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// Not a broker: it speaks just enough MQTT 5 to answer with what no Mosquitto can be made to say.
pub(super) struct Scripted {
    address: String,
    heard: Arc<Heard>,
    task: JoinHandle<()>,
}

/// What it was told, in the order in which it came.
#[derive(Default)]
struct Heard {
    names: Mutex<Vec<String>>,
    topics: Mutex<Vec<String>>,
}

/// What it answers.
#[derive(Clone, Default)]
pub(super) struct Script {
    /// Instead of a CONNACK that says yes.
    pub(super) greeting: Option<&'static [u8]>,
    /// The reason in the PUBACK to messages of this topic; others are taken.
    pub(super) reasons: HashMap<&'static str, u8>,
    /// Messages of this topic end the connection with this reason.
    pub(super) ends: Option<(&'static str, u8)>,
    /// How long it takes to answer a ping.
    pub(super) dawdles: Duration,
}

impl Scripted {
    pub(super) async fn start(script: Script) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let heard = Arc::default();
        let task = tokio::spawn({
            let heard = Arc::clone(&heard);
            async move {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(converse(stream, script.clone(), Arc::clone(&heard)));
                }
            }
        });
        Self { address, heard, task }
    }

    pub(super) fn config(&self) -> MqttConfig {
        MqttConfig::new(&format!("mqtt://{}", self.address)).unwrap().timeout(BRIEFLY)
    }

    /// The topics of all messages, in the order in which they came.
    pub(super) fn received(&self) -> Vec<String> {
        self.heard.topics.lock().unwrap().clone()
    }

    /// The names under which somebody connected.
    pub(super) fn names(&self) -> Vec<String> {
        self.heard.names.lock().unwrap().clone()
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn converse(mut stream: TcpStream, script: Script, heard: Arc<Heard>) {
    let mut input = BytesMut::new();
    loop {
        while let Ok(packet) = Packet::read(&mut input, None) {
            let answer = match packet {
                Packet::Connect(connect, ..) => {
                    heard.names.lock().unwrap().push(connect.client_id);
                    script.greeting.unwrap_or(&[0x20, 3, 0, 0, 0]).to_vec()
                }
                Packet::PingReq(_) => {
                    sleep(script.dawdles).await;
                    vec![0xd0, 0]
                }
                Packet::Publish(publish) => {
                    let topic = String::from_utf8_lossy(&publish.topic).into_owned();
                    heard.topics.lock().unwrap().push(topic.clone());
                    match script.ends {
                        Some((last, reason)) if topic == last => vec![0xe0, 2, reason, 0],
                        _ => {
                            let reason = script.reasons.get(&*topic).copied().unwrap_or(0);
                            let [high, low] = publish.pkid.to_be_bytes();
                            vec![0x40, 4, high, low, reason, 0]
                        }
                    }
                }
                _ => return,
            };
            if stream.write_all(&answer).await.is_err() {
                return;
            }
        }
        if !matches!(stream.read_buf(&mut input).await, Ok(1..)) {
            return;
        }
    }
}
