//! The tables of semel.

use semel_core::Failure;
use semel_core::diagnosis::{Finding, Severity};
use sqlx::PgConnection;

use super::super::error::failure;
use super::super::schema::{self, SchemaStatus, check_order};

/// Looks at their version; says whether there are any.
pub(super) async fn version(
    connection: &mut PgConnection,
    findings: &mut Vec<Finding>,
) -> Result<bool, Failure> {
    let SchemaStatus { present, latest, .. } = match schema::status_of(connection).await {
        Ok(status) => status,
        // There are tables, and another finding says what this user lacks.
        Err(failure) if failure.code() == "E-POSTGRES-PRIVILEGE" => return Ok(true),
        Err(failure) => return Err(failure),
    };
    findings.push(Finding::schema(present, latest, schema::schema_sql));
    Ok(present > 0)
}

/// What else may be wrong with them, for who may look at them.
pub(super) async fn look(
    connection: &mut PgConnection,
    findings: &mut Vec<Finding>,
) -> Result<(), Failure> {
    findings.push(match check_order(connection).await {
        Ok(()) => Finding::good("sequence", "numbers are given out one by one"),
        Err(failure) if failure.code() == "E-POSTGRES-SEQUENCE" => {
            Finding::of_failure(Severity::Problem, "sequence", &failure)
                .means("no relay starts before this is set right")
                .with_sql("alter table semel.outbox alter column seq set cache 1;")
        }
        Err(failure) => return Err(failure),
    });
    findings.push(replica_identity(connection).await?);
    findings.extend(partitions(connection).await?);
    Ok(())
}

/// Tables of semel without a replica identity whose deletions somebody publishes: PostgreSQL
/// refuses to delete from them. The publication of semel itself tells of inserts only.
const UNIDENTIFIED: &str = "\
with published (publication, relation) as (
    select p.pubname, c.oid from pg_publication p
    join pg_publication_tables t on t.pubname = p.pubname
    join pg_namespace n on n.nspname = t.schemaname
    join pg_class c on c.relnamespace = n.oid and c.relname = t.tablename
    where n.nspname = 'semel' and (p.pubupdate or p.pubdelete)
), leaf (publication, relation) as (
    select publication, relation from published
    union
    select publication, part.relid from published, pg_partition_tree(relation) part where part.isleaf
)
select c.relname::text, string_agg(l.publication::text, ', ') from leaf l
join pg_class c on c.oid = l.relation
where c.relkind = 'r' and (c.relreplident = 'n' or c.relreplident = 'd'
    and not exists (select from pg_index i where i.indrelid = c.oid and i.indisprimary))
group by 1 order by 1";

async fn replica_identity(connection: &mut PgConnection) -> Result<Finding, Failure> {
    const CODE: &str = "replica-identity";
    let tables: Vec<(String, String)> = sqlx::query_as(UNIDENTIFIED)
        .fetch_all(connection)
        .await
        .map_err(failure("look at the replica identity"))?;
    let Some((table, publications)) = tables.first() else {
        let what = "not needed: the publication of semel tells of inserts only, and no other one \
                    tells of deletions from tables without an identity";
        return Ok(Finding::good(CODE, what));
    };
    let what = format!(
        "the publication {publications} tells of deletions, and semel.{table} has no replica identity"
    );
    let sql = tables.iter().map(|(table, _)| {
        format!("alter table semel.{} replica identity full;", super::quoted(table))
    });
    Ok(Finding::problem(CODE, what)
        .means("PostgreSQL refuses to delete old events: the outbox grows")
        .fixed_by("publish only inserts of the schema semel, or give the tables an identity")
        .with_sql(sql.collect::<Vec<_>>().join("\n")))
}

/// Whether there is a partition for what is written when this one is over.
async fn partitions(connection: &mut PgConnection) -> Result<Option<Finding>, Failure> {
    const CODE: &str = "partitions";
    const IS_PARTITIONED: &str = "\
select exists (select from pg_proc p join pg_namespace n on n.oid = p.pronamespace
    where n.nspname = 'semel' and p.proname = 'partition_seconds')";
    const IS_READY: &str = "\
select exists (select from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = 'semel' and c.relname = 'outbox_' || (
        (extract(epoch from clock_timestamp())::bigint / span + 1) * span))
from semel.partition_seconds() as span";
    let failed = || failure("look at the partitions");
    let is_partitioned: bool =
        sqlx::query_scalar(IS_PARTITIONED).fetch_one(&mut *connection).await.map_err(failed())?;
    if !is_partitioned {
        return Ok(None);
    }
    let is_ready: bool =
        sqlx::query_scalar(IS_READY).fetch_one(connection).await.map_err(failed())?;
    Ok(Some(if is_ready {
        Finding::good(CODE, "the next partition of the outbox is there")
    } else {
        Finding::advice(CODE, "there is no partition for the events of the next time")
            .means("they go to semel.outbox_rest, where they are deleted one by one")
            .fixed_by("let a relay run with [retention], or `semel clean` from time to time")
            .with_sql("select semel.add_partitions();")
    }))
}
