//! Messages, refusals and the client.

use std::cell::RefCell;

use serde_json::{Value, json};
use zbelastic_types::{Bytes, NodeId};
use zbelastic_wording::{CommandFailure, FailureCode};

use super::client::{ApiClient, ApiError, ClientError, REDIRECTS_MAX};
use super::sample::{checkpoint, digest, job, scripted, status, token};
use super::*;

fn requests() -> Vec<ApiRequest> {
    let corpus = CorpusDescription { hash: digest(1), length: Bytes(9) };
    let id = "ab12".to_owned();
    let document = "[train]\n".to_owned();
    let token = TokenRequest {
        role: TokenRole::Worker,
        ttl_s: 60,
        uses: 1,
        ephemeral: true,
        note: Some("rack 2".to_owned()),
    };
    vec![
        ApiRequest::Status,
        ApiRequest::Events { from_sequence: 7, max: 3 },
        ApiRequest::Logs { node: Some(NodeId(2)), from_sequence: 0, max: 1 },
        ApiRequest::TokenCreate(token),
        ApiRequest::TokenList,
        ApiRequest::TokenRevoke { id, with_nodes: false },
        ApiRequest::NodeDrain { node: NodeId(3) },
        ApiRequest::NodeRemove { node: NodeId(3), force: true },
        ApiRequest::Run {
            document,
            corpus,
            weights: Some(corpus),
            name: None,
            from: Some("baseline".to_owned()),
        },
        ApiRequest::RunContinue {
            from: "baseline".to_owned(),
            changes: "train.steps = 9\n".to_owned(),
            name: None,
        },
        ApiRequest::PutData { hash: digest(1), offset: 4, bytes: vec![0, 1, 255] },
        ApiRequest::Pause,
        ApiRequest::Resume,
        ApiRequest::Stop,
        ApiRequest::RunList,
        ApiRequest::RunRemove { name: "baseline".to_owned(), run: 3 },
        ApiRequest::CheckpointList { run: None },
        ApiRequest::CheckpointShow { run: Some("baseline".to_owned()), step: 100 },
        ApiRequest::CheckpointVerify { run: None, step: 100, layer: 2 },
        ApiRequest::CheckpointRestore { step: 100 },
        ApiRequest::CheckpointCollect,
        ApiRequest::CheckpointExport { run: None, step: 100, layer: 2, offset: 0 },
        ApiRequest::CheckpointSubtree { run: None, step: 100, layer: 2, subtree: 3 },
        ApiRequest::Trace { offset: 7, from: 30 },
        ApiRequest::ClusterInfo,
        ApiRequest::ClusterRotateCa { force: true },
        ApiRequest::ClusterBackup { digest: None, offset: 0 },
    ]
}

fn events() -> Vec<EventKind> {
    let name = "gpu-c".to_owned();
    let reason = "connection closed".to_owned();
    vec![
        EventKind::Lost { node: NodeId(4), name, reason: reason.clone(), detected_ms: Some(0.4) },
        EventKind::Plan {
            generation: 8,
            stages: vec![NodeId(2), NodeId(3)],
            replicas: 1,
            rerouted: false,
            schedule: "zb-h1".to_owned(),
            window: 1,
            reason: reason.clone(),
        },
        EventKind::Running {
            generation: 8,
            layers_moved: 21,
            bytes_moved: Bytes(512 << 20),
            bytes_floor: Bytes(512 << 20),
            moved_ms: Some(412.5),
            pause_ms: Some(1712.0),
        },
        EventKind::Rollback { step: 7, verdict: "replay".to_owned(), reason },
        EventKind::RunStarted { config: digest(2), step: 0, step_count: 9 },
        EventKind::Done { step: 9, digest: Some(digest(3)) },
        EventKind::QuorumLost,
    ]
}

fn answers() -> Vec<ApiAnswer> {
    let numbered = events().into_iter().zip(3..);
    let events = numbered.map(|(kind, sequence)| ClusterEvent::new(sequence, 5, kind)).collect();
    let state = CopyState::Damaged { what: "chunk 3".to_owned() };
    let copies = vec![LayerCopyStatus { node: NodeId(2), state }];
    let line = LogLine { sequence: 0, at_ms: 1, text: "a".to_owned() };
    let refusal = ApiRefusal::WrongState(WrongState::NoRun { was: RunAbsence::Never });
    let disposition = RunDisposition::Attached;
    vec![
        ApiAnswer::Status(Box::new(status())),
        ApiAnswer::Events(EventPage { log: 9, first_sequence: 3, next_sequence: 10, events }),
        ApiAnswer::Logs(LogPage {
            node: NodeId(1),
            first_sequence: 0,
            next_sequence: 1,
            lines: vec![line],
        }),
        ApiAnswer::Tokens(vec![token("7f3a")]),
        ApiAnswer::Run(RunAccepted { disposition, events_from: 3, job: job() }),
        ApiAnswer::DataWanted(UploadProgress { hash: digest(1), held: 7 }),
        ApiAnswer::Job(Box::new(job())),
        ApiAnswer::Checkpoints(vec![checkpoint(100)]),
        ApiAnswer::Verified(LayerVerified { step: 100, layer: 2, copies }),
        ApiAnswer::Layer(LayerPiece { total: 9, offset: 0, bytes: vec![1, 2, 255] }),
        ApiAnswer::Subtree(digest(4)),
        ApiAnswer::Trace(TracePiece { total: 9, offset: 7, bytes: vec![1, 2] }),
        ApiAnswer::Backup(BackupPiece { digest: digest(1), total: 9, offset: 3, bytes: vec![7] }),
        ApiAnswer::Redirect { addresses: vec!["b:7000".to_owned()] },
        ApiAnswer::NoQuorum { since_ms: 7, missing: Vec::new() },
        ApiAnswer::Refused(refusal),
    ]
}

#[test]
fn messages_are_read_back_as_they_were() {
    for request in requests() {
        let message = encode_request(&request).expect("small");
        assert_eq!(decode_request(&message).expect("a request"), request);
        let name = format!("\"request\":\"{}\"", request.name());
        assert!(String::from_utf8_lossy(&message).contains(&name), "{request:?}");
    }
    for answer in answers() {
        let message = encode_answer(&answer).expect("small");
        assert_eq!(decode_answer(&message).expect("an answer"), answer);
        let name = format!("\"answer\":\"{}\"", answer.name());
        assert!(String::from_utf8_lossy(&message).contains(&name), "{answer:?}");
    }
}

#[test]
fn every_cut_and_every_flipped_length_is_refused_without_a_panic() {
    let request = ApiRequest::PutData { hash: digest(1), offset: 4, bytes: vec![9; 5] };
    let message = encode_request(&request).expect("small");
    let body = message.len() - 5;
    for end in 0..body {
        assert!(decode_request(&message[..end]).is_err(), "cut to {end} bytes");
    }
    for at in 0..8 {
        let mut flipped = message.clone();
        flipped[at] ^= 0x80;
        assert!(decode_request(&flipped).is_err(), "byte {at} flipped");
    }
}

#[test]
fn heads_and_bodies_have_limits_on_both_ends() {
    let piece = |length| ApiRequest::PutData { hash: digest(1), offset: 0, bytes: vec![0; length] };
    let largest = encode_request(&piece(PIECE_BYTES_MAX)).expect("as large as it may be");
    assert!(largest.len() <= REQUEST_BYTES_MAX);
    assert!(decode_request(&largest).is_ok());
    let larger: Vec<u8> = largest.iter().copied().chain([0]).collect();
    let refused = decode_request(&larger);
    assert!(matches!(refused, Err(WireError::Body { found }) if found == PIECE_BYTES_MAX + 1));
    let refused = encode_request(&piece(PIECE_BYTES_MAX + 1));
    assert!(matches!(refused, Err(WireError::Body { .. })));
    let corpus = CorpusDescription { hash: digest(1), length: Bytes(9) };
    let run = |length| ApiRequest::Run {
        document: "a".repeat(length),
        corpus,
        weights: None,
        name: None,
        from: None,
    };
    assert!(encode_request(&run(DOCUMENT_BYTES_MAX)).is_ok());
    let document = "\"".repeat(DOCUMENT_BYTES_MAX);
    let quotes = ApiRequest::Run { document, corpus, weights: None, name: None, from: None };
    assert!(encode_request(&quotes).is_ok());
    let refused = encode_request(&run(REQUEST_HEAD_BYTES_MAX));
    assert!(matches!(refused, Err(WireError::Head { .. })));
    // A head that announces more than there may be is refused before it is looked for.
    let long = |head_max: usize| {
        let announced = (head_max as u32 + 1).to_le_bytes();
        [b"zbe1".as_slice(), &announced, &vec![b' '; head_max + 2]].concat()
    };
    let refused = decode_request(&long(REQUEST_HEAD_BYTES_MAX));
    assert!(matches!(refused, Err(WireError::Head { max: REQUEST_HEAD_BYTES_MAX, .. })));
    let refused = decode_answer(&long(ANSWER_HEAD_BYTES_MAX));
    assert!(matches!(refused, Err(WireError::Head { max: ANSWER_HEAD_BYTES_MAX, .. })));
    let mut status = encode_request(&ApiRequest::Status).expect("small");
    status.push(0);
    assert!(matches!(decode_request(&status), Err(WireError::BodyUnexpected { found: 1 })));
}

/// A status that is as large as statuses get.
#[test]
fn the_fullest_status_fits_a_head() {
    let mut full = status();
    let name = "n".repeat(NAME_BYTES_MAX);
    let mut member = full.members[1].clone();
    member.name.clone_from(&name);
    member.addresses = vec!["a".repeat(60); ADDRESSES_MAX];
    full.members = vec![member; 128];
    full.failures = vec![full.failures[0].clone(); FAILURES_MAX];
    full.checkpoints = (0..16).map(checkpoint).collect();
    full.checkpoints.iter_mut().for_each(|one| one.holders = (0..128).map(NodeId).collect());
    let message = encode_answer(&ApiAnswer::Status(Box::new(full))).expect("it fits");
    assert!(message.len() < ANSWER_HEAD_BYTES_MAX / 4, "{} bytes", message.len());
}

#[test]
fn field_names_are_a_contract() {
    let event = ClusterEvent::new(3, 5, events().remove(0));
    let expected = json!({
        "sequence": 3,
        "at_ms": 5,
        "event": "lost",
        "node": 4,
        "name": "gpu-c",
        "reason": "connection closed",
        "detected_ms": 0.4,
        "text": "node gpu-c (4) lost (connection closed, 0.0 s)",
    });
    assert_eq!(serde_json::to_value(&event).expect("JSON"), expected);
    let value = serde_json::to_value(status()).expect("JSON");
    let keys = |value: &Value| -> Vec<String> {
        value.as_object().expect("an object").keys().cloned().collect()
    };
    let page = include_str!("../../docs/cli.md");
    let parts = [&value, &value["members"][0], &value["job"], &value["plan"]];
    let more = [&value["failures"][0], &value["checkpoints"][0], &value["quorum"]];
    for key in parts.into_iter().chain(more).flat_map(keys) {
        assert!(page.contains(&format!("`{key}`")), "docs/cli.md says nothing about {key}");
    }
    for (kind, name) in [("lost", "lost"), ("plan", "plan"), ("step", "step")] {
        assert!(page.contains(&format!("`{name}`")), "docs/cli.md says nothing about {kind}");
    }
}

#[test]
fn an_event_of_a_later_version_is_shown_by_its_text() {
    let line = r#"{"sequence":1,"at_ms":2,"event":"eclipse","node":3,"text":"it got dark"}"#;
    let event: ClusterEvent = serde_json::from_str(line).expect("an event");
    assert_eq!((event.kind, event.text.as_str()), (EventKind::Other, "it got dark"));
}

#[test]
fn the_reason_why_a_node_drains_may_be_missing_and_is_in_the_text_otherwise() {
    let line =
        r#"{"sequence":1,"at_ms":2,"event":"draining","node":3,"name":"a","text":"it goes"}"#;
    let event: ClusterEvent = serde_json::from_str(line).expect("an event of an earlier version");
    let draining = || event.kind.clone();
    assert_eq!(draining().to_string(), "node a (3) is draining");
    let text = serde_json::to_string(&event).expect("JSON");
    assert!(!text.contains("reason"), "{text}");
    let reason_of = |node: NodeId| (node == NodeId(3)).then(|| "by order".to_owned());
    let text = draining().with_drain_reason(reason_of).to_string();
    assert_eq!(text, "node a (3) is draining: by order");
    assert_eq!(EventKind::QuorumHeld.with_drain_reason(reason_of), EventKind::QuorumHeld);
}

#[test]
fn digests_are_64_letters() {
    let text = digest(0xab).to_string();
    assert_eq!(HexDigest::parse(&text), Some(digest(0xab)));
    for wrong in ["", "ab", &text[1..], &text.replace('a', "g"), &text.replace("ab", "é")] {
        assert_eq!(HexDigest::parse(wrong), None, "{wrong}");
    }
}

fn refusals() -> Vec<(ApiRefusal, FailureCode)> {
    let what = || "a\u{1b}b".to_owned();
    let state = |state| (ApiRefusal::WrongState(state), FailureCode::WrongState);
    let not_found = |thing| (ApiRefusal::NotFound { thing, name: what() }, FailureCode::NotFound);
    vec![
        (ApiRefusal::NotAuthorised { what: what() }, FailureCode::NotAuthorised),
        not_found(ResourceKind::Node),
        not_found(ResourceKind::Token),
        not_found(ResourceKind::Checkpoint),
        not_found(ResourceKind::Layer),
        not_found(ResourceKind::Backup),
        not_found(ResourceKind::Text),
        state(WrongState::NoRun { was: RunAbsence::Never }),
        state(WrongState::NoRun { was: RunAbsence::Stopped }),
        state(WrongState::OtherRun { config: digest(1), step: 1, step_count: 2 }),
        state(WrongState::NameTaken { name: what() }),
        state(WrongState::TooManyRuns { max: 32 }),
        state(WrongState::Kept { name: what() }),
        state(WrongState::Paused),
        state(WrongState::NotPaused),
        state(WrongState::Done),
        state(WrongState::Halted { reason: what() }),
        state(WrongState::NodeLive { name: what() }),
        state(WrongState::NodeGone { name: what(), reason: what() }),
        state(WrongState::LastController { name: what() }),
        state(WrongState::ControllerStays { name: what() }),
        state(WrongState::Draining { name: what() }),
        state(WrongState::TokenRevoked { id: what() }),
        state(WrongState::OutOfOrder { expected: 1, found: 2 }),
        state(WrongState::Starting),
        state(WrongState::OtherVersion { node: what() }),
        (ApiRefusal::Malformed { what: what() }, FailureCode::Usage),
        (ApiRefusal::Config { problems: vec![what(), what()] }, FailureCode::Usage),
        (ApiRefusal::TooLarge { what: what(), found: 2, max: 1 }, FailureCode::Usage),
        (ApiRefusal::OutOfResource { what: what() }, FailureCode::OutOfResource),
        (
            ApiRefusal::Damaged { what: what(), expected: digest(1), found: digest(2) },
            FailureCode::VerificationFailed,
        ),
        (ApiRefusal::Internal { what: what() }, FailureCode::Internal),
    ]
}

#[test]
fn every_refusal_has_its_exit_code_and_is_printed_without_control_characters() {
    for (refusal, code) in refusals() {
        let (mut client, _) = scripted(vec![Ok(ApiAnswer::Refused(refusal.clone()))]);
        let error = client.status().expect_err("refused");
        let ApiError::Refused(found) = &error else { panic!("{error}") };
        assert_eq!(*found, refusal);
        let failure = CommandFailure::from(error);
        assert_eq!(failure.code, code, "{refusal:?}");
        let text = failure.to_string();
        assert!(!text.contains('\u{1b}'), "{text:?}");
        assert!(text.len() > "error: ".len() + 10, "{text}");
    }
}

/// Whoever submits a run again means mostly to go on with it.
#[test]
fn a_run_in_the_way_is_gone_on_from_and_too_many_are_removed() {
    let text = |state| ApiRefusal::WrongState(state).failure().to_string();
    let name = || "tiny".to_owned();
    for state in [
        WrongState::OtherRun { config: digest(1), step: 1, step_count: 2 },
        WrongState::NameTaken { name: name() },
        WrongState::Kept { name: name() },
    ] {
        let text = text(state);
        assert!(text.contains("zbelastic run ") && text.contains("--from NAME"), "{text}");
    }
    let text = text(WrongState::TooManyRuns { max: 32 });
    assert!(text.contains("32 runs") && text.contains("zbelastic runs remove"), "{text}");
}

#[test]
fn what_fails_on_the_way_has_its_exit_code() {
    let reason = || "a\u{1b}b".to_owned();
    let check = |error: ClientError, code| {
        let (mut client, _) = scripted(vec![Err(error)]);
        let failure = CommandFailure::from(client.status().expect_err("no answer"));
        assert_eq!(failure.code, code);
        assert!(!failure.to_string().contains('\u{1b}'));
        assert!(failure.details.iter().any(|detail| detail.hint.is_some()), "{failure}");
    };
    let tried = vec![("a:7000".to_owned(), reason()), ("b:7000".to_owned(), reason())];
    check(ClientError::Unreachable { tried }, FailureCode::Unreachable);
    check(ClientError::Unreachable { tried: Vec::new() }, FailureCode::Unreachable);
    check(ClientError::Denied { reason: reason() }, FailureCode::NotAuthorised);
    let stranger = ClientError::Stranger { address: "a:7000".to_owned(), reason: reason() };
    check(stranger, FailureCode::Unreachable);
    check(ClientError::Broken { reason: reason() }, FailureCode::Unreachable);
    let answered = |answer| {
        let (mut client, _) = scripted(vec![Ok(answer)]);
        CommandFailure::from(client.status().expect_err("no good answer"))
    };
    let missing = vec!["ctl-\u{1b}3".to_owned()];
    let failure = answered(ApiAnswer::NoQuorum { since_ms: 1500, missing });
    assert_eq!(failure.code, FailureCode::NoQuorum);
    assert!(
        failure.to_string().contains("nothing received for 1.5 s from ctl-\\u{1b}3"),
        "{failure}"
    );
    let failure = answered(ApiAnswer::NoQuorum { since_ms: 0, missing: Vec::new() });
    assert_eq!(failure.code, FailureCode::NoQuorum);
    assert!(failure.to_string().contains("all controllers are reachable"), "{failure}");
    let failure = answered(ApiAnswer::Redirect { addresses: Vec::new() });
    assert_eq!(failure.code, FailureCode::NoQuorum);
    assert_eq!(answered(ApiAnswer::Tokens(Vec::new())).code, FailureCode::Internal);
}

/// Sends requests to a cluster in which each address answers as `answer` does, and returns where
/// each went.
fn send_through(
    answer: impl Fn(&str) -> ApiAnswer,
    request_count: usize,
) -> (Vec<Result<StatusReport, ApiError>>, Vec<Vec<String>>) {
    let sent_to = RefCell::new(Vec::new());
    let exchange = |addresses: &[String], _: &[u8]| {
        sent_to.borrow_mut().push(addresses.to_vec());
        Ok(encode_answer(&answer(&addresses[0])).expect("small"))
    };
    let mut client = ApiClient::new(vec!["a".into(), "b".into()], Box::new(exchange));
    let found = (0..request_count).map(|_| client.status()).collect();
    drop(client);
    (found, sent_to.into_inner())
}

#[test]
fn redirects_are_followed_and_remembered() {
    let answer = |address: &str| match address {
        "c" => ApiAnswer::Status(Box::new(status())),
        _ => ApiAnswer::Redirect { addresses: vec!["c".to_owned()] },
    };
    let (found, sent_to) = send_through(answer, 2);
    assert!(found.iter().all(Result::is_ok));
    assert_eq!(sent_to, [vec!["a", "b"], vec!["c"], vec!["c", "a", "b"]]);
}

#[test]
fn a_leader_that_is_gone_is_waited_for_until_there_is_another() {
    let sent_to = RefCell::new(Vec::new());
    let exchange = |addresses: &[String], _: &[u8]| {
        sent_to.borrow_mut().push(addresses[0].clone());
        let count = sent_to.borrow().len();
        let answer = match &*addresses[0] {
            "gone" => return Err(ClientError::Unreachable { tried: Vec::new() }),
            "next" => ApiAnswer::Status(Box::new(status())),
            _ if count < 4 => ApiAnswer::Redirect { addresses: vec!["gone".to_owned()] },
            _ => ApiAnswer::Redirect { addresses: vec!["next".to_owned()] },
        };
        Ok(encode_answer(&answer).expect("small"))
    };
    let mut client = ApiClient::new(vec!["a".into()], Box::new(exchange));
    assert!(client.status().is_ok());
    drop(client);
    assert_eq!(*sent_to.borrow(), ["a", "gone", "a", "gone", "a", "next"]);
    let nobody = |_: &[String], _: &[u8]| Err(ClientError::Unreachable { tried: Vec::new() });
    let mut client = ApiClient::new(vec!["a".into()], Box::new(nobody));
    let unreachable = ClientError::Unreachable { tried: Vec::new() };
    assert!(matches!(client.status(), Err(ApiError::Client(found)) if found == unreachable));
}

#[test]
fn redirects_in_a_circle_end() {
    let answer = |address: &str| {
        let next = if address == "b" { "c" } else { "b" };
        ApiAnswer::Redirect { addresses: vec![next.to_owned()] }
    };
    let (found, sent_to) = send_through(answer, 1);
    assert!(matches!(found[0], Err(ApiError::NoLeader { redirects: REDIRECTS_MAX })));
    assert_eq!(sent_to.len(), REDIRECTS_MAX + 1);
}

#[test]
fn a_redirect_to_everywhere_is_cut() {
    let answer = |address: &str| match address {
        "a" => ApiAnswer::Redirect { addresses: vec!["c".to_owned(); 1000] },
        _ => ApiAnswer::Status(Box::new(status())),
    };
    let (_, sent_to) = send_through(answer, 1);
    assert_eq!(sent_to[1].len(), ADDRESSES_MAX);
}
