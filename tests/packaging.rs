//! The recipes of packages and images say what the program and each other say: a package that is made once
//! a year must not be the one to find out.

#![allow(clippy::panic, clippy::unwrap_used, reason = "test code: a panic is how it reports")]

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use cargo_metadata::{MetadataCommand, Package};
use serde::Deserialize;

#[test]
fn the_debian_package_names_only_files_that_exist() {
    let cli = command_line();
    let (folder, deb) = (root().join("crates/cli"), &cli.metadata["deb"]);
    let printed = read("scripts/package.sh");
    let installed = installed(&cli);
    for (to, Asset { from, mode }) in &installed {
        let exists = match from.strip_prefix("target/release/") {
            Some("semel") => true,
            Some(page) => printed.contains(&page.replace("package/", ">\"$pages/")),
            None => folder.join(from).is_file(),
        };
        assert!(exists, "{to}: there is no {from}");
        assert_eq!(mode & 0o022, 0, "{to}: {mode:o}");
    }
    for file in deb["conf-files"].as_array().unwrap() {
        assert!(installed.contains_key(file.as_str().unwrap()), "{file} is not installed");
    }
    for feature in deb["features"].as_array().unwrap() {
        assert!(cli.features.contains_key(feature.as_str().unwrap()), "no feature {feature}");
    }
    let unit = Unit::of(&cli);
    for path in unit.value("ExecStart").split(' ').filter(|word| word.starts_with('/')) {
        assert!(installed.contains_key(path), "{path} is not installed");
    }
    let (page, section) =
        unit.value("Documentation").strip_prefix("man:").unwrap().split_once('(').unwrap();
    let section = section.trim_end_matches(')');
    let page = format!("/usr/share/man/man{section}/{page}.{section}");
    assert!(installed.contains_key(&page), "{page} is not installed");
}

/// The configuration has passwords in it: only root may change it, and only the service may read it.
#[test]
fn the_service_and_nobody_else_may_read_its_configuration() {
    let cli = command_line();
    let unit = Unit::of(&cli);
    let user = unit.value("User");
    assert_eq!(user, unit.value("Group"));
    assert!(!unit.text.contains("DynamicUser"), "what it reads could not be given to it");

    let makes = unit.folder.join("semel.sysusers");
    let makes = fs::read_to_string(makes).unwrap();
    let made: Vec<_> = makes.lines().filter(|line| line.starts_with("u ")).collect();
    let [made] = made[..] else { panic!("one user: {made:?}") };
    let home = format!("/var/lib/{}", unit.value("StateDirectory"));
    assert!(made.starts_with(&format!("u {user} - ")) && made.ends_with(&home), "{made}");

    let deb = &cli.metadata["deb"];
    let scripts = root().join("crates/cli").join(deb["maintainer-scripts"].as_str().unwrap());
    let script = fs::read_to_string(scripts.join("postinst")).unwrap();
    let (before, after) = script.split_once("\n#DEBHELPER#\n").unwrap();
    assert!(!before.contains("semel\n"), "before its group is there: {before}");
    assert!(after.contains(&format!("chown root:{user} ")), "{after}");
    let given: BTreeMap<_, _> = after
        .lines()
        .filter_map(|line| line.trim().strip_prefix("let_the_service_read ")?.split_once(' '))
        .map(|(mode, path)| (path, u32::from_str_radix(mode, 8).unwrap()))
        .collect();
    let installed = installed(&cli);
    let below: Vec<_> = installed.iter().filter(|(path, _)| path.starts_with("/etc/")).collect();
    assert!(!below.is_empty());
    for (path, Asset { mode, .. }) in below {
        assert_eq!(given.get(path.as_str()), Some(mode), "{path}: the group would not get it");
        assert_eq!(mode & 0o777, 0o640, "{path}");
        let folder = Path::new(path).parent().unwrap().to_str().unwrap();
        assert_eq!(given.get(folder), Some(&0o2750), "{folder}");
    }
}

/// After an upgrade the tables may be too old for the new program, which would then not start.
#[test]
fn an_upgrade_of_the_package_leaves_a_running_relay_alone() {
    let cli = command_line();
    let [unit] = &cli.metadata["deb"]["systemd-units"].as_array().unwrap()[..] else {
        panic!("one unit")
    };
    for action in ["enable", "start", "restart-after-upgrade", "stop-on-upgrade"] {
        assert_eq!(unit[action], false, "{action}");
    }
}

#[test]
fn the_image_and_its_neighbours_name_only_files_that_exist() {
    let (root, docker) = (root(), root().join("packaging/docker"));
    let recipe = fs::read_to_string(docker.join("Dockerfile")).unwrap();
    let builds = recipe.lines().find(|line| line.contains("cargo build")).unwrap();
    assert!(builds.contains("--package semel-cli") && builds.contains("--features full"));
    let compose = fs::read_to_string(docker.join("compose.yaml")).unwrap();
    for line in text_lines(&compose, "docker compose -f ") {
        assert!(root.join(line.split(' ').next().unwrap()).is_file(), "{line}");
    }
    for line in text_lines(&recipe, "docker build -f ") {
        assert!(root.join(line.split(' ').next().unwrap()).is_file(), "{line}");
    }
}

/// The neighbours start in order, on images that are there, and reach each other.
#[test]
fn the_neighbours_of_the_image_belong_together() {
    let docker = root().join("packaging/docker");
    let Compose { services } =
        serde_saphyr::from_str(&read("packaging/docker/compose.yaml")).unwrap();
    let builds =
        services.values().filter_map(|service| Some((&service.image, service.build.as_ref()?)));
    let builds: Vec<_> = builds.collect();
    let [(built, build)] = builds[..] else { panic!("one image is built: {builds:?}") };
    assert!(docker.join(&build.context).join(&build.dockerfile).is_file(), "{build:?}");
    for (name, service) in &services {
        let is_versioned = service.image.split_once(':').is_some_and(|(_, tag)| tag != "latest");
        assert!(service.image == *built || is_versioned, "{name}: {}", service.image);
        for (needed, Needs { condition }) in &service.depends_on {
            let needed = services.get(needed).unwrap_or_else(|| panic!("{name} needs {needed}"));
            let has = match condition.as_str() {
                "service_healthy" => needed.healthcheck.is_some(),
                other => other == "service_completed_successfully",
            };
            assert!(has, "{name}: {condition}");
        }
        for port in &service.ports {
            assert!(port.starts_with("127.0.0.1:"), "{name}: {port} is open to other machines");
        }
    }
    let semel = &services["semel"];
    let needed: Vec<_> = semel.depends_on.keys().collect();
    assert_eq!(needed, ["kafka", "migrate"]);
    let url = &semel.environment["DATABASE_URL"];
    assert!(services["migrate"].command.contains(url), "{url}");
    assert!(url.contains("@postgres/") && services.contains_key("postgres"), "{url}");
}

/// What is mounted is what the image reads; it is told all that it asks for, and its page is published.
#[test]
fn the_configuration_of_the_image_is_the_one_that_is_mounted() {
    let recipe = read("packaging/docker/Dockerfile");
    let Compose { services } =
        serde_saphyr::from_str(&read("packaging/docker/compose.yaml")).unwrap();
    let semel = &services["semel"];
    let [mounted] = &semel.volumes[..] else { panic!("{:?}", semel.volumes) };
    let [from, to, "ro"] = mounted.split(':').collect::<Vec<_>>()[..] else { panic!("{mounted}") };
    assert!(recipe.contains(&format!("\"--config\", \"{to}\"]")), "{to}: {recipe}");
    let config = read(&format!("packaging/docker/{from}"));
    let asked: Vec<_> = text_lines(&config, "\"${").map(|line| line.split('}').next()).collect();
    assert_eq!(asked, semel.environment.keys().map(|key| Some(&**key)).collect::<Vec<_>>());
    let listen = text_lines(&config, "listen = \"").next().unwrap().trim_end_matches('"');
    let (_, port) = listen.split_once(':').unwrap();
    assert_eq!(semel.ports, [format!("127.0.0.1:{port}:{port}")]);
    let asked = semel.healthcheck.as_ref().unwrap().test.last().unwrap();
    assert_eq!(*asked, format!("http://127.0.0.1:{port}"));
    let broker = text_lines(&config, "brokers = \"").next().unwrap().trim_end_matches('"');
    let told = &services["kafka"].environment["KAFKA_ADVERTISED_LISTENERS"];
    assert_eq!(*told, format!("PLAINTEXT://{broker}"));
}

/// Docker is no server that a test can be given, so nothing is missing where it is not: the structure is held by
/// [`Compose`] everywhere, and here is what only Docker would refuse.
#[test]
fn docker_takes_the_compose_file_where_there_is_docker() {
    let docker = |arguments: &[&str]| {
        let mut command = Command::new("docker");
        command.arg("compose").args(arguments).env("SEMEL_API_TOKEN", "a token").output()
    };
    if !docker(&["version"]).is_ok_and(|output| output.status.success()) {
        // Past the harness, which hides what tests print that pass.
        let told = b"NOT ASKED docker_takes_the_compose_file_where_there_is_docker: there is no docker compose\n";
        io::stderr().write_all(told).unwrap();
        return;
    }
    let file = root().join("packaging/docker/compose.yaml");
    let output = docker(&["-f", file.to_str().unwrap(), "config", "--quiet"]).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The compose file, and nothing that Docker would not take.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Compose {
    services: BTreeMap<String, Service>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Service {
    image: String,
    build: Option<Build>,
    #[serde(default)]
    command: Vec<String>,
    #[serde(default)]
    environment: BTreeMap<String, String>,
    #[serde(default)]
    ports: Vec<String>,
    #[serde(default)]
    volumes: Vec<String>,
    #[serde(default)]
    depends_on: BTreeMap<String, Needs>,
    healthcheck: Option<Health>,
    #[serde(rename = "restart")]
    _restart: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Build {
    context: String,
    dockerfile: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Needs {
    condition: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Health {
    test: Vec<String>,
    #[serde(rename = "interval")]
    _interval: String,
    #[serde(rename = "retries")]
    _retries: Option<u32>,
    #[serde(rename = "start_period")]
    _start_period: Option<String>,
}

fn text_lines<'a>(text: &'a str, before: &'a str) -> impl Iterator<Item = &'a str> {
    text.lines().filter_map(move |line| Some(line.split_once(before)?.1))
}

/// What is installed: where from, and readable for whom.
struct Asset {
    from: String,
    mode: u32,
}

fn installed(cli: &Package) -> BTreeMap<String, Asset> {
    let mut installed = BTreeMap::new();
    for asset in cli.metadata["deb"]["assets"].as_array().unwrap() {
        let [from, to, mode] = [0, 1, 2].map(|place| asset[place].as_str().unwrap());
        let name = Path::new(from).file_name().unwrap().to_str().unwrap();
        let to = if to.ends_with('/') { format!("/{to}{name}") } else { format!("/{to}") };
        let mode = u32::from_str_radix(mode, 8).unwrap();
        installed.insert(to, Asset { from: from.to_owned(), mode });
    }
    installed
}

/// The unit of the package.
struct Unit {
    folder: PathBuf,
    text: String,
}

impl Unit {
    fn of(cli: &Package) -> Self {
        let unit = &cli.metadata["deb"]["systemd-units"][0];
        let [folder, name] = ["unit-scripts", "unit-name"].map(|key| unit[key].as_str().unwrap());
        let folder = root().join("crates/cli").join(folder);
        let text = fs::read_to_string(folder.join(format!("{name}.service"))).unwrap();
        Self { folder, text }
    }

    fn value(&self, key: &str) -> &str {
        let mut lines = self.text.lines();
        let value = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        value.unwrap_or_else(|| panic!("no {key}= in {}", self.text))
    }
}

fn command_line() -> Package {
    let metadata = MetadataCommand::new().no_deps().exec().unwrap();
    metadata.packages.into_iter().find(|package| package.name == "semel-cli").unwrap()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap()
}
