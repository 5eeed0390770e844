//! [`KeyAdmin`]: what operators see of keys, and may do to them.

use async_trait::async_trait;
use semel_core::Failure;
use semel_core::idempotency::{KeyAdmin, KeyPage, KeyView, ScopedKey};

use super::error::failure;
use super::keys::PostgresKeys;
use super::store::count;
use crate::key_page::{KeyRow, after, implement_key_admin, page};

macro_rules! select {
    ($which:literal) => {
        concat!(
            "select key, attempt, version, substring(body from length(body)), length(body)::bigint,
                (extract(epoch from until - clock_timestamp()) * 1000000)::bigint
            from semel.keys
            where not released and (body is null or until > clock_timestamp()) and ",
            $which
        )
    };
}

const LIST: &str = select!("key > $1 order by key limit $2");
const LOOK: &str = select!("key = $1");

/// It stays for a while, so that later tokens are greater.
const FREE: &str = "\
update semel.keys
set released = true, version = null, body = null, until = clock_timestamp()
where key = $1 and not released and (body is null or until > clock_timestamp())";

type Row = (Vec<u8>, i32, Option<i16>, Option<Vec<u8>>, Option<i64>, i64);

implement_key_admin!(PostgresKeys, once);

fn view((key, attempt, version, last, bytes, remaining): Row) -> Option<KeyView> {
    let version = version.and_then(|version| version.try_into().ok());
    KeyRow { key, attempt: attempt.unsigned_abs(), version, last, bytes, remaining }.view()
}
