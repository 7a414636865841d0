//! What workers that share a machine multiply and add at best: together no more than its cores do.
//! Each measures for its own threads, as if it were alone.

use std::collections::BTreeMap;

use zbelastic_types::NodeId;

/// The rates of a worker, in floating-point operations a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerPeak {
    /// The number that all processes of its machine have; 0 if it is not known.
    pub machine: u64,
    /// Of as many cores as it has threads.
    pub own: u64,
    /// Of all cores of its machine, if it reported that.
    pub of_machine: Option<u64>,
}

/// The share of each worker, in floating-point operations a second: its own rate, or, where those of
/// one machine are more than its cores reach, a part of that in proportion.
#[must_use]
pub fn shared_peaks(workers: &BTreeMap<NodeId, WorkerPeak>) -> BTreeMap<NodeId, u64> {
    // By machine, the rates of its workers together and of its cores.
    let mut machines: BTreeMap<u64, (u128, Option<u64>)> = BTreeMap::new();
    for peak in workers.values().filter(|peak| peak.machine != 0) {
        let (wanted, cores) = machines.entry(peak.machine).or_default();
        *wanted += u128::from(peak.own);
        *cores = (*cores).max(peak.of_machine);
    }
    let share = |peak: &WorkerPeak| match machines.get(&peak.machine) {
        Some((wanted, Some(cores))) if *wanted > u128::from(*cores) => {
            (u128::from(peak.own) * u128::from(*cores) / wanted) as u64
        }
        Some(_) | None => peak.own,
    };
    workers.iter().map(|(node, peak)| (*node, share(peak))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(peaks: &[(u64, u64, Option<u64>)], expected: &[u64]) {
        let peaks = peaks.iter().zip(1..).map(|(peak, node)| {
            let (machine, own, of_machine) = *peak;
            (NodeId(node), WorkerPeak { machine, own, of_machine })
        });
        let shares = shared_peaks(&peaks.collect());
        assert_eq!(shares.into_values().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn workers_of_one_machine_share_its_cores() {
        // Three that each count on both cores, and one of another machine.
        check(
            &[(7, 200, Some(200)), (7, 200, Some(200)), (7, 200, Some(200)), (8, 90, Some(90))],
            &[66, 66, 66, 90],
        );
        // As many threads as cores, and fewer.
        check(&[(7, 100, Some(200)), (7, 100, Some(200))], &[100, 100]);
        check(&[(7, 100, Some(400)), (7, 100, Some(400))], &[100, 100]);
        // More threads than cores in one process.
        check(&[(7, 800, Some(200))], &[200]);
        check(&[(7, 300, Some(200)), (7, 100, Some(200))], &[150, 50]);
    }

    #[test]
    fn what_is_not_known_takes_nothing_away() {
        check(&[(0, 200, Some(200)), (0, 200, Some(200))], &[200, 200]);
        // Programs of an earlier version.
        check(&[(7, 200, None), (7, 200, None)], &[200, 200]);
        check(&[], &[]);
    }
}
