//! Known-wrong variants of the engine, so that the tests can show that they would be caught.
//!
//! Without the feature `mutants` the question is answered "no" at compile time.

/// One way to be wrong. Mistakes of a source, a sink or a store are made by wrappers in the tests;
/// these are the ones only the engine can make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "mutants"), expect(unreachable_pub, reason = "only tests see them"))]
pub enum Mutation {
    /// Publish the rest of a lane although its head waits for a retry.
    ForgetLaneOnRetry,
    /// Count an outage as a failed attempt.
    OutageBurnsAttempt,
    /// After an outage, put the events back at the end instead of the front.
    RequeueAtEnd,
    /// Publish a lane in two calls at once.
    NoLaneExclusion,
    /// Settle as delivered before the sink has confirmed.
    MarkBeforeConfirm,
}
