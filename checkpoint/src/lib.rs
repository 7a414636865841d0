//! Checkpoints and logs that survive a power cut.
