//! Which table, which of its columns mean what, and how a row is marked as published.

/// A table of somebody else's shape: which of its columns mean what, and how a row is marked as
/// published.
///
/// Names are taken as they are: they are quoted, so that any characters are allowed, and upper and
/// lower case differ where the database says so. What is not set is not used.
///
/// ```
/// use semel_backends::mapped::Mapping;
///
/// let mapping = Mapping::new("messages")
///     .in_schema("shop")
///     .aggregate_type_is("order")
///     .aggregate_id("order_id")
///     .event_type("kind")
///     .payload("body")
///     .created_at("written_at")
///     .header_column("tenant")
///     .mark_status("state", "NEW", "SENT");
/// assert_eq!(mapping.table(), "messages");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub(crate) schema: Option<String>,
    pub(crate) table: String,
    pub(crate) id: String,
    pub(crate) event_id: Option<String>,
    pub(crate) aggregate_type: Origin,
    pub(crate) aggregate_id: String,
    pub(crate) event_type: Origin,
    pub(crate) payload: String,
    pub(crate) content_type: Option<Origin>,
    pub(crate) created_at: Option<String>,
    pub(crate) available_at: Option<String>,
    pub(crate) headers: Option<String>,
    pub(crate) idempotency_key: Option<String>,
    pub(crate) header_columns: Vec<String>,
    pub(crate) all_other_columns: bool,
    pub(crate) order: Option<String>,
    pub(crate) time_mark: Option<String>,
    pub(crate) flag_mark: Option<String>,
    pub(crate) status_mark: Option<StatusMark>,
    pub(crate) delete: bool,
    pub(crate) retry_count: Option<String>,
}

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Column(String),
    Constant(String),
}

/// A text column that says where a row is in its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StatusMark {
    pub(crate) column: String,
    pub(crate) pending: String,
    pub(crate) published: String,
}

impl Mapping {
    /// A table with the columns `id`, `aggregate_type`, `aggregate_id`, `event_type` and `payload`.
    /// How a row is marked must still be said.
    #[must_use]
    pub fn new(table: impl Into<String>) -> Self {
        Self {
            schema: None,
            table: table.into(),
            id: "id".into(),
            event_id: None,
            aggregate_type: Origin::Column("aggregate_type".into()),
            aggregate_id: "aggregate_id".into(),
            event_type: Origin::Column("event_type".into()),
            payload: "payload".into(),
            content_type: None,
            created_at: None,
            available_at: None,
            headers: None,
            idempotency_key: None,
            header_columns: Vec::new(),
            all_other_columns: false,
            order: None,
            time_mark: None,
            flag_mark: None,
            status_mark: None,
            delete: false,
            retry_count: None,
        }
    }

    /// The columns of Debezium's outbox event router: `id`, `aggregatetype`, `aggregateid`, `type`
    /// and `payload`. All other columns become headers, and a row is deleted once it is published.
    ///
    /// ```
    /// # use semel_backends::mapped::Mapping;
    /// // A random id tells nothing about the order: name a column that does, if there is one.
    /// let mapping = Mapping::debezium("outboxevent").created_at("timestamp");
    /// # assert_eq!(mapping.table(), "outboxevent");
    /// ```
    #[must_use]
    pub fn debezium(table: impl Into<String>) -> Self {
        Self::new(table)
            .aggregate_type("aggregatetype")
            .aggregate_id("aggregateid")
            .event_type("type")
            .other_columns_to_headers()
            .delete_on_publish()
    }

    /// The classic transactional outbox: `id`, `aggregate_type`, `aggregate_id`, `event_type`,
    /// `payload`, `created_at`, and `published_at`, which is null until the row is published.
    #[must_use]
    pub fn transactional_outbox(table: impl Into<String>) -> Self {
        Self::new(table).created_at("created_at").mark_time("published_at")
    }

    /// The classic polling publisher: as the transactional outbox, with `published`, `retry_count`
    /// and `idempotency_key`.
    #[must_use]
    pub fn polling_publisher(table: impl Into<String>) -> Self {
        Self::transactional_outbox(table)
            .mark_flag("published")
            .retry_count("retry_count")
            .idempotency_key("idempotency_key")
    }

    /// The name of the table.
    #[must_use]
    pub fn table(&self) -> &str {
        &self.table
    }

    /// The schema of the table: for MySQL the database, for SQLite the attached file. Without one
    /// the database looks where it always looks.
    #[must_use]
    pub fn in_schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = Some(schema.into());
        self
    }

    /// The column that tells rows apart, best the primary key. A UUID in it is the event's id; from
    /// anything else an id is made, always the same for the same table and value.
    #[must_use]
    pub fn id(mut self, column: impl Into<String>) -> Self {
        self.id = column.into();
        self
    }

    /// The column with the event's id, when it is another one than [`id`](Self::id).
    #[must_use]
    pub fn event_id(mut self, column: impl Into<String>) -> Self {
        self.event_id = Some(column.into());
        self
    }

    /// The column with the kind of thing an event is about.
    #[must_use]
    pub fn aggregate_type(mut self, column: impl Into<String>) -> Self {
        self.aggregate_type = Origin::Column(column.into());
        self
    }

    /// All events of this table are about this kind of thing.
    #[must_use]
    pub fn aggregate_type_is(mut self, value: impl Into<String>) -> Self {
        self.aggregate_type = Origin::Constant(value.into());
        self
    }

    /// The column that says which thing of its kind an event is about.
    #[must_use]
    pub fn aggregate_id(mut self, column: impl Into<String>) -> Self {
        self.aggregate_id = column.into();
        self
    }

    /// The column that says what happened.
    #[must_use]
    pub fn event_type(mut self, column: impl Into<String>) -> Self {
        self.event_type = Origin::Column(column.into());
        self
    }

    /// The same happens in all events of this table.
    #[must_use]
    pub fn event_type_is(mut self, value: impl Into<String>) -> Self {
        self.event_type = Origin::Constant(value.into());
        self
    }

    /// The column with the content: JSON, text or bytes.
    #[must_use]
    pub fn payload(mut self, column: impl Into<String>) -> Self {
        self.payload = column.into();
        self
    }

    /// The column that says what kind of content the payload is. Without one, bytes are
    /// `application/octet-stream` and anything else is `application/json`.
    #[must_use]
    pub fn content_type(mut self, column: impl Into<String>) -> Self {
        self.content_type = Some(Origin::Column(column.into()));
        self
    }

    /// All payloads of this table are content of this kind.
    #[must_use]
    pub fn content_type_is(mut self, value: impl Into<String>) -> Self {
        self.content_type = Some(Origin::Constant(value.into()));
        self
    }

    /// The column with the time at which the event was written.
    #[must_use]
    pub fn created_at(mut self, column: impl Into<String>) -> Self {
        self.created_at = Some(column.into());
        self
    }

    /// The column with the time before which the event is not published.
    #[must_use]
    pub fn available_at(mut self, column: impl Into<String>) -> Self {
        self.available_at = Some(column.into());
        self
    }

    /// The column with the headers: a JSON object.
    #[must_use]
    pub fn headers(mut self, column: impl Into<String>) -> Self {
        self.headers = Some(column.into());
        self
    }

    /// The column with the writer's own deduplication key.
    #[must_use]
    pub fn idempotency_key(mut self, column: impl Into<String>) -> Self {
        self.idempotency_key = Some(column.into());
        self
    }

    /// Adds a column that becomes a header of its name, unless it is null.
    #[must_use]
    pub fn header_column(mut self, column: impl Into<String>) -> Self {
        self.header_columns.push(column.into());
        self
    }

    /// Every column that has no other meaning becomes a header of its name, unless it is null.
    #[must_use]
    pub fn other_columns_to_headers(mut self) -> Self {
        self.all_other_columns = true;
        self
    }

    /// The column that orders the rows of one aggregate. Without one it is the id when that is a
    /// whole number, else the time of writing and then the id.
    #[must_use]
    pub fn order_by(mut self, column: impl Into<String>) -> Self {
        self.order = Some(column.into());
        self
    }

    /// The column that is null until the event is published, and then the time of that.
    #[must_use]
    pub fn mark_time(mut self, column: impl Into<String>) -> Self {
        self.time_mark = Some(column.into());
        self
    }

    /// The column that is false, or 0, until the event is published, and then true, or 1. A row that is
    /// written with null in it waits as well; before a pipeline reads the table for the first time, there
    /// must be none.
    #[must_use]
    pub fn mark_flag(mut self, column: impl Into<String>) -> Self {
        self.flag_mark = Some(column.into());
        self
    }

    /// The text column that is `pending` until the event is published, and then `published`. Rows
    /// with any other value are left alone.
    #[must_use]
    pub fn mark_status(
        mut self,
        column: impl Into<String>,
        pending: impl Into<String>,
        published: impl Into<String>,
    ) -> Self {
        let (pending, published) = (pending.into(), published.into());
        self.status_mark = Some(StatusMark { column: column.into(), pending, published });
        self
    }

    /// A row is deleted once it is published.
    #[must_use]
    pub fn delete_on_publish(mut self) -> Self {
        self.delete = true;
        self
    }

    /// The column that counts failed attempts.
    #[must_use]
    pub fn retry_count(mut self, column: impl Into<String>) -> Self {
        self.retry_count = Some(column.into());
        self
    }

    /// The table as people write it.
    pub(crate) fn shown(&self) -> String {
        self.schema.as_ref().map_or_else(|| self.table.clone(), |s| format!("{s}.{}", self.table))
    }

    /// The columns that have a meaning, and the name of the meaning.
    pub(crate) fn roles(&self) -> Vec<(&'static str, &str)> {
        let mut roles = vec![
            ("id", self.id.as_str()),
            ("aggregate_id", &self.aggregate_id),
            ("payload", &self.payload),
        ];
        let origins = [
            ("aggregate_type", Some(&self.aggregate_type)),
            ("event_type", Some(&self.event_type)),
            ("content_type", self.content_type.as_ref()),
        ];
        for (role, origin) in origins {
            if let Some(Origin::Column(column)) = origin {
                roles.push((role, column));
            }
        }
        let optional = [
            ("event_id", &self.event_id),
            ("created_at", &self.created_at),
            ("available_at", &self.available_at),
            ("headers", &self.headers),
            ("idempotency_key", &self.idempotency_key),
            ("order_by", &self.order),
            ("mark_time", &self.time_mark),
            ("mark_flag", &self.flag_mark),
            ("retry_count", &self.retry_count),
        ];
        for (role, column) in optional {
            roles.extend(column.as_deref().map(|column| (role, column)));
        }
        roles.extend(self.status_mark.iter().map(|mark| ("mark_status", mark.column.as_str())));
        roles.extend(self.header_columns.iter().map(|column| ("header_column", column.as_str())));
        roles
    }
}
