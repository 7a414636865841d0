//! stub
use serde::{Deserialize, Serialize};
/// stub
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum RaftMessage {
    /// stub
    Raft(Vec<u8>),
}
