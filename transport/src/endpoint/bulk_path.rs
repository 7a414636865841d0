//! A stream to a holder of bodies, on the best path to it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use zbelastic_types::NodeId;

use super::context::TransportContext;
use super::link::BULK_STREAM;
use crate::event::TransportPath;
use crate::local::{LocalLane, dial};

pub(super) type BulkReadStream = CountedStream;
pub(super) type BulkWriteStream = Box<dyn AsyncWrite + Send + Unpin>;

/// The bytes that arrive from a holder, counted.
pub(super) struct CountedStream {
    stream: Box<dyn AsyncRead + Send + Unpin>,
    context: Arc<TransportContext>,
    path: TransportPath,
}

/// Opens a stream to a holder: a socket of the same host if one was offered, else QUIC.
pub(super) async fn open_bulk(
    context: Arc<TransportContext>,
    node: NodeId,
) -> io::Result<(BulkReadStream, BulkWriteStream)> {
    let no_path = || io::Error::new(io::ErrorKind::NotConnected, "no connection to the node");
    let link = context.directory.get(node).ok_or_else(no_path)?;
    if let (Some(offer), Some(hub)) = (&link.offer, &context.local_hub)
        && let Ok(socket) = dial(offer, hub.host(), LocalLane::Bulk).await
    {
        let (read, write) = socket.into_split();
        let stream = Box::new(read);
        return Ok((
            CountedStream { stream, context, path: TransportPath::SameHost },
            Box::new(write),
        ));
    }
    let (mut send, receive) = link.connection.open_bi().await?;
    send.set_priority(BULK_PRIORITY)?;
    send.write_all(&[BULK_STREAM]).await?;
    Ok((
        CountedStream { stream: Box::new(receive), context, path: TransportPath::Quic },
        Box::new(send),
    ))
}

/// Requests are short; the answers have the priority that the holder gives them.
const BULK_PRIORITY: i32 = 0;

impl AsyncRead for CountedStream {
    fn poll_read(
        self: Pin<&mut Self>,
        task: &mut TaskContext<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = into.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(task, into))?;
        let bytes = into.filled().len() - before;
        this.context.counters.bulk.received(this.path, 0, bytes as u64);
        Poll::Ready(Ok(()))
    }
}
