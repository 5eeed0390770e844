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

use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
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
    /// Encrypted, for users with a password.
    #[cfg(feature = "tls")]
    pub(crate) sasl_tls: String,
    /// Encrypted, for users with a certificate.
    #[cfg(feature = "tls")]
    pub(crate) certified: String,
    /// Carries the proxies.
    runtime: Option<Runtime>,
}

const DOORS: usize = 40;
/// What needs no proxy: the name of the listener, and its protocol.
const SECURED: [(&str, &str); 4] =
    [("SASL", "SASL_PLAINTEXT"), ("TLS", "SSL"), ("SASLTLS", "SASL_SSL"), ("CERTIFIED", "SSL")];

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

    /// A file: `broker.pem` is the certificate of the broker, which signed itself; `relay.pem` with
    /// `relay.key` is one that it trusts, and `stranger` one that it does not.
    #[cfg(feature = "tls")]
    pub(crate) fn file(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    /// Gives the user `clerk` permissions, as `kafka-acls.sh` writes them.
    #[cfg(feature = "tls")]
    pub(crate) fn allow_clerk(&self, permissions: &[&str]) {
        let tool = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/kafka/kafka-acls.sh");
        let allowed = Command::new(tool)
            .args(["--bootstrap-server", &self.plain, "--add", "--allow-principal", "User:clerk"])
            .args(permissions)
            .output()
            .expect("kafka-acls.sh runs");
        assert!(allowed.status.success(), "{}", String::from_utf8_lossy(&allowed.stderr));
    }

    fn start() -> Self {
        let folder = TempDir::with_prefix("semel-kafka-lab-").unwrap();
        let runtime = Runtime::new().unwrap();
        // All are held until the proxies have theirs, so that none comes twice.
        let held: Vec<_> = (0..DOORS + SECURED.len()).map(|_| listener()).collect();
        let ports: Vec<_> = held.iter().map(|it| it.local_addr().unwrap().port()).collect();
        let doors: Vec<_> = ports[SECURED.len()..]
            .iter()
            .map(|port| runtime.block_on(Proxy::start(format!("127.0.0.1:{port}"))))
            .collect();
        drop(held);
        make_certificates(folder.path());
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
            #[cfg(feature = "tls")]
            sasl_tls: format!("127.0.0.1:{}", ports[2]),
            #[cfg(feature = "tls")]
            certified: format!("127.0.0.1:{}", ports[3]),
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
    for ((name, protocol), port) in SECURED.iter().zip(ports) {
        listeners += &format!(",{name}://127.0.0.1:{port}");
        advertised += &format!(",{name}://127.0.0.1:{port}");
        protocols += &format!(",{name}:{protocol}");
    }
    for (number, (door, port)) in doors.iter().zip(&ports[SECURED.len()..]).enumerate() {
        listeners += &format!(",DOOR{number}://127.0.0.1:{port}");
        advertised += &format!(",DOOR{number}://{}", door.address());
        protocols += &format!(",DOOR{number}:PLAINTEXT");
    }
    let mut properties = format!(
        "listeners={listeners}\n\
         advertised.listeners={advertised}\n\
         listener.security.protocol.map={protocols}\n\
         inter.broker.listener.name=PLAINTEXT\n\
         num.network.threads=1\n\
         authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n\
         super.users=User:ANONYMOUS;User:admin;User:scram;User:CN=relay\n\
         listener.name.certified.ssl.client.auth=required\n\
         listener.name.certified.ssl.truststore.type=PKCS12\n\
         listener.name.certified.ssl.truststore.location={0}/trusted.p12\n\
         listener.name.certified.ssl.truststore.password=changeit\n",
        folder.display()
    );
    for name in ["sasl", "sasltls"] {
        let login = "org.apache.kafka.common.security";
        properties += &format!(
            "listener.name.{name}.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512\n\
             listener.name.{name}.plain.sasl.jaas.config={login}.plain.PlainLoginModule required \
             user_admin=\"admin-secret\" user_nobody=\"nobody-secret\" \
             user_clerk=\"clerk-secret\";\n"
        );
        for scram in ["scram-sha-256", "scram-sha-512"] {
            let module = format!("{login}.scram.ScramLoginModule required;");
            properties += &format!("listener.name.{name}.{scram}.sasl.jaas.config={module}\n");
        }
    }
    for name in ["tls", "sasltls", "certified"] {
        properties += &format!(
            "listener.name.{name}.ssl.keystore.type=PKCS12\n\
             listener.name.{name}.ssl.keystore.location={}/broker.p12\n\
             listener.name.{name}.ssl.keystore.password=changeit\n",
            folder.display()
        );
    }
    properties
}

/// With the tool that comes with Java, which the broker needs anyway. The relay's certificate has
/// signed itself, and the broker trusts it.
fn make_certificates(folder: &Path) {
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
    make_identity(folder, "relay");
    make_identity(folder, "stranger");
    keytool(
        "-importcert -noprompt -keystore trusted.p12 -storetype PKCS12 -storepass changeit \
         -alias relay -file relay.pem",
    );
}

/// Makes `<name>.pem` and `<name>.key`.
fn make_identity(folder: &Path, name: &str) {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name = DistinguishedName::new();
    parameters.distinguished_name.push(DnType::CommonName, name);
    let key = KeyPair::generate().unwrap();
    let certificate = parameters.self_signed(&key).unwrap();
    fs::write(folder.join(format!("{name}.pem")), certificate.pem()).unwrap();
    fs::write(folder.join(format!("{name}.key")), key.serialize_pem()).unwrap();
}

fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}
