//! Which tables a program can work with: those of its own version, and later ones that say so.
//!
//! A migration that leaves alone what earlier programs read and write names the earliest of them that
//! can go on beside it: `0004_index_beside_0003`. So relays of two versions run side by side, and an
//! old one that is started again after the migration is not refused.

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

fn earliest_beside(name: &str) -> Option<usize> {
    name.rsplit_once("_beside_")?.1.parse().ok()
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
