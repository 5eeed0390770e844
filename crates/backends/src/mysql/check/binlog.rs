//! The binary log, for relays that tail it.

use semel_core::diagnosis::{Finding, Log, Needs};
use sqlx::mysql::MySqlRow;
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
    findings.push(format(settings, needs));
    findings.push(row_image(settings));
    findings.push(compression(settings, needs));
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

fn format(settings: &Settings, needs: &Needs) -> Finding {
    const CODE: &str = "binlog-format";
    let format = settings.text("binlog_format");
    if format.eq_ignore_ascii_case("ROW") {
        return Finding::good(CODE, format!("binlog_format is {format}"));
    }
    Finding::new(needs.log.lack(), CODE, format!("binlog_format is {format}, not ROW"))
        .means(effect(needs))
        .fixed_by(format!("{PERSIST}; it counts for sessions that are opened later"))
        .with_sql("SET GLOBAL binlog_format = 'ROW';")
}

/// The rows are read from the table, so it is all the same how much of them is in the log.
fn row_image(settings: &Settings) -> Finding {
    let image = settings.text("binlog_row_image");
    let cost = match image {
        "FULL" => "; MINIMAL would log less, if nobody else needs whole rows",
        _ => "",
    };
    Finding::good("row-image", format!("binlog_row_image is {image}: any will do{cost}"))
}

/// MySQL packs whole transactions, which could be read only unpacked in memory; MariaDB packs rows, and
/// those are not read at all.
fn compression(settings: &Settings, needs: &Needs) -> Finding {
    const CODE: &str = "binlog-compression";
    if settings.text("binlog_transaction_compression") != "ON" {
        return Finding::good(CODE, "the transactions in the binary log can be read one by one");
    }
    Finding::new(needs.log.lack(), CODE, "binlog_transaction_compression is ON")
        .means(effect(needs))
        .fixed_by(format!("{PERSIST}; or write mode = \"poll\""))
        .with_sql("SET GLOBAL binlog_transaction_compression = OFF;")
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
    let Some(mut readers) = readers(pool).await else {
        let what = format!("server_id is {id}; this user is not shown who else reads the log");
        return Finding::good(CODE, what);
    };
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

/// The numbers of those who read the log; none when the user may not ask.
async fn readers(pool: &MySqlPool) -> Option<Vec<String>> {
    // The second is that of MariaDB and of older versions of MySQL.
    for ask in ["SHOW REPLICAS", "SHOW SLAVE HOSTS"] {
        if let Ok(rows) = sqlx::raw_sql(ask).fetch_all(pool).await {
            let number = |row: &MySqlRow| row.try_get_unchecked::<u32, _>(0).ok();
            return Some(rows.iter().filter_map(number).map(|id| id.to_string()).collect());
        }
    }
    None
}

fn replication(grants: &Grants, needs: &Needs) -> Finding {
    const CODE: &str = "replication";
    let (user, lacks) = (&grants.user, grants.lacks_for_log());
    if lacks.is_empty() {
        return Finding::good(CODE, format!("{user} may read the log"));
    }
    let (what, lacks) = (lacks.join(" and "), lacks.join(", "));
    Finding::new(needs.log.lack(), CODE, format!("{user} may not read the log: it lacks {what}"))
        .means(effect(needs))
        .fixed_by("an administrator runs this; or grant the role tailer of `semel grants`")
        .with_sql(format!("GRANT {lacks} ON *.* TO {user};"))
}

#[cfg(test)]
mod tests {
    use semel_core::diagnosis::Severity;

    use super::*;

    /// A setting of MySQL alone, which no server of these tests has.
    #[test]
    fn packed_transactions_are_found_where_they_are() {
        let settings = |value: &str| {
            let name = "binlog_transaction_compression".to_owned();
            Settings([(name, value.to_owned())].into())
        };
        for (log, severity) in
            [(Log::Required, Severity::Problem), (Log::WherePossible, Severity::Advice)]
        {
            let needs = Needs { log, ..Needs::default() };
            let found = compression(&settings("ON"), &needs);
            assert_eq!(found.severity, severity, "{found:?}");
            assert!(found.sql.is_some_and(|sql| sql.contains("compression = OFF")));
            for other in [settings("OFF"), Settings([].into())] {
                assert_eq!(compression(&other, &needs).severity, Severity::Good);
            }
        }
    }
}
