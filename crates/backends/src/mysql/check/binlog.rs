//! The binary log, for relays that tail it.

use semel_core::diagnosis::{Finding, Log, Needs};
use sqlx::{MySqlPool, Row};

use super::Settings;
use super::privileges::Grants;

/// What is set for the run of the server is forgotten with it.
const PERSIST: &str = "write it into the option file of the server as well";

pub(super) async fn look(
    pool: &MySqlPool,
    settings: &Settings,
    grants: &Grants,
    needs: &Needs,
    findings: &mut Vec<Finding>,
) {
    if settings.text("log_bin") != "ON" {
        let finding = Finding::new(needs.log.lack(), "binlog", "the binary log is off")
            .means(effect(needs))
            .fixed_by(
                "start the server with log_bin and binlog_format = ROW; or write mode = \"poll\"",
            );
        findings.push(finding);
        return;
    }
    findings.push(Finding::good("binlog", "the binary log is on"));
    findings.push(expected("binlog-format", "binlog_format", "ROW", settings, needs));
    findings.push(expected("row-image", "binlog_row_image", "FULL", settings, needs));
    findings.push(expiry(settings));
    findings.push(server_id(pool, settings, needs).await);
    findings.push(replication(grants, needs));
}

fn effect(needs: &Needs) -> &'static str {
    match needs.log {
        Log::Required => "the relay does not start: mode = \"tail\" insists on the log",
        _ => "events are published all the same, found at the poll interval instead of at once",
    }
}

fn expected(
    code: &'static str,
    name: &str,
    wanted: &str,
    settings: &Settings,
    needs: &Needs,
) -> Finding {
    let setting = settings.text(name);
    if setting.eq_ignore_ascii_case(wanted) {
        return Finding::good(code, format!("{name} is {setting}"));
    }
    Finding::new(needs.log.lack(), code, format!("{name} is {setting}, not {wanted}"))
        .means(effect(needs))
        .fixed_by(format!("{PERSIST}; it counts for sessions that are opened later"))
        .with_sql(format!("SET GLOBAL {name} = '{wanted}';"))
}

/// How long the log is kept. Old servers know days only.
fn expiry(settings: &Settings) -> Finding {
    const CODE: &str = "binlog-expiry";
    const HOUR: f64 = 3600.0;
    const WEEK: &str = "SET GLOBAL binlog_expire_logs_seconds = 604800;";
    let seconds = match settings.number("binlog_expire_logs_seconds") {
        0.0 => settings.number("expire_logs_days") * 24.0 * HOUR,
        seconds => seconds,
    };
    if seconds == 0.0 {
        return Finding::advice(CODE, "the binary log is kept for ever")
            .means("it fills the disk, and then nothing can be written, events neither")
            .fixed_by(PERSIST)
            .with_sql(WEEK);
    }
    if seconds < HOUR {
        return Finding::advice(CODE, format!("the binary log is kept for {seconds} s"))
            .means("a relay that was away for longer finds its events by polling first")
            .fixed_by(PERSIST)
            .with_sql(WEEK);
    }
    Finding::good(CODE, format!("the binary log is kept for {:.0} h", seconds / HOUR))
}

/// Readers of the log have numbers like servers have, and no two may have the same.
async fn server_id(pool: &MySqlPool, settings: &Settings, needs: &Needs) -> Finding {
    const CODE: &str = "server-id";
    let id = settings.text("server_id");
    if id == "0" {
        return Finding::new(needs.log.lack(), CODE, "server_id is 0: nobody may read the log")
            .means(effect(needs))
            .fixed_by(PERSIST)
            .with_sql("SET GLOBAL server_id = 1;");
    }
    // Only some may ask, and only some servers are asked in this way; nobody need know.
    let rows = sqlx::raw_sql("SHOW SLAVE HOSTS").fetch_all(pool).await.unwrap_or_default();
    let mut readers: Vec<String> = rows
        .iter()
        .filter_map(|row| row.try_get_unchecked::<u32, _>(0).ok())
        .map(|reader| reader.to_string())
        .collect();
    readers.sort_unstable();
    let clash =
        readers.iter().any(|reader| reader == id) || readers.windows(2).any(|two| two[0] == two[1]);
    if clash {
        let what = format!("server_id is {id}, and readers of the log are {}", readers.join(", "));
        return Finding::advice(CODE, what)
            .means("two readers of one number push each other out, and both stall")
            .fixed_by("give each server and reader a number of its own");
    }
    Finding::good(CODE, format!("server_id is {id}; {} others read the log", readers.len()))
}

fn replication(grants: &Grants, needs: &Needs) -> Finding {
    const CODE: &str = "replication";
    let user = &grants.user;
    if grants.may_replicate() {
        return Finding::good(CODE, format!("{user} may read the log"));
    }
    Finding::new(needs.log.lack(), CODE, format!("{user} may not read the log"))
        .means(effect(needs))
        .fixed_by("an administrator runs this; or grant the role tailer of `semel grants`")
        .with_sql(format!("GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {user};"))
}
