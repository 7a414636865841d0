//! One run that is struck row by row.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Instant;

use super::moved::{MovedInAll, by_plan};
use super::rows::{DOWN_MS, JOIN_STEPS, MASS_JOINED, MASS_KILLED, RowKind};
use super::struck::{Struck, computed_again, fault, row_of};
use super::{MeasureSetup, Row};
use crate::processes::account::Recovery;
use crate::processes::campaign::STEPS_APART_MIN;
use crate::processes::check::{Findings, Undisturbed, check};
use crate::processes::contract::{Configuration, Role};
use crate::processes::events::Moved;
use crate::processes::faults::Fault;
use crate::processes::goal::{Bound, Mark, Unit};
use crate::processes::group::{Group, GroupError, LOOK_EVERY, Member, Standing};
use crate::processes::picture::MemberIndex;
use crate::processes::strike::{Strike, Striker};
use crate::processes::system::Signal;
use crate::processes::times::{Times, words};
use crate::processes::undisturbed::log_of;
use crate::processes::watch::{Progress, STANDSTILL, Watch};
use crate::random::{Draws, Purpose};

/// All of a large cluster are members within this, in milliseconds.
const MEMBERS_MS: f64 = 15_000.0;

/// Which sealed steps a row may have computed again. They are compared with what was sealed, as ever.
enum Again {
    Never,
    /// Any: eight at once may hold all copies of a layer.
    Noted,
    /// Those since the last checkpoint, where nobody has anything in memory.
    SinceCheckpoint,
}

/// A run under way.
pub struct Bench<'a, 'b> {
    watch: &'a mut Watch<'b>,
    group: Group,
    striker: Striker,
    draws: Draws,
    times: u32,
    power_cycles: u32,
    /// Of a step that nothing disturbed.
    step_ms: f64,
    steps: u64,
    /// How long it took until all were members, in milliseconds.
    started_ms: f64,
}

impl<'a, 'b> Bench<'a, 'b> {
    /// A run of so many steps of so many milliseconds, which goes on as ever.
    ///
    /// # Errors
    /// If it does not.
    pub fn start(
        setup: &MeasureSetup,
        config: &Configuration,
        (steps, step_ms): (u64, f64),
        watch: &'a mut Watch<'b>,
    ) -> Result<Self, GroupError> {
        let began = Instant::now();
        let group = Group::start(&setup.group, STANDSTILL)?;
        let started_ms = began.elapsed().as_secs_f64() * 1e3;
        group.run(config, steps)?;
        let striker = Striker::new(setup.group.workers as usize, false);
        let draws = Draws::new(setup.group.seed, Purpose::Faults);
        let (times, power_cycles) = (setup.times, setup.power_cycles);
        let mut bench =
            Self { watch, group, striker, draws, times, power_cycles, step_ms, steps, started_ms };
        bench.settle()?;
        Ok(bench)
    }

    /// A row is complete.
    ///
    /// # Errors
    /// If nobody takes it.
    pub fn tell(&mut self, row: &Row) -> Result<(), GroupError> {
        self.watch.tell(&row.to_string())
    }

    /// Measures a row.
    ///
    /// # Errors
    /// If the run does not go on.
    pub fn row(&mut self, kind: RowKind) -> Result<Row, GroupError> {
        let lost_before = self.findings().steps_lost;
        let (mut row, again) = match kind {
            RowKind::Joins => (self.joins()?, Again::Never),
            RowKind::Mass => (self.mass()?, Again::Noted),
            RowKind::PowerCycle => (self.strikes(kind)?, Again::SinceCheckpoint),
            RowKind::Undisturbed
            | RowKind::Speed
            | RowKind::WorkerKilled
            | RowKind::ControllerKilled
            | RowKind::StoppedBriefly
            | RowKind::Stopped
            | RowKind::StoppedLong
            | RowKind::Drains
            | RowKind::TwoKilled => (self.strikes(kind)?, Again::Never),
        };
        let lost = self.findings().steps_lost.saturating_sub(lost_before);
        match again {
            Again::Never => row.marks.push(Mark::none_of("sealed steps lost", lost)),
            Again::Noted => row.note = format!("{lost} sealed steps computed again"),
            Again::SinceCheckpoint => {
                let cycles = f64::from(self.power_cycles.max(1));
                row.marks.push(computed_again(lost as f64 / cycles * self.step_ms));
            }
        }
        Ok(row)
    }

    fn findings(&self) -> Findings {
        let logs: Vec<_> = self.group.members().iter().map(log_of).collect();
        check(&logs, self.group.picture().step(), None)
    }

    fn strikes(&mut self, kind: RowKind) -> Result<Row, GroupError> {
        let mut struck = Vec::new();
        let count = kind.count(self.times, self.power_cycles);
        for _ in 0..count {
            let draw = self.draws.number();
            // The last stage and the first one are no neighbours.
            let pairs = self.group.picture().stages().len().saturating_sub(1).max(1) as u64;
            let draw = if kind == RowKind::TwoKilled { draw % pairs } else { draw };
            struck.extend(self.strike(kind, fault(kind, draw))?);
        }
        let moved = self.moved();
        Ok(row_of(kind, u64::from(count), &struck, &moved))
    }

    fn moved(&self) -> BTreeMap<u64, Moved> {
        by_plan(self.group.members().iter().flat_map(|member| member.events()))
    }

    /// Strikes, and waits until the run goes on as ever; nothing if it came to its end before.
    fn strike(&mut self, kind: RowKind, fault: Fault) -> Result<Option<Struck>, GroupError> {
        let step_ms = self.group.picture().step_ms().unwrap_or(self.step_ms);
        let before =
            self.group.picture().seals().last_key_value().map(|(step, seal)| (*step, seal.at_us));
        let Some(strike) = self.striker.strike(&mut self.group, fault)? else { return Ok(None) };
        let mut read_ms = 0.0;
        if kind == RowKind::PowerCycle {
            read_ms = self.read_disks()?;
        }
        let down_ms = self.down_ms(kind, &strike)?;
        let Some(recovery) = self.recover(&strike)? else { return Ok(None) };
        let expected_us = before.map_or(strike.at_us as f64, |(step, at_us)| {
            at_us as f64 + (recovery.step.saturating_sub(step)) as f64 * step_ms * 1e3
        });
        let sealed_us = strike.at_us as f64 + recovery.ms * 1e3;
        let up_us = strike.at_us + (down_ms * 1e3) as u64;
        let first_us = self.group.picture().first_seal_after(up_us);
        self.settle()?;
        let ms = match (kind, first_us) {
            (RowKind::PowerCycle, Some(first_us)) => (first_us - up_us) as f64 / 1e3,
            (_, _) => recovery.ms - down_ms,
        };
        Ok(Some(Struck {
            ms,
            late_ms: ((sealed_us - expected_us) / 1e3).max(0.0),
            step_ms,
            generation: recovery.generation,
            is_planned_anew: self.group.picture().generation() > strike.generation,
            read_ms,
        }))
    }

    /// How long everybody was down, where power went.
    fn down_ms(&mut self, kind: RowKind, strike: &Strike) -> Result<f64, GroupError> {
        if kind != RowKind::PowerCycle {
            return Ok(0.0);
        }
        while !self.striker.is_idle() {
            self.striker.take_back(&mut self.group)?;
            std::thread::sleep(LOOK_EVERY);
        }
        let down_us = crate::processes::group::wall_us().saturating_sub(strike.at_us);
        Ok(down_us as f64 / 1e3)
    }

    /// What it takes to read plainly, one file after the other, all that workers keep on disks.
    fn read_disks(&self) -> Result<f64, GroupError> {
        let began = Instant::now();
        for member in self.group.members() {
            let spec = member.spec();
            if spec.role == Role::Worker {
                read_plainly(&spec.data_dir).map_err(|source| GroupError::System {
                    doing: format!("cannot read the folder of {}", spec.name),
                    source,
                })?;
            }
        }
        Ok(began.elapsed().as_secs_f64() * 1e3)
    }

    fn is_done(&self) -> bool {
        self.group.picture().done().is_some()
    }

    /// What shows that the run went on; nothing if it came to its end.
    fn recover(&mut self, strike: &Strike) -> Result<Option<Recovery>, GroupError> {
        let mut progress = Progress::new(&self.group);
        loop {
            let recovery = strike.recovery(&self.group);
            if recovery.is_some() || self.is_done() {
                return Ok(recovery);
            }
            self.turn(&mut progress)?;
        }
    }

    fn turn(&mut self, progress: &mut Progress) -> Result<(), GroupError> {
        self.watch.check()?;
        self.group.look()?;
        self.striker.take_back(&mut self.group)?;
        if !self.striker.is_idle() {
            progress.excuse();
        }
        progress.check(&self.group, STANDSTILL)?;
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
        let until = self.group.picture().step() + STEPS_APART_MIN;
        while self.group.picture().step() < until && !self.is_done() {
            self.turn(&mut progress)?;
        }
        Ok(())
    }

    /// Workers that come, one after the other, and go again.
    fn joins(&mut self) -> Result<Row, GroupError> {
        let (mut in_plan, mut longest) = (Times::default(), Times::default());
        let (mut plans, mut standbys) = (0, 0);
        for _ in 0..RowKind::Joins.count(self.times, self.power_cycles) {
            let generation = self.group.picture().generation();
            let (began, from) = (Instant::now(), self.group.picture().step());
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
        let (what, next_seal) = ("worker joins (in the plan)", in_plan.quantiles());
        Ok(Row { what, next_seal, plans, note, marks: Vec::new() })
    }

    /// Whether a worker gets a stage. It stands by if steps are sealed and it makes no progress.
    fn until_planned(&mut self, worker: MemberIndex) -> Result<bool, GroupError> {
        let name = self.group.members()[worker].spec().name.clone();
        let mut progress = Progress::new(&self.group);
        let (mut done, mut since) = (None, self.group.picture().step());
        let mut asked = since;
        while self.group.picture().step() < since + JOIN_STEPS && !self.is_done() {
            if self.group.picture().stages().contains(&worker) {
                return Ok(true);
            }
            let step = self.group.picture().step();
            if step > asked {
                asked = step;
                let status = self.group.status().unwrap_or_default();
                let found = status.members.iter().find(|member| member.name == name);
                let now = found.and_then(|member| member.work).map(|work| work.done);
                if now != done {
                    (done, since) = (now, step);
                }
            }
            self.turn(&mut progress)?;
        }
        Ok(self.group.picture().stages().contains(&worker))
    }

    /// The longest time between two seals since a step.
    fn longest_gap_ms(&self, from: u64) -> f64 {
        let seals = self.group.picture().seals().range(from..);
        let moments: Vec<u64> = seals.map(|(_, seal)| seal.at_us).collect();
        let gaps = moments.windows(2).map(|pair| pair[1].saturating_sub(pair[0]));
        gaps.max().unwrap_or(0) as f64 / 1e3
    }

    /// Eight that die at once and come back, and sixteen more that come at once.
    fn mass(&mut self) -> Result<Row, GroupError> {
        let generation = self.group.picture().generation();
        let draw = self.draws.number();
        let fault = Fault::KillWorkers { draw, count: MASS_KILLED, down_ms: DOWN_MS };
        let killed = self.strike(RowKind::Mass, fault)?;
        let began = Instant::now();
        let joined = (0..MASS_JOINED).map(|_| self.group.add(Role::Worker));
        let joined = joined.collect::<Result<Vec<_>, _>>()?;
        let mut progress = Progress::new(&self.group);
        let are_admitted =
            |group: &Group| joined.iter().all(|new| group.picture().is_admitted(*new));
        while !are_admitted(&self.group) && !self.is_done() {
            self.turn(&mut progress)?;
        }
        let joined_ms = are_admitted(&self.group).then(|| began.elapsed().as_secs_f64() * 1e3);
        let from = self.group.picture().step();
        self.settle()?;
        let went_on = self.group.picture().step() > from;
        let within = Bound::AtMost(MEMBERS_MS);
        let marks = vec![
            Mark::new("all are members", within, Unit::Milliseconds, self.started_ms),
            Mark::all_of("went on after eight were killed", u64::from(killed.is_some()), 1),
            Mark::new("sixteen more are members", within, Unit::Milliseconds, joined_ms),
            Mark::all_of("went on after they came", u64::from(went_on), 1),
        ];
        let next_seal = killed.iter().map(|struck| struck.ms).collect::<Times>().quantiles();
        let plans = self.group.picture().generation().saturating_sub(generation);
        let plans = u32::try_from(plans).unwrap_or(u32::MAX);
        let (what, note) = ("eight killed, sixteen join", String::new());
        Ok(Row { what, next_seal, plans, note, marks })
    }

    /// Waits for the end of the run, and compares it with what one process came to.
    ///
    /// # Errors
    /// If it does not come to its end.
    pub fn end(
        mut self,
        expected: &Undisturbed,
    ) -> Result<(Row, Findings, MovedInAll), GroupError> {
        let from = self.group.picture().step();
        self.watch.until_done(&mut self.group, STANDSTILL)?;
        let logs: Vec<_> = self.group.members().iter().map(log_of).collect();
        let mut findings = check(&logs, self.steps, None);
        if findings.digests.is_empty() {
            findings.digests.extend(self.group.final_digest());
        }
        let is_equal =
            expected.digest.is_some() && findings.digests.first() == expected.digest.as_ref();
        let violations = findings.violations.len() as u64;
        let marks = vec![
            Mark::all_of("ends with the digest of one process", u64::from(is_equal), 1),
            Mark::none_of("invariants broken", violations),
        ];
        let note =
            format!("{} steps, {} of them behind the last fault", self.steps, self.steps - from);
        let what = "the run that was struck";
        let row = Row { what, next_seal: None, plans: 0, note, marks };
        Ok((row, findings, MovedInAll::of(&self.moved())))
    }
}

/// Reads every file below a folder once.
fn read_plainly(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            read_plainly(&entry.path())?;
        } else if kind.is_file() {
            io::copy(&mut fs::File::open(entry.path())?, &mut io::sink())?;
        }
    }
    Ok(())
}
