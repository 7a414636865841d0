//! SEND_C, RECV_C, LOCAL_C and GATHER_C: candidates of layers that other replicas update, where the optimizer
//! is sharded.
//!
//! They are gathered behind STEP, of the turn that STEP was in. Where a seal orders another candidate than
//! that of STEP, or came before it, they are gathered again, of the attempt that the seal leads to: the
//! attempt of STEP if the seal keeps what STEP computed, so that replicas which STEP and which waited for the
//! seal meet in one exchange, and a later one if it does not.

use zbelastic_consensus::validation::{CandidateAction, Turn};
use zbelastic_schedule::{Op, Reduction, Window};
use zbelastic_types::ChunkIndex;

use super::engine::StageEngine;
use super::events::{EngineActivity, EngineProgress, Stop};
use super::executor::StageExecutor;
use super::phase::{CandidateGathering, EnginePhase, PendingSeal};
use crate::data::BatchSource;

/// What becomes of the candidates that a program gathers.
enum CandidateFate {
    /// Others send theirs.
    Expected,
    /// Nobody has any: the verdict orders none.
    None,
    /// A verdict that came in the meantime orders others.
    Overruled,
}

/// An operation of an engine's program that gathers candidates.
pub(super) fn run_candidates<W: StageExecutor, S: BatchSource>(
    engine: &mut StageEngine<W, S>,
    reduction: Reduction,
    chunk: ChunkIndex,
) -> Result<(), Stop> {
    match candidate_fate(engine) {
        CandidateFate::Expected => {
            let losses = &mut engine.phase.running().losses;
            engine.runner.run_reduction(reduction, chunk, losses)?;
        }
        CandidateFate::None => {}
        CandidateFate::Overruled => engine.settle_open_step(),
    }
    Ok(())
}

fn candidate_fate<W: StageExecutor, S: BatchSource>(engine: &StageEngine<W, S>) -> CandidateFate {
    if let Some(pending) = engine.phase.pending() {
        return match pending.application.candidate {
            CandidateAction::Compute { .. } | CandidateAction::Stay => CandidateFate::Expected,
            CandidateAction::Drop | CandidateAction::None => CandidateFate::None,
        };
    }
    // A replica whose gate was closed sends nothing of a step that is overruled.
    match engine.validation.seal() {
        Some(seal) if seal.next_turn().attempt != engine.runner.turn.attempt => {
            CandidateFate::Overruled
        }
        Some(_) | None => CandidateFate::Expected,
    }
}

/// Carries out what a seal orders; with a sharded optimizer the candidates of other replicas are gathered
/// first, and what follows has to wait for them: then it returns false.
pub(super) fn carry_out<W: StageExecutor, S: BatchSource>(
    engine: &mut StageEngine<W, S>,
    pending: PendingSeal,
) -> bool {
    let PendingSeal { application, seal } = pending;
    let computes = match application.candidate {
        CandidateAction::Compute { .. } => true,
        CandidateAction::Stay | CandidateAction::Drop | CandidateAction::None => false,
    };
    let plan = &engine.runner.setup.plan;
    if !computes || !plan.is_sharded() || plan.program.window != Some(Window::One) {
        engine.runner.carry_out(pending);
        return true;
    }
    engine.runner.apply_candidate_order(pending);
    let attempt = application.next.attempt;
    engine.runner.begin(Turn { attempt, ..seal.turn });
    let gathering = CandidateGathering::new(&engine.runner.setup, pending);
    engine.phase = EnginePhase::Gathering(gathering);
    false
}

/// The next operation of [`EnginePhase::Gathering`]; behind the last one the candidates are the state.
pub(super) fn gather_next<W: StageExecutor, S: BatchSource>(
    engine: &mut StageEngine<W, S>,
) -> Result<EngineProgress, Stop> {
    let EnginePhase::Gathering(gathering) = &mut engine.phase else {
        unreachable!("called while candidates are gathered")
    };
    let ops = engine.runner.setup.plan.program.ops(engine.runner.stage);
    let mut left = ops.iter().filter(|op| op.gathers_candidates()).skip(gathering.cursor);
    let next = left.next().copied();
    let is_last = left.next().is_none();
    let Some(op @ Op::Reduce(reduction, chunk)) = next else {
        unreachable!("the last operation ends the phase")
    };
    engine.runner.run_reduction(reduction, chunk, &mut gathering.losses)?;
    engine.runner.executor.flush();
    gathering.cursor += 1;
    let turn = engine.runner.turn;
    if is_last {
        let pending = gathering.pending;
        engine.runner.commit_moments(pending);
        engine.runner.executor.flush();
        engine.after_verdict(pending);
    }
    Ok(EngineProgress::Ran(EngineActivity::Op { turn, op }))
}
