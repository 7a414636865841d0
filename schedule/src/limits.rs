//! How much a program may count: what its text names, the passes that its readers keep, and the columns
//! of its placement.

/// Largest stage, chunk or microbatch count a program text may name.
pub const TEXT_COUNT_MAX: u32 = 65_536;

/// Most passes, chunks times microbatches times slices, a program may have. Its readers keep a few
/// tens of bytes for each, so the longest text costs them some 100 MiB; the largest pipeline
/// planned for, 128 stages of 2 chunks and 1024 microbatches, is a sixteenth of it.
pub const PASS_COUNT_MAX: u64 = 1 << 22;

/// Most columns of a placement: as many as a job has lanes at most.
pub const COLUMNS_MAX: u32 = 64;
