//! A connection of a person's command line: it sends requests, and nothing else.

use std::sync::Arc;

use tokio::time::timeout;

use super::LaneEnd;
use super::streams::accept_two_way;
use crate::endpoint::close::CloseCode;
use crate::endpoint::context::Context;
use crate::endpoint::greeting::Greeted;
use crate::endpoint::hello::Hello;
use crate::endpoint::version::VERSIONS;
use crate::event::{DownReason, Violation};

/// Answers a client until its connection ends.
pub(crate) async fn run_client(context: Arc<Context>, greeted: Greeted) {
    let open = context.tallies.open.hold();
    let closer = greeted.closer();
    let Greeted { peer, connection, mut send, .. } = greeted;
    let ours = Hello { start: context.start, ..Hello::of_nobody(VERSIONS) };
    let told = timeout(context.limits.handshake_within, ours.write(&mut send)).await;
    if !matches!(told, Ok(Ok(()))) {
        closer.close(DownReason::Violation(Violation::Other(CloseCode::Late)));
        return;
    }
    let _ = send.finish();
    let end = accept_two_way(Arc::clone(&context), connection, peer, None).await;
    if let LaneEnd::Violation(violation) = end {
        context.tallies.violations.one();
        closer.close(DownReason::Violation(violation));
    }
    drop(open);
}
