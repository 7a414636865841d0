//! The threads that wait for folders, beside a device: one for this island's own, and one for those of
//! the others, which a slow link leads to.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;
use std::{io, thread};

use zbelastic_config::{RunConfig, outer_schedule, rounds_kept};
use zbelastic_remote::{Environment, ObjectFolder, OnRetry, RemoteError, RetryEvent, RetryPolicy};
use zbelastic_trainer::model::{LayerSpec, model_layers};
use zbelastic_trainer::outer::OuterRequest;

use crate::event::ExchangeEvent;
use crate::exchange::{Exchange, ExchangeRun};
use crate::folders::ObjectFolders;
use crate::object::settings_hash;

/// Requests that wait for a thread, for each layer: one to publish, and of its owner, of a copy and of one
/// on standby one to await, for the version before and for this one. Each leads to two events at most. A
/// device that sends more waits.
const MESSAGES_PER_LAYER: usize = 16;
/// How soon folders are looked into again: soon at first, and half as often each time.
const WAIT_FIRST: Duration = Duration::from_millis(10);
const WAIT_MAX: Duration = Duration::from_secs(1);
/// How often a part of an object is requested again before the whole object is.
const POLICY: RetryPolicy =
    RetryPolicy { attempts_max: 5, wait_first: WAIT_MAX, wait_max: Duration::from_secs(8) };

/// All that an exchange begins with.
pub struct ExchangeSetup {
    /// What all exchanges of the run have in common.
    pub run: ExchangeRun,
    /// The folder of each island.
    pub folders: Vec<String>,
}

impl ExchangeSetup {
    /// That of a run, if it is one of several islands.
    #[must_use]
    pub fn of_run(config: &RunConfig) -> Option<Self> {
        let floats = model_layers(&config.model).iter().map(LayerSpec::trained_floats).collect();
        let run = ExchangeRun {
            schedule: outer_schedule(config)?,
            settings: settings_hash(config)?,
            floats,
            rounds_kept: rounds_kept(config),
        };
        Some(Self { run, folders: config.sync.as_ref()?.folders.clone() })
    }

    /// The same without a checkpoint that it goes back to: nothing is removed.
    #[must_use]
    pub fn without_checkpoints(self) -> Self {
        Self { run: ExchangeRun { rounds_kept: None, ..self.run }, ..self }
    }

    fn open_folders(&self) -> Result<ObjectFolders, ExchangeStartError> {
        // The exchange tries again by itself.
        let on_retry: OnRetry = Arc::new(|_: RetryEvent<'_>| ControlFlow::Continue(()));
        let environment = Environment::of_process();
        let open = |(island, place): (usize, &String)| {
            let opened = ObjectFolder::open(place, &environment, POLICY, on_retry.clone());
            let place = place.clone();
            opened.map_err(|error| ExchangeStartError::Folder { island, place, error })
        };
        let folders = self.folders.iter().enumerate().map(open).collect::<Result<_, _>>()?;
        Ok(ObjectFolders::new(folders, self.run.schedule.config().island))
    }
}

/// Why an exchange cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeStartError {
    /// A folder is no address, or there are no credentials for it.
    #[error("the folder of island {island}, {place}: {error}")]
    Folder {
        /// Whose folder.
        island: usize,
        /// Where it is.
        place: String,
        /// What is wrong with it.
        error: RemoteError,
    },
    /// A thread.
    #[error("a thread for the exchange between islands: {0}")]
    Thread(#[from] io::Error),
}

/// The exchange of a worker that a request goes to. There are two, so that what is published never
/// waits for what a slow link carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExchangeSide {
    /// The one with this island's own folder.
    Near,
    /// The one with the folders of others.
    Far,
    /// Each of them.
    Both,
}

impl ExchangeSide {
    /// That of a request.
    #[must_use]
    pub const fn of(request: &OuterRequest) -> Self {
        match request {
            OuterRequest::Await { is_owner: true, .. } => Self::Far,
            OuterRequest::Publish { .. } | OuterRequest::Await { .. } => Self::Near,
            OuterRequest::Forget => Self::Both,
        }
    }
}

/// The handle of the threads. They end when it is dropped.
pub struct ExchangeThread {
    /// What is written to this island's own folder, and read from there.
    near: SyncSender<OuterRequest>,
    /// What is made of the weights of others.
    far: SyncSender<OuterRequest>,
    events: Receiver<ExchangeEvent>,
    /// One more than the island whose weights are missing; 0 for none.
    missing: Arc<AtomicU32>,
}

impl ExchangeThread {
    /// Starts the threads for a worker of an island.
    ///
    /// # Errors
    /// If they cannot be started, or a folder cannot be opened.
    pub fn start(setup: &ExchangeSetup) -> Result<Self, ExchangeStartError> {
        let messages_max = MESSAGES_PER_LAYER * setup.run.floats.len();
        let (outbox, events) = sync_channel(messages_max);
        let missing = Arc::new(AtomicU32::new(0));
        let start = |name: &str, outbox: SyncSender<ExchangeEvent>, missing: Arc<AtomicU32>| {
            let exchange = Exchange::new(setup.open_folders()?, setup.run.clone());
            let (requests, inbox) = sync_channel(messages_max);
            let run = move || run(&inbox, &outbox, exchange, &missing);
            thread::Builder::new().name(name.to_owned()).spawn(run)?;
            Ok::<_, ExchangeStartError>(requests)
        };
        let near = start("islands-near", outbox.clone(), Arc::default())?;
        let far = start("islands-far", outbox, missing.clone())?;
        Ok(Self { near, far, events, missing })
    }

    /// Sends a request. Waits while as many as may be are under way.
    pub fn send(&self, request: OuterRequest) {
        // They end with their handle alone.
        let _ = match ExchangeSide::of(&request) {
            ExchangeSide::Far => self.far.send(request),
            ExchangeSide::Near => self.near.send(request),
            ExchangeSide::Both => {
                self.far.send(request.clone()).and_then(|()| self.near.send(request))
            }
        };
    }

    /// The next event, if there is one.
    #[must_use]
    pub fn try_next(&self) -> Option<ExchangeEvent> {
        self.events.try_recv().ok()
    }

    /// The island whose weights are missing for the round that is to be mixed in first, if one is missing.
    #[must_use]
    pub fn missing_island(&self) -> Option<u32> {
        self.missing.load(Ordering::Relaxed).checked_sub(1)
    }
}

fn run(
    inbox: &Receiver<OuterRequest>,
    outbox: &SyncSender<ExchangeEvent>,
    mut exchange: Exchange<ObjectFolders>,
    missing: &AtomicU32,
) {
    let mut wait = WAIT_FIRST;
    loop {
        let received = match exchange.is_busy() {
            true => inbox.recv_timeout(wait),
            false => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match received {
            Ok(request) => {
                exchange.handle(request);
                inbox.try_iter().for_each(|request| exchange.handle(request));
                wait = WAIT_FIRST;
            }
            Err(RecvTimeoutError::Timeout) => wait = (wait * 2).min(WAIT_MAX),
            Err(RecvTimeoutError::Disconnected) => return,
        }
        for event in exchange.poll() {
            if outbox.send(event).is_err() {
                return;
            }
        }
        missing.store(exchange.missing_island().map_or(0, |island| island + 1), Ordering::Relaxed);
    }
}
