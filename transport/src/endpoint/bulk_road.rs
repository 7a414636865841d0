//! A stream to a holder of bodies, on the best road to it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use zbelastic_types::NodeId;

use super::context::Context;
use super::link::BULK_STREAM;
use crate::event::Road;
use crate::local::{LocalLane, dial};

pub(super) type Reading = Counted;
pub(super) type Writing = Box<dyn AsyncWrite + Send + Unpin>;

/// What comes from a holder, counted.
pub(super) struct Counted {
    stream: Box<dyn AsyncRead + Send + Unpin>,
    context: Arc<Context>,
    road: Road,
}

/// Opens a stream to a holder: a socket of the same host if one was offered, else QUIC.
pub(super) async fn open_bulk(
    context: Arc<Context>,
    node: NodeId,
) -> io::Result<(Reading, Writing)> {
    let no_road = || io::Error::new(io::ErrorKind::NotConnected, "no road to the node");
    let link = context.directory.get(node).ok_or_else(no_road)?;
    if let (Some(offer), Some(hub)) = (&link.offer, &context.hub)
        && let Ok(socket) = dial(offer, hub.host(), LocalLane::Bulk).await
    {
        let (read, write) = socket.into_split();
        let stream = Box::new(read);
        return Ok((Counted { stream, context, road: Road::SameHost }, Box::new(write)));
    }
    let (mut send, receive) = link.connection.open_bi().await?;
    send.set_priority(BULK_PRIORITY)?;
    send.write_all(&[BULK_STREAM]).await?;
    Ok((Counted { stream: Box::new(receive), context, road: Road::Quic }, Box::new(send)))
}

/// Requests are short; the answers have the priority that the holder gives them.
const BULK_PRIORITY: i32 = 0;

impl AsyncRead for Counted {
    fn poll_read(
        self: Pin<&mut Self>,
        task: &mut TaskContext<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = into.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(task, into))?;
        let bytes = into.filled().len() - before;
        this.context.tallies.bulk.received(this.road, 0, bytes as u64);
        Poll::Ready(Ok(()))
    }
}
