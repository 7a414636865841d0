//! What a step of a serial run adds up to, whatever model it computes with.

/// The sums of a step that nothing disturbs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReferenceSums {
    /// The sum of squares.
    pub square_sum: f64,
    /// The sum of losses.
    pub loss_sum: f64,
}
