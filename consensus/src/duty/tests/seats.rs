//! Which nodes a solution assigns to stages.

use zbelastic_types::NodeId;

use crate::duty::{PlanSolution, SolveRequest};
use crate::fixture::{FixtureLog, solution, spec};

use super::harness::DutiesHarness;
use super::planning::adopted;

/// A solver may leave out a node whose memory is too small, whatever its position.
#[test]
fn a_solution_says_who_stands_at_its_stages() {
    let begin = |stage_nodes: Vec<usize>| {
        let mut harness = DutiesHarness::new(FixtureLog::with_job(spec(), &[1, 2, 3]));
        harness.act();
        (1..=3).for_each(|node| harness.report_held(node, &[], 0));
        let SolveRequest { number, window, .. } =
            harness.solve_request.take().expect("one was asked for");
        let solution = PlanSolution { stage_nodes, ..solution(2, window) };
        assert!(harness.duties.handle_solution(number, Ok(solution)), "it is wanted");
        harness.act()
    };
    let nodes = |stage_nodes| DutiesHarness::nodes(&adopted(&begin(stage_nodes)));
    assert_eq!(nodes(vec![0, 1]), [NodeId(1), NodeId(2)]);
    assert_eq!(nodes(vec![1, 2]), [NodeId(2), NodeId(3)]);
    assert_eq!(nodes(vec![2, 0]), [NodeId(3), NodeId(1)]);
    for wrong in [vec![1, 1], vec![1], vec![0, 1, 2]] {
        assert_eq!(begin(wrong.clone()), [], "{wrong:?} seats nobody");
    }
}
