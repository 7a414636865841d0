//! Tokens that arrive while a run goes on: stages wait for them, and the bits are those of a run that
//! had them from the beginning. A stage in the middle reads none.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::{StageCluster, corpus, plan_if_any, policy, setup, tiny_model};
use zbelastic_consensus::validation::NonfinitePolicy;
use zbelastic_schedule::{ScheduleKind, Window};
use zbelastic_trainer::data::{BatchSource, Corpus, TokenBatch};
use zbelastic_trainer::model::Family;
use zbelastic_types::{MicrobatchIndex, Step};

const STEPS: u64 = 4;
/// A step is here when it was looked for so often, and so is held-out text.
const LOOKS: u32 = 7;

/// A text of which each step arrives by itself.
struct ArrivingText {
    corpus: Arc<Corpus>,
    looks: Mutex<BTreeMap<Step, u32>>,
    held_out_looks: AtomicU32,
}

impl BatchSource for ArrivingText {
    fn training(&self, step: Step, microbatch: MicrobatchIndex) -> TokenBatch {
        let looks = self.looks.lock().expect("no panic").get(&step).copied();
        assert!(looks >= Some(LOOKS), "step {step} is read before it is here");
        self.corpus.training(step, microbatch)
    }

    fn held_out(&self, index: u32) -> Option<TokenBatch> {
        let looks = self.held_out_looks.load(Ordering::Relaxed);
        assert!(looks >= LOOKS, "held-out text is read before it is here");
        self.corpus.held_out(index)
    }

    fn held_out_count(&self, max: u32) -> u32 {
        self.corpus.held_out_count(max)
    }

    fn is_read_by_all_stages(&self) -> bool {
        false
    }

    fn has_step(&self, step: Step) -> bool {
        let mut looks = self.looks.lock().expect("no panic");
        let looks = looks.entry(step).or_default();
        *looks += 1;
        *looks >= LOOKS
    }

    fn has_held_out(&self) -> bool {
        self.held_out_looks.fetch_add(1, Ordering::Relaxed) + 1 >= LOOKS
    }
}

#[test]
fn stages_wait_for_tokens_and_no_bit_is_another() {
    let model = tiny_model(Family::Llama);
    for (kind, stage_count) in [
        (ScheduleKind::OneFOneB, 1),
        (ScheduleKind::GPipe, 2),
        (ScheduleKind::ZbH1, 3),
        (ScheduleKind::ZbV, 2),
        (ScheduleKind::Seq1F1B, 3),
    ] {
        let plan = plan_if_any(&model, kind, stage_count, Window::One).expect("it exists");
        let setup = setup(model.clone(), plan, STEPS);
        let policy = || policy(setup.clip_norm, NonfinitePolicy::Skip);
        let expected = StageCluster::new(&setup, policy(), 1, 3).run();
        let arriving = Arc::new(ArrivingText {
            corpus: corpus(),
            looks: Mutex::default(),
            held_out_looks: AtomicU32::new(0),
        });
        let cluster = StageCluster::with_corpus(&setup, policy(), 1, 4, arriving.clone());
        let outcome = cluster.run();
        assert_eq!(outcome.digest, expected.digest, "{kind}");
        assert_eq!(outcome.evaluations, expected.evaluations, "{kind}");
        let steps = arriving.looks.lock().expect("no panic").len() as u64;
        assert_eq!(steps, STEPS, "{kind}: no other step was read");
    }
}
