//! Weights that islands of a run exchange through folders of objects (DiLoCo).
//!
//! Each island writes into a folder or bucket of its own, which is near to it, and reads those of the
//! others over the link that is slow:
//!
//! ```text
//!   sent/<layer>/<version>     an island's own weights of a version, for the others
//!   outer/<layer>/<version>    the state of the outer optimizer that was mixed into a version
//!     ...-<hash>-<part>        their floats (little endian), in parts of 8 MiB; the object itself is a head
//!                              with their hash, and is written last
//! ```
//!
//! It promises:
//!
//! - **I1** What was published stays: an island that goes back and comes to a version again leaves the
//!   object as it is, because others may have read it.
//! - **I2** Every island makes the same outer steps. Each object of weights names the hash of the outer
//!   state that its island began the round with, and no step is made of two that differ.
//! - **I3** No bytes are used that were not compared with the hash in their head, and none of a run with other
//!   settings.
//! - **I4** The outer state of a round is durable before its outcome leaves here, and the weights of a
//!   version before they are reported as published.
//!
//! [`Exchange`] decides and is given folders; [`ExchangeThread`] runs it beside a device.

mod event;
mod exchange;
mod folders;
mod object;
mod thread;

pub use event::{ExchangeError, ExchangeEvent};
pub use exchange::{Exchange, ExchangeRun};
pub use folders::{FolderError, IslandFolders, ObjectFolders, ObjectKey, WeightsKind};
pub use object::{ObjectError, WeightsHead, contents_hash, settings_hash};
pub use thread::{ExchangeSetup, ExchangeSide, ExchangeStartError, ExchangeThread};
