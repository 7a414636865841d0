//! Whoever watches a group: what is told to them, and whether they still want to know.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::group::{Group, GroupError, LOOK_EVERY};

/// How long a group has to tell the digest after the last seal.
const ENDING_LIMIT: Duration = Duration::from_secs(60);

/// Where lines go, and what says that it is enough.
pub struct Watch<'a> {
    out: &'a mut dyn Write,
    stop: &'a AtomicBool,
}

impl<'a> Watch<'a> {
    /// Tells `out`; `stop` becomes true when it is to end.
    pub fn new(out: &'a mut dyn Write, stop: &'a AtomicBool) -> Self {
        Self { out, stop }
    }

    /// A line.
    ///
    /// # Errors
    /// If nobody takes it.
    pub fn tell(&mut self, line: &str) -> Result<(), GroupError> {
        let told = writeln!(self.out, "{line}").and_then(|()| self.out.flush());
        told.map_err(GroupError::Output)
    }

    /// Whether it is to end.
    ///
    /// # Errors
    /// If it is.
    pub fn check(&self) -> Result<(), GroupError> {
        let is_over = self.stop.load(Ordering::Relaxed);
        if is_over { Err(GroupError::Interrupted) } else { Ok(()) }
    }

    /// Looks at a group until its run is done, while something is sealed within each `limit`.
    ///
    /// # Errors
    /// If nothing is, or the group cannot go on.
    pub fn until_done(&self, group: &mut Group, limit: Duration) -> Result<(), GroupError> {
        let mut progress = Progress::new(group);
        while group.picture().done().is_none() {
            self.check()?;
            group.look()?;
            progress.check(group, limit)?;
            std::thread::sleep(LOOK_EVERY);
        }
        let is_told = |group: &Group| {
            let is_done = group.picture().done().is_some_and(|(_, digest)| digest.is_some());
            is_done || group.final_digest().is_some()
        };
        let began = Instant::now();
        while !is_told(group) && began.elapsed() < ENDING_LIMIT {
            self.check()?;
            group.look_for(Duration::from_millis(200))?;
        }
        Ok(())
    }
}

/// When something was sealed last.
#[derive(Debug)]
pub struct Progress {
    step: u64,
    since: Instant,
}

impl Progress {
    /// From now on.
    #[must_use]
    pub fn new(group: &Group) -> Self {
        Self { step: group.picture().step(), since: Instant::now() }
    }

    /// Nothing can be sealed at present, so it does not count.
    pub fn excuse(&mut self) {
        self.since = Instant::now();
    }

    /// Looks whether something was sealed.
    ///
    /// # Errors
    /// If the last time is longer ago than `limit`, or the run is held.
    pub fn check(&mut self, group: &Group, limit: Duration) -> Result<(), GroupError> {
        let step = group.picture().step();
        if step > self.step {
            (self.step, self.since) = (step, Instant::now());
        }
        if let Some(reason) = group.picture().halted() {
            return Err(GroupError::Halted { reason: reason.to_owned() });
        }
        if self.since.elapsed() > limit {
            let what = "a sealed step".to_owned();
            return Err(GroupError::Late { what, limit, seen: group.seen() });
        }
        Ok(())
    }
}
