//! The outer step: Nesterov's on what the islands moved away from where they began.

/// The state of the outer optimizer for one layer: the same on every island.
#[derive(Clone, Debug, PartialEq)]
pub struct OuterState {
    /// The weights that all islands agreed on last.
    pub weights: Vec<f32>,
    /// The momentum.
    pub momentum: Vec<f32>,
    /// Whether the outer step that led here was left out.
    pub verdict: OuterVerdict,
}

/// The verdict on an outer step. Every island reads the same weights and comes to the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OuterVerdict {
    /// It was taken.
    Keep,
    /// Weights of an island, or those that it led to, are not finite: the state is the one before,
    /// and every island goes back to its weights.
    Skip,
}

/// The numbers of the outer step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OuterStep {
    /// Learning rate.
    pub lr: f32,
    /// Nesterov momentum.
    pub momentum: f32,
}

impl OuterState {
    /// Before the first outer step.
    #[must_use]
    pub fn initial(weights: Vec<f32>) -> Self {
        let momentum = vec![0.0; weights.len()];
        Self { weights, momentum, verdict: OuterVerdict::Keep }
    }

    /// The state after an outer step, from the sum of the weights of so many islands, added up in their
    /// order ([`add_island`]).
    ///
    /// In f32 and element by element:
    ///
    /// ```text
    ///   g = weights - sum / islands
    ///   momentum' = momentum * µ + g
    ///   weights' = weights - lr * (g + µ * momentum')
    /// ```
    ///
    /// # Panics
    /// If the sum is of another number of weights.
    #[must_use]
    pub fn step(&self, sum: &[f32], islands: u32, numbers: OuterStep) -> Self {
        assert_eq!(sum.len(), self.weights.len(), "of one layer");
        let OuterStep { lr, momentum: decay } = numbers;
        let count = islands as f32;
        let mut next = self.clone();
        let mut is_finite = true;
        for ((weight, momentum), sum) in next.weights.iter_mut().zip(&mut next.momentum).zip(sum) {
            let gradient = *weight - sum / count;
            *momentum = *momentum * decay + gradient;
            *weight -= lr * (gradient + decay * *momentum);
            is_finite &= weight.is_finite() && momentum.is_finite();
        }
        next.verdict = OuterVerdict::Keep;
        match is_finite {
            true => next,
            false => Self { verdict: OuterVerdict::Skip, ..self.clone() },
        }
    }
}

/// Adds the weights of the next island to the sum of those before it.
///
/// # Panics
/// If their numbers differ.
pub fn add_island(sum: &mut Option<Vec<f32>>, weights: Vec<f32>) {
    let Some(sum) = sum else {
        *sum = Some(weights);
        return;
    };
    assert_eq!(sum.len(), weights.len(), "of one layer");
    sum.iter_mut().zip(weights).for_each(|(sum, weight)| *sum += weight);
}

#[cfg(test)]
mod tests {
    use super::*;

    const NUMBERS: OuterStep = OuterStep { lr: 0.5, momentum: 0.5 };

    #[test]
    fn a_step_is_nesterovs_on_the_mean() {
        let state = OuterState::initial(vec![1.0, 2.0]);
        let mut sum = None;
        [[0.0, 2.0], [1.0, 4.0]].iter().for_each(|island| add_island(&mut sum, island.to_vec()));
        let after = state.step(&sum.expect("two"), 2, NUMBERS);
        // g = 0.5 and -1; momentum the same; weights less 0.5 * 1.5 g.
        assert_eq!(after.momentum, [0.5, -1.0]);
        assert_eq!(after.weights, [1.0 - 0.375, 2.0 + 0.75]);
        let again = after.step(&after.weights, 1, NUMBERS);
        assert_eq!(again.momentum, [0.25, -0.5], "what moved goes on by itself");
    }

    #[test]
    fn without_momentum_and_at_a_rate_of_one_it_is_the_mean() {
        let state = OuterState::initial(vec![1.0]);
        let after = state.step(&[8.0], 2, OuterStep { lr: 1.0, momentum: 0.0 });
        assert_eq!(after.weights, [4.0]);
    }

    #[test]
    fn a_weight_that_is_not_finite_leaves_the_step_out() {
        let state = OuterState { momentum: vec![0.25], ..OuterState::initial(vec![1.0]) };
        for bad in [f32::NAN, f32::INFINITY] {
            let after = state.step(&[2.0 + bad], 2, NUMBERS);
            assert_eq!(after, OuterState { verdict: OuterVerdict::Skip, ..state.clone() });
        }
    }
}
