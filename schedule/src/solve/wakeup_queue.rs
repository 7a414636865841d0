//! Who is due next.

/// By stage, when it is due; the earliest is at hand. A tree in which each place holds the lesser of
/// the two below it, stages at the bottom.
///
/// Times are of at least 0, and kept as their bits: those have the same order, and whole numbers are
/// compared faster. Half of what a search takes is this.
pub(super) struct WakeupQueue {
    /// From place 1, which is the top; below place `n` are `2n` and `2n + 1`.
    times: Vec<u64>,
    /// The place of stage 0.
    first: usize,
}

const NEVER: u64 = f64::INFINITY.to_bits();

impl WakeupQueue {
    /// No stage is due.
    pub(super) fn new(stage_count: usize) -> Self {
        let first = stage_count.next_power_of_two();
        Self { times: vec![NEVER; 2 * first], first }
    }

    /// A stage is due, at the latest.
    pub(super) fn schedule(&mut self, stage: usize, at: f64) {
        let at = at.to_bits();
        let mut place = self.first + stage;
        while place > 0 && at < self.times[place] {
            self.times[place] = at;
            place /= 2;
        }
    }

    /// The stage that is due first, the lowest of several, and when; it is not due any more.
    pub(super) fn pop(&mut self) -> Option<(f64, usize)> {
        let at = self.times[1];
        if at == NEVER {
            return None;
        }
        let mut place = 1;
        while place < self.first {
            place = 2 * place + usize::from(self.times[2 * place] > at);
        }
        let stage = place - self.first;
        let mut least = NEVER;
        self.times[place] = least;
        while place > 1 {
            least = least.min(self.times[place ^ 1]);
            place /= 2;
            self.times[place] = least;
        }
        Some((f64::from_bits(at), stage))
    }
}

#[cfg(test)]
mod tests {
    use super::WakeupQueue;

    #[test]
    fn the_earliest_comes_first_and_of_equals_the_lowest() {
        for stage_count in [1, 2, 5, 8] {
            let mut due = WakeupQueue::new(stage_count);
            assert_eq!(due.pop(), None);
            (0..stage_count).for_each(|stage| due.schedule(stage, 7.0));
            due.schedule(stage_count - 1, 3.0);
            due.schedule(stage_count - 1, 9.0);
            assert_eq!(due.pop(), Some((3.0, stage_count - 1)));
            for stage in 0..stage_count - 1 {
                assert_eq!(due.pop(), Some((7.0, stage)));
            }
            assert_eq!(due.pop(), None);
        }
    }
}
