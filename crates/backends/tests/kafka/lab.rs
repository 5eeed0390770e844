//! A broker with many doors: connections that can be cut, users, encryption.
//!
//! A client of Kafka goes where the broker says it lives. So a proxy works only if the broker
//! advertises it: each proxy has a listener of its own.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use semel_testkit::proxy::Proxy;
use semel_testkit::services::{Service, service};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// A broker that all tests share while any of them holds it.
pub(crate) struct Lab {
    folder: TempDir,
    doors: Vec<Proxy>,
    used: AtomicUsize,
    pub(crate) plain: String,
    #[cfg(feature = "tls")]
    pub(crate) sasl: String,
    #[cfg(feature = "tls")]
    pub(crate) tls: String,
    /// Carries the proxies.
    runtime: Option<Runtime>,
}

const DOORS: usize = 40;

impl Lab {
    /// The lab; nothing when there is no Kafka here.
    pub(crate) async fn open() -> Option<Arc<Self>> {
        static SHARED: Mutex<Weak<Lab>> = Mutex::new(Weak::new());
        service(Service::Kafka)?;
        // It blocks, and starts a runtime.
        let opened = tokio::task::spawn_blocking(|| {
            let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
            let lab = shared.upgrade().unwrap_or_else(|| Arc::new(Self::start()));
            *shared = Arc::downgrade(&lab);
            lab
        });
        Some(opened.await.unwrap())
    }

    /// The number of a door that nobody has used yet.
    pub(crate) fn next_door(&self) -> usize {
        self.used.fetch_add(1, Ordering::Relaxed)
    }

    /// A way to the broker that can be cut.
    pub(crate) fn door(&self, number: usize) -> &Proxy {
        self.doors.get(number).expect("DOORS is too small")
    }

    /// The certificate of the broker, which signed itself.
    #[cfg(feature = "tls")]
    pub(crate) fn certificate(&self) -> std::path::PathBuf {
        self.folder.path().join("broker.pem")
    }

    fn start() -> Self {
        let folder = TempDir::with_prefix("semel-kafka-lab-").unwrap();
        let runtime = Runtime::new().unwrap();
        // All are held until the proxies have theirs, so that none comes twice.
        let held: Vec<_> = (0..DOORS + 2).map(|_| listener()).collect();
        let ports: Vec<_> = held.iter().map(|it| it.local_addr().unwrap().port()).collect();
        let doors: Vec<_> = ports[2..]
            .iter()
            .map(|port| runtime.block_on(Proxy::start(format!("127.0.0.1:{port}"))))
            .collect();
        drop(held);
        make_certificate(folder.path());
        let properties = folder.path().join("lab.properties");
        fs::write(&properties, self::properties(folder.path(), &ports, &doors)).unwrap();
        let started = run("start", folder.path());
        let said = String::from_utf8_lossy(&started.stderr);
        assert!(started.status.success(), "the lab did not start: {said}");
        let plain = fs::read_to_string(folder.path().join("kafka/address")).unwrap();
        Self {
            plain: plain.trim().to_owned(),
            #[cfg(feature = "tls")]
            sasl: format!("127.0.0.1:{}", ports[0]),
            #[cfg(feature = "tls")]
            tls: format!("127.0.0.1:{}", ports[1]),
            folder,
            doors,
            used: AtomicUsize::new(0),
            runtime: Some(runtime),
        }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        run("stop", self.folder.path());
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn run(action: &str, folder: &Path) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/server");
    Command::new(script)
        .args(["kafka", action])
        .arg(folder)
        .env_remove(Service::Kafka.variable())
        .env("SEMEL_KAFKA_PROPERTIES", folder.join("lab.properties"))
        .output()
        .expect("scripts/server runs")
}

fn properties(folder: &Path, ports: &[u16], doors: &[Proxy]) -> String {
    let mut listeners =
        String::from("PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}");
    let mut advertised = String::from("PLAINTEXT://127.0.0.1:{port}");
    let mut protocols = String::from("PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT");
    let secured = [("SASL", "SASL_PLAINTEXT"), ("TLS", "SSL")];
    for ((name, protocol), port) in secured.iter().zip(ports) {
        listeners += &format!(",{name}://127.0.0.1:{port}");
        advertised += &format!(",{name}://127.0.0.1:{port}");
        protocols += &format!(",{name}:{protocol}");
    }
    for (number, (door, port)) in doors.iter().zip(&ports[2..]).enumerate() {
        listeners += &format!(",DOOR{number}://127.0.0.1:{port}");
        advertised += &format!(",DOOR{number}://{}", door.address());
        protocols += &format!(",DOOR{number}:PLAINTEXT");
    }
    let login = "org.apache.kafka.common.security";
    format!(
        "listeners={listeners}\n\
         advertised.listeners={advertised}\n\
         listener.security.protocol.map={protocols}\n\
         inter.broker.listener.name=PLAINTEXT\n\
         num.network.threads=1\n\
         authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n\
         super.users=User:ANONYMOUS;User:admin;User:scram;User:CN=127.0.0.1\n\
         listener.name.sasl.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256\n\
         listener.name.sasl.plain.sasl.jaas.config={login}.plain.PlainLoginModule required \
         user_admin=\"admin-secret\" user_nobody=\"nobody-secret\";\n\
         listener.name.sasl.scram-sha-256.sasl.jaas.config={login}.scram.ScramLoginModule required;\n\
         listener.name.tls.ssl.keystore.type=PKCS12\n\
         listener.name.tls.ssl.keystore.location={0}/broker.p12\n\
         listener.name.tls.ssl.keystore.password=changeit\n",
        folder.display()
    )
}

/// With the tool that comes with Java, which the broker needs anyway.
fn make_certificate(folder: &Path) {
    let keytool = |arguments: &str| {
        let mut tool = Command::new("keytool");
        tool.current_dir(folder).args(arguments.split_whitespace());
        let made = tool.output().expect("keytool runs");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stdout));
    };
    let store = "-keystore broker.p12 -storetype PKCS12 -storepass changeit -alias broker";
    keytool(&format!(
        "-genkeypair {store} -keyalg EC -dname CN=127.0.0.1 -ext san=ip:127.0.0.1 -validity 2"
    ));
    keytool(&format!("-exportcert -rfc {store} -file broker.pem"));
}

fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}
