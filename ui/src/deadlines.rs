//! How long a connection waits for its client, and a stream whose reader has to read.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Duration, Sleep, sleep};

/// How long a connection waits for its client. Each has a place among [`CONNECTIONS_MAX`](crate::CONNECTIONS_MAX), which nobody needs
/// a token for.
#[derive(Clone, Copy, Debug)]
pub struct ClientDeadlines {
    /// The head of a request is sent within this.
    pub head: Duration,
    /// Its body is sent within this: a form with a token.
    pub body: Duration,
    /// Something of what is sent to it is read within this.
    pub read: Duration,
}

impl Default for ClientDeadlines {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { head: seconds(10), body: seconds(10), read: seconds(30) }
    }
}

/// A stream that fails once nothing of what is written to it was read for so long.
pub struct DeadlineStream<S> {
    stream: S,
    within: Duration,
    /// The end of the wait, while something cannot be written.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> DeadlineStream<S> {
    /// The stream, with its deadline.
    pub const fn new(stream: S, within: Duration) -> Self {
        Self { stream, within, stalled: None }
    }

    /// What writing came to, or that it took too long.
    fn bounded<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let within = self.within;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(within)));
        ready!(stalled.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for DeadlineStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(context, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for DeadlineStream<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(context, bytes);
        this.bounded(context, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(context, parts);
        this.bounded(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.stream).poll_flush(context);
        this.bounded(context, flushed)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let ended = Pin::new(&mut this.stream).poll_shutdown(context);
        this.bounded(context, ended)
    }
}
