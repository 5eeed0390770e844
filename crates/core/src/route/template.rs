//! Text with fields of the event in braces.

use std::borrow::Cow;
use std::str::FromStr;

use heck::{ToKebabCase, ToLowerCamelCase, ToSnakeCase, ToUpperCamelCase};

use crate::event::Event;
use crate::failure::Failure;

/// Text with fields of the event in braces, each with filters behind it if need be.
///
/// Fields: `{aggregate_type}`, `{aggregate_id}`, `{event_type}`, `{id}`, `{idempotency_key}` and
/// `{header.NAME}`. Filters: `lower`, `upper`, `snake`, `kebab`, `camel`, `pascal`, and
/// `default:TEXT` for a header that is missing or empty.
///
/// ```
/// use semel_core::{Event, route::Template};
///
/// let template: Template = "{header.region|default:eu|upper}-{event_type|snake}".parse()?;
/// let event = Event::new("order", "42", "OrderPlaced");
/// assert_eq!(template.render(&event)?, "EU-order_placed");
/// # Ok::<(), semel_core::Failure>(())
/// ```
#[derive(Clone, Debug)]
pub struct Template {
    parts: Vec<Part>,
}

#[derive(Clone, Debug)]
enum Part {
    Text(String),
    Field(Field, Vec<Filter>),
}

#[derive(Clone, Debug)]
enum Field {
    AggregateType,
    AggregateId,
    EventType,
    Id,
    IdempotencyKey,
    Header(String),
}

#[derive(Clone, Debug)]
enum Filter {
    Case(Case),
    Default(String),
}

type Case = fn(&str) -> String;

const CASES: [(&str, Case); 6] = [
    ("lower", str::to_lowercase),
    ("upper", str::to_uppercase),
    ("snake", |text| text.to_snake_case()),
    ("kebab", |text| text.to_kebab_case()),
    ("camel", |text| text.to_lower_camel_case()),
    ("pascal", |text| text.to_upper_camel_case()),
];

impl Template {
    /// `{aggregate_type}.events`
    pub(super) fn usual_topic() -> Self {
        let field = Part::Field(Field::AggregateType, Vec::new());
        Self { parts: vec![field, Part::Text(".events".into())] }
    }

    /// The text for this event.
    ///
    /// # Errors
    /// `Refused` when the event lacks a header that has no default.
    pub fn render(&self, event: &Event) -> Result<String, Failure> {
        let mut text = String::new();
        self.render_into(event, &mut text)?;
        Ok(text)
    }

    /// The text, if no field is in it: then it is the same for all events.
    ///
    /// ```
    /// # use semel_core::route::Template;
    /// assert_eq!("orders".parse::<Template>()?.constant().as_deref(), Some("orders"));
    /// assert_eq!("{aggregate_type}".parse::<Template>()?.constant(), None);
    /// # Ok::<(), semel_core::Failure>(())
    /// ```
    #[must_use]
    pub fn constant(&self) -> Option<String> {
        let text = |part: &Part| match part {
            Part::Text(text) => Some(text.clone()),
            Part::Field(..) => None,
        };
        self.parts.iter().map(text).collect()
    }

    /// The text that is the same for all events.
    pub fn literals(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            Part::Text(text) => Some(text.as_str()),
            Part::Field(..) => None,
        })
    }

    pub(super) fn render_into(&self, event: &Event, into: &mut String) -> Result<(), Failure> {
        for part in &self.parts {
            match part {
                Part::Text(text) => into.push_str(text),
                Part::Field(field, filters) => into.push_str(&value_of(field, filters, event)?),
            }
        }
        Ok(())
    }
}

fn value_of<'a>(
    field: &'a Field,
    filters: &'a [Filter],
    event: &'a Event,
) -> Result<Cow<'a, str>, Failure> {
    let mut value: Option<Cow<'a, str>> = match field {
        Field::AggregateType => Some(event.aggregate_type.as_str().into()),
        Field::AggregateId => Some(event.aggregate_id.as_str().into()),
        Field::EventType => Some(event.event_type.as_str().into()),
        Field::Id => Some(event.id.to_string().into()),
        Field::IdempotencyKey => Some(event.idempotency_key()),
        Field::Header(name) => event.headers.get(name).map(Cow::Borrowed),
    };
    for filter in filters {
        value = match filter {
            Filter::Case(change) => value.map(|value| change(&value).into()),
            Filter::Default(text) => {
                value.filter(|value| !value.is_empty()).or(Some(text.as_str().into()))
            }
        };
    }
    value.ok_or_else(|| {
        let Field::Header(name) = field else { return lacks("a field") };
        lacks(&format!("header {name:?}"))
    })
}

fn lacks(what: &str) -> Failure {
    let what = format!("the template needs {what}, which the event lacks");
    Failure::refused("E-ROUTE-HEADER", what).with_fix(
        "set the header when the event is written, or write |default:TEXT in the template",
    )
}

impl FromStr for Template {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self, Failure> {
        let wrong = |why: String| {
            let what = format!("template {text:?}: {why}");
            Failure::misconfigured("E-TEMPLATE", what).with_fix(
                "write text with {aggregate_type}, {aggregate_id}, {event_type}, {id}, \
                 {idempotency_key} or {header.NAME}, and filters as in {event_type|snake}",
            )
        };
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(open) = rest.find(['{', '}']) {
            if rest[open..].starts_with('}') {
                return Err(wrong("a } without its {".into()));
            }
            let close = rest[open..].find('}').ok_or_else(|| wrong("a { without its }".into()))?;
            if open > 0 {
                parts.push(Part::Text(rest[..open].into()));
            }
            parts.push(Part::parse(&rest[open + 1..open + close]).map_err(wrong)?);
            rest = &rest[open + close + 1..];
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.into()));
        }
        if parts.is_empty() {
            return Err(wrong("it is empty".into()));
        }
        Ok(Self { parts })
    }
}

impl Part {
    fn parse(text: &str) -> Result<Self, String> {
        let mut words = text.split('|').map(str::trim);
        let name = words.next().unwrap_or_default();
        let field = Field::parse(name).ok_or_else(|| format!("unknown field {name:?}"))?;
        let filter = |word: &str| Filter::parse(word).ok_or_else(|| unknown_filter(word));
        Ok(Self::Field(field, words.map(filter).collect::<Result<_, _>>()?))
    }
}

fn unknown_filter(word: &str) -> String {
    let names = CASES.map(|(name, _)| name).join(", ");
    format!("unknown filter {word:?}; there are {names} and default:TEXT")
}

impl Field {
    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "aggregate_type" => Self::AggregateType,
            "aggregate_id" => Self::AggregateId,
            "event_type" => Self::EventType,
            "id" => Self::Id,
            "idempotency_key" => Self::IdempotencyKey,
            _ => {
                let name = name.strip_prefix("header.").filter(|name| !name.is_empty())?;
                Self::Header(name.to_ascii_lowercase())
            }
        })
    }
}

impl Filter {
    fn parse(word: &str) -> Option<Self> {
        if let Some(text) = word.strip_prefix("default:") {
            return Some(Self::Default(text.into()));
        }
        let (_, change) = CASES.into_iter().find(|(name, _)| *name == word)?;
        Some(Self::Case(change))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(template: &str, event: &Event) -> String {
        template.parse::<Template>().unwrap().render(event).unwrap()
    }

    #[test]
    fn wrong_templates_say_what_to_write() {
        let cases = [
            ("", "it is empty"),
            ("{aggregate}", "unknown field \"aggregate\""),
            ("{header.}", "unknown field \"header.\""),
            ("a{b", "a { without its }"),
            ("a}b", "a } without its {"),
            (
                "{id|shout}",
                "unknown filter \"shout\"; there are lower, upper, snake, kebab, camel, pascal and \
                 default:TEXT",
            ),
        ];
        for (text, why) in cases {
            let failure = text.parse::<Template>().unwrap_err();
            assert!(failure.to_string().ends_with(why), "{failure}");
            assert!(failure.fix().unwrap().contains("{aggregate_type}"));
        }
    }

    #[test]
    fn fields_and_filters() {
        let event = Event::new("SalesOrder", "42", "OrderPlaced")
            .with_header("Tenant", "Acme")
            .with_header("empty", "")
            .with_idempotency_key("k");
        let id = event.id.to_string();
        let cases = [
            ("{aggregate_type|kebab}.{event_type|snake}", "sales-order.order_placed"),
            ("{event_type|camel} {event_type|pascal}", "orderPlaced OrderPlaced"),
            ("{header.tenant|lower}/{header.TENANT | upper}", "acme/ACME"),
            ("{header.none|default:a b|upper}", "A B"),
            ("{header.empty|default:x}{header.empty}", "x"),
            ("{header.none|upper|default:}-{idempotency_key}", "-k"),
            ("{id}", &id),
        ];
        for (template, expected) in cases {
            assert_eq!(render(template, &event), expected, "{template}");
        }
    }

    #[test]
    fn a_missing_header_refuses_the_event() {
        let template: Template = "{header.Tenant}.orders".parse().unwrap();
        let event = Event::new("order", "42", "OrderPlaced");
        let failure = template.render(&event).unwrap_err();
        assert_eq!(failure.fault(), crate::Fault::Refused);
        assert_eq!(template.render(&event.with_header("tenant", "acme")).unwrap(), "acme.orders");
    }
}
