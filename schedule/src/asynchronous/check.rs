//! Proves that an asynchronous program is legal: every version an operation names is there, it is
//! the one that the kind declares, and no more are kept than the kind allows.
//!
//! The rules about passes and transfers are those of synchronous programs, applied to the program
//! without its versions. Each other rule is one function and one [`AsyncViolation`]. A rule trusts
//! nothing that another establishes, except sizes, which are checked first.
//!
//! A program with `DYNAMIC` has nothing to check but that; the order that was found while it ran
//! is a program without one, and is checked by all rules but those about order.

mod updates;
mod versions;

use super::kind::AsyncKind;
use super::op::AsyncOp;
use super::program::{ASYNC_PASS_COUNT_MAX, AsyncProgram};
use super::violation::AsyncViolation;
use crate::check::{VIOLATION_COUNT_MAX, ViolationList, plain_rules};

/// The violations that the rules found.
#[derive(Default)]
struct AsyncViolationList(Vec<AsyncViolation>);

impl AsyncViolationList {
    fn add(&mut self, violation: AsyncViolation) {
        if self.0.len() < VIOLATION_COUNT_MAX {
            self.0.push(violation);
        }
    }
}

/// Looks for every rule that `program` breaks.
///
/// # Errors
/// The violations, rule by rule and stage by stage, [`VIOLATION_COUNT_MAX`] at most.
pub fn check_async(program: &AsyncProgram) -> Result<(), Vec<AsyncViolation>> {
    let mut violations = AsyncViolationList::default();
    size(program, &mut violations);
    list_count(program, &mut violations);
    variant(program, &mut violations);
    if violations.0.is_empty() {
        foreign(program, &mut violations);
        if !is_dynamic(program) {
            plain(program, &mut violations);
        }
    }
    // Readers of versions index by pass, so passes must be in range.
    if violations.0.is_empty() && !is_dynamic(program) {
        let rules = [
            versions::missing,
            versions::made_twice,
            versions::semantics,
            versions::kept,
            versions::never_freed,
            updates::microbatch_order,
            updates::update_place,
            updates::average_order,
        ];
        for rule in rules {
            rule(program, &mut violations);
        }
    }
    if violations.0.is_empty() { Ok(()) } else { Err(violations.0) }
}

/// Whether the order is still to be found.
fn is_dynamic(program: &AsyncProgram) -> bool {
    let mut ops = program.stages.iter().flatten();
    ops.any(|op| matches!(op, AsyncOp::Dynamic(..)))
}

fn size(program: &AsyncProgram, violations: &mut AsyncViolationList) {
    let AsyncProgram { replica_count, update_every, microbatch_count, .. } = *program;
    let found = program.pass_count();
    let has_zero = [replica_count, update_every, microbatch_count].contains(&0);
    if found == 0 || found > ASYNC_PASS_COUNT_MAX || has_zero {
        violations.add(AsyncViolation::Size { found });
    }
}

fn list_count(program: &AsyncProgram, violations: &mut AsyncViolationList) {
    let expected = program.placement.stage_count();
    let found = program.stages.len();
    if found != expected as usize {
        violations.add(AsyncViolation::ListCount { expected, found });
    }
}

fn variant(program: &AsyncProgram, violations: &mut AsyncViolationList) {
    let AsyncProgram { kind, variant, .. } = *program;
    if !variant.is_of(kind) {
        violations.add(AsyncViolation::Variant { kind, variant });
    }
}

/// A program has F and BW, no split backward pass; averages only where there is a reference model;
/// and a dynamic region alone on each stage, of the kind that has one, or nowhere.
fn foreign(program: &AsyncProgram, violations: &mut AsyncViolationList) {
    use crate::op::Compute;
    let is_dynamic = is_dynamic(program);
    for (stage, ops) in program.lists() {
        for &op in ops {
            let is_legal = match op {
                AsyncOp::Compute(Compute::F | Compute::BW, ..)
                | AsyncOp::Transfer(..)
                | AsyncOp::Step(..)
                | AsyncOp::Stash(..)
                | AsyncOp::Free(..) => !is_dynamic,
                AsyncOp::Compute(Compute::B | Compute::W | Compute::WE | Compute::R, ..) => false,
                AsyncOp::Predict(_, rule, _) => {
                    super::versions::prediction(program.kind) == Some(rule)
                }
                AsyncOp::Average(..) => program.kind == AsyncKind::AvgPipe,
                AsyncOp::Dynamic(chunk, dynamic) => {
                    program.kind == AsyncKind::AmpNet
                        && ops.len() == 1
                        && program.placement.stage_of(chunk) == Some(stage)
                        && dynamic.cap > 0
                        && dynamic.update_every == program.update_every
                }
            };
            if !is_legal {
                violations.add(AsyncViolation::Foreign { stage, op });
            }
        }
    }
}

fn plain(program: &AsyncProgram, violations: &mut AsyncViolationList) {
    let mut plain = ViolationList::default();
    plain_rules(&program.plain(), &mut plain);
    plain.into_violations().into_iter().for_each(|v| violations.add(AsyncViolation::Plain(v)));
}

#[cfg(test)]
mod tests {
    use zbelastic_types::{ChunkIndex, StageIndex};

    use super::check_async;
    use crate::asynchronous::kind::AsyncKind;
    use crate::asynchronous::op::{AsyncOp, WeightVersion};
    use crate::asynchronous::program::AsyncProgram;
    use crate::asynchronous::variant::AsyncVariant;
    use crate::asynchronous::violation::AsyncViolation;
    use crate::check::ScheduleViolation;
    use crate::op::Pass;

    const PIPEDREAM: &str = "asynchronous pipedream line stages 2 chunks 2 pipelines 1 \
        minibatches 3 microbatches 1 update 1
        stage 0: 0F0@0 0SEND_F0 0F1@0 0SEND_F1 0RECV_B0 0BW0@0 0STASH0 0STEP1 0F2@1 0SEND_F2 \
            0RECV_B1 0BW1@0 0FREE0 0STASH1 0STEP2 0RECV_B2 0BW2@1 0FREE1 0STEP3
        stage 1: 1RECV_F0 1F0@0 1BW0@0 1SEND_B0 1STEP1 1RECV_F1 1F1@1 1BW1@1 1SEND_B1 1STEP2 \
            1RECV_F2 1F2@2 1BW2@2 1SEND_B2 1STEP3";

    const PIPEMARE: &str = "asynchronous pipemare line stages 2 chunks 2 pipelines 1 \
        minibatches 2 microbatches 1 update 1
        stage 0: 0F0@0 0SEND_F0 0F1@0 0SEND_F1 0RECV_B0 0PREDICT_DELTA0-1 0BW0@0-1 0FREE0-1 \
            0STEP1 0RECV_B1 0PREDICT_DELTA1-1 0BW1@1-1 0FREE1-1 0STEP2
        stage 1: 1RECV_F0 1F0@0 1BW0@0 1SEND_B0 1STEP1 1RECV_F1 1F1@1 1BW1@1 1SEND_B1 1STEP2";

    const AVGPIPE: &str = "asynchronous avgpipe line stages 1 chunks 1 pipelines 2 \
        minibatches 2 microbatches 1 update 1
        stage 0: 0F0@0 0F1@0/1 0BW0@0 0STEP1 0AVERAGE1 0BW1@0/1 0STEP1/1 0AVERAGE1/1";

    const AMPNET: &str = "asynchronous ampnet line stages 1 chunks 1 pipelines 1 \
        minibatches 2 microbatches 1 update 1
        stage 0: 0DYNAMIC(newest,2,1)";

    const FOUND: &str = "asynchronous ampnet line stages 1 chunks 1 pipelines 1 \
        minibatches 3 microbatches 1 update 2
        stage 0: 0F0@0 0F1@0 0BW1@0 0F2@0 0BW2@0 0STEP1 0BW0@1 0STEP2";

    const STAGE: StageIndex = StageIndex(0);

    fn op(text: &str) -> AsyncOp {
        text.parse().expect("the word is an operation")
    }

    fn version(text: &str) -> WeightVersion {
        let AsyncOp::Free(_, version) = op(&format!("0FREE{text}")) else { panic!("{text}") };
        version
    }

    /// `text` is legal, and breaks the rule `violation` when `right` in it becomes `wrong`.
    fn find(text: &str, right: &str, wrong: &str, violation: AsyncViolation) {
        let legal: AsyncProgram = text.parse().expect("the text is a program");
        assert_eq!(check_async(&legal), Ok(()), "{text}");
        assert_eq!(text.matches(right).count(), 1, "`{right}` says where");
        let broken = text.replace(right, wrong);
        let found = check_async(&broken.parse().expect("the text is a program"));
        let found = found.expect_err("the program is not legal");
        assert!(found.contains(&violation), "expected {violation:?}, found {found:#?}\n{broken}");
    }

    #[test]
    fn a_dynamic_region_and_the_order_found_in_it_are_legal() {
        for text in [AMPNET, FOUND] {
            let program = text.parse().expect("the text is a program");
            assert_eq!(check_async(&program), Ok(()), "{text}");
        }
    }

    #[test]
    fn sizes_are_looked_at_first() {
        let mut program: AsyncProgram = PIPEDREAM.parse().expect("the text is a program");
        program.stages.pop();
        let lists = AsyncViolation::ListCount { expected: 2, found: 1 };
        assert_eq!(check_async(&program), Err(vec![lists.clone()]));
        program.update_every = 0;
        assert_eq!(check_async(&program), Err(vec![AsyncViolation::Size { found: 6 }, lists]));
    }

    #[test]
    fn a_way_of_running_is_of_its_schedule() {
        let kind = AsyncKind::PipeMare;
        let variant = AsyncVariant::VerticalSync;
        find(
            PIPEMARE,
            "update 1",
            "update 1 vertical-sync",
            AsyncViolation::Variant { kind, variant },
        );
        let kind = AsyncKind::PipeDream;
        let variant = AsyncVariant::WarmUp(2);
        find(
            PIPEDREAM,
            "update 1",
            "update 1 warm-up 2",
            AsyncViolation::Variant { kind, variant },
        );
    }

    #[test]
    fn the_rules_about_passes_hold_here_as_well() {
        let forward = ScheduleViolation::ForwardCount { pass: Pass::new(0, 2), found: 0 };
        find(PIPEDREAM, "0F2@1 0SEND_F2 ", "", AsyncViolation::Plain(forward));
        let kept = ScheduleViolation::OperandCount {
            stage: STAGE,
            op: "0BW1".parse().expect("an operation"),
            expected: "0RECV_B1".parse().expect("an operation"),
            found: 0,
        };
        find(PIPEDREAM, "0RECV_B1 ", "", AsyncViolation::Plain(kept));
    }

    #[test]
    fn a_kind_has_its_operations_and_no_other() {
        let foreign = |text: &str| AsyncViolation::Foreign { stage: STAGE, op: op(text) };
        find(PIPEDREAM, "0STEP3", "0STEP3 0AVERAGE3", foreign("0AVERAGE3"));
        find(PIPEDREAM, "0BW0@0", "0B0@0 0W0@0", foreign("0B0@0"));
        find(PIPEMARE, "DELTA0-1", "ADAM0-1", foreign("0PREDICT_ADAM0-1"));
        let two = "0DYNAMIC(newest,2,1) 0DYNAMIC(newest,2,1)";
        find(AMPNET, "0DYNAMIC(newest,2,1)", two, foreign("0DYNAMIC(newest,2,1)"));
        find(AMPNET, "newest,2,1", "newest,2,2", foreign("0DYNAMIC(newest,2,2)"));
    }

    #[test]
    fn versions_are_there_when_they_are_named() {
        let missing = |text: &str, newest| AsyncViolation::Missing {
            stage: STAGE,
            op: op(text),
            newest: WeightVersion::new(newest),
        };
        find(PIPEDREAM, "0STASH0 ", "", missing("0BW1@0", 1));
        find(PIPEDREAM, "0BW1@0 0FREE0", "0FREE0 0BW1@0", missing("0BW1@0", 1));
        find(PIPEDREAM, "0F2@1", "0F2@2", missing("0F2@2", 1));
        find(PIPEDREAM, "0STEP1 0F2@1", "0STEP2 0F2@1", missing("0STEP2", 0));
        find(PIPEDREAM, "0STASH1", "0STASH0", missing("0STASH0", 1));
        find(PIPEMARE, "0PREDICT_DELTA0-1 ", "", missing("0BW0@0-1", 0));
        find(PIPEMARE, "0PREDICT_DELTA1-1", "0PREDICT_DELTA0-1", missing("0PREDICT_DELTA0-1", 1));
        find(AVGPIPE, "0AVERAGE1/1", "0AVERAGE2", missing("0AVERAGE2", 1));
    }

    #[test]
    fn versions_are_made_once() {
        let twice = |text: &str| AsyncViolation::Twice { stage: STAGE, op: op(text) };
        find(PIPEDREAM, "0STASH0", "0STASH0 0STASH0", twice("0STASH0"));
    }

    #[test]
    fn passes_read_what_the_kind_declares() {
        let semantics = |text: &str, expected: &str| AsyncViolation::Semantics {
            stage: STAGE,
            op: op(text),
            expected: version(expected),
        };
        find(PIPEDREAM, "0BW1@0", "0BW1@1", semantics("0BW1@1", "0"));
        find(PIPEMARE, "0BW1@1-1", "0BW1@1", semantics("0BW1@1", "1-1"));
        find(AVGPIPE, "0BW1@0/1", "0BW1@1", semantics("0BW1@1", "0/1"));
    }

    #[test]
    fn versions_kept_are_bounded_and_given_back() {
        let kept = AsyncViolation::Kept {
            stage: STAGE,
            chunk: ChunkIndex(0),
            op: op("0STASH1"),
            found: 2,
            limit: 1,
        };
        find(PIPEDREAM, "0FREE0 0STASH1", "0STASH1 0FREE0", kept);
        let version = WeightVersion::new(1);
        let never = AsyncViolation::NeverFreed { stage: STAGE, chunk: ChunkIndex(0), version };
        find(PIPEDREAM, " 0FREE1", "", never);
    }

    #[test]
    fn gradients_add_up_in_microbatch_order_and_step_when_complete() {
        let order = AsyncViolation::MicrobatchOrder { stage: STAGE, op: op("0BW1@0"), expected: 0 };
        let whole = "0BW0@0 0STASH0 0STEP1 0F2@1 0SEND_F2 0RECV_B1 0BW1@0";
        let turned = "0RECV_B1 0BW1@0 0STASH0 0STEP1 0F2@1 0SEND_F2 0BW0@0";
        find(PIPEDREAM, whole, turned, order);
        let place = |expected: Option<&str>, found: Option<&str>| AsyncViolation::UpdatePlace {
            stage: STAGE,
            expected: expected.map(op),
            found: found.map(op),
        };
        find(PIPEDREAM, " 0STEP3", "", place(Some("0STEP3"), None));
        find(PIPEDREAM, "0RECV_B2", "0STEP3 0RECV_B2", place(None, Some("0STEP3")));
        find(AVGPIPE, "0STEP1 0AVERAGE1 ", "0STEP1 ", place(Some("0AVERAGE1"), Some("0BW1@0/1")));
        find(FOUND, "0STEP1", "", place(Some("0STEP1"), Some("0BW0@1")));
        find(FOUND, " 0STEP2", "", place(Some("0STEP2"), None));
    }

    #[test]
    fn the_reference_model_meets_minibatches_in_their_order() {
        let whole = "0BW0@0 0STEP1 0AVERAGE1 0BW1@0/1 0STEP1/1 0AVERAGE1/1";
        let turned = "0BW1@0/1 0STEP1/1 0AVERAGE1/1 0BW0@0 0STEP1 0AVERAGE1";
        let expected = version("1");
        let order = AsyncViolation::AverageOrder { stage: STAGE, op: op("0AVERAGE1/1"), expected };
        find(AVGPIPE, whole, turned, order);
    }
}
