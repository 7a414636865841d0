//! Rules about versions: those that are read are live, they are the right ones, and no more are
//! kept than the kind needs.

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

    /// Whether the version that `op` names is live, or may be made now.
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

/// Calls `visit` with every operation and the versions that are live before it.
fn walk_live_versions(
    program: &AsyncProgram,
    mut visit: impl FnMut(StageIndex, AsyncOp, &LiveVersions),
) {
    for (stage, ops) in program.lists() {
        let mut live = LiveVersions::default();
        for &op in ops {
            visit(stage, op, &live);
            live.apply(op);
        }
    }
}

/// A version that is named is live: made by an update or kept beside, and not freed. An update
/// makes the next one; a stash and a prediction are made of the newest.
pub(super) fn missing(program: &AsyncProgram, violations: &mut AsyncViolationList) {
    walk_live_versions(program, |stage, op, live| {
        if !live.allows(op) {
            let replica = version_of(op).map_or(0, |version| version.replica);
            let newest = live.newest(op.chunk(), replica);
            violations.add(AsyncViolation::Missing { stage, op, newest });
        }
    });
}

/// A version that is kept already is not made again.
pub(super) fn made_twice(program: &AsyncProgram, violations: &mut AsyncViolationList) {
    walk_live_versions(program, |stage, op, live| {
        if let AsyncOp::Predict(chunk, _, version) | AsyncOp::Stash(chunk, version) = op
            && live.kept.contains(&(chunk, version))
        {
            violations.add(AsyncViolation::Twice { stage, op });
        }
    });
}

/// F and BW read the version that the kind declares for them.
pub(super) fn semantics(program: &AsyncProgram, violations: &mut AsyncViolationList) {
    let mut forward: BTreeMap<Pass, WeightVersion> = BTreeMap::new();
    let mut first: BTreeMap<(ChunkIndex, u32, Compute), WeightVersion> = BTreeMap::new();
    walk_live_versions(program, |stage, op, live| {
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
                Some(WeightVersion { shift, ..live.newest(chunk, replica) })
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
            violations.add(AsyncViolation::Semantics { stage, op, expected });
        }
    });
}

/// No more versions are kept beside the newest than the kind needs.
pub(super) fn kept(program: &AsyncProgram, violations: &mut AsyncViolationList) {
    walk_live_versions(program, |stage, op, live| {
        let (AsyncOp::Predict(chunk, _, version) | AsyncOp::Stash(chunk, version)) = op else {
            return;
        };
        let others = live.kept.iter().filter(|other| other.0 == chunk && other.1 != version);
        let found = others.count() + 1;
        let limit = kept_max(program, chunk);
        if found > limit {
            violations.add(AsyncViolation::Kept { stage, chunk, op, found, limit });
        }
    });
}

/// At the end no version is kept.
pub(super) fn never_freed(program: &AsyncProgram, violations: &mut AsyncViolationList) {
    for (stage, ops) in program.lists() {
        let mut live = LiveVersions::default();
        ops.iter().for_each(|op| live.apply(*op));
        for (chunk, version) in live.kept {
            violations.add(AsyncViolation::NeverFreed { stage, chunk, version });
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
