//! Files that fail on demand, for tests and for processes that are set up so.
//!
//! [`FaultyFileSystem`] wraps another file system and fails as its [`FileFaultInjector`]
//! prescribes. [`SimulatedDisk`] is a whole disk in memory that records the data that would survive
//! a loss of power. [`FileIndex`] is an index made of such files, so that a store can lie on the
//! simulated disk whole. Nothing in this package makes any of them by itself.

mod disk;
mod faulty;
mod file_index;

pub use disk::{PowerLoss, SimulatedDisk};
pub use faulty::{CompletedOperation, FaultyFileSystem, FileFaultInjector, FileFaultRule};
pub use file_index::FileIndex;
