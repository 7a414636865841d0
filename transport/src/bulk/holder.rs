//! One holder's stream: a task that asks for chunks, reads them and holds them against their hashes.
//!
//! Requests go out as orders come in, while earlier answers are still read. A chunk is hashed on a
//! thread that may block while the next one is read. Whatever ends the task, the pieces of memory
//! it was lent go back with its last report.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{self, JoinHandle};
use tokio::time::{Instant, sleep_until, timeout};

use super::error::HolderError;
use super::streams::{Inbox, Outbox, Unverified};
use super::wire::Request;

/// How long a stream to a holder may take to open.
const OPEN_DEADLINE: Duration = Duration::from_secs(10);
/// How long a chunk may take to come, its answer included: 35 KB a second.
const CHUNK_DEADLINE: Duration = Duration::from_secs(30);
/// The most chunks that were read and are not verified.
const VERIFY_AHEAD: usize = 2;

/// A range of chunks and the memory for them.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) first: u64,
    pub(super) pieces: Vec<BytesMut>,
}

/// What a task tells of its holder.
#[derive(Debug)]
pub(super) enum Report {
    /// A chunk came whole.
    Chunk { holder: usize, chunk: u64, piece: BytesMut },
    /// The last report: why the task ended, and the memory of the chunks that did not come.
    Ended { holder: usize, error: HolderError, pieces: Vec<(u64, BytesMut)> },
}

/// What a task needs to know.
pub(super) struct Errand {
    pub(super) holder: usize,
    pub(super) key: Vec<u8>,
    pub(super) length: u64,
    pub(super) orders: mpsc::Receiver<Order>,
    pub(super) reports: mpsc::Sender<Report>,
    /// Resolves when another holder should take over.
    pub(super) overtaken: oneshot::Receiver<()>,
}

/// Chunks on their way through hashing, in order.
#[derive(Default)]
struct Verifying {
    chunks: VecDeque<(u64, JoinHandle<Verified>)>,
}

struct Verified {
    piece: BytesMut,
    is_whole: bool,
}

/// Serves orders on the stream that `opening` gives, until something fails or nobody listens.
pub(super) async fn run<F, R, W>(mut errand: Errand, opening: F)
where
    F: Future<Output = io::Result<(R, W)>>,
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut pieces = Vec::new();
    let error = match errand.open(opening).await {
        Ok((reader, writer)) => errand.work(reader, writer, &mut pieces).await,
        Err(error) => error,
    };
    errand.orders.close();
    while let Ok(order) = errand.orders.try_recv() {
        pieces.extend((order.first..).zip(order.pieces));
    }
    let ended = Report::Ended { holder: errand.holder, error, pieces };
    // Without a receiver the fetch is over, and nobody asks for the pieces.
    let _ = errand.reports.send(ended).await;
}

impl Errand {
    async fn open<F, S>(&mut self, opening: F) -> Result<S, HolderError>
    where
        F: Future<Output = io::Result<S>>,
    {
        tokio::select! {
            opened = timeout(OPEN_DEADLINE, opening) => {
                opened.map_err(|_| HolderError::Stalled)?.map_err(HolderError::Unreachable)
            }
            _ = &mut self.overtaken => Err(HolderError::Overtaken),
        }
    }

    /// Works until something fails, and says what. The memory of what did not come goes to `pieces`.
    async fn work<R, W>(
        &mut self,
        reader: R,
        writer: W,
        pieces: &mut Vec<(u64, BytesMut)>,
    ) -> HolderError
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let mut inbox = Inbox::new(reader, self.length);
        let mut verifying = Verifying::default();
        let error = self.turn(&mut inbox, Outbox::new(writer), &mut verifying).await;
        // What was read before the failure counts, up to the first chunk that is damaged.
        let mut is_whole_so_far = true;
        while let Some((chunk, verified)) = verifying.next().await {
            is_whole_so_far &= verified.is_whole && !matches!(error, HolderError::Damaged { .. });
            if is_whole_so_far {
                self.report(chunk, verified.piece).await;
            } else {
                pieces.push((chunk, verified.piece));
            }
        }
        pieces.extend(inbox.take_pieces());
        error
    }

    async fn turn<R, W>(
        &mut self,
        inbox: &mut Inbox<R>,
        mut outbox: Outbox<W>,
        verifying: &mut Verifying,
    ) -> HolderError
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let mut deadline = Instant::now() + CHUNK_DEADLINE;
        loop {
            let may_read = inbox.is_waiting() && verifying.chunks.len() < VERIFY_AHEAD;
            tokio::select! {
                _ = &mut self.overtaken => return HolderError::Overtaken,
                order = self.orders.recv() => {
                    // Without a sender the fetch is over, and nobody reads what this returns.
                    let Some(order) = order else { return HolderError::Overtaken };
                    if !inbox.is_waiting() {
                        deadline = Instant::now() + CHUNK_DEADLINE;
                    }
                    self.ask(order, inbox, &mut outbox);
                }
                sent = outbox.send(), if outbox.is_waiting() => {
                    if let Err(error) = sent { return HolderError::Stream(error) }
                }
                read = inbox.read(), if may_read => match read {
                    Ok(None) => {}
                    Ok(Some(chunk)) => {
                        deadline = Instant::now() + CHUNK_DEADLINE;
                        verifying.push(chunk);
                    }
                    Err(error) => return error,
                },
                Some((chunk, verified)) = verifying.next() => {
                    deadline = Instant::now() + CHUNK_DEADLINE;
                    if !verified.is_whole {
                        inbox.put_back(chunk, verified.piece);
                        return HolderError::Damaged { chunk };
                    }
                    self.report(chunk, verified.piece).await;
                }
                () = sleep_until(deadline), if inbox.is_waiting() => return HolderError::Stalled,
            }
        }
    }

    fn ask<R, W>(&self, order: Order, inbox: &mut Inbox<R>, outbox: &mut Outbox<W>) {
        let Order { first, pieces } = order;
        let count = pieces.len() as u64;
        outbox.push(&Request { key: self.key.clone(), first, count });
        inbox.expect(first, pieces);
    }

    async fn report(&self, chunk: u64, piece: BytesMut) {
        let report = Report::Chunk { holder: self.holder, chunk, piece };
        // Without a receiver the fetch is over.
        let _ = self.reports.send(report).await;
    }
}

impl Verifying {
    fn push(&mut self, Unverified { chunk, piece, hash }: Unverified) {
        let hashed = task::spawn_blocking(move || {
            let is_whole = blake3::hash(&piece) == hash;
            Verified { piece, is_whole }
        });
        self.chunks.push_back((chunk, hashed));
    }

    /// The next chunk that was hashed, in order, or `None` if none is under way. May be dropped
    /// half-way.
    async fn next(&mut self) -> Option<(u64, Verified)> {
        let (chunk, hashed) = self.chunks.front_mut()?;
        let verified = (*chunk, hashed.await.expect("hashing does not fail"));
        self.chunks.pop_front();
        Some(verified)
    }
}
