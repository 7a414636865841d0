//! `top`: the cluster in a terminal, drawn again as it changes.
//!
//! A thread observes the cluster, so that keys are answered while a controller does not. Where
//! standard output is no terminal, or one that cannot place a cursor, there is a line each interval
//! instead.

mod draw;
mod figures;

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};
use std::{process, thread};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use zbelastic_view::{Dashboard, Observation, RunCosts};
use zbelastic_wording::{CommandError, CommandFailure, FailureCode};

use super::reach::connect;
use crate::args::TopArgs;
use crate::command_connection::request_addresses;
use crate::live_page::{ObservationSink, ObservedCluster, observe_in_thread};
use draw::{ScreenState, draw, plain_line};

/// Observations that wait to be drawn; the thread that observes waits beyond it.
const OBSERVATIONS_WAITING_MAX: usize = 64;
/// Keys and observations are looked for so often: what a person takes for at once.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long a signal waits for the screen to be left: many times as long as one is drawn.
const ENDS_WITHIN: Duration = Duration::from_secs(2);

/// Runs `top`, until a person ends it.
///
/// # Errors
/// If the cluster does not answer, or the terminal or `out` cannot be written.
pub fn run(args: &TopArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    connect(&args.client)?.status().map_err(CommandFailure::from)?;
    let (folder, addresses) = request_addresses(&args.client)?;
    let (sender, observed) = sync_channel(OBSERVATIONS_WAITING_MAX);
    let sink = ObservationSink {
        send: Box::new(move |observation| sender.send(observation).is_ok()),
        // Lanes are for pages.
        lanes_wanted: Box::new(|| None),
    };
    let history = folder.events();
    // It ends with this process.
    let cluster = ObservedCluster { folder, addresses, history };
    let _observer = observe_in_thread(cluster, sink, None)?;
    let dashboard = Dashboard::new(RunCosts { price_per_hour: args.price, ..RunCosts::default() });
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb" || term.is_empty());
    if is_dumb || !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return lines(dashboard, &observed, args.interval, out);
    }
    let is_ending = ending_by_signal()?;
    let mut terminal = ratatui::try_init()?;
    let ended = screen(dashboard, &observed, &mut terminal, &is_ending);
    // The terminal is as it was before, however it ended.
    ratatui::try_restore()?;
    Ok(ended?)
}

/// Whether SIGTERM or SIGHUP came: the system would end the process and leave the terminal as it is.
/// Behind the end of its terminal, reading keys never returns; then the process ends here.
fn ending_by_signal() -> Result<Arc<AtomicBool>, CommandFailure> {
    let is_ending = Arc::new(AtomicBool::new(false));
    let ends = is_ending.clone();
    let end = move || {
        ends.store(true, Ordering::Relaxed);
        thread::sleep(ENDS_WITHIN);
        process::exit(0);
    };
    ctrlc::set_handler(end).map_err(|error| {
        CommandFailure::new(FailureCode::Internal, format!("cannot listen for signals: {error}"))
    })?;
    Ok(is_ending)
}

/// A line each interval, until `out` cannot be written or nothing is observed any more.
fn lines(
    mut dashboard: Dashboard,
    observed: &Receiver<Observation>,
    interval: Duration,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let mut next = Instant::now();
    loop {
        match observed.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Ok(observation) => drop(dashboard.observe(observation)),
            Err(RecvTimeoutError::Timeout) => {
                next = Instant::now() + interval;
                if let Some(line) = plain_line(&dashboard) {
                    writeln!(out, "{line}")?;
                    out.flush()?;
                }
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

/// Draws until a person or a signal ends it.
fn screen(
    mut dashboard: Dashboard,
    observed: &Receiver<Observation>,
    terminal: &mut DefaultTerminal,
    is_ending: &AtomicBool,
) -> io::Result<()> {
    let mut state = ScreenState::default();
    let mut is_changed = true;
    while !is_ending.load(Ordering::Relaxed) {
        while let Ok(observation) = observed.try_recv() {
            dashboard.observe(observation);
            is_changed = true;
        }
        if is_changed {
            terminal.draw(|frame| draw(frame, &dashboard, &mut state))?;
            is_changed = false;
        }
        if event::poll(LOOK_EVERY)? {
            match event::read()? {
                Event::Key(key) if ends(key) => return Ok(()),
                Event::Key(key) => state.scroll(lines_of(key)),
                Event::Resize(..) => {}
                Event::FocusGained | Event::FocusLost | Event::Mouse(_) | Event::Paste(_) => {
                    continue;
                }
            }
            is_changed = true;
        }
    }
    Ok(())
}

/// Whether a key ends it: in raw mode Ctrl-C is a key.
fn ends(key: KeyEvent) -> bool {
    let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
    let is_end = key.code == KeyCode::Char('q') || key.code == KeyCode::Esc;
    key.kind == KeyEventKind::Press && (is_end || is_control && key.code == KeyCode::Char('c'))
}

/// By how many lines a key scrolls the table of nodes.
fn lines_of(key: KeyEvent) -> isize {
    const PAGE: isize = 10;
    let keys = [
        (KeyCode::Down, 1),
        (KeyCode::Char('j'), 1),
        (KeyCode::Up, -1),
        (KeyCode::Char('k'), -1),
        (KeyCode::PageDown, PAGE),
        (KeyCode::PageUp, -PAGE),
    ];
    let found = keys.into_iter().find(|(code, _)| *code == key.code);
    found.map_or(0, |(_, lines)| lines)
}
