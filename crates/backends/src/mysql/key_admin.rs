//! [`KeyAdmin`]: what operators see of keys, and may do to them.

use async_trait::async_trait;
use semel_core::Failure;
use semel_core::idempotency::{KeyAdmin, KeyPage, KeyView, ScopedKey};

use super::error::failure;
use super::keys::MysqlKeys;
use super::store::count;
use crate::key_page::{KeyRow, after, implement_key_admin, page};

macro_rules! select {
    ($which:literal) => {
        concat!(
            "SELECT scoped_key, attempt, version, right(body, 1), length(body), \
                 timestampdiff(MICROSECOND, utc_timestamp(6), expires_at) \
             FROM semel_keys \
             WHERE NOT released AND (version IS NULL OR expires_at > utc_timestamp(6)) AND ",
            $which
        )
    };
}

const LIST: &str = select!("scoped_key > ? ORDER BY scoped_key LIMIT ?");
const LOOK: &str = select!("scoped_key = ?");

/// It stays for a while, so that later tokens are greater.
const FREE: &str = "UPDATE semel_keys \
    SET released = TRUE, version = NULL, body = NULL, expires_at = utc_timestamp(6) \
    WHERE scoped_key = ? AND NOT released AND (version IS NULL OR expires_at > utc_timestamp(6))";

type Row = (Vec<u8>, u32, Option<u8>, Option<Vec<u8>>, Option<i64>, i64);

implement_key_admin!(MysqlKeys, pool);

fn view((key, attempt, version, last, bytes, remaining): Row) -> Option<KeyView> {
    KeyRow { key, attempt, version, last, bytes, remaining }.view()
}
