//! Why no topic of a template can be one of a sink, and what to do about it: what sinks refuse at the
//! first event, known before there is one. Single characters are looked at elsewhere, by
//! `topic_may_hold`.

#[cfg(feature = "kafka")]
pub(super) fn kafka(template: &str) -> Option<&'static str> {
    let topic = sample(template);
    if topic == "." || topic == ".." {
        return Some("Kafka keeps this name for itself; write another one");
    }
    (topic.len() > 249).then_some("it has more than 249 characters; make it shorter")
}

#[cfg(feature = "rabbitmq")]
pub(super) fn rabbitmq(template: &str) -> Option<&'static str> {
    (sample(template).len() > 255).then_some("it has more than 255 bytes; make it shorter")
}

#[cfg(feature = "nats")]
pub(super) fn nats(template: &str) -> Option<&'static str> {
    let subject = sample(template);
    if subject.starts_with(['$', '_']) {
        return Some("it begins with $ or _, which are the server's own; put a word before it");
    }
    if subject.split('.').any(str::is_empty) {
        return Some(
            "a part of it is empty; write one dot between two words, and none at the ends",
        );
    }
    (subject.len() > 1024).then_some("it has more than 1024 bytes; make it shorter")
}

#[cfg(feature = "mqtt")]
pub(super) fn mqtt(template: &str) -> Option<&'static str> {
    let topic = sample(template);
    if topic.starts_with('$') {
        return Some("it begins with $, which is the broker's own; put a word before it");
    }
    (topic.len() > usize::from(u16::MAX)).then_some("it has more than 65535 bytes; make it shorter")
}

/// No wildcard, and only text.
#[cfg(feature = "mqtt")]
pub(super) fn mqtt_may_hold(each: char) -> bool {
    is_mqtt_text(each) && !"+#".contains(each)
}

/// No control character, nor what Unicode calls no character.
#[cfg(feature = "mqtt")]
pub(super) fn is_mqtt_text(each: char) -> bool {
    let code = u32::from(each);
    !each.is_control() && code & 0xfffe != 0xfffe && !(0xfdd0..=0xfdef).contains(&code)
}

/// The name of a queue, or its URL.
#[cfg(feature = "aws")]
pub(super) fn sqs(template: &str) -> Option<&'static str> {
    let is_url = template.starts_with("https://") || template.starts_with("http://");
    let may_be_url = is_url || (begins_with_header(template) && template.contains('/'));
    (!may_be_url && !is_aws_name(&sample(template), 80)).then_some(
        "a queue is named by at most 80 letters, digits, - and _, and .fifo at the end of one that \
         is FIFO; set topic, such as \"{aggregate_type}-events\"",
    )
}

/// An ARN, or what comes after `arn_prefix` in one.
#[cfg(feature = "aws")]
pub(super) fn sns(template: &str) -> Option<&'static str> {
    let may_be_arn = template.starts_with("arn:")
        || (begins_with_header(template) && sample(template).contains(':'));
    (!may_be_arn && !is_aws_name(&sample(template), 256)).then_some(
        "a topic is named by at most 256 letters, digits, - and _, and .fifo at the end of one that \
         is FIFO; set topic, such as \"{aggregate_type}-events\"",
    )
}

/// Without `arn_prefix` it must be an ARN.
#[cfg(feature = "aws")]
pub(super) fn sns_without_prefix(template: &str) -> Option<&'static str> {
    if !template.starts_with("arn:") && !begins_with_header(template) {
        return Some(
            "it is no ARN; set topic to a whole one, or arn_prefix = \
             \"arn:aws:sns:REGION:ACCOUNT:\" of the sink and topic to a name of letters, digits, - \
             and _",
        );
    }
    sns(template)
}

/// The name of a bus, or its ARN.
#[cfg(feature = "aws")]
pub(super) fn eventbridge(template: &str) -> Option<&'static str> {
    let bus = sample(template);
    let may_be_arn =
        template.starts_with("arn:") || (begins_with_header(template) && bus.contains(':'));
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte);
    let is_name = (1..=256).contains(&bus.len()) && bus.bytes().all(legal);
    (!may_be_arn && !is_name).then_some(
        "a bus is named by at most 256 letters, digits, /, ., - and _, or by its ARN; set topic, such \
         as \"{aggregate_type}-events\"",
    )
}

/// Whether an ARN, or the beginning of one, is of another region than this one.
#[cfg(feature = "aws")]
pub(super) fn is_of_another_region(arn: &str, region: &str) -> bool {
    let named = arn.strip_prefix("arn:").and_then(|rest| rest.split(':').nth(2));
    named.is_some_and(|named| !named.is_empty() && !named.contains('{') && named != region)
}

#[cfg(feature = "aws")]
fn is_aws_name(name: &str, longest: usize) -> bool {
    let plain = name.strip_suffix(".fifo").unwrap_or(name);
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    name.len() <= longest && !plain.is_empty() && plain.bytes().all(legal)
}

/// A header may hold anything, also the beginning of a URL or an ARN.
#[cfg(feature = "aws")]
fn begins_with_header(template: &str) -> bool {
    let field = template.strip_prefix('{').unwrap_or_default();
    field.trim_start().starts_with("header.")
}

/// A topic that might come of it: the shortest and most harmless one.
#[cfg(any(
    feature = "aws",
    feature = "kafka",
    feature = "mqtt",
    feature = "nats",
    feature = "rabbitmq"
))]
fn sample(template: &str) -> String {
    let mut topic = String::new();
    let mut rest = template;
    while let Some((before, field)) = rest.split_once('{') {
        topic.push_str(before);
        topic.push('x');
        rest = field.split_once('}').map_or("", |(_, behind)| behind);
    }
    topic.push_str(rest);
    topic
}

#[cfg(all(test, feature = "full"))]
mod tests {
    use super::*;

    type Check = fn(&str) -> Option<&'static str>;
    type Case<'a> = (&'a str, Check, &'a [&'a str], &'a [&'a str]);

    #[test]
    fn a_field_may_be_any_harmless_word() {
        assert_eq!(sample("orders"), "orders");
        assert_eq!(sample("{aggregate_type}.events"), "x.events");
        assert_eq!(sample("a{id}{header.b|default:.}c"), "axxc");
    }

    #[test]
    fn what_a_broker_can_never_take_is_refused_and_nothing_else() {
        check_all(&[
            (
                "kafka",
                kafka,
                &["..a", "{id}.", "{aggregate_type}.events", &long(249)],
                &[".", "..", &long(250), &format!("{}{{id}}", long(249))],
            ),
            ("rabbitmq", rabbitmq, &["", "$a..b", &long(255)], &[&long(256)]),
            (
                "nats",
                nats,
                &["a.b", "{id}.{id}", "a.$b._c", "{header.a|default:}", &long(1024)],
                &["a..b", ".a", "a.", ".{id}", "{id}..{id}", "$JS.a", "_a.{id}", &long(1025)],
            ),
            ("mqtt", mqtt, &["a//b", "/a", "a/$b", "{id}$"], &["$SYS/a", "${id}", &long(65_536)]),
        ]);
    }

    #[test]
    fn what_aws_can_never_take_is_refused_and_nothing_else() {
        check_all(&[
            (
                "sqs",
                sqs,
                &[
                    "Orders_1-a",
                    "orders.fifo",
                    "{aggregate_type}.fifo",
                    "{header.queue}",
                    "{header.base}/a.b",
                    "{ header.base }/a.b",
                    "https://sqs.eu-central-1.amazonaws.com/1/{id}",
                    "http://127.0.0.1:4566/1/orders",
                    &long(80),
                ],
                &[
                    "{aggregate_type}.events",
                    "outbox.event.{aggregate_type}",
                    ".fifo",
                    "orders.fifo.{id}",
                    "shop/orders",
                    "{aggregate_type}/a",
                    "{header.queue}.events",
                    "a b",
                    &long(81),
                ],
            ),
            (
                "sns",
                sns,
                &["orders", "{aggregate_type}-events.fifo", "arn:a.b", "{header.arn}:a"],
                &["{aggregate_type}.events", "a:b", "{header.arn}.a", &long(257)],
            ),
            (
                "sns without a prefix",
                sns_without_prefix,
                &["arn:aws:sns:eu-central-1:1:orders", "{header.arn}", "{header.arn}:orders"],
                &["orders", "{aggregate_type}-events", "{aggregate_type}.events", "{header.a}.b"],
            ),
            (
                "eventbridge",
                eventbridge,
                &[
                    "default",
                    "{aggregate_type}.events",
                    "aws.partner/shop/{id}",
                    "arn:aws:events:eu-central-1:1:event-bus/{aggregate_type}",
                    "{header.arn}",
                    "{header.arn}:event-bus/a",
                    &long(256),
                ],
                &["", "my bus", "{aggregate_type}:events", "a:b", "{id}#", "größe", &long(257)],
            ),
        ]);
    }

    #[test]
    fn the_region_of_an_arn_is_known_where_it_says_one() {
        for other in ["arn:aws:sns:us-east-1:1:orders", "arn:aws:sns:us-east-1:"] {
            assert!(is_of_another_region(other, "eu-central-1"), "{other}");
        }
        let same = ["arn:aws:sns:eu-central-1:1:{id}", "arn:aws:sns:{header.region}:1:a", "a", ""];
        for same in same {
            assert!(!is_of_another_region(same, "eu-central-1"), "{same}");
        }
    }

    fn long(length: usize) -> String {
        "x".repeat(length)
    }

    fn check_all(cases: &[Case<'_>]) {
        for (name, check, may_be, cannot_be) in cases {
            for template in *may_be {
                assert_eq!(check(template), None, "{name}: {template}");
            }
            for template in *cannot_be {
                assert!(
                    check(template).is_some_and(|why| why.contains("; ")),
                    "{name}: {template}"
                );
            }
        }
    }

    #[test]
    fn what_mqtt_takes_for_no_text_is_known() {
        assert!("Bestellung-ß/日本//a b$".chars().all(mqtt_may_hold));
        assert!(!"+#\0\n\u{fffe}\u{1ffff}\u{fdd0}".chars().any(mqtt_may_hold));
    }
}
