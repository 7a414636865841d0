//! Breadth first through all states, each once.

use std::collections::{BTreeMap, VecDeque};

use super::ModelBounds;
use super::actions::ModelAction;
use super::check::{ModelViolation, check};
use super::model_state::ModelState;
use super::steps::ProtocolModel;

/// The outcome of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exploration {
    /// How many states were seen.
    pub states: usize,
    /// Actions executed from them, those that led to a known state included.
    pub actions: usize,
    /// Actions from the beginning to the state that is farthest.
    pub depth: u32,
    /// The finding of the search.
    pub finding: ExplorationFinding,
}

/// The finding of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExplorationFinding {
    /// Everything holds in every state, and the run can end from each.
    Sound,
    /// The first thing that is wrong.
    Broken {
        /// The violation that was found.
        violation: ModelViolation,
        /// A shortest path of actions to it.
        path: Vec<String>,
    },
    /// There are more states than were allowed.
    TooMany,
}

/// Where a state was first seen.
struct VisitedState {
    /// The state before it, and the action there.
    from: Option<(u32, ModelAction)>,
    depth: u32,
    is_over: bool,
}

struct StateSearch {
    model: ProtocolModel,
    state_indices: BTreeMap<Box<[u8]>, u32>,
    visited: Vec<VisitedState>,
    /// From which state to which.
    edges: Vec<(u32, u32)>,
    queue: VecDeque<(u32, ModelState)>,
}

/// Goes through all states.
#[must_use]
pub fn explore(bounds: ModelBounds) -> Exploration {
    let mut search = StateSearch {
        model: ProtocolModel::new(bounds),
        state_indices: BTreeMap::new(),
        visited: Vec::new(),
        edges: Vec::new(),
        queue: VecDeque::new(),
    };
    let finding = search.run();
    let depth = search.visited.iter().map(|seen| seen.depth).max().unwrap_or(0);
    Exploration { states: search.visited.len(), actions: search.edges.len(), depth, finding }
}

impl StateSearch {
    fn run(&mut self) -> ExplorationFinding {
        let first = self.model.begin();
        self.visit(first, None);
        while let Some((from, world)) = self.queue.pop_front() {
            if self.visited.len() > self.model.bounds.states_max {
                return ExplorationFinding::TooMany;
            }
            for (action, after) in self.model.next(&world) {
                let checked =
                    after.and_then(|after| check(&self.model.transitions, &after).map(|()| after));
                match checked {
                    Ok(after) => self.visit(after, Some((from, action))),
                    Err(violation) => {
                        let mut path = self.path(from);
                        path.push(action.text(&self.model.transitions));
                        return ExplorationFinding::Broken { violation, path };
                    }
                }
            }
        }
        match self.stuck() {
            Some(state) => ExplorationFinding::Broken {
                violation: ModelViolation::NoWayToTheEnd,
                path: self.path(state),
            },
            None => ExplorationFinding::Sound,
        }
    }

    fn visit(&mut self, world: ModelState, from: Option<(u32, ModelAction)>) {
        let next = self.visited.len() as u32;
        let id = *self.state_indices.entry(world.key()).or_insert(next);
        self.edges.extend(from.map(|(from, _)| (from, id)));
        if id == next {
            let depth = from.map_or(0, |(from, _)| self.visited[from as usize].depth + 1);
            self.visited.push(VisitedState { from, depth, is_over: self.model.is_over(&world) });
            self.queue.push_back((id, world));
        }
    }

    /// How a state is reached.
    fn path(&self, state: u32) -> Vec<String> {
        let before = |(state, _): &(u32, ModelAction)| self.visited[*state as usize].from;
        let steps = std::iter::successors(self.visited[state as usize].from, before);
        let mut path: Vec<_> =
            steps.map(|(_, action)| action.text(&self.model.transitions)).collect();
        path.reverse();
        path
    }

    /// The nearest state from which the run cannot end.
    fn stuck(&mut self) -> Option<u32> {
        self.edges.sort_unstable_by_key(|(_, to)| *to);
        let mut can_end: Vec<bool> = self.visited.iter().map(|seen| seen.is_over).collect();
        let mut queue: Vec<u32> =
            (0..can_end.len() as u32).filter(|state| can_end[*state as usize]).collect();
        while let Some(state) = queue.pop() {
            let start = self.edges.partition_point(|(_, to)| *to < state);
            let into = self.edges[start..].iter().take_while(|(_, to)| *to == state);
            for (from, _) in into {
                if !std::mem::replace(&mut can_end[*from as usize], true) {
                    queue.push(*from);
                }
            }
        }
        can_end.iter().position(|can| !can).map(|state| state as u32)
    }
}
