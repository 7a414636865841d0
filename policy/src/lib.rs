//! The decisions of a node beside the protocol: which pieces of checkpoints it keeps and for which
//! nodes, which nodes it requests to keep its own, which items it removes, which it reads again,
//! how far it trusts its peers, and when it renews its certificate.
//!
//! Policy apart from mechanism: `node` owns the sockets, disks, clocks and threads, and calls these
//! functions for decisions. So does a simulated cluster (`chaos-tests`), with stores that fail,
//! disks that are full, members that lie and clocks that were moved. A store is any type that
//! implements [`zbelastic_checkpoint::CheckpointStore`]; of the packages that do input and output
//! only names, roles and reasons are used.

pub mod aside;
pub mod authority;
pub mod backfill_schedule;
pub mod collect;
pub mod connected_members;
pub mod copy_check;
pub mod data;
pub mod data_chunks;
pub mod data_fetches;
pub mod device_gauge;
pub mod disk_space;
pub mod drain_cause;
pub mod formats;
pub mod frame_lane;
pub mod full_logs;
pub mod held_commands;
pub mod keep_queue;
pub mod keep_quota;
pub mod keep_rule;
pub mod layer_requests;
pub mod long_activity;
pub mod machine_peak;
pub mod member_addresses;
pub mod moment_values;
pub mod pending_commands;
pub mod piece;
pub mod piece_body;
pub mod piece_copies;
pub mod piece_reads;
pub mod piece_sink;
pub mod piece_sources;
pub mod quorum_watch;
pub mod recent;
pub mod renewal;
pub mod roster;
pub mod save_warnings;
pub mod scrub;
pub mod store_opening;
pub mod store_reopening;
pub mod tick;
pub mod trust;
mod work_counter;
pub mod work_log;

pub use work_counter::WorkCounter;
