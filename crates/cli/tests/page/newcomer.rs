//! A newcomer's path: the quickstart of NATS, from a fresh clone to the event on the page, as it is
//! written there.

use std::env;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use semel_core::EventId;
use semel_testkit::services::{Private, Service, service};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::browser::Browser;
use crate::shell;

/// All that is typed, with what says where the servers are and what installs the program.
const MOST_COMMANDS: usize = 6;
/// For all but the building: the program was built by cargo before its tests, so `cargo install`
/// does nothing here, and how long that takes is not in it. Beside everything else that is tested.
const SOON: Duration = Duration::from_secs(60);

#[test]
fn a_newcomer_sees_an_event_on_the_page_after_six_commands() {
    let Some(postgres) = service(Service::Postgres) else { return };
    let Some(nats) = Private::start(Service::Nats) else { return };
    let Some(browser) = Browser::open() else { return };
    let root = shell::root();
    let page = fs::read_to_string(root.join("docs/quickstart/nats.md")).unwrap();
    let [block, more] = shell::blocks(&page, &["sh"])[..] else { panic!("two blocks: {page}") };
    assert!(page.contains("Six commands, typed in a fresh clone"), "where they are typed: {page}");
    let commands = shell::commands(block);
    assert!(commands.len() <= MOST_COMMANDS, "{} commands: {commands:#?}", commands.len());
    // What cargo would build is built already; whether it would is looked at.
    let installed = commands.iter().filter(|command| command.starts_with("cargo "));
    assert_eq!(installed.inspect(|command| is_installable(&root, command)).count(), 1);

    let database = Database::new(&postgres);
    let script = block
        .replace("postgres://postgres@localhost/shop", &database.url)
        .replace("nats://localhost:4222", nats.address());
    assert!(script.contains(&database.url) && script.contains(nats.address()), "{script}");
    let folder = tempfile::tempdir().unwrap();
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    let began = Instant::now();
    // Whoever closes the terminal ends the relay.
    let mut terminal = type_in(folder.path(), &format!("{script}\ncat\n{more}\nkill $!\nwait"));
    let address = loop {
        let log = read("log");
        if let Some((_, rest)) = log.split_once("metrics on ") {
            break rest.lines().next().unwrap().trim().to_owned();
        }
        let ended = terminal.try_wait().unwrap();
        assert!(ended.is_none() && began.elapsed() < SOON, "{}{log}", read("said"));
        sleep(Duration::from_millis(20));
    };
    let (_, path) = page.split_once("<http://127.0.0.1:9464/").unwrap();
    browser.go(&format!("{address}{}", path.split('>').next().unwrap()));
    while browser.run(&format!("return {PUBLISHED}")) != true {
        assert!(began.elapsed() < SOON, "{}{}", read("said"), read("log"));
        sleep(Duration::from_millis(100));
        // What is shown is what was there when the page was opened.
        browser.press("r");
    }
    println!(
        "{} commands: the event was on the page after {:.1?}, building left out",
        commands.len(),
        began.elapsed()
    );
    drop(terminal.stdin.take());
    assert!(terminal.wait().unwrap().success(), "{}{}", read("said"), read("log"));
    assert!(read("said").contains("lost          0"), "{}", read("said"));
}

/// Whether the event is on the page, and published.
const PUBLISHED: &str = "[...document.querySelectorAll('table[aria-label=Events] tbody tr')].some(row => \
    /order\\s+42/.test(row.innerText) && /OrderPlaced/.test(row.innerText) && \
    /published/.test(row.innerText))";

/// A shell with the program where cargo would put it.
fn type_in(folder: &Path, script: &str) -> Child {
    let tools = folder.join("bin");
    fs::create_dir(&tools).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_semel"), tools.join("semel")).unwrap();
    std::os::unix::fs::symlink("/bin/true", tools.join("cargo")).unwrap();
    let path = env::split_paths(&env::var_os("PATH").unwrap()).collect::<Vec<_>>();
    Command::new("timeout")
        .args(["120", "sh", "-eu", "-c", script])
        .current_dir(folder)
        .env("PATH", env::join_paths([vec![tools], path].concat()).unwrap())
        // The usual port may be somebody's.
        .env("SEMEL_HTTP__LISTEN", "127.0.0.1:0")
        .stdin(Stdio::piped())
        .stdout(File::create(folder.join("said")).unwrap())
        .stderr(File::create(folder.join("log")).unwrap())
        .spawn()
        .unwrap()
}

/// Whether `cargo install --path PATH --features NAMES` names what the clone has.
fn is_installable(root: &Path, command: &str) {
    let words: Vec<_> = command.split_whitespace().collect();
    let ["cargo", "install", "--path", path, "--features", features] = words[..] else {
        panic!("another way to install: {command}")
    };
    let manifest: toml::Table =
        fs::read_to_string(root.join(path).join("Cargo.toml")).unwrap().parse().unwrap();
    assert_eq!(manifest["bin"][0]["name"].as_str(), Some("semel"));
    for feature in features.split(',') {
        assert!(manifest["features"].get(feature).is_some(), "no feature {feature}");
    }
}

/// An empty database; gone with this value.
struct Database {
    server: String,
    name: String,
    url: String,
}

impl Database {
    fn new(server: &str) -> Self {
        let name = format!("semel_newcomer_{}", EventId::now().as_uuid().simple());
        execute(server, &format!("create database {name}"));
        let url = format!("{}/{name}", server.rsplit_once('/').unwrap().0);
        Self { server: server.to_owned(), name, url }
    }
}

impl Drop for Database {
    /// A relay that ends while it makes its slot leaves the server to that until others' transactions
    /// are over, or a minute has passed: nobody can drop the database meanwhile.
    fn drop(&mut self) {
        let drop = format!("drop database {} with (force)", self.name);
        let deadline = Instant::now() + Duration::from_secs(120);
        while !std::thread::panicking() {
            match try_to(&self.server, &drop) {
                Err(error) if in_use(&error) && Instant::now() < deadline => {}
                dropped => return dropped.unwrap(),
            }
            sleep(Duration::from_millis(200));
        }
    }
}

fn in_use(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|error| error.code().as_deref() == Some("55006"))
}

fn execute(url: &str, sql: &str) {
    try_to(url, sql).unwrap();
}

fn try_to(url: &str, sql: &str) -> sqlx::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut connection = PgConnection::connect(url).await?;
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await.map(drop)
    })
}
