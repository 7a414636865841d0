//! Asynchronous training: stages that update their weights without a common step.
//!
//! [`AsyncStage`] runs one stage of an [`zbelastic_schedule::asynchronous::AsyncProgram`]: frames
//! in, the next operation run, frames out. [`AsyncReference`] is the same training in one plain
//! loop that knows no program: which version a pass reads is written there as a formula. The two
//! agree to the last bit, on one thread or on many.
//!
//! What is lost against [`crate::stage`]: there is no verdict on a step, because there is no step.
//! Each chunk looks at its own gradient, clips it by its own norm, or leaves its own update out.
//! Nothing is taken back. And the bits are not those of serial training but of serial training with
//! the same staleness. The passes and the optimizer are the same code.

mod reference;
mod replay;
mod rules;
mod setup;
mod stage;
mod state;
mod weight_versions;

pub use reference::AsyncReference;
pub use replay::replay_found;
pub use setup::{AsyncHyperparameters, AsyncPlan, AsyncPlanError, AsyncSetup};
pub use stage::{AsyncFrame, AsyncOutput, AsyncProgress, AsyncStage, AsyncUpdate, frames_max};
pub use state::AsyncState;
