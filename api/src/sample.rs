//! A cluster as tests see it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use zbelastic_types::{Bytes, Digest, NodeId};

use super::client::{ApiClient, ClientError};
use super::*;

/// A time of day: 2026-11-21 12:01:03Z.
pub const NOW_MS: u64 = 1_795_262_463_000;

/// A digest of equal bytes.
pub fn digest(byte: u8) -> HexDigest {
    HexDigest(Digest([byte; 32]))
}

/// A worker as `status` lists it.
pub fn member(id: u64, name: &str, is_live: bool) -> MemberStatus {
    let reason = "connection closed".to_owned();
    MemberStatus {
        id: NodeId(id),
        name: name.to_owned(),
        role: MemberRole::Worker,
        standing: if is_live { MemberState::Present } else { MemberState::Lost { reason } },
        incarnation: 10 + id,
        addresses: vec![format!("10.0.0.{id}:7000")],
        zone: String::new(),
        stage: None,
        layers: None,
        copies_stages: Vec::new(),
        left_out: None,
        disk: None,
        scrub: None,
        device: "cpu".to_owned(),
        speed_permille: 1000,
        peak_flop_per_s: None,
        memory_used: None,
        memory_planned: None,
        memory: Bytes(8 << 30),
        last_heard_ms: is_live.then_some(40),
        round_trip_us: None,
        log_behind: None,
        road: if is_live { MemberPath::Quic } else { MemberPath::Down },
        work: None,
    }
}

/// A token of a day, made a minute ago.
pub fn token(id: &str) -> TokenInfo {
    TokenInfo {
        id: id.to_owned(),
        role: TokenRole::Worker,
        created_ms: NOW_MS - 60_000,
        expires_ms: NOW_MS + 86_340_000,
        uses: 2,
        used: 1,
        ephemeral: false,
        revoked: false,
        note: Some("rack 2".to_owned()),
    }
}

/// A run in its middle.
pub fn job() -> JobStatus {
    JobStatus {
        name: "tiny".to_owned(),
        config: digest(0xab),
        phase: JobPhaseStatus::Running,
        step: 1280,
        step_count: 10_000,
        loss: Some(3.214_53),
        gnorm: Some(0.8124),
        lr: Some(5.9e-4),
        step_ms: Some(412.0),
        tokens_per_s: Some(127_184.0),
        flop_per_token: None,
        eta_s: Some(3733.0),
        digest: Some(digest(0x0c)),
        digest_step: Some(1200),
        saving: None,
    }
}

/// A checkpoint of two nodes.
pub fn checkpoint(step: u64) -> CheckpointStatus {
    CheckpointStatus {
        step,
        at_ms: Some(NOW_MS - 187_000),
        bytes: Bytes(1_600_000_000),
        digest: digest(0x0c),
        holders: vec![NodeId(2), NodeId(3)],
        copies: 2,
    }
}

/// The times of its layers and its link.
pub fn pace() -> PaceStatus {
    let layer = |layer: &str, f_us: f64| LayerPace {
        layer: layer.to_owned(),
        f_us,
        b_us: 2.0 * f_us,
        w_us: f_us,
        update_us: 90.0,
        recompute_us: None,
    };
    PaceStatus {
        layers: vec![layer("attention", 310.0), layer("head", 2200.0)],
        links: vec![LinkPace {
            nodes: [NodeId(2), NodeId(3)],
            latency_us: 180.0,
            occupancy_us: 420.0,
        }],
        verdict_us: Some(950.0),
    }
}

/// Two controllers, two stages, a standby and a lost node, with a run in its middle.
pub fn status() -> StatusReport {
    let controller = |id, name: &str| MemberStatus {
        role: MemberRole::Controller,
        memory: Bytes(0),
        ..member(id, name, true)
    };
    let stage = |id, name: &str, stage, layers: &str| MemberStatus {
        stage: Some(stage),
        layers: Some(layers.to_owned()),
        copies_stages: vec![1 - stage],
        memory_used: Some(Bytes(3 << 30)),
        memory_planned: Some(Bytes(4 << 30)),
        round_trip_us: Some(310),
        road: MemberPath::SameHost,
        ..member(id, name, true)
    };
    let plan = PlanStatus {
        generation: 7,
        stages: vec![NodeId(2), NodeId(3)],
        replicas: 1,
        schedule: "zb-h1".to_owned(),
        window: 1,
        bubble_planned: Some(0.018),
        bubble_measured: Some(0.021),
        from_step: 1200,
        reason: "node gpu-c (4) lost: connection closed".to_owned(),
        waits_for: None,
    };
    let failure = FailureStatus {
        at_ms: NOW_MS - 62_000,
        node: NodeId(4),
        name: "gpu-c".to_owned(),
        reason: "connection closed".to_owned(),
        detected_ms: Some(4.2),
        next_seal_ms: Some(1712.0),
        generation: Some(7),
        layers_moved: 21,
        bytes_moved: Bytes(512 << 20),
        bytes_floor: Bytes(480 << 20),
        steps_lost: 0,
    };
    StatusReport {
        version: "0.1.0".to_owned(),
        at_ms: NOW_MS,
        answered_by: NodeId(1),
        cluster: ClusterStatus { name: "wiki".to_owned(), id: "3f".repeat(16) },
        leader: Some(NodeId(1)),
        term: 4,
        quorum: QuorumStatus {
            voters: vec![NodeId(1), NodeId(6), NodeId(7)],
            reachable: vec![NodeId(1), NodeId(6)],
        },
        members: vec![
            MemberStatus { road: MemberPath::Own, last_heard_ms: None, ..controller(1, "ctl-1") },
            stage(2, "gpu-a", 0, "0-4"),
            stage(3, "gpu-b", 1, "5-9"),
            member(4, "gpu-c", false),
            member(5, "gpu-d", true),
            controller(6, "ctl-2"),
        ],
        job: Some(job()),
        plan: Some(plan),
        promise: Some(PromiseStatus::Kept { copies: 1 }),
        commit_latency: Some(CommitLatencyStatus { p50_ms: 0.8, max_ms: 6.5, appends: 256 }),
        verdict_wait: Some(VerdictWait { p50_ms: 1.2, max_ms: 14.0, steps: 64 }),
        pace: Some(pace()),
        failures: vec![failure],
        checkpoints: vec![checkpoint(1100), checkpoint(1200)],
        counters: BTreeMap::from([("frames_refused".to_owned(), 3), ("dropped".to_owned(), 0)]),
    }
}

/// The requests that a scripted cluster received.
pub type RecordedRequests = Rc<RefCell<Vec<ApiRequest>>>;

/// A client of a cluster that gives these answers, one after the other.
pub fn scripted(
    answers: Vec<Result<ApiAnswer, ClientError>>,
) -> (ApiClient<'static>, RecordedRequests) {
    let requests = RecordedRequests::default();
    let mut answers = answers.into_iter();
    let recorded = requests.clone();
    let exchange = move |_: &[String], message: &[u8]| {
        recorded.borrow_mut().push(decode_request(message).expect("a request"));
        let answer = answers.next().expect("no more requests")?;
        Ok(encode_answer(&answer).expect("small"))
    };
    (ApiClient::new(vec!["a:7000".to_owned()], Box::new(exchange)), requests)
}
