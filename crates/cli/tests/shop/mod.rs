//! A folder to run the program in, for the tests of its commands.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

/// A folder with a database, a configuration, and a file that events go to.
pub(crate) struct Shop {
    pub(crate) folder: TempDir,
}

impl Shop {
    pub(crate) fn new() -> Self {
        let shop = Self { folder: tempfile::tempdir().unwrap() };
        shop.configure("");
        shop.expect(0, &["migrate", "up", "--database", "sqlite://shop.db"]);
        shop
    }

    /// The usual configuration with a line more in its pipeline.
    pub(crate) fn configure(&self, line: &str) {
        let text = format!(
            "[source.orders]\nurl = \"sqlite://shop.db\"\n[sink.out]\ntype = \"file\"\n\
             path = \"events.ndjson\"\n[pipeline.orders]\nfrom = \"orders\"\nto = \"out\"\n{line}\n"
        );
        self.write_config(&text);
    }

    pub(crate) fn write_config(&self, text: &str) {
        fs::write(self.file("semel.toml"), text).unwrap();
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
        command.args(arguments).current_dir(self.folder.path());
        command
    }

    /// Runs a command that must end with this code; gives its standard output.
    pub(crate) fn expect(&self, code: i32, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", all(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a command that must fail with this code; gives its message.
    pub(crate) fn refused(&self, code: i32, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", all(&output));
        String::from_utf8(output.stderr).unwrap()
    }

    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let arguments = [arguments, &["--output", "json"]].concat();
        serde_json::from_str(&self.expect(0, &arguments)).unwrap()
    }

    /// The whole lines so far: a relay may be in the middle of another.
    pub(crate) fn published(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.file("events.ndjson")).unwrap_or_default();
        lines(text.rsplit_once('\n').map_or("", |(whole, _)| whole))
    }
}

pub(crate) fn all(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(err))
}

pub(crate) fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
