//! Which tables a program can work with: those of its own version, and later ones that say so.
//!
//! A migration that leaves alone what earlier programs read and write names the earliest of them that
//! can go on beside it: `0004_index_beside_0003`. So relays of two versions run side by side, and an
//! old one that is started again after the migration is not refused.

use semel_core::Failure;

/// The versions of the tables, as one program sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Versions {
    /// The last one that was applied; 0 when there are no tables.
    pub(crate) newest: usize,
    /// The one to be worked with: the program's own, where all later ones let it.
    pub(crate) usable: usize,
}

impl Versions {
    pub(crate) const NONE: Self = Self { newest: 0, usable: 0 };

    /// By the numbers and names of all that was applied, for a program that knows so many of them.
    pub(crate) fn of(applied: impl IntoIterator<Item = (usize, String)>, known: usize) -> Self {
        let (mut newest, mut goes_on) = (0, true);
        for (number, name) in applied {
            newest = newest.max(number);
            goes_on &= number <= known || earliest_beside(&name).is_some_and(|at| at <= known);
        }
        Self { newest, usable: if goes_on { newest.min(known) } else { newest } }
    }
}

/// What makes one version of the tables out of the one before.
pub(crate) struct Migration {
    pub(crate) name: &'static str,
    pub(crate) sql: &'static str,
    /// Takes it back.
    pub(crate) down: &'static str,
}

/// The names of those after this version.
pub(crate) fn missing(migrations: &[Migration], present: usize) -> Vec<&'static str> {
    migrations.iter().skip(present).map(|migration| migration.name).collect()
}

/// All of them as SQL, each with the statement that notes it, which is `note` before the values.
pub(crate) fn up_sql(migrations: &[Migration], note: &str) -> String {
    let mut sql = String::new();
    for (number, Migration { name, sql: migration, .. }) in (1..).zip(migrations) {
        sql += migration;
        sql += &format!("\n{note} ({number}, '{name}');\n");
    }
    sql
}

/// What takes all of them back as SQL, and `last` after it.
pub(crate) fn down_sql(migrations: &[Migration], last: &'static str) -> String {
    migrations.iter().rev().map(|migration| migration.down).chain([last]).collect()
}

/// Refuses tables of a later program. `place` says what was migrated: a database, a file.
pub(crate) fn refuse_newer(
    database: &str,
    place: &str,
    present: usize,
    migrations: &[Migration],
) -> Result<(), Failure> {
    let known = migrations.len();
    if present <= known {
        return Ok(());
    }
    Err(Failure::misconfigured(
        "E-SCHEMA-NEWER",
        format!("{database}: the tables have version {present}, this semel knows up to {known}"),
    )
    .with_fix(format!("use the semel that migrated this {place}, or a later one")))
}

/// There is more than whoever wants to drop it has seen.
pub(crate) fn written_meanwhile(database: &str) -> Failure {
    let what = format!("{database}: events were written meanwhile, or left by consumers");
    Failure::refused("E-EVENTS-LEFT", what)
        .with_fix("stop the services that write them and the consumers, and try again")
}

/// Defines `SchemaStatus`, the one of the public module of this name.
macro_rules! define_schema_status {
    ($module:literal) => {
        /// Which version of the tables is there, and which one this program needs.
        ///
        /// ```
        #[doc = concat!("# use semel_backends::", $module, "::SchemaStatus;")]
        /// let status = SchemaStatus { present: 0, latest: 1, missing: vec!["0001_tables"] };
        /// assert!(!status.is_current());
        /// ```
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct SchemaStatus {
            /// The version that is there, or the one of this program, if it works beside later ones;
            /// 0 when there are no tables.
            pub present: usize,
            /// The version of this program.
            pub latest: usize,
            /// The migrations that are missing.
            pub missing: Vec<&'static str>,
        }

        impl SchemaStatus {
            /// Whether this program can work with the tables.
            #[must_use]
            pub const fn is_current(&self) -> bool {
                self.present == self.latest
            }

            fn of(present: usize) -> Self {
                let missing = $crate::versions::missing(MIGRATIONS, present);
                Self { present, latest: MIGRATIONS.len(), missing }
            }
        }
    };
}

pub(crate) use define_schema_status;

fn earliest_beside(name: &str) -> Option<usize> {
    name.rsplit_once("_beside_")?.1.parse().ok()
}

#[cfg(all(test, any(feature = "mysql", feature = "sqlite")))]
pub(crate) fn assert_all_tables_are_dropped(up: &str, down: &str) {
    let words = |sql: &str| -> Vec<String> {
        sql.split(|c: char| c != '_' && !c.is_alphanumeric()).map(str::to_owned).collect()
    };
    let down = words(down);
    let mut tables = 0;
    for line in up.lines().filter(|line| line.starts_with("CREATE TABLE")) {
        let name = words(line).into_iter().find(|word| word.starts_with("semel_"));
        assert!(name.is_some_and(|name| down.contains(&name)), "not in the down scripts: {line}");
        tables += 1;
    }
    assert!(tables > 5, "{tables} tables");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(known: usize, names: &[&str]) -> Versions {
        Versions::of((1..).zip(names.iter().map(|name| (*name).to_owned())), known)
    }

    #[test]
    fn a_program_goes_on_beside_later_tables_that_let_it() {
        let names = ["0001_tables", "0002_index_beside_0001", "0003_column_beside_0002"];
        assert_eq!(seen(3, &names), Versions { newest: 3, usable: 3 });
        assert_eq!(seen(2, &names), Versions { newest: 3, usable: 2 });
        assert_eq!(seen(1, &names), Versions { newest: 3, usable: 3 }, "0003 needs 0002");
        assert_eq!(seen(3, &names[..2]), Versions { newest: 2, usable: 2 });
        assert_eq!(seen(3, &[]), Versions::NONE);
    }

    #[test]
    fn tables_of_a_later_program_are_refused() {
        let one = [Migration { name: "0001_tables", sql: "up", down: "down" }];
        refuse_newer("MySQL", "database", 1, &one).unwrap();
        let failure = refuse_newer("MySQL", "database", 2, &one).unwrap_err();
        assert_eq!(failure.code(), "E-SCHEMA-NEWER");
        assert_eq!(up_sql(&one, "NOTE"), "up\nNOTE (1, '0001_tables');\n");
        assert_eq!(down_sql(&one, "last"), "downlast");
    }

    #[test]
    fn whatever_says_nothing_or_nonsense_is_not_worked_with() {
        for name in ["0002_other", "0002_beside_", "0002_x_beside_0002", "0002_x_beside_y", ""] {
            assert_eq!(
                seen(1, &["0001_tables", name]),
                Versions { newest: 2, usable: 2 },
                "{name}"
            );
        }
    }
}
