//! The fetching side: one owner of memory and decisions, one task for each holder that is asked.

use std::future::pending;
use std::io;
use std::panic;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use zbelastic_types::NodeId;

use super::error::{BulkError, HolderFailure};
use super::holder::{Errand, Order, Report, run};
use super::share::{HOLDER_FAILURES_MAX, ORDERS_AHEAD, Share};
use super::slots::Slots;
use super::wire::{BULK_BYTES_MAX, KEY_BYTES_MAX, chunk_count};

/// The most holders that are asked. Those after them are not.
pub const HOLDERS_MAX: usize = 16;
/// The most reports that wait for the owner.
const REPORTS_MAX: usize = 64;

/// What to fetch, and from whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BulkFetch {
    /// Who has it. Who is named twice is asked once.
    pub holders: Vec<NodeId>,
    /// Its name there.
    pub key: Vec<u8>,
    /// How many bytes it has.
    pub length: u64,
}

/// Fetches from all holders at once, over the streams that `open` gives: one a holder, and another
/// after a failure. May be dropped at any time, which ends all of them.
///
/// # Errors
/// If nothing can be asked for, or every holder failed.
///
/// # Panics
/// Outside a tokio runtime.
pub async fn fetch<O, F, R, W>(request: BulkFetch, open: O) -> Result<Vec<u8>, BulkError>
where
    O: Fn(NodeId) -> F,
    F: Future<Output = io::Result<(R, W)>> + Send + 'static,
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let mut crew = Crew::new(request)?;
    let mut tasks = JoinSet::new();
    loop {
        let now = crew.began.elapsed();
        crew.overtake(now);
        for holder in 0..crew.members.len() {
            while let Some(errand) = crew.give_order(holder, now) {
                tasks.spawn(run(errand, open(crew.members[holder].node)));
            }
        }
        if crew.share.is_done() {
            return Ok(crew.slots.join());
        }
        if crew.share.is_hopeless() {
            return Err(crew.into_error());
        }
        let timeout = crew.share.poll_timeout(now).map(|at| crew.began + at);
        tokio::select! {
            report = crew.reports.recv() => {
                crew.take(report.expect("there is a sender here"));
            }
            Some(ended) = tasks.join_next() => {
                // A task that ended has reported; one that panicked has not, and never will.
                if let Err(error) = ended {
                    panic::resume_unwind(error.into_panic());
                }
            }
            () = until(timeout) => {}
        }
    }
}

async fn until(timeout: Option<Instant>) {
    match timeout {
        Some(at) => sleep_until(at).await,
        None => pending().await,
    }
}

struct Crew {
    key: Vec<u8>,
    length: u64,
    began: Instant,
    share: Share,
    slots: Slots,
    members: Vec<Member>,
    /// Of all members, in order.
    failures: Vec<HolderFailure>,
    reports: mpsc::Receiver<Report>,
    /// What new tasks get a copy of.
    reporter: mpsc::Sender<Report>,
}

struct Member {
    node: NodeId,
    task: Option<Task>,
}

struct Task {
    orders: mpsc::Sender<Order>,
    overtake: Option<oneshot::Sender<()>>,
}

impl Crew {
    fn new(request: BulkFetch) -> Result<Self, BulkError> {
        let BulkFetch { holders, key, length } = request;
        if key.len() > KEY_BYTES_MAX {
            return Err(BulkError::KeyTooLong { found: key.len() });
        }
        if length > BULK_BYTES_MAX {
            return Err(BulkError::TooLong { found: length });
        }
        let mut members: Vec<Member> = Vec::new();
        for node in holders {
            let is_new = members.iter().all(|member| member.node != node);
            if is_new && members.len() < HOLDERS_MAX {
                members.push(Member { node, task: None });
            }
        }
        if members.is_empty() {
            return Err(BulkError::NoHolders);
        }
        let share = Share::new(chunk_count(length), members.len());
        let (reporter, reports) = mpsc::channel(REPORTS_MAX);
        let (slots, failures) = (Slots::new(length), Vec::new());
        let began = Instant::now();
        Ok(Self { key, length, began, share, slots, members, failures, reports, reporter })
    }

    /// Tells a holder to give up what it owes, if another should have it.
    fn overtake(&mut self, now: Duration) {
        let Some(victim) = self.share.poll_yield(now) else { return };
        let task = self.members[victim].task.as_mut().expect("who owes chunks has a task");
        let overtake = task.overtake.take().expect("a task is overtaken once");
        // A task that has ended already has reported so.
        let _ = overtake.send(());
    }

    /// Gives `holder` all orders it should have. Stops at the first if it has no task, and gives
    /// the errand for a new one.
    fn give_order(&mut self, holder: usize, now: Duration) -> Option<Errand> {
        while let Some(range) = self.share.poll_order(holder, now) {
            let first = range.start;
            let order =
                Order { first, pieces: range.map(|chunk| self.slots.lend(chunk)).collect() };
            let member = &mut self.members[holder];
            if let Some(task) = &member.task {
                // A task that has ended has reported so; what it owes is then given out again.
                if let Err(error) = task.orders.try_send(order) {
                    self.put_back(error.into_inner());
                }
                continue;
            }
            let (sender, orders) = mpsc::channel(ORDERS_AHEAD);
            let (overtake, overtaken) = oneshot::channel();
            sender.try_send(order).expect("a new queue has room");
            member.task = Some(Task { orders: sender, overtake: Some(overtake) });
            let (key, reports) = (self.key.clone(), self.reporter.clone());
            return Some(Errand { holder, key, length: self.length, orders, reports, overtaken });
        }
        None
    }

    fn put_back(&mut self, order: Order) {
        for (chunk, piece) in (order.first..).zip(order.pieces) {
            self.slots.put_back(chunk, piece);
        }
    }

    fn take(&mut self, report: Report) {
        let now = self.began.elapsed();
        match report {
            Report::Chunk { holder, chunk, piece } => {
                self.slots.put_back(chunk, piece);
                self.share.on_chunk(holder, chunk, now);
            }
            Report::Ended { holder, error, pieces } => {
                for (chunk, piece) in pieces {
                    self.slots.put_back(chunk, piece);
                }
                self.members[holder].task = None;
                self.share.on_failure(holder, error.is_final(), now);
                self.note(HolderFailure { holder: self.members[holder].node, error });
            }
        }
    }

    /// Keeps the last failures of each holder.
    fn note(&mut self, failure: HolderFailure) {
        let holder = failure.holder;
        self.failures.push(failure);
        let mut mine = self.failures.iter().enumerate().filter(|(_, old)| old.holder == holder);
        if mine.clone().count() > HOLDER_FAILURES_MAX {
            let oldest = mine.next().expect("it has some").0;
            self.failures.remove(oldest);
        }
    }

    fn into_error(self) -> BulkError {
        let (arrived, expected) = (self.share.arrived(), chunk_count(self.length));
        BulkError::NoHolderLeft { failures: self.failures, arrived, expected }
    }
}
