//! How good the order of a mapped table is.

/// How good the order inside an aggregate is that the columns of a mapped table give.
///
/// ```
/// # use semel_backends::mapped::LaneOrder;
/// assert!(LaneOrder::ByColumn.is_kept() && LaneOrder::ByTime.is_kept());
/// assert!(!LaneOrder::None.is_kept());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneOrder {
    /// That of a number, or of the column that the mapping names.
    ByColumn,
    /// That of the time of writing. Rows that have the same time, as those of one transaction have
    /// by `now()` of PostgreSQL, come in the order of their ids, which is any.
    ByTime,
    /// None: rows come in the order of ids that tell nothing.
    None,
}

impl LaneOrder {
    /// Whether events of one aggregate come in the order in which they were written.
    #[must_use]
    pub const fn is_kept(self) -> bool {
        !matches!(self, Self::None)
    }

    /// What to do when it is not kept.
    pub const FIX: &str = "let the database number the rows (an identity or auto_increment column), and \
        write order = \"ITS NAME\" in columns";

    /// What to do when it is that of the time of writing.
    pub const FIX_TIME: &str = "let the database number the rows (an identity or auto_increment \
        column), and write order = \"ITS NAME\" in columns; on PostgreSQL, created_at default \
        clock_timestamp() instead of now() gives the rows of a transaction different times";
}
