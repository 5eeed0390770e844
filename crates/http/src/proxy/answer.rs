//! The body of what the proxy answers: the upstream's, or its own words.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep, sleep};

use super::connections::Used;

/// The body of what the proxy answers.
pub struct Answer(Origin);

enum Origin {
    /// The proxy's own words.
    Said(Bytes),
    Upstream {
        body: Incoming,
        /// How long the next piece may take.
        patience: Option<(Duration, Pin<Box<Sleep>>)>,
        /// Where it comes from, until it is at its end.
        used: Option<Used>,
    },
}

impl Answer {
    pub(super) fn said(words: impl Into<Bytes>) -> Self {
        Self(Origin::Said(words.into()))
    }

    /// What the upstream sends; an error, if a piece of it does not come in time.
    pub(super) fn upstream(
        body: Incoming,
        patience: Option<Duration>,
        mut used: Option<Used>,
    ) -> Self {
        if let Some(used) = used.take_if(|_| body.is_end_stream()) {
            used.give_back();
        }
        let patience = patience.map(|patience| (patience, Box::pin(sleep(patience))));
        Self(Origin::Upstream { body, patience, used })
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match &mut self.0 {
            Origin::Said(words) => {
                let words = std::mem::take(words);
                Poll::Ready((!words.is_empty()).then(|| Ok(Frame::data(words))))
            }
            Origin::Upstream { body, patience, used } => {
                if let Poll::Ready(frame) = Pin::new(&mut *body).poll_frame(context) {
                    let is_over = frame.is_none() || body.is_end_stream();
                    if let Some(used) = used.take_if(|_| is_over) {
                        used.give_back();
                    }
                    if let Some((span, sleep)) = patience {
                        sleep.as_mut().reset(Instant::now() + *span);
                    }
                    return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
                }
                let Some((span, sleep)) = patience else { return Poll::Pending };
                std::task::ready!(sleep.as_mut().poll(context));
                let stalled = format!("the upstream sent nothing for {span:?}");
                Poll::Ready(Some(Err(stalled.into())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Origin::Said(words) => words.is_empty(),
            Origin::Upstream { body, .. } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Origin::Said(words) => SizeHint::with_exact(words.len() as u64),
            Origin::Upstream { body, .. } => body.size_hint(),
        }
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = match &self.0 {
            Origin::Said(_) => "said",
            Origin::Upstream { .. } => "upstream",
        };
        f.debug_tuple("Answer").field(&whose).finish()
    }
}
