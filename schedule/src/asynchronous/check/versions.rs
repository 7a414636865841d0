//! Rules about versions: they are there, they are the right ones, and they do not pile up.

use std::collections::{BTreeMap, BTreeSet};

use zbelastic_types::{ChunkIndex, StageIndex};

use super::AsyncViolationList;
use crate::asynchronous::op::{AsyncOp, VersionShift, WeightVersion};
use crate::asynchronous::program::AsyncProgram;
use crate::asynchronous::versions::{VersionRead, backward_reads, forward_reads, kept_max};
use crate::asynchronous::violation::AsyncViolation;
use crate::op::{Compute, Pass};

/// The versions of the chunks of one stage while its list is read.
#[derive(Default)]
struct LiveVersions {
    newest: BTreeMap<(ChunkIndex, u32), u32>,
    kept: BTreeSet<(ChunkIndex, WeightVersion)>,
}

impl LiveVersions {
    fn newest(&self, chunk: ChunkIndex, replica: u32) -> WeightVersion {
        let base = self.newest.get(&(chunk, replica)).copied().unwrap_or(0);
        WeightVersion { replica, base, shift: VersionShift::None }
    }

    fn has(&self, chunk: ChunkIndex, version: WeightVersion) -> bool {
        version == self.newest(chunk, version.replica) || self.kept.contains(&(chunk, version))
    }

    /// Whether what `op` names is there, or may be made now.
    fn allows(&self, op: AsyncOp) -> bool {
        let is_newest =
            |chunk, version: WeightVersion| version == self.newest(chunk, version.replica);
        match op {
            AsyncOp::Compute(_, pass, version) => self.has(pass.chunk, version),
            AsyncOp::Transfer(..) | AsyncOp::Dynamic(..) => true,
            AsyncOp::Step(chunk, version) => {
                let newest = self.newest(chunk, version.replica);
                version.shift == VersionShift::None
                    && Some(version.base) == newest.base.checked_add(1)
            }
            AsyncOp::Predict(chunk, _, version) => {
                version.shift != VersionShift::None && is_newest(chunk, version.origin())
            }
            AsyncOp::Stash(chunk, version) | AsyncOp::Average(chunk, version) => {
                is_newest(chunk, version)
            }
            AsyncOp::Free(chunk, version) => self.kept.contains(&(chunk, version)),
        }
    }

    fn apply(&mut self, op: AsyncOp) {
        match op {
            AsyncOp::Step(chunk, version) => {
                self.newest.insert((chunk, version.replica), version.base);
            }
            AsyncOp::Predict(chunk, _, version) | AsyncOp::Stash(chunk, version) => {
                self.kept.insert((chunk, version));
            }
            AsyncOp::Free(chunk, version) => {
                self.kept.remove(&(chunk, version));
            }
            AsyncOp::Compute(..)
            | AsyncOp::Transfer(..)
            | AsyncOp::Average(..)
            | AsyncOp::Dynamic(..) => {}
        }
    }
}

/// Calls `visit` with every operation and the versions that are there before it.
fn walk_live_versions(
    program: &AsyncProgram,
    mut visit: impl FnMut(StageIndex, AsyncOp, &LiveVersions),
) {
    for (stage, ops) in program.lists() {
        let mut shelf = LiveVersions::default();
        for &op in ops {
            visit(stage, op, &shelf);
            shelf.apply(op);
        }
    }
}

/// A version that is named is there: made by an update or kept beside, and not freed. An update
/// makes the next one; a stash and a prediction are made of the newest.
pub(super) fn missing(program: &AsyncProgram, findings: &mut AsyncViolationList) {
    walk_live_versions(program, |stage, op, shelf| {
        if !shelf.allows(op) {
            let replica = version_of(op).map_or(0, |version| version.replica);
            let newest = shelf.newest(op.chunk(), replica);
            findings.add(AsyncViolation::Missing { stage, op, newest });
        }
    });
}

/// What is kept already is not made again.
pub(super) fn made_twice(program: &AsyncProgram, findings: &mut AsyncViolationList) {
    walk_live_versions(program, |stage, op, shelf| {
        if let AsyncOp::Predict(chunk, _, version) | AsyncOp::Stash(chunk, version) = op
            && shelf.kept.contains(&(chunk, version))
        {
            findings.add(AsyncViolation::Twice { stage, op });
        }
    });
}

/// F and BW read the version that the kind declares for them.
pub(super) fn semantics(program: &AsyncProgram, findings: &mut AsyncViolationList) {
    let mut forward: BTreeMap<Pass, WeightVersion> = BTreeMap::new();
    let mut first: BTreeMap<(ChunkIndex, u32, Compute), WeightVersion> = BTreeMap::new();
    walk_live_versions(program, |stage, op, shelf| {
        let AsyncOp::Compute(compute, pass, version) = op else { return };
        let Pass { chunk, microbatch, .. } = pass;
        let reads = match compute {
            Compute::F => forward_reads(program, chunk, microbatch),
            Compute::B | Compute::W | Compute::WE | Compute::BW | Compute::R => {
                backward_reads(program, chunk, microbatch)
            }
        };
        let replica = program.replica_of(microbatch);
        let at_first = (chunk, program.minibatch_of(microbatch), compute);
        let expected = match reads {
            VersionRead::Newest(shift) => {
                Some(WeightVersion { shift, ..shelf.newest(chunk, replica) })
            }
            VersionRead::Number(base) => {
                Some(WeightVersion { replica, base, shift: VersionShift::None })
            }
            VersionRead::AsFirst => first.get(&at_first).copied(),
            VersionRead::AsForward => forward.remove(&pass),
        };
        first.entry(at_first).or_insert(version);
        if compute == Compute::F {
            forward.insert(pass, version);
        }
        if let Some(expected) = expected.filter(|expected| *expected != version) {
            findings.add(AsyncViolation::Semantics { stage, op, expected });
        }
    });
}

/// No more versions are kept beside the newest than the kind needs.
pub(super) fn kept(program: &AsyncProgram, findings: &mut AsyncViolationList) {
    walk_live_versions(program, |stage, op, shelf| {
        let (AsyncOp::Predict(chunk, _, version) | AsyncOp::Stash(chunk, version)) = op else {
            return;
        };
        let others = shelf.kept.iter().filter(|other| other.0 == chunk && other.1 != version);
        let (found, limit) = (others.count() + 1, kept_max(program, chunk));
        if found > limit {
            findings.add(AsyncViolation::Kept { stage, chunk, op, found, limit });
        }
    });
}

/// At the end nothing is kept.
pub(super) fn never_freed(program: &AsyncProgram, findings: &mut AsyncViolationList) {
    for (stage, ops) in program.lists() {
        let mut shelf = LiveVersions::default();
        ops.iter().for_each(|op| shelf.apply(*op));
        for (chunk, version) in shelf.kept {
            findings.add(AsyncViolation::NeverFreed { stage, chunk, version });
        }
    }
}

fn version_of(op: AsyncOp) -> Option<WeightVersion> {
    match op {
        AsyncOp::Compute(_, _, version)
        | AsyncOp::Step(_, version)
        | AsyncOp::Predict(_, _, version)
        | AsyncOp::Stash(_, version)
        | AsyncOp::Free(_, version)
        | AsyncOp::Average(_, version) => Some(version),
        AsyncOp::Transfer(..) | AsyncOp::Dynamic(..) => None,
    }
}
