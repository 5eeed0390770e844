//! Signatures after Standard Webhooks: `v1,` and the HMAC-SHA256 of `id.timestamp.body` in base64.
//!
//! While a secret is exchanged for another, every message carries a signature by each of them, so
//! that the receiver may change over whenever it likes.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::hmac::{Context, HMAC_SHA256, Key};
use semel_core::{Failure, Secret};

/// Signs with all secrets.
#[derive(Clone, Default)]
pub(super) struct Signer(Vec<Key>);

impl Signer {
    const PREFIX: &'static str = "whsec_";

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a secret: `whsec_` and 24 to 64 bytes in base64.
    pub(super) fn add(&mut self, secret: &Secret) -> Result<(), Failure> {
        let bytes = secret
            .reveal()
            .trim()
            .strip_prefix(Self::PREFIX)
            .ok_or_else(|| wrong("it does not begin with whsec_"))
            .and_then(|encoded| STANDARD.decode(encoded).map_err(|_| wrong("it is no base64")))?;
        if !(24..=64).contains(&bytes.len()) {
            return Err(wrong(&format!("it has {} bytes, not 24 to 64", bytes.len())));
        }
        self.0.push(Key::new(HMAC_SHA256, &bytes));
        Ok(())
    }

    /// The signatures by all secrets, with spaces between.
    pub(super) fn sign(&self, id: &str, timestamp: i64, body: &[u8]) -> String {
        let mut signatures = String::with_capacity(48 * self.0.len());
        for key in &self.0 {
            let mut context = Context::with_key(key);
            context.update(format!("{id}.{timestamp}.").as_bytes());
            context.update(body);
            if !signatures.is_empty() {
                signatures.push(' ');
            }
            signatures.push_str("v1,");
            STANDARD.encode_string(context.sign(), &mut signatures);
        }
        signatures
    }
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} secrets", self.0.len())
    }
}

/// Never repeats the secret itself.
fn wrong(why: &str) -> Failure {
    Failure::misconfigured("E-WEBHOOK-SECRET", format!("webhook: a signing secret is wrong: {why}"))
        .with_fix("make one with: echo \"whsec_$(openssl rand -base64 32)\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    fn signer(secrets: &[&str]) -> Signer {
        let mut signer = Signer::default();
        for secret in secrets {
            signer.add(&Secret::new(*secret)).unwrap();
        }
        signer
    }

    fn sign(signer: &Signer) -> String {
        signer.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#)
    }

    #[test]
    fn the_published_test_vector_holds() {
        let signature = sign(&signer(&[SECRET]));
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn each_secret_signs() {
        let other = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
        let both = sign(&signer(&[other, SECRET]));
        let (first, second) = both.split_once(' ').unwrap();
        assert_eq!((first, second), (&*sign(&signer(&[other])), &*sign(&signer(&[SECRET]))));
        assert_ne!(first, second);
    }

    #[test]
    fn a_wrong_secret_is_told_and_not_shown() {
        let short = format!("whsec_{}", STANDARD.encode([7; 23]));
        let cases = [
            ("hunter2", "does not begin with whsec_"),
            ("whsec_hunter 2", "no base64"),
            (&short, "has 23 bytes"),
        ];
        for (secret, why) in cases {
            let failure = Signer::default().add(&Secret::new(secret)).unwrap_err();
            assert_eq!(failure.code(), "E-WEBHOOK-SECRET");
            let shown = format!("{failure:?}");
            assert!(shown.contains(why) && !shown.contains("hunter"), "{shown}");
        }
    }
}
