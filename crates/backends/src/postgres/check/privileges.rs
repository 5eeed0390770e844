//! What the user may do: enough for a relay, and not more.

use std::collections::BTreeMap;

use semel_core::Failure;
use semel_core::diagnosis::{Finding, Log, Needs};
use sqlx::PgConnection;

use super::super::error::failure;
use super::quoted;

/// What the role `poller` of `semel grants` may do with whole tables, views and sequences.
const NEEDED: &[(&str, &[&str])] = &[
    ("migrations", &["select"]),
    ("outbox", &["select", "delete"]),
    ("deletable", &["select", "delete"]),
    ("outbox_seq_seq", &["select"]),
    ("cursor", &["select", "insert", "update", "delete"]),
    ("passage", &["select", "insert", "delete"]),
    ("parked", &["select", "insert", "update", "delete"]),
    ("member", &["select", "insert", "update", "delete"]),
    ("share", &["select", "insert", "update", "delete"]),
    ("outages", &["select", "insert", "update", "delete"]),
    ("mapped", &["select", "insert", "update", "delete"]),
    ("mapped_parked", &["select", "insert", "update", "delete"]),
    ("audit", &["select", "insert"]),
    ("readable", &["select"]),
    ("events", &["select"]),
];

/// The columns that it may change in tables that it may not change otherwise.
const CHANGED_COLUMNS: &[(&str, &str)] = &[("outbox", "txid"), ("audit", "events")];

/// Says whether the user may look at the tables.
pub(super) async fn look(
    connection: &mut PgConnection,
    needs: &Needs,
    findings: &mut Vec<Finding>,
) -> Result<bool, Failure> {
    let user: User = sqlx::query_as(USER)
        .fetch_one(&mut *connection)
        .await
        .map_err(failure("look at the user"))?;
    let (name, may_enter, ..) = &user;
    let missing = missing(connection, name, *may_enter).await?;
    let may_look = *may_enter && missing.is_empty();
    findings.push(if missing.is_empty() {
        Finding::good("privileges", format!("{name} may do all that a relay does"))
    } else {
        let what = format!("{name} lacks {} privileges of a relay", missing.len());
        Finding::problem("privileges", what)
            .means("the relay stops where it needs them, and events wait in the outbox; without `outages` it goes on, and outages are not shown")
            .fixed_by("or grant the role poller of `semel grants`, which has them all")
            .with_sql(missing.join("\n"))
    });
    findings.extend(excess(connection, &user, needs).await?);
    Ok(may_look)
}

/// Its name, and whether it may use the schema, create in it, is a superuser, owns the tables, and
/// has REPLICATION.
type User = (String, bool, bool, bool, bool, bool);

const USER: &str = "\
select r.rolname::text, has_schema_privilege(n.oid, 'usage'),
    exists (select from aclexplode(n.nspacl) a
        where a.grantee = r.oid and a.privilege_type = 'CREATE' and a.grantee <> n.nspowner),
    r.rolsuper,
    exists (select from pg_class c where c.relnamespace = n.oid and c.relname = 'outbox'
        and pg_has_role(r.oid, c.relowner, 'usage')),
    r.rolreplication
from pg_roles r, pg_namespace n where r.rolname = current_user and n.nspname = 'semel'";

const HAS: &str = "\
select n.relation, n.privilege from unnest($1::text[], $2::text[]) with ordinality
    as n (relation, privilege, place)
join pg_class c on c.relname = n.relation
    and c.relnamespace = (select oid from pg_namespace where nspname = 'semel')
where not case when c.relkind = 'S' then has_sequence_privilege(c.oid, n.privilege)
    else has_table_privilege(c.oid, n.privilege) end
order by n.place";

const HAS_COLUMNS: &str = "\
select n.relation, n.name from unnest($1::text[], $2::text[]) with ordinality
    as n (relation, name, place)
join pg_class c on c.relname = n.relation
    and c.relnamespace = (select oid from pg_namespace where nspname = 'semel')
where not has_column_privilege(c.oid, n.name, 'update')
order by n.place";

const HAS_FUNCTIONS: &str = "\
select p.oid::regprocedure::text
from pg_proc p join pg_namespace n on n.oid = p.pronamespace and n.nspname = 'semel'
where p.proname in ('add_partitions', 'drop_partition')
    and not has_function_privilege(p.oid, 'execute')
order by 1";

/// What would grant all that is missing.
async fn missing(
    connection: &mut PgConnection,
    user: &str,
    may_enter: bool,
) -> Result<Vec<String>, Failure> {
    let failed = || failure("look at the privileges");
    let all = NEEDED.iter().flat_map(|(relation, all)| all.iter().map(|each| (*relation, *each)));
    let (relations, privileges): (Vec<&str>, Vec<&str>) = all.unzip();
    let lacks: Vec<(String, String)> = sqlx::query_as(HAS)
        .bind(relations)
        .bind(privileges)
        .fetch_all(&mut *connection)
        .await
        .map_err(failed())?;
    let (relations, columns): (Vec<&str>, Vec<&str>) = CHANGED_COLUMNS.iter().copied().unzip();
    let columns: Vec<(String, String)> = sqlx::query_as(HAS_COLUMNS)
        .bind(relations)
        .bind(columns)
        .fetch_all(&mut *connection)
        .await
        .map_err(failed())?;
    let functions: Vec<String> =
        sqlx::query_scalar(HAS_FUNCTIONS).fetch_all(connection).await.map_err(failed())?;
    let user = quoted(user);
    let mut sql = Vec::new();
    if !may_enter {
        sql.push(format!("grant usage on schema semel to {user};"));
    }
    for (relation, privileges) in by_relation(lacks) {
        let kind = if relation.ends_with("_seq") { "sequence " } else { "" };
        let privileges = privileges.join(", ");
        sql.push(format!("grant {privileges} on {kind}semel.{relation} to {user};"));
    }
    for (relation, column) in columns {
        sql.push(format!("grant update ({column}) on semel.{relation} to {user};"));
    }
    sql.extend(functions.iter().map(|name| format!("grant execute on function {name} to {user};")));
    Ok(sql)
}

fn by_relation(all: Vec<(String, String)>) -> BTreeMap<String, Vec<String>> {
    let mut grouped: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (relation, privilege) in all {
        grouped.entry(relation).or_default().push(privilege);
    }
    grouped
}

/// What was granted on whole tables, and to whom: the user itself, a role it is a member of, or all.
const GRANTED: &str = "\
select c.relname::text, lower(a.privilege_type),
    case when a.grantee = 0 then 'public' else quote_ident(r.rolname) end
from pg_class c join pg_namespace n on n.oid = c.relnamespace
cross join aclexplode(c.relacl) a
left join pg_roles r on r.oid = a.grantee
where n.nspname = 'semel' and c.relname = any ($1) and a.grantee <> c.relowner
    and (a.grantee = 0 or pg_has_role(current_user, a.grantee, 'usage'))
order by 1, 3, 2";

/// More than a relay needs. To add events is not counted: services often do so with the same user.
async fn excess(
    connection: &mut PgConnection,
    user: &User,
    needs: &Needs,
) -> Result<Vec<Finding>, Failure> {
    const CODE: &str = "excess";
    const EFFECT: &str =
        "whoever takes over the relay can change or remove what was to be published";
    let (name, _, may_create, is_superuser, is_owner, may_replicate) = user;
    if *is_superuser || *is_owner {
        let who = if *is_superuser { "is a superuser" } else { "owns the tables" };
        return Ok(vec![
            Finding::advice(CODE, format!("{name} {who}"))
                .means(EFFECT)
                .fixed_by("connect as a user with a role of `semel grants`"),
        ]);
    }
    let names: Vec<&str> = NEEDED.iter().map(|(relation, _)| *relation).collect();
    let granted: Vec<(String, String, String)> = sqlx::query_as(GRANTED)
        .bind(names)
        .fetch_all(connection)
        .await
        .map_err(failure("look at the privileges"))?;
    let mut revoked = Vec::new();
    for (relation, privilege, grantee) in granted.into_iter().filter(is_excess) {
        let kind = if relation.ends_with("_seq") { "sequence " } else { "" };
        revoked.push(format!("revoke {privilege} on {kind}semel.{relation} from {grantee};"));
        // What was granted on single columns goes with it.
        let of_columns = CHANGED_COLUMNS.iter().filter(|(name, _)| *name == relation);
        if privilege == "update" {
            revoked.extend(of_columns.map(|(_, column)| {
                format!("grant update ({column}) on semel.{relation} to {grantee};")
            }));
        }
    }
    if *may_create {
        revoked.push(format!("revoke create on schema semel from {};", quoted(name)));
    }
    if *may_replicate && needs.log == Log::Unread {
        revoked.push(format!("alter role {} with noreplication;", quoted(name)));
    }
    if revoked.is_empty() {
        return Ok(vec![Finding::good(
            CODE,
            format!("{name} may do nothing that a relay does not"),
        )]);
    }
    let what = format!("{name} has privileges that no relay needs");
    Ok(vec![Finding::advice(CODE, what).means(EFFECT).with_sql(revoked.join("\n"))])
}

fn is_excess((relation, privilege, _): &(String, String, String)) -> bool {
    let needed = NEEDED.iter().find(|(name, _)| name == relation).map_or(&[][..], |(_, all)| all);
    let is_harmless = privilege == "select"
        || privilege == "usage"
        || relation == "outbox" && privilege == "insert";
    !is_harmless && !needed.contains(&privilege.as_str())
}
