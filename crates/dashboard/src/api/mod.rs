//! What is behind the page, as JSON.

pub(crate) mod changes;
pub(crate) mod events;
pub(crate) mod overview;
pub(crate) mod work;
