//! Messages: of the transport, of nodes, of people.

use std::sync::Arc;

use zbelastic_api::{
    ApiAnswer, ApiRefusal, ApiRequest, HexDigest, TokenRequest, TokenRole, encode_answer,
    encode_request,
};
use zbelastic_consensus::codec::encode;
use zbelastic_consensus::member::Holder;
use zbelastic_consensus::validation::Turn;
use zbelastic_identity::{
    ClusterAuthority, ControllerContact, JoinAnswer, JoinGrant, JoinRefusal, JoinRequest,
    JoinToken, JoinTokenId, NodeKey, PeerRole, SpkiPin, UnixSeconds,
};
use zbelastic_schedule::{Flow, Pass};
use zbelastic_trainer::elastic::LayerGradient;
use zbelastic_trainer::runtime::{PeerBody, PeerFrame};
use zbelastic_trainer::stage::{Frame, PartialExchange, PartialGradient, PassMode};
use zbelastic_types::{
    Attempt, ChunkIndex, ClusterId, Digest, Generation, Incarnation, LayerId, NodeId, RunId, Step,
};
use zbelastic_wire::document::DataName;
use zbelastic_wire::frames::{OutgoingMessage, outgoing};
use zbelastic_wire::{
    self as wire, BulkKey, CollectedSpace, FreedSpace, LayerMessage, NodeAnswer, NodeMessage,
    NodeRequest, PieceRef, StoreReferences,
};

use crate::targets::node::FrameFields;

/// Three measured steps, of which the one in the middle is whole, beside a planned one.
pub const LANE_TRACE: &str = r#"{"traceEvents":[
{"name":"process_name","ph":"M","pid":0,"tid":0,"args":{"name":"measured"}},
{"name":"process_name","ph":"M","pid":1,"tid":0,"args":{"name":"planned: zb-h1"}},
{"name":"F0 step 4","cat":"forward","ph":"X","pid":0,"tid":0,"ts":400,"dur":5},
{"name":"F0 step 5","cat":"forward","ph":"X","pid":0,"tid":0,"ts":500.25,"dur":5},
{"name":"gate of step 5","cat":"gate","ph":"X","pid":0,"tid":1,"ts":507,"dur":1e-3},
{"name":"F0 step 6","cat":"forward","ph":"X","pid":0,"tid":0,"ts":600,"dur":5},
{"name":"F0 step 1","cat":"forward","ph":"X","pid":1,"tid":2,"ts":50,"dur":5}]}"#;

const NOW: UnixSeconds = UnixSeconds(1_795_262_463);

fn frame(class: u32, meta: &[u8], floats: &[f32]) -> Vec<u8> {
    let body: Vec<u8> = floats.iter().flat_map(|x| x.to_le_bytes()).collect();
    let meta_length = (meta.len() as u32).to_le_bytes();
    let length = (body.len() as u64).to_le_bytes();
    [&class.to_le_bytes()[..], &meta_length, &length, meta, &body].concat()
}

pub fn frames() -> Vec<Vec<u8>> {
    let known = [frame(1, b"meta", &[]), frame(2, b"", &[1.0, 2.0, f32::NAN])].concat();
    vec![known, [frame(9, b"unknown", &[0.0; 5]), frame(3, b"m", &[1.0; 3])].concat()]
}

fn control_frame(kind: u8, length: u64, bytes: &[u8]) -> Vec<u8> {
    [&[kind], &length.to_le_bytes()[..], bytes].concat()
}

pub fn control() -> Vec<Vec<u8>> {
    let long = [control_frame(1, 5, b""), control_frame(2, 2, b"he"), control_frame(0, 3, b"now")];
    vec![control_frame(0, 3, b"now"), [long.concat(), control_frame(2, 3, b"llo")].concat()]
}

/// Without the same-host part, and with it and an offer.
pub fn hellos() -> Vec<Vec<u8>> {
    let head = |body: &[u8]| [&[2, 0, 2, 0], &(body.len() as u16).to_le_bytes()[..], body].concat();
    let offer = local_offer();
    let same_host = [&[3, 5, 9, 1, 4][..], b"boot", &[1, offer.len() as u8], &offer].concat();
    vec![head(&[3, 5, 9, 0, 0]), head(&same_host)]
}

pub fn local_offer() -> Vec<u8> {
    [&[4][..], b"boot", &[9], b"/tmp/sock", &[7; 32]].concat()
}

fn question(key: &[u8], first: u64, count: u64) -> Vec<u8> {
    let length = (key.len() as u16).to_le_bytes();
    [&length[..], key, &first.to_le_bytes(), &count.to_le_bytes()].concat()
}

pub fn bulk_questions() -> Vec<Vec<u8>> {
    let others = [question(b"none", 0, 1), question(b"body", 1, 1), question(b"body", 0, 1)];
    vec![question(b"body", 0, 1), others.concat()]
}

fn made() -> ClusterAuthority {
    ClusterAuthority::create(ClusterId(1), NOW).expect("an authority can be made")
}

pub fn join_request() -> Vec<u8> {
    let request = signing_request();
    let token = JoinTokenId(7);
    let role = PeerRole::Worker;
    let name = "gpu-7";
    let addresses = vec![([10, 0, 0, 4], 7000).into()];
    JoinRequest { token, role, name, request: &request, proof: [7; 32], clock: NOW, addresses }
        .encode()
}

pub fn join_answers() -> Vec<Vec<u8>> {
    let authority = made();
    let issued =
        authority.issue(&NodeKey::generate().requested(), PeerRole::Controller, NodeId(2), NOW);
    let controllers =
        vec![ControllerContact { node: NodeId(1), addresses: vec![([10, 0, 0, 1], 7000).into()] }];
    let issued = issued.expect("it is good now");
    let grant =
        JoinGrant::new(ClusterId(1), NodeId(2), &issued, controllers, Some(authority.secret()));
    let refusals =
        [JoinRefusal::NotReady, JoinRefusal::TokenExpired { token: JoinTokenId(7), at: NOW }];
    let refusals = refusals.map(JoinAnswer::Refused);
    [JoinAnswer::Granted(grant)].iter().chain(&refusals).map(JoinAnswer::encode).collect()
}

/// A token, and one without its checksum.
pub fn tokens() -> Vec<Vec<u8>> {
    let token = JoinToken::create(PeerRole::Worker, SpkiPin([7; 32])).reveal();
    let body = token.rsplit_once('.').map(|(body, _)| body.to_owned()).expect("a checksum");
    vec![token.into_bytes(), body.into_bytes()]
}

pub fn certificates() -> Vec<Vec<u8>> {
    let roles = [PeerRole::Controller, PeerRole::Worker];
    let credentials =
        roles.map(|role| made().credentials(role, NodeId(2), NOW).expect("it is good"));
    credentials.iter().map(|credentials| credentials.chain()[0].to_vec()).collect()
}

pub fn signing_request() -> Vec<u8> {
    NodeKey::generate().signing_request()
}

/// Without the version that is in front of messages.
pub fn authority() -> Vec<u8> {
    encode(&made().secret())[1..].to_vec()
}

pub fn identity_folder() -> Vec<u8> {
    let folder = tempfile::tempdir().expect("there is a folder for temporary files");
    let credentials = made().credentials(PeerRole::Worker, NodeId(2), NOW).expect("it is good");
    // It is made with the rights that it must have.
    let folder = folder.path().join("identity");
    credentials.save(&folder).expect("the folder can be written");
    let file = |name| std::fs::read(folder.join(name)).expect("it was written");
    ["key.pem", "ca.pem", "cert.pem"].map(file).join(&0)
}

pub fn api_requests() -> Vec<Vec<u8>> {
    let hash = HexDigest(Digest([7; 32]));
    let token =
        TokenRequest { role: TokenRole::Worker, ttl_s: 3600, uses: 2, ephemeral: true, note: None };
    let requests = [
        ApiRequest::Status,
        ApiRequest::Events { from_sequence: 7, max: 100 },
        ApiRequest::TokenCreate(token),
        ApiRequest::NodeRemove { node: NodeId(2), force: true },
        ApiRequest::PutData { hash, offset: 5, bytes: b"text".to_vec() },
        ApiRequest::CheckpointList { run: Some("tiny".to_owned()) },
    ];
    requests.iter().map(|request| encode_request(request).expect("it is short")).collect()
}

pub fn api_answers() -> Vec<Vec<u8>> {
    let answers = [
        ApiAnswer::Tokens(Vec::new()),
        ApiAnswer::Redirect { addresses: vec!["10.0.0.1:7000".to_owned()] },
        ApiAnswer::Refused(ApiRefusal::Config { problems: vec!["steps".to_owned()] }),
    ];
    answers.iter().map(|answer| encode_answer(answer).expect("it is short")).collect()
}

fn piece() -> PieceRef {
    let run = RunId(1);
    let version = Step(8);
    let layer = LayerId(2);
    PieceRef { run, version, layer, digest: Digest([5; 32]), length: 57 }
}

const SENDER: Holder = Holder { node: NodeId(2), incarnation: Incarnation(3) };

pub fn node_messages() -> Vec<Vec<u8>> {
    let generation = Generation(1);
    let sender = SENDER;
    let layer = LayerId(2);
    let offer = LayerMessage::Offer { generation, sender, layer, version: Step(8), open: None };
    let referred = StoreReferences { versions: Vec::new(), data: Some(vec![Digest([7; 32])]) };
    let messages = [
        NodeMessage::Layer(offer),
        NodeMessage::Keep(piece()),
        NodeMessage::Collect(referred.clone()),
        NodeMessage::KeepData(DataName::of(b"text")),
        NodeMessage::Evaluated { steps_done: 8, loss: 2.5 },
        NodeMessage::Working { done: 70_000, activity: None },
    ];
    let answer = NodeAnswer::Collected(FreedSpace { chunks: 1, bytes: 57 });
    let with_asides = NodeAnswer::CollectedWithAsides(CollectedSpace::default());
    let more = [
        NodeRequest::Collect(referred.clone()).encode(),
        NodeRequest::CollectWithAsides(referred).encode(),
        wire::encode(&answer),
        wire::encode(&with_asides),
        wire::encode(&BulkKey::Piece(piece())),
    ];
    messages.iter().map(wire::encode).chain(more).collect()
}

/// A boundary tensor, a gradient that is followed, and a part of one.
pub fn worker_frames() -> Vec<u8> {
    let turn = Turn { generation: Generation(1), attempt: Attempt(0), step: Step(3) };
    let tensor = vec![1.0, 2.0].into();
    let mode = PassMode::Training;
    let flow = Flow::Forward;
    let pass = Pass::sliced(1, 0, 0);
    let g = vec![1.0, 2.0, 3.0].into();
    let gradient = Arc::new(LayerGradient { layer: LayerId(2), turn, g });
    let partial = PartialGradient {
        turn,
        chunk: ChunkIndex(1),
        exchange: PartialExchange::FIRST,
        floats: vec![1.0],
        losses: vec![2.5],
    };
    let bodies = [
        PeerBody::Frame(Frame { turn, mode, flow, pass, tensor }),
        PeerBody::StandbyUpdate { turn, before: None, gradients: vec![gradient] },
        PeerBody::Partial(partial),
    ];
    let forms = bodies.into_iter().flat_map(|body| {
        let frame = PeerFrame { generation: Generation(1), sender: SENDER, body };
        let OutgoingMessage::Frames(frames) = outgoing(frame).expect("it is short") else {
            unreachable!("no layer travels in frames")
        };
        frames.into_iter().map(|frame| {
            let parts = frame.parts().into_iter().map(<[f32]>::to_vec).collect();
            (frame.class().0, frame.meta().to_vec(), parts)
        })
    });
    encode(&forms.collect::<Vec<FrameFields>>())
}

/// Requests for the page, as browsers, load balancers and scrapers send them.
pub fn page_requests() -> Vec<Vec<u8>> {
    let form = "token=zbe1-0123456789abcdef";
    let log_in = format!(
        "POST /login HTTP/1.1\r\nHost: a\r\nSec-Fetch-Site: same-origin\r\n\
         Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{form}",
        form.len()
    );
    let chunked = format!(
        "POST /login HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
         {:x}\r\n{form}\r\n0\r\n\r\n",
        form.len()
    );
    super::texts(&[
        "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\nHEAD /style.css HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
        "GET /events HTTP/1.1\r\nHost: a\r\nCookie: a=b; zbelastic_session=00ff\r\n\r\n",
        "GET /metrics HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer zbe1-0123\r\n\r\n",
        &log_in,
        &chunked,
    ])
}
