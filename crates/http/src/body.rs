//! A body that was read ahead: into memory as a whole, or up to a limit with the rest to come.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::poll_fn;
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::time::{Instant, timeout_at};

pin_project! {
    /// The body of a request or response that passed through
    /// [`IdempotencyService`](crate::IdempotencyService).
    ///
    /// ```
    /// use bytes::Bytes;
    /// use http_body_util::{BodyExt, Full};
    /// use semel_http::Body;
    ///
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let body = Body::from(Full::new(Bytes::from("paid")));
    /// assert_eq!(body.collect().await?.to_bytes(), "paid");
    /// # Ok::<(), std::convert::Infallible>(()) }).unwrap();
    /// ```
    pub struct Body<B: http_body::Body> {
        #[pin]
        state: State<B>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<B: http_body::Body> {
        Untouched { #[pin] body: B },
        Whole { data: Bytes, trailers: Option<Box<HeaderMap>> },
        Rest { head: Bytes, rest: Pin<Box<B>> },
        Broken { head: Bytes, error: Option<B::Error> },
    }
}

impl<B: http_body::Body> Body<B> {
    pub(crate) fn whole(data: Bytes, trailers: Option<Box<HeaderMap>>) -> Self {
        Self { state: State::Whole { data, trailers } }
    }
}

impl<B: http_body::Body> From<B> for Body<B> {
    /// A body that nobody has read from.
    fn from(body: B) -> Self {
        Self { state: State::Untouched { body } }
    }
}

impl<B: http_body::Body> From<Gathered<B>> for Body<B> {
    fn from(gathered: Gathered<B>) -> Self {
        let state = match gathered {
            Gathered::Whole { data, trailers } => State::Whole { data, trailers },
            Gathered::Rest { head, rest } => State::Rest { head, rest },
            Gathered::Broken { head, error } => State::Broken { head, error: Some(error) },
        };
        Self { state }
    }
}

impl<B: http_body::Body<Data = Bytes>> http_body::Body for Body<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let next = |data: &mut Bytes| Frame::data(std::mem::take(data));
        Poll::Ready(match self.project().state.project() {
            StateProjection::Untouched { body } => return body.poll_frame(context),
            StateProjection::Whole { data, .. } if !data.is_empty() => Some(Ok(next(data))),
            StateProjection::Whole { trailers, .. } => {
                trailers.take().map(|trailers| Ok(Frame::trailers(*trailers)))
            }
            StateProjection::Rest { head, .. } if !head.is_empty() => Some(Ok(next(head))),
            StateProjection::Rest { rest, .. } => return rest.as_mut().poll_frame(context),
            StateProjection::Broken { head, .. } if !head.is_empty() => Some(Ok(next(head))),
            StateProjection::Broken { error, .. } => error.take().map(Err),
        })
    }

    fn is_end_stream(&self) -> bool {
        match &self.state {
            State::Untouched { body } => body.is_end_stream(),
            State::Whole { data, trailers } => data.is_empty() && trailers.is_none(),
            State::Rest { head, rest } => head.is_empty() && rest.is_end_stream(),
            State::Broken { head, error } => head.is_empty() && error.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.state {
            State::Untouched { body } => body.size_hint(),
            State::Whole { data, trailers: None } => SizeHint::with_exact(data.len() as u64),
            // A length that is announced leaves no room for trailers in HTTP/1.1.
            State::Whole { data, trailers: Some(_) } => {
                let mut hint = SizeHint::new();
                hint.set_lower(data.len() as u64);
                hint
            }
            State::Rest { head, rest } => {
                let (read, rest) = (head.len() as u64, rest.size_hint());
                let mut hint = SizeHint::new();
                hint.set_lower(read.saturating_add(rest.lower()));
                if let Some(upper) = rest.upper() {
                    hint.set_upper(read.saturating_add(upper));
                }
                hint
            }
            State::Broken { .. } => SizeHint::default(),
        }
    }
}

impl<B: http_body::Body> fmt::Debug for Body<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Untouched { .. } => "untouched",
            State::Whole { .. } => "whole",
            State::Rest { .. } => "read in part",
            State::Broken { .. } => "broken",
        };
        f.debug_tuple("Body").field(&state).finish()
    }
}

/// What reading a body ahead gave.
pub(crate) enum Gathered<B: http_body::Body> {
    /// All of it.
    Whole { data: Bytes, trailers: Option<Box<HeaderMap>> },
    /// More than the limit, or not all in time; the rest is still to come.
    Rest { head: Bytes, rest: Pin<Box<B>> },
    /// It failed half-way.
    Broken { head: Bytes, error: B::Error },
}

/// Reads at most about `limit` bytes of a body, and one of unknown length no longer than
/// `patience`.
pub(crate) async fn gather<B>(body: B, limit: usize, patience: Duration) -> Gathered<B>
where
    B: http_body::Body<Data = Bytes>,
{
    let size = body.size_hint();
    if usize::try_from(size.lower()).map_or(true, |least| least > limit) {
        return Gathered::Rest { head: Bytes::new(), rest: Box::pin(body) };
    }
    if size.exact().is_some() {
        // It fits and says so: there will be no rest to hand on, so it can stay where it is.
        return match read(std::pin::pin!(body), usize::MAX, None).await {
            Read::Broken { head, error } => Gathered::Broken { head, error },
            Read::Whole { data, trailers } => Gathered::Whole { data, trailers },
            Read::Part { head } => Gathered::Whole { data: head, trailers: None },
        };
    }
    let mut rest = Box::pin(body);
    match read(rest.as_mut(), limit, Some(Instant::now() + patience)).await {
        Read::Whole { data, trailers } => Gathered::Whole { data, trailers },
        Read::Part { head } => Gathered::Rest { head, rest },
        Read::Broken { head, error } => Gathered::Broken { head, error },
    }
}

/// What reading from a body gave.
pub(crate) enum Read<E> {
    /// All of it.
    Whole { data: Bytes, trailers: Option<Box<HeaderMap>> },
    /// More than the limit, or not all in time.
    Part { head: Bytes },
    /// It failed half-way.
    Broken { head: Bytes, error: E },
}

/// Reads at most about `limit` bytes of a body.
pub(crate) async fn read<B>(
    mut body: Pin<&mut B>,
    limit: usize,
    deadline: Option<Instant>,
) -> Read<B::Error>
where
    B: http_body::Body<Data = Bytes>,
{
    let mut head = Head::default();
    while head.len() <= limit {
        let next = poll_fn(|context| body.as_mut().poll_frame(context));
        let frame = match deadline {
            None => next.await,
            Some(deadline) => match timeout_at(deadline, next).await {
                Ok(frame) => frame,
                Err(_) => break,
            },
        };
        match frame {
            None => return Read::Whole { data: head.join(), trailers: None },
            Some(Err(error)) => return Read::Broken { head: head.join(), error },
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => head.push(data),
                Err(frame) => {
                    let trailers = frame.into_trailers().ok().map(Box::new);
                    return Read::Whole { data: head.join(), trailers };
                }
            },
        }
    }
    Read::Part { head: head.join() }
}

/// What was read so far; a single piece is never copied.
#[derive(Default)]
pub(crate) struct Head {
    first: Bytes,
    joined: Vec<u8>,
}

impl Head {
    pub(crate) fn push(&mut self, data: Bytes) {
        if self.len() == 0 {
            self.first = data;
        } else {
            let first = std::mem::take(&mut self.first);
            self.joined.extend_from_slice(&first);
            self.joined.extend_from_slice(&data);
        }
    }

    /// The first bytes: all of the first piece at least.
    pub(crate) fn start(&self) -> &[u8] {
        if self.joined.is_empty() { &self.first } else { &self.joined }
    }

    pub(crate) fn len(&self) -> usize {
        self.first.len() + self.joined.len()
    }

    pub(crate) fn join(self) -> Bytes {
        if self.joined.is_empty() { self.first } else { self.joined.into() }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::stream;
    use http_body_util::{BodyExt, StreamBody};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(1);

    fn pieces(
        pieces: Vec<Result<Frame<Bytes>, &'static str>>,
    ) -> impl http_body::Body<Data = Bytes, Error = &'static str> {
        StreamBody::new(stream::iter(pieces))
    }

    fn data(text: &'static str) -> Result<Frame<Bytes>, &'static str> {
        Ok(Frame::data(Bytes::from_static(text.as_bytes())))
    }

    #[tokio::test]
    async fn pieces_and_trailers_come_together_and_go_out_again() {
        let trailers = HeaderMap::from_iter([(http::header::ETAG, "\"1\"".parse().unwrap())]);
        let body = pieces(vec![data("a"), data("bc"), Ok(Frame::trailers(trailers.clone()))]);
        let collected = Body::from(gather(body, 3, PATIENCE).await).collect().await.unwrap();
        assert_eq!(collected.trailers(), Some(&trailers));
        assert_eq!(collected.to_bytes(), "abc");
    }

    #[tokio::test]
    async fn a_body_over_the_limit_loses_nothing() {
        let body = pieces(vec![data("ab"), data("cd"), data("ef")]);
        let gathered = gather(body, 3, PATIENCE).await;
        assert!(matches!(&gathered, Gathered::Rest { head, .. } if head == "abcd"));
        assert_eq!(Body::from(gathered).collect().await.unwrap().to_bytes(), "abcdef");
    }

    #[tokio::test]
    async fn a_broken_body_stays_broken() {
        let body = pieces(vec![data("ab"), Err("cut")]);
        let mut body = Body::from(gather(body, 10, PATIENCE).await);
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "ab");
        assert_eq!(body.frame().await.unwrap().unwrap_err(), "cut");
        assert!(body.frame().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn patience_ends_for_a_body_of_unknown_length() {
        let slow = stream::once(async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"late")))
        });
        let body = StreamBody::new(slow);
        let started = Instant::now();
        let gathered = gather(body, 10, PATIENCE).await;
        assert_eq!(started.elapsed(), PATIENCE);
        assert_eq!(Body::from(gathered).collect().await.unwrap().to_bytes(), "late");
    }
}
