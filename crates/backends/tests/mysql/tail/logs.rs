//! What an administrator does to the log, on a server of the test's own.

use std::time::{Duration, Instant};

use semel_testkit::workload::delivered_numbers;

use super::{PATIENCE, commit_one, private, run, tailing};

#[tokio::test]
async fn the_log_is_rotated_purged_and_changed_in_kind() {
    let Some((_server, store)) = private(&[]).await else { return };
    let mut relay = tailing(&store).await;
    let changes = [
        "FLUSH BINARY LOGS",
        "FLUSH BINARY LOGS; PURGE BINARY LOGS BEFORE now() + INTERVAL 1 HOUR",
        "SET GLOBAL binlog_checksum = CRC32",
        "FLUSH BINARY LOGS",
        "SET GLOBAL binlog_checksum = NONE",
        "SET GLOBAL log_bin_compress = ON, log_bin_compress_min_len = 10",
        "FLUSH TABLES",
    ];
    for (number, change) in (0..).zip(changes) {
        run(&store, change).await;
        commit_one(&store, number).await;
        relay.expect_news(&[number]).await;
        assert!(relay.source.is_tailing(), "{change}");
    }
}

/// From the beginning with a log that has checksums.
#[tokio::test]
async fn a_log_with_checksums_and_compressed_rows() {
    let options =
        ["--binlog-checksum=CRC32", "--log-bin-compress", "--log-bin-compress-min-len=10"];
    let Some((_server, store)) = private(&options).await else { return };
    let mut relay = tailing(&store).await;
    for number in 0..3 {
        commit_one(&store, number).await;
        relay.expect_news(&[number]).await;
    }
    assert!(relay.source.is_tailing());
}

/// All of the log is gone, also what the session was reading: then it may be deaf for a while.
#[tokio::test]
async fn the_log_is_reset() {
    let Some((_server, store)) = private(&[]).await else { return };
    let mut relay = tailing(&store).await;
    run(&store, "RESET MASTER").await;
    let began = Instant::now();
    let mut heard = 0;
    for number in 0.. {
        assert!(began.elapsed() < PATIENCE, "it was heard {heard} times only");
        commit_one(&store, number).await;
        heard += u32::from(relay.is_woken(Duration::from_millis(300)).await);
        assert_eq!(delivered_numbers(&relay.deliver_all(10).await), [number]);
        if heard == 3 {
            break;
        }
    }
    assert!(relay.source.is_tailing());
}

/// Nobody waits for a log that says nothing.
#[tokio::test]
async fn a_log_that_leaves_the_outbox_out() {
    let Some((_server, store)) = private(&["--binlog-ignore-db=test"]).await else { return };
    let mut relay = tailing(&store).await;
    let began = Instant::now();
    for number in 0.. {
        if !relay.source.is_tailing() {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "it never noticed");
        commit_one(&store, number).await;
        assert_eq!(delivered_numbers(&relay.deliver_all(10).await), [number]);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
