//! The processes of the order service, what is done to them, and what its tables say.

use std::env;
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

/// For whatever takes no time.
const PATIENCE: Duration = Duration::from_secs(60);

/// The service of the example `orders`, process by process.
pub(crate) struct Shop {
    broker: &'static str,
    environment: [(&'static str, String); 4],
    folder: TempDir,
    running: Vec<Child>,
    buyer: Option<Child>,
    runtime: Runtime,
    database: PgConnection,
}

/// Counts what comes to the inboxes, and what of it had taken effect; a kill takes neither back.
const COUNTING: &str = "
create sequence arrivals;
create sequence copies;
create function count_arrival() returns trigger language plpgsql as $$
begin
    perform nextval('arrivals');
    if exists (select from semel.inbox i
        where i.consumer = new.consumer and i.message_id = new.message_id)
    then
        perform nextval('copies');
    end if;
    return new;
end $$;
create trigger count_arrival before insert on semel.inbox
    for each row execute function count_arrival()";

impl Shop {
    pub(crate) const ROLES: [&str; 5] = ["serve", "relay", "payment", "inventory", "notification"];

    pub(crate) fn open(broker: &'static str, database: &str, url: &str) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let connection = runtime.block_on(PgConnection::connect(database)).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let environment = [
            ("DATABASE_URL", database.to_owned()),
            ("BROKER_URL", url.to_owned()),
            ("PORT", port.to_string()),
            ("GONE_AFTER_MS", "1000".to_owned()),
        ];
        let folder = tempfile::tempdir().unwrap();
        let (running, buyer) = (Vec::new(), None);
        Self { broker, environment, folder, running, buyer, runtime, database: connection }
    }

    /// Runs all of it as its reader would; gives what it said.
    pub(crate) fn run_as_told(&self) -> String {
        let output = Command::new("timeout")
            .args(["180".as_ref(), program().as_os_str(), self.broker.as_ref()])
            .envs(self.environment.clone())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let complained = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {said}{complained}", self.broker);
        said
    }

    /// All services, and one who buys.
    pub(crate) fn start_all(&mut self, orders: u32) {
        self.running = Self::ROLES.map(|role| self.start(&[role])).into();
        self.buyer = Some(self.start(&["buy", &orders.to_string()]));
    }

    fn start(&self, role: &[&str]) -> Child {
        let log = self.folder.path().join(role[0]);
        let log = File::options().create(true).append(true).open(log).unwrap();
        let mut command = Command::new(program());
        command.arg(self.broker).args(role).envs(self.environment.clone());
        command.stdout(Stdio::null()).stderr(log).spawn().unwrap()
    }

    pub(crate) fn kill(&mut self, number: usize) {
        self.running[number].kill().unwrap();
        self.running[number].wait().unwrap();
    }

    /// Does what a supervisor does: also for those that did not find their broker.
    pub(crate) fn start_what_ended(&mut self) {
        for number in 0..self.running.len() {
            if self.running[number].try_wait().unwrap().is_some() {
                self.running[number] = self.start(&[Self::ROLES[number]]);
            }
        }
    }

    /// Asks all to stop, and waits until they have.
    pub(crate) fn stop_all(&mut self) {
        for child in &self.running {
            let id = child.id().to_string();
            assert!(Command::new("kill").args(["-s", "INT", &id]).status().unwrap().success());
        }
        for (mut child, role) in std::mem::take(&mut self.running).into_iter().zip(Self::ROLES) {
            let ended = end_of(&mut child);
            assert!(ended.success(), "{role} ended with {ended}: {}", self.log(role));
        }
    }

    /// Whether so many orders are paid, reserved and confirmed.
    pub(crate) fn is_finished(&mut self, orders: u32) -> bool {
        if let Some(ended) = self.buyer.as_mut().and_then(|buyer| buyer.try_wait().unwrap()) {
            assert!(ended.success(), "{ended}: {}", self.log("buy"));
            self.buyer = None;
        }
        const FINISHED: &str =
            "select least((select count(*) from reservations), (select count(*) from mails))";
        self.buyer.is_none() && self.number(FINISHED) >= i64::from(orders)
    }

    pub(crate) fn assert_soon(&mut self, began: Instant, patience: Duration) {
        let is_late = began.elapsed() > patience;
        if is_late {
            let rows = self.report();
            let logs: String =
                Self::ROLES.iter().chain(&["buy"]).map(|role| self.log(role)).collect();
            assert!(!is_late, "{}: not finished after {patience:?}: {rows:?}\n{logs}", self.broker);
        }
    }

    /// The last of what a process had to say.
    fn log(&self, role: &str) -> String {
        let text = fs::read_to_string(self.folder.path().join(role)).unwrap_or_default();
        let lines: Vec<_> = text.lines().rev().take(10).collect();
        format!("{role}: {}\n", lines.into_iter().rev().collect::<Vec<_>>().join("\n"))
    }

    pub(crate) fn count_arrivals(&mut self) {
        self.ask(async |database| sqlx::raw_sql(COUNTING).execute(database).await);
    }

    /// Copies that were in hand of those who were killed have come by then, too.
    pub(crate) fn wait_until_nothing_arrives(&mut self) {
        let (mut last, began) = (0, Instant::now());
        loop {
            self.start_what_ended();
            let now = self.number("select last_value from arrivals");
            if now == last {
                return;
            }
            self.assert_soon(began, PATIENCE);
            last = now;
            sleep(Duration::from_millis(2_500));
        }
    }

    /// How often messages came, and how often in vain.
    pub(crate) fn figures(&mut self) -> String {
        let arrivals = self.number("select last_value from arrivals");
        let copies =
            self.number("select case when is_called then last_value else 0 end from copies");
        let in_vain = self.complaints().len();
        format!("{arrivals} arrivals, {copies} copies dropped, {in_vain} starts in vain")
    }

    /// Why processes ended that nobody killed.
    fn complaints(&self) -> Vec<String> {
        let log = |role: &&str| fs::read_to_string(self.folder.path().join(role)).unwrap();
        let logs: String = Self::ROLES.iter().map(log).collect();
        logs.lines().filter(|line| line.starts_with("Error: ")).map(str::to_owned).collect()
    }

    pub(crate) fn check_books(&mut self, orders: u32) {
        let rows = self.report();
        for (what, count) in &rows {
            let expected = match what.as_str() {
                "orders" | "payments" | "reservations" | "mails" => i64::from(orders),
                what if what.starts_with("wrong") => 0,
                _ => continue,
            };
            assert_eq!(*count, expected, "{}: {what} of {rows:?}", self.broker);
        }
        assert_eq!(self.number("select count(*) from semel.letters"), 0, "{}", self.broker);
        let is_outage = |line: &String| line.contains("[Unavailable]");
        assert!(self.complaints().iter().all(is_outage), "{:#?}", self.complaints());
    }

    fn report(&mut self) -> Vec<(String, i64)> {
        let sql = include_str!("../../../../examples/orders/report.sql");
        self.ask(async |database| sqlx::query_as(sql).fetch_all(database).await)
    }

    fn number(&mut self, sql: &str) -> i64 {
        self.ask(async |database| sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(database).await)
    }

    fn ask<T>(
        &mut self,
        question: impl AsyncFnOnce(&mut PgConnection) -> Result<T, sqlx::Error>,
    ) -> T {
        let asking = question(&mut self.database);
        self.runtime.block_on(async { timeout(PATIENCE, asking).await }).unwrap().unwrap()
    }
}

impl Drop for Shop {
    fn drop(&mut self) {
        for child in self.running.iter_mut().chain(&mut self.buyer) {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

/// The example, which `cargo test` builds beside the tests.
fn program() -> PathBuf {
    let tests = env::current_exe().unwrap();
    let program = tests.parent().unwrap().parent().unwrap().join("examples/orders");
    let how = "cargo build --workspace --all-features --example orders";
    assert!(program.exists(), "the example is not there: {how}");
    program
}

fn end_of(child: &mut Child) -> ExitStatus {
    let began = Instant::now();
    loop {
        if let Some(ended) = child.try_wait().unwrap() {
            return ended;
        }
        assert!(began.elapsed() < PATIENCE, "it does not stop");
        sleep(Duration::from_millis(20));
    }
}
