//! A wave: messages of different lanes, sent together on one channel and answered together.

use std::collections::HashSet;

use bytes::Bytes;
use futures_util::future::try_join_all;
use lapin::options::BasicPublishOptions;
use lapin::{BasicProperties, Channel, Confirmation};
use semel_core::Failure;

use super::error::{failure, rejected, unroutable};
use super::message::{Address, Outgoing};

/// Sends what can be sent, and waits until all of it is answered.
///
/// # Errors
/// When the channel or the connection ended meanwhile.
pub(super) async fn send_wave(
    channel: &Channel,
    wave: impl Iterator<Item = Result<Outgoing, Failure>>,
) -> Result<Vec<Result<(), Failure>>, Failure> {
    let mut sending = Vec::new();
    let addresses = wave.map(|outgoing| {
        let Outgoing { address, properties, body } = outgoing?;
        sending.push(send_one(channel, address.clone(), properties, body));
        Ok(address)
    });
    let addresses: Vec<_> = addresses.collect();
    let mut answers = Answers::from(try_join_all(sending).await.map_err(failure("publish"))?);
    let mut judge = |address: Address| answers.next_for(&address);
    Ok(addresses.into_iter().map(|address| address.and_then(&mut judge)).collect())
}

async fn send_one(
    channel: &Channel,
    Address { exchange, routing_key, .. }: Address,
    properties: BasicProperties,
    body: Bytes,
) -> lapin::Result<Confirmation> {
    let options = BasicPublishOptions { mandatory: true, ..Default::default() };
    channel.basic_publish(exchange, routing_key, options, &body, properties).await?.await
}

/// What the broker answered to the messages of a wave.
struct Answers {
    acknowledged: std::vec::IntoIter<bool>,
    /// The ids of the messages that no queue took. The client library hands a returned message out
    /// with whichever answer comes next, so they only count when all answers are there; the broker
    /// returns a message before it acknowledges it, so none is missing then.
    returned: HashSet<String>,
}

impl Answers {
    fn next_for(&mut self, address: &Address) -> Result<(), Failure> {
        let acknowledged = self.acknowledged.next().unwrap_or(false);
        if self.returned.contains(address.id.as_str()) {
            return Err(unroutable(address.exchange.as_str(), address.routing_key.as_str()));
        }
        if acknowledged { Ok(()) } else { Err(rejected()) }
    }
}

impl From<Vec<Confirmation>> for Answers {
    fn from(confirmations: Vec<Confirmation>) -> Self {
        let acknowledged: Vec<_> = confirmations.iter().map(Confirmation::is_ack).collect();
        let returned = confirmations.into_iter().filter_map(|answer| {
            let message = answer.take_message()?.delivery;
            message.properties.message_id().as_ref().map(ToString::to_string)
        });
        Self { acknowledged: acknowledged.into_iter(), returned: returned.collect() }
    }
}
