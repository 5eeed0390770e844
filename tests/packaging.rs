//! The recipes of packages and images say what the program and each other say: a package that is made once
//! a year must not be the one to find out.

#![allow(clippy::panic, clippy::unwrap_used, reason = "test code: a panic is how it reports")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use cargo_metadata::{MetadataCommand, Package};

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
