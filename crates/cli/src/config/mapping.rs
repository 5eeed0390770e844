//! `table` and `columns` of a source: an outbox of somebody else's shape.

use semel_backends::mapped::Mapping;

use super::Section;

type Preset = fn(String) -> Mapping;
const PRESETS: &[(&str, Preset)] = &[
    ("debezium", Mapping::debezium),
    ("transactional-outbox", Mapping::transactional_outbox),
    ("polling-publisher", Mapping::polling_publisher),
];

/// `table = "outbox"` with `columns = "debezium"`, or a table of columns.
pub(super) fn read_mapping(section: &mut Section<'_>) -> Option<Mapping> {
    let (table, schema) = (section.optional("table"), section.optional("schema"));
    if section.holds_table("columns") {
        let named = table.clone();
        let mapping = section.table("columns", |columns| read_columns(columns, named));
        return finish(section, table.as_deref(), schema, mapping);
    }
    let preset = section.choice("columns", PRESETS);
    let mapping = preset.zip(table.clone()).map(|(preset, table)| preset(table));
    finish(section, table.as_deref(), schema, mapping)
}

fn finish(
    section: &Section<'_>,
    table: Option<&str>,
    schema: Option<String>,
    mapping: Option<Mapping>,
) -> Option<Mapping> {
    match (table, section.has("columns")) {
        (Some(_), false) => section.wrong(
            "table",
            "say what its columns mean: columns = \"debezium\", \"transactional-outbox\", \
             \"polling-publisher\", or a table of columns",
        ),
        (None, true) => section.wrong("columns", "of which table? Give the key \"table\""),
        _ => {}
    }
    if table.is_none() && schema.is_some() {
        section.wrong("schema", "of which table? Give the key \"table\"");
    }
    mapping.map(|mapping| match schema {
        Some(schema) => mapping.in_schema(schema),
        None => mapping,
    })
}

type Set = fn(Mapping, String) -> Mapping;
/// Keys that name a column, or a value for all rows.
const KEYS: &[(&str, Set)] = &[
    ("id", Mapping::id),
    ("event_id", Mapping::event_id),
    ("aggregate_type", Mapping::aggregate_type),
    ("aggregate_type_is", Mapping::aggregate_type_is),
    ("aggregate_id", Mapping::aggregate_id),
    ("event_type", Mapping::event_type),
    ("event_type_is", Mapping::event_type_is),
    ("payload", Mapping::payload),
    ("content_type", Mapping::content_type),
    ("content_type_is", Mapping::content_type_is),
    ("created_at", Mapping::created_at),
    ("available_at", Mapping::available_at),
    ("headers", Mapping::headers),
    ("idempotency_key", Mapping::idempotency_key),
    ("order", Mapping::order_by),
    ("published_at", Mapping::mark_time),
    ("published", Mapping::mark_flag),
    ("retry_count", Mapping::retry_count),
];

fn read_columns(columns: &mut Section<'_>, table: Option<String>) -> Option<Mapping> {
    let preset = columns.choice("preset", PRESETS).unwrap_or(Mapping::new);
    let mut mapping = preset(table.unwrap_or_default());
    for (key, set) in KEYS {
        if let Some(value) = columns.optional(key) {
            mapping = set(mapping, value);
        }
    }
    for column in columns.list("header_columns").unwrap_or_default() {
        mapping = mapping.header_column(column);
    }
    if columns.boolean("others_to_headers") == Some(true) {
        mapping = mapping.other_columns_to_headers();
    }
    if columns.boolean("delete") == Some(true) {
        mapping = mapping.delete_on_publish();
    }
    let status = columns.table("status", |status| {
        let [column, pending, published] =
            ["column", "pending", "published"].map(|key| status.required(key));
        Some((column?, pending?, published?))
    });
    if let Some((column, pending, published)) = status {
        mapping = mapping.mark_status(column, pending, published);
    }
    Some(mapping)
}
