//! Requests that end a run early: Ctrl-C, SIGTERM, or a cloud's notice that the machine is
//! withdrawn. Once to finish the step, twice to stop immediately.

use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};
use zbelastic_preemption::{NoticeCause, NoticeReport, NoticeSettings, NoticeWatch};
use zbelastic_wording::{CommandFailure, FailureCode, print_error_line};

/// How often the run was requested to end, and from which source first. Atomics, because signals
/// and notices arrive on a thread of their own.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    count: Arc<AtomicU32>,
    is_preempted: Arc<AtomicBool>,
    /// Whether nothing is left to finish.
    is_released: Arc<AtomicBool>,
}

/// The source of a request to end the run.
#[derive(Clone, Debug, PartialEq, Eq)]
enum StopRequest {
    /// A person, or a closed terminal.
    Person,
    /// The machine's process manager, with SIGTERM.
    Terminate,
    /// A notice of a cloud, in words.
    Notice(String),
}

struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Interrupt {
    /// Listens for signals, and for notices by `settings`; none if notices are to be ignored. `unit`
    /// is what the caller finishes before it ends, such as the step.
    ///
    /// # Errors
    /// If the system does not allow it.
    pub fn listen(
        settings: Option<NoticeSettings>,
        unit: &'static str,
    ) -> Result<Self, CommandFailure> {
        let cannot = |what: &str, error: &dyn std::fmt::Display| {
            CommandFailure::new(
                FailureCode::OutOfResource,
                format!("cannot listen to {what}: {error}"),
            )
        };
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| cannot("signals", &error))?;
        let signals = {
            let _inside = runtime.enter();
            let of = |kind| signal(kind).map_err(|error| cannot("signals", &error));
            let interrupt = of(SignalKind::interrupt())?;
            let terminate = of(SignalKind::terminate())?;
            Signals { interrupt, terminate, hangup: of(SignalKind::hangup())? }
        };
        let watch = settings.map(NoticeWatch::start).transpose();
        let watch = watch.map_err(|error| cannot("notices", &error))?;
        let interrupt = Self::default();
        let clone = interrupt.clone();
        let listen = move || runtime.block_on(clone.serve(signals, watch, unit));
        let started = thread::Builder::new().name("signals".to_owned()).spawn(listen);
        started.map(|_| interrupt).map_err(|error| cannot("signals", &error))
    }

    async fn serve(self, mut signals: Signals, mut watch: Option<NoticeWatch>, unit: &str) {
        loop {
            let request = tokio::select! {
                Some(()) = signals.interrupt.recv() => StopRequest::Person,
                Some(()) = signals.hangup.recv() => StopRequest::Person,
                Some(()) = signals.terminate.recv() => StopRequest::Terminate,
                Some(report) = next(&mut watch) => match notice_of(&report) {
                    Some(request) => request,
                    None => continue,
                },
                else => return,
            };
            self.note(&request, unit);
        }
    }

    fn note(&self, request: &StopRequest, unit: &str) {
        let Some(message) = self.answer(request, unit) else { process::exit(self.code() as i32) };
        print_error_line(format_args!("\n{message}"));
    }

    /// The message printed for a request; none if it is the second or nothing is left to finish, and
    /// the process ends immediately.
    fn answer(&self, request: &StopRequest, unit: &str) -> Option<String> {
        let is_first = self.count.fetch_add(1, Ordering::SeqCst) == 0;
        let is_released = self.is_released.load(Ordering::SeqCst);
        if is_first || is_released {
            self.is_preempted.store(*request != StopRequest::Person, Ordering::SeqCst);
        }
        let message = match request {
            StopRequest::Person => {
                format!("finishing the {unit}; press Ctrl-C again to stop immediately")
            }
            StopRequest::Terminate => format!("SIGTERM: finishing the {unit}"),
            StopRequest::Notice(what) => format!("{what}: finishing the {unit}"),
        };
        // A notice comes before the signal of the same machine: it is no second request.
        let is_notice = matches!(request, StopRequest::Notice(_));
        (!is_released && (is_first || is_notice)).then_some(message)
    }

    /// Nothing is left to finish: from now on a request ends the process immediately, as one does
    /// where nobody listens. A program that listened once cannot leave signals to the system again.
    pub fn release(&self) {
        self.is_released.store(true, Ordering::SeqCst);
    }

    /// Whether the run should end with the step under way.
    #[must_use]
    pub fn is_requested(&self) -> bool {
        self.count.load(Ordering::SeqCst) > 0
    }

    /// The exit code of a run that ends for it: with [`FailureCode::Drained`] a process manager
    /// starts the same command again.
    #[must_use]
    pub fn code(&self) -> FailureCode {
        if self.is_preempted.load(Ordering::SeqCst) {
            FailureCode::Drained
        } else {
            FailureCode::Interrupted
        }
    }
}

async fn next(watch: &mut Option<NoticeWatch>) -> Option<NoticeReport> {
    watch.as_mut()?.reports.recv().await
}

/// Whether a report is a reason to end. An event that only may happen sooner here than elsewhere is
/// none.
fn notice_of(report: &NoticeReport) -> Option<StopRequest> {
    match report {
        NoticeReport::Notice(notice) => match notice.cause {
            NoticeCause::Preempted | NoticeCause::Maintenance => {
                let source = notice.source.name();
                Some(StopRequest::Notice(format!("notice of {source}: the machine is taken away")))
            }
            NoticeCause::Rebalance => None,
        },
        NoticeReport::Watching(_) | NoticeReport::NoCloud | NoticeReport::Trouble { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbelastic_preemption::{Cloud, EventId, Notice};

    #[test]
    fn with_nothing_left_to_finish_the_first_request_ends_the_process() {
        let codes = [
            (StopRequest::Person, FailureCode::Interrupted),
            (StopRequest::Terminate, FailureCode::Drained),
        ];
        for (request, code) in codes {
            let interrupt = Interrupt::default();
            interrupt.release();
            assert!(!interrupt.is_requested());
            assert_eq!(interrupt.answer(&request, "batch"), None);
            assert_eq!(interrupt.code(), code);
        }
    }

    #[test]
    fn the_first_wish_decides_how_a_run_ends_and_the_second_ends_it() {
        let codes = [
            (StopRequest::Person, FailureCode::Interrupted),
            (StopRequest::Terminate, FailureCode::Drained),
            (StopRequest::Notice("notice of aws".to_owned()), FailureCode::Drained),
        ];
        for (first, code) in codes {
            let interrupt = Interrupt::default();
            assert!(!interrupt.is_requested());
            let message = interrupt.answer(&first, "step").expect("the step is finished");
            assert!(message.contains("finishing the step"), "{message}");
            assert!(interrupt.is_requested() && interrupt.code() == code);
            assert!(interrupt.answer(&StopRequest::Notice("again".to_owned()), "step").is_some());
            assert_eq!(interrupt.answer(&StopRequest::Person, "step"), None);
            assert_eq!(interrupt.code(), code);
        }
    }

    #[test]
    fn a_run_ends_for_a_machine_that_is_taken_away_and_not_for_one_that_may_be() {
        let notice = |cause| {
            let source = Cloud::Gcp;
            let event = EventId::new("e");
            notice_of(&NoticeReport::Notice(Notice { cause, deadline: None, source, event }))
        };
        assert!(
            notice(NoticeCause::Preempted).is_some() && notice(NoticeCause::Maintenance).is_some()
        );
        assert_eq!(notice(NoticeCause::Rebalance), None);
        assert_eq!(notice_of(&NoticeReport::NoCloud), None);
    }
}
