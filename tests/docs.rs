//! The documentation says what the code says.

#![allow(clippy::panic, clippy::unwrap_used, reason = "test code: a panic is how it reports")]

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use cargo_metadata::MetadataCommand;
use semel::telemetry;

/// So that `semel explain` knows every code that a user can meet.
#[test]
fn the_page_of_errors_lists_exactly_the_codes() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut used = BTreeSet::new();
    for package in ["core", "relay", "http", "dashboard", "backends", "cli"] {
        codes_below(&root.join("crates").join(package).join("src"), &mut used);
    }
    let page = fs::read_to_string(root.join("docs/errors.md")).unwrap();
    let listed = page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let listed: BTreeSet<_> = listed.map(str::to_owned).collect();
    let differing: Vec<_> = used.symmetric_difference(&listed).collect();
    assert!(differing.is_empty(), "in the code or in docs/errors.md, not in both: {differing:?}");
}

/// The codes in what is compiled into a program: not those of comments and tests.
fn codes_below(folder: &Path, codes: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            codes_below(&path, codes);
        } else if path.file_name().is_some_and(|name| name != "tests.rs") {
            let text = fs::read_to_string(&path).unwrap();
            let product = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            let lines = product.lines().filter(|line| !line.trim_start().starts_with("//"));
            let strings = lines.flat_map(|line| line.split('"').skip(1).step_by(2));
            let is_code = |text: &&str| {
                text.starts_with("E-")
                    && text.len() > 2
                    && text
                        .chars()
                        .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '-')
            };
            codes.extend(strings.filter(is_code).map(str::to_owned));
        }
    }
}

/// A reader can type it as it stands.
#[test]
fn the_commands_of_the_examples_are_told_as_they_are() {
    let metadata = MetadataCommand::new().no_deps().exec().unwrap();
    let targets = metadata.packages.iter().flat_map(|package| &package.targets);
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut count = 0;
    for example in targets.filter(|target| target.is_example()) {
        let (name, features) = (&example.name, example.required_features.join(","));
        let (page, arguments) = match name.as_str() {
            "orders" => ("docs/consumers.md", " -- redis"),
            "payments" => ("docs/idempotency.md", ""),
            name => panic!("no page tells of the example {name}"),
        };
        let command = format!("cargo run --example {name} --features {features}{arguments}");
        for file in ["README.md", page, &format!("examples/{name}/main.rs")] {
            let text = fs::read_to_string(root.join(file)).unwrap();
            assert!(text.contains(&command), "{file}: {command}");
        }
        count += 1;
    }
    assert_eq!(count, 2);
}

/// `UPDATE_DOCS=1 cargo test -p semel --test docs` writes the page anew.
#[test]
fn the_metrics_page_lists_exactly_the_metrics() {
    let mut page = String::from(
        "# Metrics\n\nMade from `crates/core/src/telemetry.rs`. All names are in base units; no \
         label carries an event id or an aggregate id.\n\n| metric | kind | labels | meaning \
         |\n|---|---|---|---|\n",
    );
    for metric in telemetry::ALL {
        let labels = metric.labels.join(", ");
        let kind = format!("{:?}", metric.kind).to_lowercase();
        writeln!(page, "| `{}` | {kind} | {labels} | {} |", metric.name, metric.help).unwrap();
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/metrics.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(written == page, "docs/metrics.md is stale: run UPDATE_DOCS=1 cargo test --test docs");
}

<<<<<<< HEAD
/// What the recipes of packages name is there: a package that is made once a year must not be the one
/// to find out.
#[test]
fn the_debian_package_names_only_files_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let metadata = cargo_metadata::MetadataCommand::new().no_deps().exec().unwrap();
    let cli = metadata.packages.iter().find(|package| package.name == "semel-cli").unwrap();
    let (folder, deb) = (root.join("crates/cli"), &cli.metadata["deb"]);
    let mut installed = BTreeSet::new();
    for asset in deb["assets"].as_array().unwrap() {
        let [from, to, mode] = [0, 1, 2].map(|place| asset[place].as_str().unwrap());
        let is_built = from == "target/release/semel";
        assert!(is_built || folder.join(from).is_file(), "cargo-deb: there is no {from}");
        assert!(u32::from_str_radix(mode, 8).is_ok_and(|mode| mode & 0o022 == 0), "{from}: {mode}");
        let name = Path::new(from).file_name().unwrap().to_str().unwrap();
        installed.insert(if to.ends_with('/') { format!("/{to}{name}") } else { format!("/{to}") });
    }
    for file in deb["conf-files"].as_array().unwrap() {
        assert!(installed.contains(file.as_str().unwrap()), "{file} is not installed");
    }
    for feature in deb["features"].as_array().unwrap() {
        assert!(cli.features.contains_key(feature.as_str().unwrap()), "no feature {feature}");
    }
    for unit in deb["systemd-units"].as_array().unwrap() {
        let [scripts, name] = ["unit-scripts", "unit-name"].map(|key| unit[key].as_str().unwrap());
        let text =
            fs::read_to_string(folder.join(scripts).join(format!("{name}.service"))).unwrap();
        let starts = text.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
        for path in starts.split(' ').filter(|word| word.starts_with('/')) {
            assert!(installed.contains(path), "{name}.service: {path} is not installed");
        }
    }
}

#[test]
fn the_image_and_its_neighbours_name_only_files_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let docker = root.join("packaging/docker");
    let recipe = fs::read_to_string(docker.join("Dockerfile")).unwrap();
    let builds = recipe.lines().find(|line| line.contains("cargo build")).unwrap();
    assert!(builds.contains("--package semel-cli") && builds.contains("--features full"));
    let compose = fs::read_to_string(docker.join("compose.yaml")).unwrap();
    let mounted = compose.lines().filter_map(|line| line.trim().strip_prefix("- ./"));
    let mounted: Vec<_> = mounted.filter_map(|line| line.split(':').next()).collect();
    assert_eq!(mounted, ["semel.toml"]);
    assert!(mounted.iter().all(|file| docker.join(file).is_file()), "{mounted:?}");
    let built: Vec<_> = compose.lines().filter(|line| line.contains("dockerfile:")).collect();
    let [built] = built[..] else { panic!("{built:?}") };
    let value = |key: &str| built.split_once(key).unwrap().1.split([',', ' ', '}']).next().unwrap();
    let context = docker.join(value("context: "));
    assert!(context.join(value("dockerfile: ")).is_file(), "{built}");
    for line in text_lines(&compose, "docker compose -f ") {
        assert!(root.join(line.split(' ').next().unwrap()).is_file(), "{line}");
    }
    for line in text_lines(&recipe, "docker build -f ") {
        assert!(root.join(line.split(' ').next().unwrap()).is_file(), "{line}");
    }
}

fn text_lines<'a>(text: &'a str, before: &'a str) -> impl Iterator<Item = &'a str> {
    text.lines().filter_map(move |line| Some(line.split_once(before)?.1))
=======
/// A panel or an alert on a metric that does not exist stays silent for ever.
#[test]
fn dashboards_and_alerts_name_only_metrics_that_exist() {
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging");
    for file in ["grafana/semel.json", "prometheus/alerts.yaml"] {
        let text = fs::read_to_string(packaging.join(file)).unwrap();
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let named: BTreeSet<_> = words.filter(|word| word.starts_with("semel_")).collect();
        assert!(named.len() > 5, "{file} names {named:?}");
        for name in named {
            let base = name.strip_suffix("_bucket").unwrap_or(name);
            let known = telemetry::ALL.iter().any(|metric| metric.name == base);
            assert!(known, "{file} names {name}, which is not in crates/core/src/telemetry.rs");
        }
    }
    let dashboard = fs::read_to_string(packaging.join("grafana/semel.json")).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&dashboard).unwrap();
    assert!(dashboard["panels"].as_array().unwrap().len() >= 8);
>>>>>>> w-packaging
}
