//! Holders in this process, behind pipes that count, flip, cut and stall.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, DuplexStream, ReadBuf, ReadHalf, WriteHalf, duplex, split};
use tokio::sync::mpsc;
use zbelastic_transport::bulk::{
    BulkBody, BulkError, BulkFetch, ServeBulkError, ServeSummary, fetch, serve,
};
use zbelastic_types::NodeId;

/// What lies in a pipe on its way.
const PIPE_BYTES: usize = 64 * 1024;
/// The one key under which holders have a body.
pub const KEY: &[u8] = b"version 3, layer 1";

/// What happens to a stream at a byte of it.
#[derive(Clone, Copy, Debug)]
pub enum StreamFault {
    /// One bit of the byte is another.
    Flip(u64),
    /// The stream ends before it.
    Cut(u64),
    /// The byte never comes, and the stream stays open.
    Stall(u64),
}

/// One holder: what it holds, and what happens to each stream to it, in order.
#[derive(Clone, Default)]
pub struct TestHolder {
    pub bytes: Arc<Vec<u8>>,
    pub faults: Vec<Vec<StreamFault>>,
    /// What happens to the streams after those.
    pub always: Vec<StreamFault>,
    pub is_unreachable: bool,
}

impl TestHolder {
    pub fn of(bytes: &Arc<Vec<u8>>) -> Self {
        Self { bytes: Arc::clone(bytes), ..Self::default() }
    }
}

struct WatchedHolder {
    holder: TestHolder,
    openings: AtomicUsize,
    moved: Arc<AtomicU64>,
}

/// All holders of a test.
pub struct TestHolders {
    watched: BTreeMap<NodeId, WatchedHolder>,
    served: mpsc::UnboundedSender<(NodeId, Result<ServeSummary, ServeBulkError>)>,
    endings: mpsc::UnboundedReceiver<(NodeId, Result<ServeSummary, ServeBulkError>)>,
}

impl TestHolders {
    /// The nodes are numbered from 1.
    pub fn new(holders: impl IntoIterator<Item = TestHolder>) -> Self {
        let watched = holders.into_iter().map(|holder| WatchedHolder {
            holder,
            openings: AtomicUsize::new(0),
            moved: Arc::default(),
        });
        let (served, endings) = mpsc::unbounded_channel();
        Self { watched: (1..).map(NodeId).zip(watched).collect(), served, endings }
    }

    pub fn open(
        &self,
        node: NodeId,
    ) -> impl Future<Output = io::Result<(FaultyReader, WriteHalf<DuplexStream>)>> + Send + 'static
    {
        let WatchedHolder { holder, openings, moved } = &self.watched[&node];
        let opening = openings.fetch_add(1, Ordering::Relaxed);
        let faults = holder.faults.get(opening).unwrap_or(&holder.always).clone();
        let (near, far) = duplex(PIPE_BYTES);
        let body: Arc<dyn BulkBody> = Arc::<Vec<u8>>::clone(&holder.bytes);
        let served = self.served.clone();
        let is_unreachable = holder.is_unreachable;
        let moved = Arc::clone(moved);
        async move {
            if is_unreachable {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            tokio::spawn(async move {
                let (reader, writer) = split(far);
                let find = move |key: &[u8]| (key == KEY).then(|| Arc::clone(&body));
                let end = serve(reader, writer, find).await;
                let _ = served.send((node, end));
            });
            let (reader, writer) = split(near);
            Ok((FaultyReader { reader, faults, at: 0, moved }, writer))
        }
    }

    /// Fetches `length` bytes from all of them.
    pub async fn fetch(&self, length: usize) -> Result<Vec<u8>, BulkError> {
        fetch(self.request(length, None), |node| self.open(node)).await
    }

    /// A request to all of them for `length` bytes.
    pub fn request(&self, length: usize, progress: Option<Arc<AtomicU64>>) -> BulkFetch {
        let holders = self.watched.keys().copied().collect();
        BulkFetch { holders, key: KEY.to_vec(), length: length as u64, progress }
    }

    /// The bytes that the fetching side read from a holder.
    pub fn moved(&self, node: u64) -> u64 {
        self.watched[&NodeId(node)].moved.load(Ordering::Relaxed)
    }

    pub fn moved_by_all(&self) -> u64 {
        self.watched.keys().map(|node| self.moved(node.0)).sum()
    }

    /// How many streams to a holder were opened.
    pub fn openings(&self, node: u64) -> usize {
        self.watched[&NodeId(node)].openings.load(Ordering::Relaxed)
    }

    /// How the next of the streams ended, as its holder saw it.
    pub async fn ending(&mut self) -> (NodeId, Result<ServeSummary, ServeBulkError>) {
        self.endings.recv().await.expect("there is a sender here")
    }
}

/// The fetching side's end of a pipe.
pub struct FaultyReader {
    reader: ReadHalf<DuplexStream>,
    faults: Vec<StreamFault>,
    at: u64,
    moved: Arc<AtomicU64>,
}

impl AsyncRead for FaultyReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let at = self.at;
        let mut space = buffer.remaining() as u64;
        for fault in &self.faults {
            match *fault {
                StreamFault::Flip(_) => {}
                StreamFault::Cut(offset) if offset == at => return Poll::Ready(Ok(())),
                StreamFault::Stall(offset) if offset == at => return Poll::Pending,
                StreamFault::Cut(offset) | StreamFault::Stall(offset) if offset > at => {
                    space = space.min(offset - at)
                }
                StreamFault::Cut(_) | StreamFault::Stall(_) => {}
            }
        }
        let space = usize::try_from(space).unwrap();
        let into = buffer.initialize_unfilled_to(space);
        let mut part = ReadBuf::new(into);
        std::task::ready!(Pin::new(&mut self.reader).poll_read(context, &mut part))?;
        let read = part.filled().len();
        for fault in &self.faults {
            if let StreamFault::Flip(offset) = *fault
                && (at..at + read as u64).contains(&offset)
            {
                part.filled_mut()[usize::try_from(offset - at).unwrap()] ^= 1;
            }
        }
        buffer.advance(read);
        self.at += read as u64;
        self.moved.fetch_add(read as u64, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}
