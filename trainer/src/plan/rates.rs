//! Speeds of machines, and what work costs, read from each other.
//!
//! Work is given in columns: F, B and W as they are counted, or F, B and W of each class of layers.
//! A column that one machine alone works on does not show how fast that is: whether it is slow or
//! its work is heavy cannot be seen. So a speed is read from the columns that others work on too; a
//! machine that shares none with any other is as fast as it reports.

/// What a machine did, column by column.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct MachineSample {
    /// Speed that the machine reports of itself.
    pub(super) reported_speed: f64,
    pub(super) work: Vec<f64>,
    pub(super) times: Vec<f64>,
}

/// Rounds in which rates and speeds are read from each other. Each brings them nearer to numbers
/// that agree; were they to agree at all, a few leave nothing that could be measured.
const ROUNDS: u32 = 12;

/// How fast each machine was.
pub(super) fn speeds(machines: &[MachineSample]) -> Vec<f64> {
    let count = machines.iter().map(|machine| machine.work.len()).min().unwrap_or(0);
    let workers = |column: usize| machines.iter().filter(move |m| m.work[column] > 0.0).count();
    let shared: Vec<usize> = (0..count).filter(|column| workers(*column) > 1).collect();
    let mut speeds: Vec<f64> = machines.iter().map(|machine| machine.reported_speed).collect();
    for _ in 0..=ROUNDS {
        let rates = rates(machines, &speeds);
        let speed = |machine: &MachineSample| {
            let time: f64 = shared.iter().map(|column| machine.times[*column]).sum();
            let as_others: f64 = shared.iter().map(|c| machine.work[*c] * rates[*c]).sum();
            if time > 0.0 && as_others > 0.0 { as_others / time } else { machine.reported_speed }
        };
        speeds = machines.iter().map(speed).collect();
    }
    speeds
}

/// What a unit of each column's work takes on a machine of speed 1, when machines are so fast:
/// without their speeds a slow one with much W makes W look slow.
pub(super) fn rates(machines: &[MachineSample], speeds: &[f64]) -> Vec<f64> {
    let count = machines.iter().map(|machine| machine.work.len()).min().unwrap_or(0);
    let rate = |column: usize| {
        let each = machines.iter().zip(speeds);
        let time: f64 = each.map(|(machine, speed)| machine.times[column] * speed).sum();
        let work: f64 = machines.iter().map(|machine| machine.work[column]).sum();
        // Of a column without work, as W where no product is trained, nothing is known.
        if work > 0.0 { time / work } else { 0.0 }
    };
    (0..count).map(rate).collect()
}

#[cfg(test)]
mod tests {
    use super::{MachineSample, rates, speeds};

    fn machine(reported_speed: f64, speed: f64, work: [f64; 3], costs: [f64; 3]) -> MachineSample {
        let times = work.iter().zip(costs).map(|(work, cost)| work * cost / speed).collect();
        MachineSample { reported_speed, work: work.to_vec(), times }
    }

    #[test]
    fn work_that_one_machine_has_alone_is_distinguished_from_a_slow_machine() {
        let costs = [2.0, 3.0, 50.0];
        let machines = [
            machine(1.0, 1.0, [2.0, 2.0, 0.0], costs),
            machine(1.0, 1.0, [2.0, 2.0, 0.0], costs),
            machine(1.0, 0.5, [1.0, 1.0, 1.0], costs),
        ];
        let found = speeds(&machines);
        assert_eq!(found[0], found[1]);
        assert!((found[2] / found[0] - 0.5).abs() < 1e-9, "{found:?}");
        let rates = rates(&machines, &found);
        assert!((rates[2] / rates[0] - 25.0).abs() < 1e-9, "{rates:?}");
    }

    #[test]
    fn a_machine_that_shares_no_column_is_as_fast_as_it_reports() {
        let costs = [2.0, 3.0, 50.0];
        let machines =
            [machine(2.0, 0.1, [1.0, 0.0, 0.0], costs), machine(3.0, 0.1, [0.0, 1.0, 1.0], costs)];
        assert_eq!(speeds(&machines), [2.0, 3.0]);
        assert_eq!(speeds(&[]), [] as [f64; 0]);
    }
}
