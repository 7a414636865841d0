//! Which checkpoints that have too few copies are warned of.

use zbelastic_types::Step;

/// The last checkpoint that was warned of, and whether a layer of it could be written nowhere.
#[derive(Debug, Default)]
pub struct SaveWarnings {
    last: Option<(Step, bool)>,
}

impl SaveWarnings {
    /// A layer of a version has so few copies. Yields whether to warn: once of each version, and
    /// once more if a layer of it was written nowhere.
    pub fn note(&mut self, version: Step, copies: u32) -> bool {
        let has_none = copies == 0;
        let is_known = |(of, had_none): (Step, bool)| of == version && (had_none || !has_none);
        if self.last.is_some_and(is_known) {
            return false;
        }
        self.last = Some((version, has_none));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_is_warned_of_once_and_once_more_if_a_layer_is_written_nowhere() {
        let mut warnings = SaveWarnings::default();
        let noted = [(4, 1), (4, 2), (4, 0), (4, 0), (4, 1), (8, 0), (8, 1), (4, 1)];
        let warned = noted.map(|(version, copies)| warnings.note(Step(version), copies));
        assert_eq!(warned, [true, false, true, false, false, true, false, true]);
    }
}
