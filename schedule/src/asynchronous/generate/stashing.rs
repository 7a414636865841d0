//! Keeps the versions that will be read again: makes temporary versions and stashes, and frees each
//! after its last use.

use std::collections::BTreeMap;

use zbelastic_types::ChunkIndex;

use crate::asynchronous::op::{AsyncOp, VersionShift, WeightVersion};
use crate::asynchronous::program::AsyncProgram;
use crate::asynchronous::versions::prediction;
use crate::boundary::{receive_before, transfer_after};

/// `ops` with predictions, stashes, frees and transfers.
pub(super) fn with_stashes(program: &AsyncProgram, ops: &[AsyncOp]) -> Vec<AsyncOp> {
    let last_read = last_reads(ops);
    let mut newest: BTreeMap<(ChunkIndex, u32), u32> = BTreeMap::new();
    let mut kept: BTreeMap<(ChunkIndex, WeightVersion), ()> = BTreeMap::new();
    let mut all = Vec::with_capacity(2 * ops.len());
    for (position, &op) in ops.iter().enumerate() {
        match op {
            AsyncOp::Compute(_, pass, version) => {
                let plain = op.plain().expect("a pass is plain");
                let key = (pass.chunk, version);
                all.extend(receive_before(&program.placement, plain).and_then(of_plain));
                if version.shift != VersionShift::None && kept.insert(key, ()).is_none() {
                    let rule =
                        prediction(program.kind).expect("only kinds that predict have shifts");
                    all.push(AsyncOp::Predict(pass.chunk, rule, version));
                }
                all.push(op);
                all.extend(transfer_after(&program.placement, plain).and_then(of_plain));
                if last_read[&key] == position && kept.remove(&key).is_some() {
                    all.push(AsyncOp::Free(pass.chunk, version));
                }
            }
            AsyncOp::Step(chunk, version) => {
                let before = newest.entry((chunk, version.replica)).or_default();
                let old = WeightVersion { base: *before, ..version };
                *before = version.base;
                if last_read.get(&(chunk, old)).is_some_and(|last| *last > position) {
                    kept.insert((chunk, old), ());
                    all.push(AsyncOp::Stash(chunk, old));
                }
                all.push(op);
            }
            AsyncOp::Transfer(..)
            | AsyncOp::Predict(..)
            | AsyncOp::Stash(..)
            | AsyncOp::Free(..)
            | AsyncOp::Average(..)
            | AsyncOp::Dynamic(..) => all.push(op),
        }
    }
    all
}

/// The position at which each version of a chunk is read last.
fn last_reads(ops: &[AsyncOp]) -> BTreeMap<(ChunkIndex, WeightVersion), usize> {
    let mut last = BTreeMap::new();
    for (position, op) in ops.iter().enumerate() {
        if let AsyncOp::Compute(_, pass, version) = op {
            last.insert((pass.chunk, *version), position);
        }
    }
    last
}

/// A transfer as an asynchronous operation.
fn of_plain(op: crate::op::Op) -> Option<AsyncOp> {
    match op {
        crate::op::Op::Transfer(transfer, flow, pass) => {
            Some(AsyncOp::Transfer(transfer, flow, pass))
        }
        crate::op::Op::Compute(..)
        | crate::op::Op::Update(_)
        | crate::op::Op::Reduce(..)
        | crate::op::Op::Memory(..) => None,
    }
}
