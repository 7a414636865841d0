//! Which seals workers are sent, and when.

use zbelastic_types::{LayerId, StageIndex, Step};

use super::super::{Core, Input, Output};
use super::in_process::{leader, persist};
use crate::fixture::{CLUSTER, FixtureLog, all_layers, digests, fingerprints, spec, sum};
use crate::message::{Envelope, HeldUpdate, Message, WorkerActivity};
use crate::raft::PersistToken;
use crate::validation::{GradientReport, Seal};

/// Everything that the open step of two stages needs.
fn report_all(core: &mut Core, log: &FixtureLog) {
    let turn = log.state.open_turn();
    let plan = &log.state.plan().expect("there is a plan").record;
    for stage in plan.stage_indices() {
        let layers: Vec<LayerId> = plan.layers_of(stage).collect();
        let sums: Vec<_> = layers.iter().map(|layer| sum(*layer, 0.125)).collect();
        let state = fingerprints(layers, turn.step.0);
        let loss_sum = (stage == StageIndex(1)).then_some(2.0);
        let report = GradientReport { turn, stage, sums: sums.clone(), loss_sum };
        let (holder, copy) = (plan.stages[stage.index()], plan.copy_holders(stage).next());
        let copy = copy.expect("somebody keeps it");
        let update = HeldUpdate { turn, of: stage, sums, state: state.clone() };
        for message in
            [Message::Report { holder, report, state }, Message::Held { holder: copy, update }]
        {
            let from = message.holder().expect("a worker speaks").node;
            let message = Box::new(Envelope { cluster: CLUSTER, message });
            core.handle(Input::Message { from, message }).expect("it is counted");
        }
    }
}

/// The seals in briefings to workers, and the tokens of the writes to make durable.
fn outputs(core: &mut Core) -> (Vec<Seal>, Vec<PersistToken>) {
    let (mut seals, mut tokens) = (Vec::new(), Vec::new());
    while let Some(output) = core.poll_output() {
        match output {
            Output::Persist { token, .. } => tokens.push(token),
            Output::Send { message, .. } => {
                if let Message::Briefing(briefing) = message.message {
                    seals.extend(briefing.seal);
                }
            }
            Output::Trim { .. } | Output::Solve(_) | Output::Event(_) | Output::Fatal(_) => {}
        }
    }
    (seals, tokens)
}

/// R1: what a step began from lives until its seal is committed, so no worker is sent one before.
#[test]
fn r1_workers_are_told_of_a_seal_once_it_is_agreed_and_not_before() {
    let log = FixtureLog::running(spec(), &[1, 2]);
    let mut core = leader(&log.state);
    report_all(&mut core, &log);
    let (seals, tokens) = outputs(&mut core);
    assert_eq!(seals, [], "it is proposed, and not durable");
    let open = log.state.open_turn();
    assert_eq!(core.state().open_turn(), open);
    tokens.into_iter().for_each(|token| core.on_persisted(token));
    let (seals, _) = outputs(&mut core);
    assert!(seals.len() == 2 && seals.iter().all(|seal| seal.turn == open), "{seals:?}");
    assert_eq!(core.state().open_turn().step, open.step.next());
}

/// Otherwise they would report for ever that they saved, behind the last seal or while the job is
/// held, when nothing else is sent.
#[test]
fn workers_are_told_that_a_checkpoint_is_there() {
    let mut log = FixtureLog::running(spec(), &[1, 2]);
    log.keep(4);
    let mut core = leader(&log.state);
    let (version, generation) = (Step(4), log.state.generation());
    let (holder, layers) = (log.holder(1), digests(all_layers(), 4));
    let before = core.state().applied();
    let message = Message::Saved { holder, version, generation, layers, busy_milliticks: 0 };
    let message = Box::new(Envelope { cluster: CLUSTER, message });
    core.handle(Input::Message { from: holder.node, message }).expect("it is awaited");
    let briefings = |core: &mut Core| -> Vec<Vec<Step>> {
        let pending = |output: &Output| {
            let Output::Send { message, .. } = output else { return None };
            let Message::Briefing(briefing) = &message.message else { return None };
            Some(briefing.pending.clone())
        };
        persist(core).iter().filter_map(pending).collect()
    };
    assert_eq!(briefings(&mut core), [vec![], vec![]]);
    assert_eq!(core.state().checkpoints().len(), 1);
    let (known, pulse) = (before, WorkerActivity::default());
    let message = Message::Beat { holder, known, generation, contacts: u64::MAX, pulse };
    let message = Box::new(Envelope { cluster: CLUSTER, message });
    core.handle(Input::Message { from: holder.node, message }).expect("it is a member");
    assert_eq!(briefings(&mut core), [vec![]], "a worker that missed it gets it again");
}
