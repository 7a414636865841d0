//! Which stage goes on first.

/// By stage, when it is woken; the earliest is at the top. A tree in which each place holds the
/// lesser of the two below it, stages at the bottom.
///
/// Times are of at least 0, and kept as their bits: those have the same order, and whole numbers
/// are compared faster. Half of what a search takes is this.
pub(crate) struct WakeupQueue {
    /// From place 1, which is the top; below place `n` are `2n` and `2n + 1`.
    times: Vec<u64>,
    /// The place of stage 0.
    first: usize,
}

const NEVER: u64 = f64::INFINITY.to_bits();

impl WakeupQueue {
    /// No stage is scheduled.
    pub(crate) fn new(stage_count: usize) -> Self {
        let first = stage_count.next_power_of_two();
        Self { times: vec![NEVER; 2 * first], first }
    }

    /// Wakes a stage at `at`, or earlier if it was scheduled for an earlier time.
    pub(crate) fn schedule(&mut self, stage: usize, at: f64) {
        let at = at.to_bits();
        let mut place = self.first + stage;
        while place > 0 && at < self.times[place] {
            self.times[place] = at;
            place /= 2;
        }
    }

    /// Takes out the stage that is woken first, the lowest of several, with the time.
    pub(crate) fn pop(&mut self) -> Option<(f64, usize)> {
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
            let mut queue = WakeupQueue::new(stage_count);
            assert_eq!(queue.pop(), None);
            (0..stage_count).for_each(|stage| queue.schedule(stage, 7.0));
            queue.schedule(stage_count - 1, 3.0);
            queue.schedule(stage_count - 1, 9.0);
            assert_eq!(queue.pop(), Some((3.0, stage_count - 1)));
            for stage in 0..stage_count - 1 {
                assert_eq!(queue.pop(), Some((7.0, stage)));
            }
            assert_eq!(queue.pop(), None);
        }
    }
}
