//! `semel relay --drain`: what its exit code says.

use crate::shop::Shop;

/// It tells of dead letters that it made. Of an old one it was told before, and what waits behind
/// that cannot be published until somebody decides.
#[test]
fn an_old_dead_letter_and_those_behind_it_are_no_failure_of_a_drain() {
    let shop = Shop::new();
    let published = || {
        let events = shop.published();
        events.iter().map(|event| event["payload"].as_i64().unwrap()).collect::<Vec<_>>()
    };
    shop.configure("topic = \"{header.tenant}\"");
    shop.insert("a", "1");
    shop.insert("a", "2");
    shop.expect(1, &["relay", "--drain"]);
    shop.configure("");
    shop.expect(0, &["relay", "--drain"]);
    shop.insert("a", "3");
    shop.insert("b", "4");
    shop.expect(0, &["relay", "--drain"]);
    assert_eq!(published(), [4]);
    assert_eq!((shop.count("dead"), shop.count("parked_aggregates")), (1.into(), 1.into()));

    shop.expect(0, &["dead", "retry", "--all", "--yes"]);
    shop.expect(0, &["relay", "--drain"]);
    assert_eq!(published(), [4, 1, 2, 3]);
}
