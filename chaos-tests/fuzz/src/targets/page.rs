//! Requests for the live page, of clients that nobody let in, and traces that it reads of nodes.

use std::sync::Arc;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex, split};
use tokio::runtime::{Builder, Runtime};
use tokio::task::{spawn_blocking, yield_now};
use zbelastic_ui::{AccessPolicy, ClientDeadlines, PageService, TokenRefusal};
use zbelastic_view::{Dashboard, LANE_STEPS_KEPT, Observation, RunCosts};

use crate::DecodeOutcome;

/// Bytes under way in either direction.
const STREAM_BYTES: usize = 64 << 10;
/// Turns of the runtime in which all tasks have done what they can without a thread of their own.
const TURNS: usize = 64;
/// The types of what a run's state is sent as.
const OF_A_RUN: [&str; 3] = ["text/event-stream", "application/json", "openmetrics-text"];

thread_local! {
    /// Tokens are checked on its one thread that may wait, one after the other.
    static RUNTIME: Runtime = Builder::new_current_thread()
        .enable_time()
        .max_blocking_threads(1)
        .build()
        .expect("two threads are all it takes");
}

/// Answers are those of HTTP, and without a session nothing of the run is in them.
pub fn page_requests(bytes: &[u8]) -> DecodeOutcome {
    let answers = RUNTIME.with(|runtime| runtime.block_on(exchange(bytes)));
    let answers = String::from_utf8_lossy(&answers);
    assert!(answers.is_empty() || answers.starts_with("HTTP/1."), "{answers}");
    for kind in OF_A_RUN {
        assert!(!answers.contains(kind), "{kind} without a session: {answers}");
    }
    // A request that is read is answered with what it asks for, or the way to the form.
    let is_read = ["200 OK", "303 See Other", "401 Unauthorized", "403 Forbidden"];
    DecodeOutcome::of(is_read.iter().any(|status| answers.contains(status)))
}

/// What a server whose tokens are all refused sends back for these bytes.
async fn exchange(bytes: &[u8]) -> Vec<u8> {
    let refuse = |_: &str| Err(TokenRefusal::Refused { reason: "it has expired".to_owned() });
    let service = PageService::start(
        AccessPolicy::Token(Arc::new(refuse)),
        RunCosts::default(),
        ClientDeadlines::default(),
    );
    let (client, server) = duplex(STREAM_BYTES);
    let (mut reader, mut writer) = split(client);
    let mut answers = Vec::new();
    let send = async {
        // The server may end the connection before all is sent.
        let _ = writer.write_all(bytes).await;
        wait_for_turns().await;
        spawn_blocking(|| ()).await.expect("the thread lives");
        wait_for_turns().await;
        let _ = writer.shutdown().await;
    };
    let (_, _, read) = tokio::join!(service.serve(server), send, reader.read_to_end(&mut answers));
    read.expect("a stream in memory");
    answers
}

async fn wait_for_turns() {
    for _ in 0..TURNS {
        yield_now().await;
    }
}

/// A page is sent JSON: steps in order and once, no more than are kept.
pub fn lane_traces(bytes: &[u8]) -> DecodeOutcome {
    let Ok(text) = std::str::from_utf8(bytes) else { return DecodeOutcome::Refused };
    let mut dashboard = Dashboard::new(RunCosts::default());
    let messages = dashboard.observe(Observation::Trace(text.to_owned()));
    let read = |message: &String| serde_json::from_str::<Value>(message).expect("JSON");
    let messages: Vec<Value> = messages.iter().map(read).collect();
    let lanes = messages.iter().filter_map(|message| message["lanes"].as_array()).flatten();
    let steps: Vec<Option<u64>> = lanes.map(|lanes| lanes["step"].as_u64()).collect();
    assert!(steps.len() <= LANE_STEPS_KEPT && steps.is_sorted_by(|a, b| a < b));
    assert_eq!(steps.last().copied().flatten().unwrap_or(0), dashboard.newest_lanes());
    let again = dashboard.observe(Observation::Trace(text.to_owned()));
    assert!(again.is_empty(), "its steps are known");
    DecodeOutcome::of(!steps.is_empty())
}
