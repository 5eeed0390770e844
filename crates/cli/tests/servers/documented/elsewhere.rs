//! The commands of the documentation that another test runs, or that cannot be run inside one.

use std::collections::BTreeSet;
use std::fs;

use crate::shell;

/// Page, how the command begins, why it is not run like the others, and who runs the same: a file and
/// a test in it. The first row that fits counts. That what cargo is told to run or build exists is
/// seen to by `tests/commands.rs` as well.
const ELSEWHERE: &[(&str, &str, &str, &str, &str)] = &[
    (
        "docs/operate.md",
        "install -o root ",
        "it needs the package",
        "tests/packaging.rs",
        "the_service_and_nobody_else_may_read_its_configuration",
    ),
    (
        "docs/operate.md",
        "systemctl ",
        "it needs systemd",
        "tests/packaging.rs",
        "the_debian_package_names_only_files_that_exist",
    ),
    (
        "docs/operate.md",
        "export SEMEL_API_TOKEN",
        "docker compose reads it",
        "tests/packaging.rs",
        "the_configuration_of_the_image_is_the_one_that_is_mounted",
    ),
    (
        "docs/operate.md",
        "docker compose ",
        "there may be no container engine",
        "tests/packaging.rs",
        "docker_takes_the_compose_file_where_there_is_docker",
    ),
    (
        "README.md",
        "cargo run --release -- demo",
        "cargo would build it",
        "crates/cli/tests/demo.rs",
        "nothing_is_lost_and_nothing_happens_twice_whoever_is_killed",
    ),
    (
        "README.md",
        "./dev test",
        "it runs this test",
        HERE,
        "every_command_of_the_documentation_runs",
    ),
    ("README.md", "", WHOLE, HERE, "the_first_page_works_as_it_is_written"),
    (
        "CONTRIBUTING.md",
        "SEMEL_SIM_SEED=",
        "is a test itself",
        "crates/relay/tests/simulation/main.rs",
        "no_seed_loses_doubles_or_reorders",
    ),
    (
        "CONTRIBUTING.md",
        "SEMEL_FUZZ_",
        "is a test itself",
        "crates/testkit/tests/decoders.rs",
        "fuzzed_headers_are_refused_or_read",
    ),
    (
        "docs/consumers.md",
        "export ",
        "says where the reader's servers are",
        "crates/cli/tests/storm/orders.rs",
        "orders_over_redis",
    ),
    (
        "docs/consumers.md",
        "cargo run --example orders ",
        "cargo would build it",
        "crates/cli/tests/storm/orders.rs",
        "orders_over_redis",
    ),
    (
        "docs/idempotency.md",
        "cargo run --example payments ",
        "cargo would build it",
        "tests/examples.rs",
        "payments_and_transfers_survive_a_kill_at_every_step",
    ),
    (
        "docs/conformance.md",
        "semel keys conform ",
        "asks services that have to be there",
        "crates/cli/tests/proxy/conform/mod.rs",
        "the_proxy_conforms_on_redis",
    ),
    ("docs/backends/kafka.md", "kafka-", WHOLE, BROKERS, "permissions_and_topics_of_kafka"),
    ("docs/backends/mqtt.md", "mosquitto_sub ", WHOLE, BROKERS, "a_message_of_mqtt"),
    ("docs/backends/redis.md", "redis-cli ", WHOLE, BROKERS, "an_entry_of_redis"),
    (
        "docs/quickstart/nats.md",
        "",
        WHOLE,
        "crates/cli/tests/page/newcomer.rs",
        "a_newcomer_sees_an_event_on_the_page_after_six_commands",
    ),
    ("docs/quickstart/kafka.md", "", WHOLE, QUICKSTART, "kafka"),
    ("docs/quickstart/rabbitmq.md", "", WHOLE, QUICKSTART, "rabbitmq"),
    ("docs/quickstart/redis.md", "", WHOLE, QUICKSTART, "redis"),
    ("docs/quickstart/aws.md", "", WHOLE, QUICKSTART, "aws"),
    ("docs/quickstart/mqtt.md", "", WHOLE, QUICKSTART, "mqtt"),
    ("docs/quickstart/webhook.md", "", WHOLE, QUICKSTART, "webhook"),
];

const WHOLE: &str = "the page is followed from its first command to its last";
const HERE: &str = "crates/cli/tests/servers/documented/mod.rs";
const BROKERS: &str = "crates/cli/tests/servers/documented/brokers.rs";
const QUICKSTART: &str = "crates/cli/tests/servers/quickstart.rs";

/// Commands by their pages.
pub(super) fn commands_that_nobody_else_runs() -> Vec<(String, String)> {
    let mut all = commands();
    all.retain(|(page, typed)| row_for(page, typed).is_none());
    all
}

fn commands() -> Vec<(String, String)> {
    let of = |(page, text): (String, String)| {
        let commands = shell::commands_of(&text).into_iter();
        commands.map(move |typed| (page.clone(), typed)).collect::<Vec<_>>()
    };
    shell::pages().into_iter().flat_map(of).collect()
}

fn row_for(page: &str, typed: &str) -> Option<usize> {
    ELSEWHERE.iter().position(|row| row.0 == page && typed.starts_with(row.1))
}

#[test]
fn who_is_said_to_run_a_command_exists() {
    let used: BTreeSet<_> =
        commands().iter().filter_map(|(page, typed)| row_for(page, typed)).collect();
    for (number, (page, begin, _, file, test)) in ELSEWHERE.iter().enumerate() {
        assert!(used.contains(&number), "{page} has no command {begin:?} any more");
        let text = fs::read_to_string(shell::root().join(file)).unwrap();
        assert!(text.contains(&format!("fn {test}(")), "{file} has no test {test}");
    }
}
