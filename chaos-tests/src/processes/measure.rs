//! How long a cluster of real processes takes to go on after each kind of fault, one kind after the
//! other on one run.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::campaign::{SEAL_LIMIT, START_LIMIT};
use super::check::{Findings, check};
use super::contract::Role;
use super::events::{Event, EventKind, Moved};
use super::faults::Fault;
use super::group::{Group, GroupError, GroupSetup, LOOK_EVERY, Member, Standing};
use super::picture::MemberIndex;
use super::strike::{Strike, Striker};
use super::system::Signal;
use super::times::{Quantiles, Times, words};
use super::undisturbed::log_of;
use super::watch::{Progress, Watch};
use crate::random::{Draws, Purpose};

/// More steps than are ever trained while it is measured.
const STEPS: u64 = 1_000_000;
/// Steps between two faults, so that each one strikes a run that goes on as ever.
const STEPS_APART: u64 = 6;
/// How long a process that died stays away, in milliseconds.
const DOWN_MS: u64 = 500;
/// A pause that nobody should notice, in milliseconds.
const PAUSE_SHORT_MS: u64 = 300;
/// A pause that everybody notices, in milliseconds.
const PAUSE_LONG_MS: u64 = 8000;
/// Within this time a worker that joins has a stage.
const JOIN_LIMIT: Duration = Duration::from_secs(60);

/// What is measured.
#[derive(Clone, Debug)]
pub struct MeasureSetup {
    /// The cluster.
    pub group: GroupSetup,
    /// What is trained.
    pub config: PathBuf,
    /// How often each fault strikes.
    pub times: u32,
    /// How often power goes.
    pub power_cycles: u32,
}

/// A line of the table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// What happened.
    pub what: &'static str,
    /// How long it took until something was sealed that shows that the run goes on.
    pub next_seal: Option<Quantiles>,
    /// How often a new plan followed.
    pub plans: u32,
    /// What else was to be seen.
    pub note: String,
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Measures {
    /// Line by line.
    pub rows: Vec<Row>,
    /// What moved between nodes, over all plans.
    pub moved: MovedInAll,
    /// What the event files say.
    pub findings: Findings,
    /// What this machine lets one do.
    pub machine: Vec<String>,
}

/// What moved between nodes, over all plans for which something had to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct MovedInAll {
    /// Plans.
    pub plans: usize,
    /// Bytes that moved.
    pub bytes: u64,
    /// The fewest that had to.
    pub floor: u64,
    /// From the first question to the last arrival, in milliseconds.
    pub ms: f64,
}

impl MovedInAll {
    /// Each plan is told of by several nodes, and counts once: as whoever led told it. Others, and a
    /// controller that retells what it finds in its log, may know of less.
    fn of<'a>(events: impl Iterator<Item = &'a Event>) -> Self {
        let moved = events.filter_map(|event| {
            let EventKind::Running(moved) = &event.kind else { return None };
            (moved.floor > 0).then_some((moved.generation, *moved))
        });
        let mut plans: BTreeMap<u64, Moved> = BTreeMap::new();
        for (generation, moved) in moved {
            let known = plans.entry(generation).or_insert(moved);
            if moved.bytes > known.bytes {
                *known = moved;
            }
        }
        let add = |all: Self, moved: &Moved| Self {
            plans: all.plans + 1,
            bytes: all.bytes + moved.bytes,
            floor: all.floor + moved.floor,
            ms: all.ms + moved.ms,
        };
        plans.values().fold(Self::default(), add)
    }
}

impl fmt::Display for MovedInAll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { plans, bytes, floor, ms } = *self;
        let (share, mib) = (bytes as f64 / floor.max(1) as f64, bytes as f64 / f64::from(1 << 20));
        write!(f, "{mib:.1} MiB of layers moved for {plans} plans, {share:.3} of the least, ")?;
        write!(f, "{:.0} MiB/s", mib / (ms / 1e3).max(1e-9))
    }
}

struct Bench<'a, 'b> {
    watch: &'a mut Watch<'b>,
    group: Group,
    striker: Striker,
    draws: Draws,
    times: u32,
}

/// Measures.
///
/// # Errors
/// If a cluster does not go on after a fault, or nobody takes what is told.
pub fn run(setup: &MeasureSetup, watch: &mut Watch<'_>) -> Result<Measures, GroupError> {
    let group = Group::start(&setup.group, START_LIMIT)?;
    group.run(&setup.config, STEPS)?;
    let striker = Striker::new(setup.group.workers as usize, false);
    let draws = Draws::new(setup.group.seed, Purpose::Faults);
    let mut bench = Bench { watch, group, striker, draws, times: setup.times };
    bench.settle()?;
    let pause = |ms| move |draw| Fault::PauseWorker { draw, ms };
    let mut rows = vec![
        bench.strikes("worker killed", bench.times, |draw| Fault::KillWorkers {
            draw,
            count: 1,
            down_ms: DOWN_MS,
        })?,
        bench.strikes("leader killed", bench.times, |_| Fault::KillLeader { down_ms: DOWN_MS })?,
        bench.strikes("worker stopped for 8 s", bench.times.div_ceil(4), pause(PAUSE_LONG_MS))?,
        bench.strikes("worker stopped for 0.3 s", bench.times, pause(PAUSE_SHORT_MS))?,
        bench.joins()?,
    ];
    let dark = |order| Fault::PowerCycle { order, down_ms: DOWN_MS };
    rows.push(bench.strikes("power cycle", setup.power_cycles, dark)?);
    let logs: Vec<_> = bench.group.members().iter().map(log_of).collect();
    let findings = check(&logs, bench.group.picture().step(), None);
    let events = bench.group.members().iter().flat_map(|member| member.events());
    let moved = MovedInAll::of(events);
    Ok(Measures { rows, moved, findings, machine: super::machine::report() })
}

impl Bench<'_, '_> {
    /// A fault so many times.
    fn strikes(
        &mut self,
        what: &'static str,
        times: u32,
        fault: impl Fn(u64) -> Fault,
    ) -> Result<Row, GroupError> {
        let (mut next_seal, mut plans) = (Times::default(), 0);
        for _ in 0..times {
            let fault = fault(self.draws.number());
            let Some(strike) = self.striker.strike(&mut self.group, fault)? else { continue };
            let recovery = self.recover(&strike)?;
            self.settle()?;
            next_seal.add(recovery);
            plans += u32::from(self.group.picture().generation() > strike.generation);
        }
        let next_seal = next_seal.quantiles();
        let row = Row { what, next_seal, plans, note: String::new() };
        self.watch.tell(&row.to_string())?;
        Ok(row)
    }

    /// Milliseconds until the run went on.
    fn recover(&mut self, strike: &Strike) -> Result<f64, GroupError> {
        let mut progress = Progress::new(&self.group);
        loop {
            if let Some(recovery) = strike.recovery(&self.group) {
                return Ok(recovery.ms);
            }
            self.turn(&mut progress)?;
        }
    }

    fn turn(&mut self, progress: &mut Progress) -> Result<(), GroupError> {
        self.watch.check()?;
        self.group.look()?;
        self.striker.take_back(&mut self.group)?;
        progress.check(&self.group, SEAL_LIMIT)?;
        std::thread::sleep(LOOK_EVERY);
        Ok(())
    }

    /// Until everything is back and the run goes on as ever.
    fn settle(&mut self) -> Result<(), GroupError> {
        let mut progress = Progress::new(&self.group);
        let is_there =
            |member: &Member| matches!(member.standing(), Standing::Running | Standing::Gone);
        while !self.striker.is_idle() || !self.group.members().iter().all(is_there) {
            self.turn(&mut progress)?;
        }
        let until = self.group.picture().step() + STEPS_APART;
        while self.group.picture().step() < until {
            self.turn(&mut progress)?;
        }
        Ok(())
    }

    /// Workers that come, one after the other, and go again.
    fn joins(&mut self) -> Result<Row, GroupError> {
        let (mut in_plan, mut longest) = (Times::default(), Times::default());
        let (mut plans, mut standbys) = (0, 0);
        for _ in 0..self.times.div_ceil(4) {
            let generation = self.group.picture().generation();
            let began = Instant::now();
            let from = self.group.picture().step();
            let worker = self.group.add(Role::Worker)?;
            match self.until_planned(worker)? {
                true => in_plan.add(began.elapsed().as_secs_f64() * 1e3),
                false => standbys += 1,
            }
            self.settle()?;
            plans += u32::from(self.group.picture().generation() > generation);
            longest.add(self.longest_gap_ms(from));
            self.group.retire(worker);
            self.group.signal(worker, Signal::Terminate)?;
            self.settle()?;
        }
        let gap = longest.quantiles().map_or(0.0, |quantiles| quantiles.max_ms);
        let note = format!("others waited {} at most; {standbys} stood by", words(gap));
        let row =
            Row { what: "worker joins (in the plan)", next_seal: in_plan.quantiles(), plans, note };
        self.watch.tell(&row.to_string())?;
        Ok(row)
    }

    /// Whether a worker gets a stage.
    fn until_planned(&mut self, worker: MemberIndex) -> Result<bool, GroupError> {
        let began = Instant::now();
        let mut progress = Progress::new(&self.group);
        while began.elapsed() < JOIN_LIMIT {
            if self.group.picture().stages().contains(&worker) {
                return Ok(true);
            }
            self.turn(&mut progress)?;
        }
        Ok(false)
    }

    /// The longest time between two seals since a step.
    fn longest_gap_ms(&self, from: u64) -> f64 {
        let seals = self.group.picture().seals().range(from..);
        let moments: Vec<u64> = seals.map(|(_, seal)| seal.at_us).collect();
        let gaps = moments.windows(2).map(|pair| pair[1].saturating_sub(pair[0]));
        gaps.max().unwrap_or(0) as f64 / 1e3
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<28}", self.what)?;
        match self.next_seal {
            Some(Quantiles { count, p50_ms, p99_ms, max_ms }) => {
                let [p50, p99, max] = [p50_ms, p99_ms, max_ms].map(words);
                write!(f, "{count:>5}{p50:>12}{p99:>12}{max:>12}")?;
            }
            None => write!(f, "{:>5}{:>12}{:>12}{:>12}", 0, "-", "-", "-")?,
        }
        write!(f, "{:>8}  {}", self.plans, self.note)
    }
}

/// What stands above the rows.
#[must_use]
pub fn heading() -> String {
    format!(
        "{:<28}{:>5}{:>12}{:>12}{:>12}{:>8}",
        "what", "times", "seal p50", "p99", "max", "plans"
    )
}

#[cfg(test)]
mod tests {
    use super::{MovedInAll, Row, heading};
    use crate::processes::events::Event;
    use crate::processes::times::Times;

    #[test]
    fn what_moved_counts_once_for_each_plan() {
        let line = |generation: u64, bytes: u64, floor: u64| {
            Event::parse(&format!(
                "{{\"event\":\"running\",\"generation\":{generation},\"bytes_moved\":{bytes},\
                 \"bytes_floor\":{floor},\"moved_ms\":250.0}}"
            ))
        };
        let mib = 1 << 20;
        let events = [line(2, 3 * mib, 2 * mib), line(2, 3 * mib, 2 * mib), line(3, mib, 2 * mib)];
        let retold = line(2, 0, 2 * mib);
        let others = [line(4, 0, 0), retold, Event::parse("{\"event\":\"step\"}")];
        let all = MovedInAll::of(events.iter().chain(&others));
        assert_eq!(all, MovedInAll { plans: 2, bytes: 4 * mib, floor: 4 * mib, ms: 500.0 });
        let text = "4.0 MiB of layers moved for 2 plans, 1.000 of the least, 8 MiB/s";
        assert_eq!(all.to_string(), text);
    }

    #[test]
    fn rows_stand_below_their_heading() {
        let times: Times = [40.0, 2500.0].into_iter().collect();
        let next_seal = times.quantiles();
        let row = Row { what: "leader killed", next_seal, plans: 2, note: String::new() };
        let none = Row { next_seal: None, plans: 0, note: "-".to_owned(), ..row.clone() };
        let lines = [heading(), row.to_string(), none.to_string()];
        let expected = [
            "what                        times    seal p50         p99         max   plans",
            "leader killed                   2       40 ms      2.50 s      2.50 s       2  ",
            "leader killed                   0           -           -           -       0  -",
        ];
        assert_eq!(lines, expected);
    }
}
