//! The event's id of a row whose id may be no UUID: made from table and row, always the same.

use semel_core::EventId;
use uuid::Uuid;

use super::Mapping;

/// Bits of a UUID that are free: all but the version and the variant.
const FREE_BITS: u32 = 122;
/// Of those, the bits behind a whole number.
const HASH_BITS: u32 = FREE_BITS - u64::BITS;

/// The event's id of the row with this id.
///
/// A UUID is taken as it is. A whole number goes into a UUID of version 8, the number first and a
/// hash of the table behind it, so that ids sort like numbers and lead back to them. For any other
/// text the UUID is a hash of table and text.
pub(super) fn event_id(mapping: &Mapping, row_id: &str) -> EventId {
    let uuid = Uuid::try_parse(row_id).unwrap_or_else(|_| match number(row_id) {
        Some(number) => spread((u128::from(number) << HASH_BITS) | table_hash(mapping)),
        None => spread(hash(mapping, row_id)),
    });
    EventId::from_uuid(uuid)
}

/// The ids that the row of an event may have; the row is among them, unless its id is some text.
pub(super) fn row_ids(mapping: &Mapping, id: EventId) -> Vec<String> {
    let uuid = id.as_uuid();
    let (hyphenated, simple) = (uuid.hyphenated().to_string(), uuid.simple().to_string());
    let upper = [hyphenated.to_uppercase(), simple.to_uppercase()];
    let number = u64::try_from(gather(*uuid) >> HASH_BITS).unwrap_or_default().to_string();
    let made = event_id(mapping, &number) == id;
    [hyphenated, simple].into_iter().chain(upper).chain(made.then_some(number)).collect()
}

/// A whole number as every database writes it.
fn number(text: &str) -> Option<u64> {
    text.parse::<u64>().ok().filter(|number| number.to_string() == text)
}

fn table_hash(mapping: &Mapping) -> u128 {
    hash(mapping, "") & ((1 << HASH_BITS) - 1)
}

fn hash(mapping: &Mapping, row_id: &str) -> u128 {
    let mut hasher = blake3::Hasher::new();
    for part in [mapping.schema.as_deref().unwrap_or_default(), &mapping.table, row_id] {
        hasher.update(&(part.len() as u64).to_be_bytes());
        hasher.update(part.as_bytes());
    }
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    u128::from_be_bytes(bytes) >> (u128::BITS - FREE_BITS)
}

/// Puts the free bits into a UUID of version 8.
fn spread(bits: u128) -> Uuid {
    let (high, middle, low) = (bits >> 74, (bits >> 62) & 0xfff, bits & ((1 << 62) - 1));
    Uuid::from_u128((high << 80) | (8 << 76) | (middle << 64) | (2 << 62) | low)
}

/// Takes them out.
fn gather(uuid: Uuid) -> u128 {
    let all = uuid.as_u128();
    ((all >> 80) << 74) | (((all >> 64) & 0xfff) << 62) | (all & ((1 << 62) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_becomes_an_id_that_leads_back() {
        let mapping = Mapping::new("outbox");
        let mut before = None;
        for number in ["0", "1", "42", "9007199254740993", "18446744073709551615"] {
            let id = event_id(&mapping, number);
            assert_eq!(id.as_uuid().get_version_num(), 8);
            assert_eq!(id.as_uuid().get_variant(), uuid::Variant::RFC4122);
            assert!(row_ids(&mapping, id).contains(&number.to_owned()));
            assert!(before < Some(id), "ids sort like numbers");
            before = Some(id);
        }
    }

    /// What consumers have seen must never change: this value is part of the contract.
    #[test]
    fn the_id_of_a_row_is_always_the_same() {
        let id = event_id(&Mapping::new("outbox"), "42");
        assert_eq!(id.to_string(), STABLE);
        assert_ne!(event_id(&Mapping::new("outbox").in_schema("shop"), "42"), id);
        assert_ne!(event_id(&Mapping::new("messages"), "42"), id);
    }

    const STABLE: &str = "00000000-0000-8002-a9b6-c554f7ef111c";

    #[test]
    fn a_uuid_is_taken_as_it_is() {
        let mapping = Mapping::new("outbox");
        let text = "0190b6e8-7a3c-7def-8000-0123456789ab";
        let id = event_id(&mapping, text);
        assert_eq!(id.to_string(), text);
        assert_eq!(event_id(&mapping, &text.to_uppercase().replace('-', "")), id);
        assert!(row_ids(&mapping, id).contains(&text.to_uppercase()));
    }

    #[test]
    fn any_other_text_becomes_a_hash() {
        let mapping = Mapping::new("outbox");
        let texts = ["evt_1", "evt_2", "-1", "01", "+1", " 1", "01JCX0000000000000000000ZZ"];
        let ids: std::collections::BTreeSet<_> =
            texts.iter().map(|text| event_id(&mapping, text)).collect();
        assert_eq!(ids.len(), texts.len());
        assert_eq!(event_id(&mapping, "evt_1"), event_id(&mapping, "evt_1"));
    }
}
