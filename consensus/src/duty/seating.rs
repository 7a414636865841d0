//! Who stands where: as few layers as possible change hands.

use zbelastic_types::StageIndex;

use crate::member::Holder;
use crate::plan::PlanRecord;

/// Holders in the order of stages. Who stays keeps its place in the order, who comes fills the
/// places of those who went, and what is left over goes to the end.
#[must_use]
pub(super) fn seating(before: Option<&PlanRecord>, available: &[Holder]) -> Vec<Holder> {
    let stages = before.map_or(&[][..], |plan| &plan.stages);
    let is_new = |holder: &&Holder| !stages.contains(holder);
    let mut newcomers = available.iter().filter(is_new).copied();
    let stays = |holder: &Holder| available.contains(holder).then_some(*holder);
    let mut seated: Vec<Holder> =
        stages.iter().filter_map(|holder| stays(holder).or_else(|| newcomers.next())).collect();
    seated.extend(newcomers);
    seated
}

/// For each stage the stage that keeps its copy: the one `offset` further, in a ring. Another
/// offset makes other pairs.
#[must_use]
pub(super) fn copies(stage_count: u32, offset: u32) -> Vec<Option<StageIndex>> {
    let by = |stage: u32| {
        let others = stage_count - 1;
        (others > 0).then(|| StageIndex((stage + 1 + offset % others.max(1)) % stage_count))
    };
    (0..stage_count).map(by).collect()
}

#[cfg(test)]
mod tests {
    use super::copies;

    #[test]
    fn a_copy_is_never_at_home_and_offsets_make_other_pairs() {
        assert_eq!(copies(1, 0), [None]);
        for stage_count in 2..6 {
            for offset in 0..6 {
                for (stage, by) in copies(stage_count, offset).into_iter().enumerate() {
                    let by = by.expect("there is an elsewhere").index();
                    assert!(by != stage && by < stage_count as usize);
                }
            }
        }
        assert_ne!(copies(3, 0), copies(3, 1));
    }
}
