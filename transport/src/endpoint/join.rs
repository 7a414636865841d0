//! The door for those who want to become members.

use std::sync::Arc;

use quinn::Connection;

use super::close::CloseCode;
use super::context::Context;

/// Serves one joiner on its connection.
pub(super) async fn serve_join(context: Arc<Context>, connection: Connection) {
    let _ = context;
    connection.close(CloseCode::Forbidden.number().into(), &[]);
}
