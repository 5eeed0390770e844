//! The server as a whole.

use semel_core::Failure;
use semel_core::diagnosis::Finding;
use sqlx::PgConnection;

use super::super::error::failure;

const LOOK: &str = "\
select pg_is_in_recovery(), current_setting('server_version_num')::integer,
    current_setting('fsync')::boolean and current_setting('full_page_writes')::boolean,
    current_setting('synchronous_commit') <> 'off',
    current_setting('autovacuum')::boolean and current_setting('track_counts')::boolean,
    array(select c.relname::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where n.nspname = 'semel' and c.reloptions::text like '%autovacuum_enabled=false%'
        order by 1)";

/// Says whether it is a standby.
pub(super) async fn look(
    connection: &mut PgConnection,
    findings: &mut Vec<Finding>,
) -> Result<bool, Failure> {
    let look: (bool, i32, bool, bool, bool, Vec<String>) =
        sqlx::query_as(LOOK).fetch_one(connection).await.map_err(failure("look at the server"))?;
    let (is_standby, version, is_safe, is_waited_for, is_vacuumed, unvacuumed) = look;
    findings.push(server(is_standby, version));
    findings.push(durability(is_safe, is_waited_for));
    findings.push(autovacuum(is_vacuumed, &unvacuumed));
    Ok(is_standby)
}

fn server(is_standby: bool, version: i32) -> Finding {
    const CODE: &str = "server";
    let number = version / 10_000;
    if is_standby {
        return Finding::problem(CODE, "it is a standby, which takes no writes")
            .means("events wait in the primary; nothing is published from here")
            .fixed_by(
                "point the URL at the primary, such as with target_session_attrs=read-write",
            );
    }
    if number < 13 {
        return Finding::problem(CODE, format!("it is PostgreSQL {number}"))
            .means("nothing works before 13: there is no pg_current_xact_id()")
            .fixed_by("upgrade the server");
    }
    Finding::good(CODE, format!("PostgreSQL {number}, not a standby"))
}

fn durability(is_safe: bool, is_waited_for: bool) -> Finding {
    const CODE: &str = "durability";
    const EFFECT: &str = "a crash of the server can undo commits whose events were published";
    if !is_safe {
        return Finding::advice(CODE, "fsync or full_page_writes is off").means(EFFECT).with_sql(
            "alter system set fsync = on;\nalter system set full_page_writes = on;\n\
             select pg_reload_conf();",
        );
    }
    if !is_waited_for {
        return Finding::advice(CODE, "synchronous_commit is off")
            .means(EFFECT)
            .fixed_by("set synchronous_commit to local or more where it was turned off");
    }
    Finding::good(CODE, "what is committed is on the disk")
}

fn autovacuum(is_vacuumed: bool, unvacuumed: &[String]) -> Finding {
    const CODE: &str = "autovacuum";
    const EFFECT: &str = "semel.cursor grows with every batch, and polling becomes slower";
    if !is_vacuumed {
        return Finding::advice(CODE, "autovacuum is off").means(EFFECT).with_sql(
            "alter system set autovacuum = on;\nalter system set track_counts = on;\n\
             select pg_reload_conf();",
        );
    }
    if unvacuumed.is_empty() {
        return Finding::good(CODE, "autovacuum is on");
    }
    let what = format!("autovacuum is off for {} of the schema semel", unvacuumed.join(", "));
    let sql = unvacuumed.iter().map(|table| {
        format!("alter table semel.{} reset (autovacuum_enabled);", super::quoted(table))
    });
    Finding::advice(CODE, what).means(EFFECT).with_sql(sql.collect::<Vec<_>>().join("\n"))
}
