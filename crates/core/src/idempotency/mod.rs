//! Running an operation once per key: the words and the [`IdempotencyStore`] contract.
//!
//! A key is *claimed* for a lease. The claim carries a [`Token`]; every later change must show it,
//! so that an owner who was too slow cannot overwrite the result of the one who took over.
//!
//! What follows from a claim is one pure function, [`decide`]; who runs it needs a runtime and
//! lives elsewhere.

mod admin;
mod decide;
mod key;
mod record;
mod store;
mod stored;
mod transactional;

pub use admin::{KeyAdmin, KeyPage, KeyState, KeySurvey, KeyView};
pub use decide::{AfterCrash, Refusal, Rules, Step, decide};
pub use key::{Fingerprint, ScopedKey};
pub use record::Record;
pub use store::{Claim, IdempotencyStore, Token};
pub use stored::{Ending, Stored};
pub use transactional::TransactionalKeys;
