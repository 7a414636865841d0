//! The causes of a step's time, in the words of every terminal.

use zbelastic_api::StepTimeBreakdown;

/// What was added to the planned time of a step, or saved of it: each cause by its name, in
/// milliseconds.
#[must_use]
pub const fn causes_beside_plan(causes: &StepTimeBreakdown) -> [(&'static str, f64); 5] {
    let StepTimeBreakdown {
        planned_ms: _,
        computation_ms,
        messages_ms,
        verdicts_ms,
        rest_ms,
        between_ms,
    } = *causes;
    [
        ("computation", computation_ms),
        ("messages", messages_ms),
        ("verdicts", verdicts_ms),
        ("rest", rest_ms),
        ("between steps", between_ms),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_the_plan_the_causes_are_the_whole_step() {
        let causes = StepTimeBreakdown {
            planned_ms: 32.0,
            computation_ms: 1.0,
            messages_ms: 2.0,
            verdicts_ms: 4.0,
            rest_ms: -8.0,
            between_ms: 16.0,
        };
        let named = causes_beside_plan(&causes);
        let sum: f64 = named.iter().map(|(_, ms)| ms).sum();
        assert!((causes.planned_ms + sum - causes.total_ms()).abs() < 1e-9);
        assert!(named.contains(&("rest", -8.0)) && named.contains(&("between steps", 16.0)));
    }
}
