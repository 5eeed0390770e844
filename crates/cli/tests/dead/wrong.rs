//! What is refused, and what an outage leaves.

use semel_testkit::services::{Private, Service};

use crate::shop::Shop;

/// A shop with these sinks; the first is used.
fn shop(sinks: &str) -> Shop {
    let shop = Shop::new();
    shop.write_config(&format!(
        "[source.orders]\nurl = \"sqlite://shop.db\"\n{sinks}\n\
         [pipeline.orders]\nfrom = \"orders\"\nto = \"out\"\ntopic = \"orders\"\n"
    ));
    shop
}

#[test]
fn a_wrong_question_is_told_what_is_wrong() {
    let shop = shop(
        "[sink.out]\ntype = \"redis\"\nurl = \"redis://127.0.0.1:1\"\n\
         [sink.file]\ntype = \"file\"\npath = \"events.ndjson\"",
    );
    let id = "0198b7a2-0000-7000-8000-000000000000";
    let queue = ["--queue", "orders.dead"];
    let cases: [(&[&str], &str); 8] = [
        (&["list", "--sink", "nobody"], "give --sink one of file, out"),
        (&["list", "--sink", "file"], "E-DEAD-NO-LETTERS"),
        (&["retry", "--all", "--yes", "--sink", "file"], "E-DEAD-NO-LETTERS"),
        (&["retry", id, "--sink", "out"], "E-DEAD-CHOICE"),
        (&["discard", id, "--sink", "out"], "give --all alone"),
        (&["retry", "--all", "--type", "Placed", "--sink", "out"], "E-DEAD-CHOICE"),
        (&["list", "--type", "Placed", "--sink", "out"], "E-DEAD-CHOICE"),
        (&["list", "--sink", "out", "--pipeline", "orders"], "cannot be used with"),
    ];
    for (words, expected) in cases {
        let message = shop.refused(64, &[&["dead"], words, &queue].concat());
        assert!(message.contains(expected), "{words:?}: {message}");
    }
    // One of them alone means nothing.
    shop.refused(64, &["dead", "list", "--queue", "orders.dead"]);
    shop.refused(64, &["dead", "list", "--sink", "out"]);
}

#[test]
fn an_outage_ends_with_69_and_leaves_the_letters() {
    let Some(server) = Private::start(Service::Redis) else { return };
    let url = server.address();
    let shop = shop(&format!("[sink.out]\ntype = \"redis\"\nurl = \"{url}\"\ntimeout = \"1s\""));
    let letter = ["xadd", "orders.dead", "*", "semel-origin", "orders@1-1", "payload", "{}"];
    let run = |words: &[&str]| {
        let ran = std::process::Command::new("redis-cli").args(["-u", url]).args(words).output();
        assert!(ran.unwrap().status.success());
    };
    run(&letter);
    let place = ["--sink", "out", "--queue", "orders.dead"];
    let retry = [&["dead", "retry", "--all", "--yes"][..], &place].concat();
    let list = [&["dead", "list"][..], &place].concat();
    // A stream cannot be there: the letter is refused, and stays.
    run(&["set", "orders", "no stream"]);
    let stays = shop.expect(1, &retry);
    assert!(stays.contains("0 events retried") && stays.contains("1 stay"), "{stays}");
    assert!(shop.expect(0, &list).contains("no event"));
    run(&["del", "orders"]);

    server.kill();
    let message = shop.refused(69, &retry);
    assert!(message.contains("E-REDIS-DOWN") && message.contains("no event is lost"), "{message}");
    server.restart();
    assert!(shop.expect(0, &list).contains("no event"), "it is no event, but a letter");
    assert!(shop.expect(0, &retry).contains("1 events retried"));
}
