//! Held-out text is read after every so many steps, whichever workers come and go in between.

use std::sync::Arc;

use zbelastic_consensus::validation::{LeaderHalf, Ledger, NonfinitePolicy};
use zbelastic_kernels::CpuBackend;
use zbelastic_schedule::{ScheduleKind, Window};
use zbelastic_trainer::data::Corpus;
use zbelastic_trainer::model::{Family, model_size};
use zbelastic_trainer::stage::{BackendExecutor, Event, Output, StageEngine, StageSetup};
use zbelastic_types::{Generation, StageIndex, Step};

type CpuEngine = StageEngine<BackendExecutor<CpuBackend>, Arc<Corpus>>;

const EVERY: u64 = 2;

fn setup() -> Arc<StageSetup> {
    let model = crate::common::tiny_model(Family::Gpt2);
    let plan = crate::common::plan(&model, ScheduleKind::ZbH1, 1, Window::One);
    Arc::new(StageSetup { evaluate_every: EVERY, ..crate::common::setup(model, plan, 8) })
}

/// Runs until an evaluation is reported, or until this step is sealed.
fn run(engine: &mut CpuEngine, ledger: &mut Ledger, until: Option<Step>) -> Option<(u64, u64)> {
    let policy = crate::common::policy(Some(1.0), NonfinitePolicy::Skip);
    let mut leader = LeaderHalf::new(ledger, model_size(&setup().model).0, policy);
    loop {
        engine.run_next();
        while let Some(output) = engine.poll_output() {
            match output {
                Output::Report { report, .. } => {
                    let proposal = leader.handle_report(ledger, &report).expect("in turn");
                    let seal = proposal.expect("one stage reports for all").seal;
                    ledger.apply(&seal).expect("in turn");
                    engine.handle(Event::Seal(seal)).expect("in turn");
                    if until == Some(seal.turn.step) {
                        return None;
                    }
                }
                Output::Evaluated { steps_done, loss_sum, .. } => {
                    return Some((steps_done, loss_sum.to_bits()));
                }
                Output::Frame { .. }
                | Output::Prefix { .. }
                | Output::Gradients { .. }
                | Output::Partial { .. }
                | Output::Outer(_)
                | Output::Sealed { .. } => {}
            }
        }
    }
}

fn begin() -> (CpuEngine, Ledger) {
    let backend = CpuBackend::new(1).expect("one thread");
    let engine = StageEngine::new(setup(), StageIndex(0), backend, crate::common::corpus());
    (engine.expect("memory"), Ledger::new(Generation(0), Step(0), 0))
}

/// The plan changes when the step is sealed and before anything was read.
#[test]
fn a_plan_that_begins_where_text_is_read_begins_with_that() {
    let (mut engine, mut ledger) = begin();
    let expected = run(&mut engine, &mut ledger, None).expect("it is read");
    assert_eq!(expected.0, EVERY);

    let (mut engine, mut ledger) = begin();
    assert_eq!(run(&mut engine, &mut ledger, Some(Step(EVERY - 1))), None);
    let executor = engine.into_executor();
    let turn = ledger.open_turn();
    let updates = ledger.updates();
    let source = crate::common::corpus();
    let mut engine = StageEngine::resume(setup(), StageIndex(0), executor, source, turn, updates);
    assert_eq!(run(&mut engine, &mut ledger, None), Some(expected));
    let next = run(&mut engine, &mut ledger, None).expect("it goes on");
    assert_eq!(next.0, 2 * EVERY);
}
