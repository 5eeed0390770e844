//! Transactions that somebody forgot.

use semel_core::Failure;
use semel_core::diagnosis::{Finding, Needs};
use sqlx::PgConnection;

use super::super::error::failure;
use super::literal;

const EFFECT: &str = "events it wrote are not published before it ends; until then no relay can \
                      begin to tail the log, and what is dead in the tables of semel stays there";

/// Those of other users show their age to members of `pg_read_all_stats` only.
const OPEN: &str = "\
select pid, coalesce(usename::text, ''), coalesce(state, ''),
    extract(epoch from clock_timestamp() - xact_start)::bigint
from pg_stat_activity
where xact_start < clock_timestamp() - make_interval(secs => $1) and pid <> pg_backend_pid()
    and backend_type = 'client backend'
    and (backend_xid is not null or backend_xmin is not null and datname = current_database())
order by xact_start";

const PREPARED: &str = "\
select gid, owner::text, database::text, extract(epoch from clock_timestamp() - prepared)::bigint
from pg_prepared_xacts where prepared < clock_timestamp() - make_interval(secs => $1)
order by prepared";

pub(super) async fn look(
    connection: &mut PgConnection,
    needs: &Needs,
    findings: &mut Vec<Finding>,
) -> Result<(), Failure> {
    let failed = || failure("look at the open transactions");
    let long = needs.long.as_secs_f64();
    let open: Vec<(i32, String, String, i64)> =
        sqlx::query_as(OPEN).bind(long).fetch_all(&mut *connection).await.map_err(failed())?;
    if open.is_empty() {
        findings.push(Finding::good("transactions", "none that can be seen is open for long"));
    }
    for (process, user, state, seconds) in open {
        let what =
            format!("process {process} of {user} ({state}) has a transaction open for {seconds} s");
        let fix = format!(
            "see what it does in pg_stat_activity; if nobody needs it: \
             select pg_terminate_backend({process});"
        );
        findings.push(Finding::advice("transactions", what).means(EFFECT).fixed_by(fix));
    }
    let prepared: Vec<(String, String, String, i64)> =
        sqlx::query_as(PREPARED).bind(long).fetch_all(connection).await.map_err(failed())?;
    if prepared.is_empty() {
        findings.push(Finding::good("prepared", "no prepared transaction was left behind"));
    }
    for (name, owner, database, seconds) in prepared {
        let name = literal(&name);
        let what = format!(
            "the transaction {name} of {owner} in {database} was prepared {seconds} s ago and not ended"
        );
        let fix = format!(
            "its transaction manager should end it; if there is none, in {database}: \
             commit prepared {name}; or rollback prepared {name};"
        );
        findings.push(Finding::advice("prepared", what).means(EFFECT).fixed_by(fix));
    }
    Ok(())
}
