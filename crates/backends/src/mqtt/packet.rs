//! Both versions of the protocol behind one face: what is written, and what of the answers counts.

use std::io;

use bytes::{Buf, BufMut, BytesMut};
use rumqttc::mqttbytes::v4;
use rumqttc::v5::mqttbytes::v5;

use super::config::{MqttConfig, MqttVersion};

/// A message that is ready but for its number.
pub(super) enum Publish {
    V5(v5::Publish),
    V3(v4::Publish),
}

impl Publish {
    /// How many bytes it will be.
    pub(super) fn size(&self) -> usize {
        const NUMBER: usize = 2;
        match self {
            Self::V5(publish) => publish.size() + NUMBER,
            Self::V3(publish) => publish.size() + NUMBER,
        }
    }

    pub(super) fn write(self, number: u16, output: &mut BytesMut) -> io::Result<()> {
        match self {
            Self::V5(mut publish) => {
                publish.pkid = number;
                publish.write(output).map_err(io::Error::other)?;
            }
            Self::V3(mut publish) => {
                publish.pkid = number;
                publish.write(output).map_err(io::Error::other)?;
            }
        }
        Ok(())
    }
}

/// Begins a connection. The session begins and ends with it: QoS 1 leaves nothing in it that a
/// publisher could need.
pub(super) fn write_connect(
    config: &MqttConfig,
    keep_alive: u16,
    output: &mut BytesMut,
) -> io::Result<()> {
    // Every sink has one.
    let client_id = config.client_id.clone().unwrap_or_default();
    let login = config.login.as_ref().map(|(user, password)| (user.clone(), password.reveal()));
    match config.version {
        MqttVersion::V5 => {
            let connect =
                v5::Connect { keep_alive, client_id, clean_start: true, properties: None };
            let login = login.map(|(user, password)| v5::Login::new(user, password));
            connect.write(&None, &login, output).map_err(io::Error::other)?;
        }
        MqttVersion::V3 => {
            let mut connect = v4::Connect::new(client_id);
            connect.keep_alive = keep_alive;
            connect.login = login.map(|(user, password)| v4::Login::new(user, password));
            connect.write(output).map_err(io::Error::other)?;
        }
    }
    Ok(())
}

pub(super) fn write_ping(output: &mut BytesMut) {
    output.put_slice(&[0xc0, 0]);
}

/// The end of a connection, as it should be.
pub(super) fn write_goodbye(output: &mut BytesMut) {
    output.put_slice(&[0xe0, 0]);
}

/// What the broker says.
#[derive(Debug, PartialEq)]
pub(super) enum Incoming {
    Connected(Terms),
    /// It takes no connection, for this reason.
    Declined(u8),
    /// It answers a message, with 0 for success.
    Acknowledged {
        number: u16,
        reason: u8,
    },
    Pong,
    /// It ends the connection, for this reason.
    Goodbye(u8),
    /// Nothing that a publisher asked for.
    Other,
}

/// What the broker asks of a connection; MQTT 3.1.1 asks nothing.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Terms {
    pub(super) receive_max: Option<u16>,
    pub(super) max_packet_size: Option<u32>,
    pub(super) max_qos: Option<u8>,
    pub(super) retain_available: Option<u8>,
    pub(super) server_keep_alive: Option<u16>,
}

/// Takes the next packet from the input, if all of it is there.
pub(super) fn read(version: MqttVersion, input: &mut BytesMut) -> io::Result<Option<Incoming>> {
    const CONNECTED: u8 = 2;
    const ACKNOWLEDGED: u8 = 4;
    const PONG: u8 = 13;
    const GOODBYE: u8 = 14;
    let Some((header, body)) = lengths(input)? else { return Ok(None) };
    if input.len() < header + body {
        return Ok(None);
    }
    let mut packet = input.split_to(header + body);
    let whole = packet.clone();
    let kind = packet[0] >> 4;
    packet.advance(header);
    let byte = |place: usize| packet.get(place).copied();
    Ok(Some(match kind {
        CONNECTED => match byte(1).ok_or_else(cut_short)? {
            0 => Incoming::Connected(terms(version, whole)?),
            reason => Incoming::Declined(reason),
        },
        ACKNOWLEDGED => {
            let number = byte(0).zip(byte(1)).ok_or_else(cut_short)?;
            let reason = byte(2).unwrap_or(0);
            Incoming::Acknowledged { number: u16::from_be_bytes(number.into()), reason }
        }
        PONG => Incoming::Pong,
        GOODBYE => Incoming::Goodbye(byte(0).unwrap_or(0)),
        _ => Incoming::Other,
    }))
}

/// The lengths of the fixed header and of what follows it.
fn lengths(input: &[u8]) -> io::Result<Option<(usize, usize)>> {
    // Nothing that a broker says to a publisher is long.
    const LONGEST: usize = 1024 * 1024;
    // Nor has it flags.
    if input.first().is_some_and(|first| first & 0x0f != 0) {
        return Err(no_mqtt());
    }
    let mut length = 0;
    for place in 0..4 {
        let Some(byte) = input.get(1 + place) else { return Ok(None) };
        length |= usize::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            return match length {
                ..=LONGEST => Ok(Some((2 + place, length))),
                _ => Err(no_mqtt()),
            };
        }
    }
    Err(no_mqtt())
}

fn terms(version: MqttVersion, mut packet: BytesMut) -> io::Result<Terms> {
    if version == MqttVersion::V3 {
        return Ok(Terms::default());
    }
    let read = v5::Packet::read(&mut packet, None).map_err(io::Error::other)?;
    let v5::Packet::ConnAck(v5::ConnAck { properties: Some(said), .. }) = read else {
        return Ok(Terms::default());
    };
    Ok(Terms {
        receive_max: said.receive_max,
        max_packet_size: said.max_packet_size,
        max_qos: said.max_qos,
        retain_available: said.retain_available,
        server_keep_alive: said.server_keep_alive,
    })
}

fn cut_short() -> io::Error {
    io::Error::other("a packet is shorter than it must be")
}

fn no_mqtt() -> io::Error {
    io::Error::other("this is no MQTT")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_all(version: MqttVersion, bytes: &[u8]) -> io::Result<Vec<Incoming>> {
        let mut input = BytesMut::from(bytes);
        let mut all = Vec::new();
        while let Some(packet) = read(version, &mut input)? {
            all.push(packet);
        }
        Ok(all)
    }

    #[test]
    fn packets_are_read_whole_and_one_by_one() {
        let bytes = [0x40, 2, 1, 2, 0xd0, 0, 0x40, 3, 0, 7, 0x95, 0xe0, 1, 0x8e, 0x40, 2, 0];
        let expected = [
            Incoming::Acknowledged { number: 258, reason: 0 },
            Incoming::Pong,
            Incoming::Acknowledged { number: 7, reason: 0x95 },
            Incoming::Goodbye(0x8e),
        ];
        assert_eq!(read_all(MqttVersion::V5, &bytes).unwrap(), expected);
    }

    #[test]
    fn the_terms_of_a_connection_are_read() {
        let bytes = [0x20, 11, 0, 0, 8, 0x21, 0, 20, 0x27, 0, 0, 4, 0];
        let terms =
            Terms { receive_max: Some(20), max_packet_size: Some(1024), ..Terms::default() };
        let read = read_all(MqttVersion::V5, &bytes).unwrap();
        assert_eq!(read, [Incoming::Connected(terms)]);
        let read = read_all(MqttVersion::V3, &[0x20, 2, 0, 5, 0x20, 2, 0, 0]).unwrap();
        assert_eq!(read, [Incoming::Declined(5), Incoming::Connected(Terms::default())]);
    }

    #[test]
    fn what_is_no_mqtt_is_an_error_and_not_waited_for() {
        for bytes in [b"HTTP/1.1 400 Bad".as_slice(), &[0x40, 0xff, 0xff, 0xff, 0xff], &[0x40, 0]] {
            assert!(read_all(MqttVersion::V5, bytes).is_err(), "{bytes:?}");
        }
        assert_eq!(read_all(MqttVersion::V5, &[0x40, 0x82]).unwrap(), []);
    }
}
