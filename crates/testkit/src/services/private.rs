//! A server that belongs to one test, which may do anything to it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{fs, io};

use tempfile::TempDir;

use super::{Service, report_missing};

/// A server of the test's own: it can be killed, frozen and started again, and is gone with this
/// value.
///
/// ```no_run
/// # use semel_testkit::services::{Private, Service};
/// let Some(server) = Private::start(Service::Redis) else { return };
/// server.kill();
/// server.restart();
/// println!("it is back at {}", server.address());
/// ```
#[derive(Debug)]
pub struct Private {
    service: Service,
    folder: TempDir,
    address: String,
}

impl Private {
    /// Starts one; nothing when it cannot be had here, which is reported as by
    /// [`service`](super::service()).
    ///
    /// # Panics
    /// When its programs are there and it does not start, or when `CI` is `true` and it is missing.
    #[must_use]
    pub fn start(service: Service) -> Option<Self> {
        Self::start_with(service, &[])
    }

    /// The same, with further options at the end of its command line.
    ///
    /// ```no_run
    /// # use semel_testkit::services::{Private, Service};
    /// let server = Private::start_with(Service::Mysql, &["--skip-log-bin"]);
    /// ```
    ///
    /// # Panics
    /// As [`start`](Self::start) does.
    #[must_use]
    pub fn start_with(service: Service, options: &[&str]) -> Option<Self> {
        let options = options.join(" ");
        Self::start_in(service, &[("SEMEL_SERVER_OPTIONS", options.as_str())])
    }

    /// The same, with further variables of the environment, as the service's script knows them.
    ///
    /// ```no_run
    /// # use semel_testkit::services::{Private, Service};
    /// let server = Private::start_in(Service::Kafka, &[("SEMEL_KAFKA_JVM", "-XX:+UseSerialGC")]);
    /// ```
    ///
    /// # Panics
    /// As [`start`](Self::start) does.
    #[must_use]
    pub fn start_in(service: Service, variables: &[(&str, &str)]) -> Option<Self> {
        let folder = readable_folder().expect("a folder for the server");
        let started = command(service, "start", folder.path())
            .envs(variables.iter().copied())
            .output()
            .expect("scripts/server runs");
        let warning = String::from_utf8_lossy(&started.stderr).into_owned();
        if warning.contains("is missing") {
            report_missing(service.as_str(), warning.trim());
            return None;
        }
        assert!(started.status.success(), "{} did not start: {warning}", service.as_str());
        let mut server = Self { service, folder, address: String::new() };
        let address = fs::read_to_string(server.folder().join("address")).expect("its address");
        address.trim().clone_into(&mut server.address);
        Some(server)
    }

    /// Its address, in the form of [`Service::variable`].
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Where its data and its settings are.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        self.folder.path().join(self.service.as_str())
    }

    /// Kills it as a crash would.
    pub fn kill(&self) {
        self.run("crash");
    }

    /// Stops its processes where they are: connections stay open, and nothing answers.
    pub fn freeze(&self) {
        self.run("freeze");
    }

    /// Lets frozen processes go on.
    pub fn thaw(&self) {
        self.run("thaw");
    }

    /// From now on none of its files can grow beyond this many bytes: to it that is a disk that takes
    /// no more. Ends with its process.
    ///
    /// # Panics
    /// When `prlimit` is not there, or fails.
    pub fn limit_files(&self, bytes: u64) {
        let process = fs::read_to_string(self.folder().join("pid")).expect("its process id");
        let limited = Command::new("prlimit")
            .args(["--pid", process.trim(), &format!("--fsize={bytes}:")])
            .status()
            .expect("prlimit runs");
        assert!(limited.success(), "{limited}");
    }

    /// Ends it if it still runs, and starts it again with its data, at the same address.
    pub fn restart(&self) {
        self.run("restart");
    }

    fn run(&self, action: &str) {
        let done = run(self.service, action, self.folder.path());
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{action} {}: {said}", self.service.as_str());
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        run(self.service, "stop", self.folder.path());
    }
}

fn run(service: Service, action: &str, folder: &Path) -> Output {
    command(service, action, folder).output().expect("scripts/server runs")
}

fn command(service: Service, action: &str, folder: &Path) -> Command {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/server");
    let mut command = Command::new(script);
    command.args([service.as_str(), action]).arg(folder).env_remove(service.variable());
    command
}

/// Some servers run as a user of their own, who must be able to enter the folder.
fn readable_folder() -> io::Result<TempDir> {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::Builder::new().prefix("semel-server-").tempdir()?;
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
    Ok(folder)
}
