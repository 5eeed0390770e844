//! MQTT 5, beside a bare loop of the same client. Nobody subscribes. Both have at most as many
//! messages under way as the broker allows (Mosquitto: 20 unless set).

use std::sync::Arc;
use std::time::{Duration, Instant};

use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{Packet, PublishProperties};
use rumqttc::v5::{AsyncClient, Event as Happened, EventLoop, MqttOptions};
use semel_backends::mqtt::MqttConfig;
use semel_core::wire::{Binding, Format};
use semel_core::{EventId, Message, Sink};

use crate::events::{AT_ONCE, BATCH, Load};
use crate::{At, Broker, Outcomes, Target};

pub(crate) const BROKER: Broker = Broker {
    name: "mqtt",
    server: At::Variable("SEMEL_TEST_MQTT_URL"),
    make: |_| Box::pin(async { Ok(()) }),
    sink: |target| {
        Box::pin(async move {
            Ok(Arc::new(MqttConfig::new(&target.server)?.connect().await?) as Arc<dyn Sink>)
        })
    },
    bare: |target, load| Box::pin(bare(target, load)),
    remove: |_| Box::pin(async { Ok(()) }),
    alike: None,
    native: None,
};

/// The same bytes on the wire; nothing is kept in order.
async fn bare(target: Target, load: Load) -> Outcomes<Duration> {
    let address = target.server.trim_start_matches("mqtt://");
    let (host, port) = address.rsplit_once(':').ok_or("no port in the URL")?;
    let options = MqttOptions::new(format!("bench-{}", EventId::now()), host, port.parse()?);
    let (client, mut events) = AsyncClient::new(options, AT_ONCE * BATCH);
    let began = Instant::now();
    let sending = async {
        for message in load.batches(&target.topic).flatten() {
            let (qos, body) = (QoS::AtLeastOnce, message.event.payload.bytes().clone());
            let (topic, properties) = (target.topic.as_str(), properties(&message));
            client.publish_with_properties(topic, qos, false, body, properties).await?;
        }
        Outcomes::Ok(())
    };
    tokio::try_join!(sending, acknowledged(&mut events, load.count))?;
    Ok(began.elapsed())
}

async fn acknowledged(events: &mut EventLoop, count: usize) -> Outcomes<()> {
    let mut acknowledged = 0;
    while acknowledged < count {
        if let Happened::Incoming(Packet::PubAck(_)) = events.poll().await? {
            acknowledged += 1;
        }
    }
    Ok(())
}

fn properties(message: &Message) -> PublishProperties {
    let mut properties = PublishProperties {
        content_type: Some("text/plain".into()),
        ..PublishProperties::default()
    };
    Format::Plain.headers(&message.event, Binding::Mqtt, &mut |name, value| {
        properties.user_properties.push((name.into(), value.into()));
    });
    properties
}
