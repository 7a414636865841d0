//! Which plan a cluster trains by: the search, the measured times of its work, and when another plan is worth a change.
//!
//! ```text
//!   job, nodes ──▶ PlanSearch ──▶ plan ──▶ steps ──▶ PaceHistory ──▶ PaceEstimate
//!                      ▲                                                 │ PlanReview
//!                      └──────── PlanMeasurement, estimate ◀── PaceTracker ◀┘
//! ```
//!
//! - [`PlannerJob`]: the parts of a job's configuration that a plan depends on, and the fallbacks that are tried.
//! - [`PlanSearch`]: finds plans, remembers them, and looks ahead to the loss of each node.
//! - [`RunShortage`]: why a run fits none of the nodes that are there, and what would make it fit.
//! - [`SuccessorChoice`]: where workers leave or join, whether the others go on where they stand, and why.
//! - [`StepMeasurement`], [`PaceHistory`], [`PaceEstimate`]: the times of steps, the medians of a review, and the
//!   estimate that plans are made with.
//! - [`PlanReview`]: the plan in force, judged by the times of its work.
//! - [`PlanWatch`], [`PaceTracker`]: when a plan is reviewed, and when a judgement is acted on.
//!
//! Pure: steps, nodes and answers come in, plans and reasons go out. A controller's process calls it from its
//! event loop and from the thread that searches; a simulated cluster (`chaos-tests`) calls the same.

mod estimate;
mod fallback;
mod history;
mod in_force;
mod measurement;
mod node_choices;
mod plan_watch;
mod review;
mod search;
mod shortage;
mod successor;
mod tracker;

pub use estimate::{LinkTimes, PaceEstimate, plan_reason};
pub use fallback::{PlanFallback, PlannerJob};
pub use history::{PaceHistory, REVIEW_STEPS};
pub use in_force::planned_memory;
pub use measurement::StepMeasurement;
pub use node_choices::{NodeResources, first_plan, memory_limits};
pub use plan_watch::{AGREEING, PlanWatch, STEPS_APART, STEPS_APART_MAX, STEPS_FIRST};
pub use review::{PlanReview, ReviewedPlan};
pub use search::PlanSearch;
pub use shortage::RunShortage;
pub use successor::{PlanSuccessor, SuccessorChoice};
pub use tracker::{PaceTracker, ReviewOutcome};
