//! Corpora larger than memory: sources of documents, token stores, and the windows packed from them.
//!
//! ```text
//!   files ──> items ──> batches ──> ids, ends, loss mask ──> shards, manifest      prepare
//!    source     one thread      encode, many threads             store
//!
//!   (seed, step, microbatch) ──> addresses of windows ──> ids, positions, labels   training
//!             cursor                                 window, from mapped shards; mixture
//! ```
//!
//! Its promises:
//!
//! - The bytes of a store depend on the sources, their order and the encoder, never on the number of
//!   threads, or on how often [`prepare`](prepare::prepare) was killed and called again.
//! - A shard or manifest exists under its name whole or not at all.
//! - Memory is bounded by [`PREPARE_BYTES_MAX`](prepare::PREPARE_BYTES_MAX), for any corpus.
//! - Any bytes in a store are read or refused by an error, never by a panic.
//!
//! `docs/token-store.md` has the bytes of the format.

mod checked_json;
pub mod cursor;
pub mod document;
pub mod encode;
pub mod mixture;
pub mod prefetch;
pub mod prepare;
pub mod show;
pub mod source;
pub mod store;
pub mod training_data;
pub mod window;
