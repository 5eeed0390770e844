//! Why no event can carry a header of a pipeline to a sink, and what to do about it: what sinks refuse at
//! the first event, known before there is one.

use semel_core::Event;
use semel_core::wire::{Binding, Format};

/// MQTT 5; before it there are no headers.
#[cfg(feature = "mqtt")]
pub(super) fn mqtt(format: Format) -> impl Fn(&str, &str) -> Option<&'static str> {
    let is_text = |text: &str| {
        text.len() <= usize::from(u16::MAX) && text.chars().all(super::topics::is_mqtt_text)
    };
    move |name, value| {
        let takes = |name: &str, value: &str| is_text(name) && is_text(value);
        let carried = carries(format, Binding::Mqtt, name, value, takes);
        (!carried).then_some("it has a control character, or more than 65535 bytes; leave that out")
    }
}

#[cfg(feature = "rabbitmq")]
pub(super) fn rabbitmq(format: Format) -> impl Fn(&str, &str) -> Option<&'static str> {
    move |name, value| {
        let carried = carries(format, Binding::Amqp, name, value, |name, _| name.len() <= 255);
        (!carried).then_some("its name has more than 255 bytes; make it shorter")
    }
}

/// Whether a sink takes all that is in headers of an event with this one.
fn carries(
    format: Format,
    binding: Binding,
    name: &str,
    value: &str,
    takes: impl Fn(&str, &str) -> bool,
) -> bool {
    let event = Event::new("order", "42", "OrderPlaced").with_header(name, value);
    let mut all = true;
    format.headers(&event, binding, &mut |name, value| all &= takes(name, value));
    all
}
