//! Stored results that nobody reads who has only the store.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, MAX_TAG_LEN, NONCE_LEN, Nonce, UnboundKey};
use ring::digest;
use ring::hkdf::{HKDF_SHA256, Prk};
use ring::rand::{SecureRandom, SystemRandom};
use semel_core::idempotency::{
    Claim, Fingerprint, IdempotencyStore, Record, ScopedKey, Token, TransactionalKeys,
};
use semel_core::{Failure, Holding, Secret};

/// Encrypts what is stored under keys, in any store.
///
/// Each result is encrypted with AES-256-GCM by a key of its own, derived from the first of the
/// [`EncryptionKeys`], and bound to the idempotency key it is stored under: it cannot be read,
/// changed, or put under another key. Idempotency keys themselves are only ever stored as hashes;
/// that bodies of requests cannot be guessed from theirs is what
/// [`Policy::fingerprint_secret`](crate::Policy::fingerprint_secret) is for.
///
/// A result that cannot be decrypted, because its key was taken away or it was changed, is "not
/// retained": the operation is never run again for it. Results from before there was encryption
/// are still read.
///
/// ```
/// use semel_core::Secret;
/// use semel_core::memory::MemoryKeys;
/// use semel_http::{Encrypted, EncryptionKeys, IdempotencyLayer, Policy, Scope};
/// use std::sync::Arc;
///
/// // openssl rand -base64 32
/// let secret = Secret::new("5zTqXwQ1pJx0V8hY3y4a6c7d8e9f0A1B2C3D4E5F6G8=");
/// let keys = Encrypted::new(MemoryKeys::new(), EncryptionKeys::parse(&secret)?);
/// let layer = IdempotencyLayer::new(Arc::new(keys), Policy::ietf(Scope::authorization()));
/// # Ok::<(), semel_core::Failure>(())
/// ```
#[derive(Clone, Debug)]
pub struct Encrypted<S> {
    store: S,
    keys: EncryptionKeys,
}

impl<S> Encrypted<S> {
    /// The version of an encrypted [`Record`]: the name of the key, salt, ciphertext.
    pub const VERSION: u8 = 128;

    /// Encrypts what goes into `store`.
    #[must_use]
    pub fn new(store: S, keys: EncryptionKeys) -> Self {
        Self { store, keys }
    }

    /// What cannot be decrypted stays as it is, and is then of a version that nobody knows.
    fn open(&self, key: &ScopedKey, record: Record) -> Record {
        if record.version != Self::VERSION {
            return record;
        }
        self.keys.open(key, &record.body).unwrap_or_else(|| {
            tracing::warn!(%key, "a stored result cannot be decrypted and counts as not retained");
            record
        })
    }

    fn seal(&self, key: &ScopedKey, record: &Record) -> Result<Record, Failure> {
        let sealed = self.keys.seal(key, record).ok_or_else(|| {
            Failure::unavailable("E-KEY-SEAL", "cannot encrypt a result")
                .with_fix("look whether the operating system still gives random numbers")
        })?;
        Ok(Record { version: Self::VERSION, body: sealed.into() })
    }
}

#[async_trait]
impl<S: IdempotencyStore> IdempotencyStore for Encrypted<S> {
    async fn claim(
        &self,
        key: &ScopedKey,
        fingerprint: &Fingerprint,
        lease: Duration,
    ) -> Result<Claim, Failure> {
        Ok(match self.store.claim(key, fingerprint, lease).await? {
            Claim::Done(record) => Claim::Done(self.open(key, record)),
            other => other,
        })
    }

    async fn complete(
        &self,
        key: &ScopedKey,
        token: Token,
        record: Record,
        keep: Duration,
    ) -> Result<Holding, Failure> {
        let sealed = self.seal(key, &record)?;
        self.store.complete(key, token, sealed, keep).await
    }

    async fn renew(
        &self,
        key: &ScopedKey,
        token: Token,
        lease: Duration,
    ) -> Result<Holding, Failure> {
        self.store.renew(key, token, lease).await
    }

    async fn release(&self, key: &ScopedKey, token: Token) -> Result<Holding, Failure> {
        self.store.release(key, token).await
    }

    async fn forget_expired(&self, limit: usize) -> Result<usize, Failure> {
        self.store.forget_expired(limit).await
    }
}

#[async_trait]
impl<S: TransactionalKeys> TransactionalKeys for Encrypted<S> {
    type Tx<'c> = S::Tx<'c>;

    async fn complete_in(
        &self,
        tx: &mut Self::Tx<'_>,
        key: &ScopedKey,
        token: Token,
        record: &Record,
        keep: Duration,
    ) -> Result<Holding, Failure> {
        let sealed = self.seal(key, record)?;
        self.store.complete_in(tx, key, token, &sealed, keep).await
    }
}

/// The keys that results are encrypted with: the first one writes, all of them read.
///
/// To change the key, put a new one in front; take the old one away when the results that it wrote
/// have expired. With several processes, give all of them the new one as the second first.
///
/// ```
/// use semel_core::Secret;
/// use semel_http::EncryptionKeys;
///
/// let secret = Secret::new("too short");
/// assert_eq!(EncryptionKeys::parse(&secret).unwrap_err().code(), "E-ENCRYPTION-KEY");
/// ```
#[derive(Clone)]
pub struct EncryptionKeys {
    writing: Key,
    others: Vec<Key>,
}

#[derive(Clone)]
struct Key {
    /// Says nothing of the key, and needs nobody to keep it unique.
    name: [u8; NAME],
    root: Prk,
}

const KEY: usize = 32;
const NAME: usize = 8;
/// So long that no two results ever get the same key.
const SALT: usize = 24;

impl EncryptionKeys {
    /// Reads keys of 32 bytes each, in base64, with white space or commas between them.
    ///
    /// # Errors
    /// `Misconfigured` if there is none, or one of them is not a key.
    pub fn parse(secret: &Secret) -> Result<Self, Failure> {
        let words = secret.reveal().split(|c: char| c.is_whitespace() || c == ',');
        let mut keys = words.filter(|word| !word.is_empty()).map(Key::parse);
        let writing = keys.next().unwrap_or_else(|| Err(no_key("there is none")))?;
        Ok(Self { writing, others: keys.collect::<Result<_, _>>()? })
    }

    fn seal(&self, key: &ScopedKey, record: &Record) -> Option<Vec<u8>> {
        let mut salt = [0; SALT];
        SystemRandom::new().fill(&mut salt).ok()?;
        let mut text = Vec::with_capacity(record.body.len() + 1 + MAX_TAG_LEN);
        text.extend_from_slice(&record.body);
        text.push(record.version);
        let cipher = self.writing.cipher(&salt)?;
        cipher.seal_in_place_append_tag(nonce(), bound_to(key), &mut text).ok()?;
        Some([&self.writing.name[..], &salt, &text].concat())
    }

    fn open(&self, key: &ScopedKey, sealed: &[u8]) -> Option<Record> {
        let (name, rest) = sealed.split_first_chunk::<NAME>()?;
        let (salt, text) = rest.split_first_chunk::<SALT>()?;
        let mut keys = std::iter::once(&self.writing).chain(&self.others);
        let cipher = keys.find(|key| key.name == *name)?.cipher(salt)?;
        let mut text = text.to_vec();
        let (version, body) =
            cipher.open_in_place(nonce(), bound_to(key), &mut text).ok()?.split_last()?;
        Some(Record { version: *version, body: body.to_vec().into() })
    }
}

impl Key {
    fn parse(word: &str) -> Result<Self, Failure> {
        let bytes = BASE64_STANDARD.decode(word).map_err(|_| no_key("one of them is no base64"))?;
        if bytes.len() != KEY {
            return Err(no_key(&format!("one of them has {} bytes", bytes.len())));
        }
        let mut hash = digest::Context::new(&digest::SHA256);
        hash.update(b"semel name of a key");
        hash.update(&bytes);
        let mut name = [0; NAME];
        name.copy_from_slice(&hash.finish().as_ref()[..NAME]);
        Ok(Self { name, root: Prk::new_less_safe(HKDF_SHA256, &bytes) })
    }

    /// The cipher of the one result that has this salt.
    fn cipher(&self, salt: &[u8; SALT]) -> Option<LessSafeKey> {
        let info: [&[u8]; 2] = [b"semel stored result", salt];
        let key = self.root.expand(&info, &AES_256_GCM).ok()?;
        Some(LessSafeKey::new(UnboundKey::from(key)))
    }
}

/// Every result has a key of its own, so it needs no other number.
fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; NONCE_LEN])
}

fn bound_to(key: &ScopedKey) -> Aad<&[u8; 32]> {
    Aad::from(key.as_bytes())
}

fn no_key(why: &str) -> Failure {
    Failure::misconfigured("E-ENCRYPTION-KEY", format!("the encryption keys are not usable: {why}"))
        .with_fix("write keys of 32 bytes in base64, as `openssl rand -base64 32` makes them")
}

impl fmt::Debug for EncryptionKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EncryptionKeys({})", 1 + self.others.len())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use semel_core::memory::MemoryKeys;

    use super::*;
    use crate::run::{Idempotent, RunError};

    const LEASE: Duration = Duration::from_secs(30);

    fn keys(bytes: &[u8]) -> EncryptionKeys {
        let words = bytes.iter().map(|byte| BASE64_STANDARD.encode([*byte; KEY]));
        EncryptionKeys::parse(&Secret::new(words.collect::<Vec<_>>().join(",\n"))).unwrap()
    }

    fn key(name: &str) -> ScopedKey {
        ScopedKey::new(&[name])
    }

    fn record() -> Record {
        Record { version: 1, body: "the balance is 42".into() }
    }

    /// What a store with these keys finds, after one with those has written.
    async fn found(writing: &[u8], reading: &[u8]) -> Record {
        let store = Arc::new(MemoryKeys::new());
        let (writer, print) =
            (Encrypted::new(Arc::clone(&store), keys(writing)), Fingerprint::new(&[]));
        let Ok(Claim::Fresh { token, .. }) = writer.claim(&key("k"), &print, LEASE).await else {
            unreachable!()
        };
        assert!(writer.complete(&key("k"), token, record(), LEASE).await.unwrap().is_held());
        let stored = store.claim(&key("k"), &print, LEASE).await.unwrap();
        let Claim::Done(stored) = stored else { unreachable!() };
        assert_eq!(stored.version, Encrypted::<()>::VERSION);
        assert!(!stored.body.windows(7).any(|part| part == b"balance"));
        let reader = Encrypted::new(store, keys(reading));
        match reader.claim(&key("k"), &print, LEASE).await {
            Ok(Claim::Done(record)) => record,
            _ => unreachable!(),
        }
    }

    #[tokio::test]
    async fn every_key_that_is_given_reads_and_the_first_writes() {
        assert_eq!(found(&[1], &[1]).await, record());
        assert_eq!(found(&[1], &[2, 1]).await, record(), "the new one in front");
        assert_eq!(found(&[1, 2], &[1]).await, record(), "the new one not in use yet");
        assert_eq!(found(&[1], &[2]).await.version, Encrypted::<()>::VERSION, "taken away");
    }

    #[test]
    fn what_was_changed_cut_off_or_put_under_another_key_cannot_be_read() {
        let keys = keys(&[1]);
        let sealed = keys.seal(&key("k"), &record()).unwrap();
        assert_eq!(keys.open(&key("k"), &sealed), Some(record()));
        assert_eq!(keys.open(&key("other"), &sealed), None);
        for position in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[position] ^= 1;
            assert_eq!(keys.open(&key("k"), &changed), None, "byte {position}");
            assert_eq!(keys.open(&key("k"), &sealed[..position]), None, "cut at {position}");
        }
        let again = keys.seal(&key("k"), &record()).unwrap();
        assert_ne!(sealed[NAME..], again[NAME..], "the same is never written twice");
    }

    #[tokio::test]
    async fn an_operation_whose_result_cannot_be_decrypted_is_not_run_again() {
        let (store, print) = (Arc::new(MemoryKeys::new()), Fingerprint::new(&[]));
        let with =
            |bytes| Idempotent::new(Arc::new(Encrypted::new(Arc::clone(&store), keys(bytes))));
        let plain = Idempotent::new(store.clone());
        with(&[1]).run(key("k"), print, |_| async { Ok::<_, ()>(1) }).await.unwrap();
        for blind in [with(&[2]), plain.clone()] {
            let again = blind.run(key("k"), print, |_| async { Ok::<_, ()>(2) }).await;
            assert_eq!(again, Err(RunError::NotRetained));
        }
        let again = with(&[2, 1]).run(key("k"), print, |_| async { Ok::<_, ()>(2) }).await.unwrap();
        assert_eq!((again.value, again.replayed), (1, true));

        plain.run(key("before"), print, |_| async { Ok::<_, ()>(3) }).await.unwrap();
        let old = with(&[1]).run(key("before"), print, |_| async { Ok::<_, ()>(4) }).await.unwrap();
        assert_eq!((old.value, old.replayed), (3, true), "from before there was encryption");
    }

    #[test]
    fn words_that_are_no_keys_are_refused_without_being_told() {
        let short = BASE64_STANDARD.encode([1; 16]);
        for wrong in ["", " \n", "hunter2", &short] {
            let failure = EncryptionKeys::parse(&Secret::new(wrong)).unwrap_err();
            assert_eq!(failure.code(), "E-ENCRYPTION-KEY");
            assert!(wrong.trim().is_empty() || !failure.to_string().contains(wrong));
        }
    }
}
