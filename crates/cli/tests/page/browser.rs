//! A real Chromium, driven by the W3C protocol.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use semel_testkit::services::browser_driver;
use serde_json::{Value, json};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(60);

/// A browser with one window; gone with this value.
pub(crate) struct Browser {
    driver: Child,
    address: String,
    session: String,
    _profile: TempDir,
}

impl Browser {
    /// Opens one, if there is one.
    pub(crate) fn open() -> Option<Self> {
        let mut driver = Command::new(browser_driver()?)
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines();
        let port = lines.by_ref().map(Result::unwrap).find_map(|line| {
            Some(line.split_once("successfully on port ")?.1.trim_end_matches('.').to_owned())
        });
        // Whoever does not listen stops the driver.
        std::thread::spawn(move || lines.for_each(drop));
        let profile = tempfile::tempdir().unwrap();
        let mut browser = Self {
            driver,
            address: format!("127.0.0.1:{}", port.expect("a port")),
            session: String::new(),
            _profile: profile,
        };
        let folder = format!("--user-data-dir={}", browser._profile.path().display());
        let arguments =
            ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", &folder];
        let made = browser.ask(
            "POST",
            "/session",
            &json!({"capabilities": {"alwaysMatch": {
                "goog:chromeOptions": {"args": arguments},
                "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
            }}}),
        );
        browser.session = made["sessionId"].as_str().expect("a session").to_owned();
        browser.size(1280, 900);
        Some(browser)
    }

    pub(crate) fn go(&self, url: &str) {
        self.tell("url", &json!({"url": url}));
    }

    /// Runs a script in the page; gives what it returns.
    pub(crate) fn run(&self, script: &str) -> Value {
        self.tell("execute/sync", &json!({"script": script, "args": []}))
    }

    /// Waits until a script returns something true.
    pub(crate) fn wait(&self, script: &str) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let found = self.run(&format!("return {script}"));
            if !matches!(found, Value::Null | Value::Bool(false)) {
                return found;
            }
            if Instant::now() > deadline {
                panic!("never: {script}\n{}", self.run("return document.body.innerText"));
            }
            sleep(Duration::from_millis(50));
        }
    }

    /// Waits for text on the page.
    pub(crate) fn wait_for(&self, text: &str) {
        self.wait(&format!("document.body.innerText.includes({})", json!(text)));
    }

    /// Waits for an element and clicks it as a person does.
    pub(crate) fn click(&self, selector: &str) {
        self.wait(&format!("document.querySelector({})", json!(selector)));
        let element = self.tell("element", &json!({"using": "css selector", "value": selector}));
        self.tell(&format!("element/{}/click", id_of(&element)), &json!({}));
    }

    /// Presses keys, wherever the focus is.
    pub(crate) fn press(&self, keys: &str) {
        let press = |key: char| {
            [json!({"type": "keyDown", "value": key}), json!({"type": "keyUp", "value": key})]
        };
        let actions: Vec<_> = keys.chars().flat_map(press).collect();
        self.tell(
            "actions",
            &json!({"actions": [{"type": "key", "id": "keys", "actions": actions}]}),
        );
    }

    pub(crate) fn size(&self, width: u32, height: u32) {
        let params = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500});
        self.tell(
            "goog/cdp/execute",
            &json!({"cmd": "Emulation.setDeviceMetricsOverride", "params": params}),
        );
    }

    /// Light or dark, as the system would have it.
    pub(crate) fn scheme(&self, name: &str) {
        let params = json!({"features": [{"name": "prefers-color-scheme", "value": name}]});
        self.tell(
            "goog/cdp/execute",
            &json!({"cmd": "Emulation.setEmulatedMedia", "params": params}),
        );
    }

    /// For pictures.
    pub(crate) fn hide_scrollbars(&self) {
        let params = json!({"hidden": true});
        self.tell(
            "goog/cdp/execute",
            &json!({"cmd": "Emulation.setScrollbarsHidden", "params": params}),
        );
    }

    /// What the page wrote to its console that is no mere information.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let entries = self.tell("se/log", &json!({"type": "browser"}));
        let entries = entries.as_array().cloned().unwrap_or_default();
        let serious = |entry: &Value| matches!(entry["level"].as_str(), Some("SEVERE" | "WARNING"));
        entries.iter().filter(|entry| serious(entry)).map(ToString::to_string).collect()
    }

    /// Every address that the page asked for.
    pub(crate) fn requests(&self) -> Vec<String> {
        let entries = self.tell("se/log", &json!({"type": "performance"}));
        let message = |entry: &Value| -> Option<String> {
            let message: Value = serde_json::from_str(entry["message"].as_str()?).ok()?;
            let message = &message["message"];
            (message["method"] == "Network.requestWillBeSent").then(|| {
                message["params"]["request"]["url"].as_str().unwrap_or_default().to_owned()
            })
        };
        entries.as_array().into_iter().flatten().filter_map(message).collect()
    }

    /// A picture of the window, as a file.
    pub(crate) fn picture(&self, file: &Path) {
        let picture =
            self.ask("GET", &format!("/session/{}/screenshot", self.session), &Value::Null);
        let bytes = decode(picture.as_str().expect("a picture"));
        std::fs::write(file, bytes).unwrap();
    }

    fn tell(&self, command: &str, body: &Value) -> Value {
        self.ask("POST", &format!("/session/{}/{command}", self.session), body)
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\nconnection: close\r\n\r\n",
            self.address
        );
        stream.write_all((head + &body).as_bytes()).unwrap();
        let body = read_body(BufReader::new(stream));
        let body: Value = serde_json::from_str(&body).unwrap_or_else(|_| panic!("no JSON: {body}"));
        let value = body["value"].clone();
        assert!(value.get("error").is_none(), "{method} {path}: {value}");
        value
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() && !std::thread::panicking() {
            self.ask("DELETE", &format!("/session/{}", self.session), &Value::Null);
        }
        self.driver.kill().ok();
        self.driver.wait().ok();
    }
}

/// The driver does not close a connection, but says how long its answer is.
fn read_body(mut answer: impl BufRead) -> String {
    let mut length = 0;
    loop {
        let mut line = String::new();
        answer.read_line(&mut line).unwrap();
        let line = line.trim().to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    answer.read_exact(&mut body).unwrap();
    String::from_utf8(body).unwrap()
}

fn id_of(element: &Value) -> &str {
    element.as_object().and_then(|one| one.values().next()?.as_str()).expect("an element")
}

/// Base64, as the protocol has it.
fn decode(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bytes, mut bits, mut held) = (Vec::new(), 0u32, 0);
    for digit in text.bytes().filter_map(|c| DIGITS.iter().position(|known| *known == c)) {
        (bits, held) = (bits << 6 | digit as u32, held + 6);
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
        }
    }
    bytes
}
