//! The messages that a peer sends, and the texts that people copy from one machine to another.

use std::fmt::Debug;
use std::sync::Arc;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use zbelastic_identity::{JoinAnswer, JoinRequest, JoinToken, NodeName, PeerIdentity, PeerRole};
use zbelastic_transport::bulk::{BulkBody, serve};
use zbelastic_transport::control::ControlReader;
use zbelastic_transport::frame::{FrameArrival, FrameReader, META_BYTES_MAX, PartPool};
use zbelastic_transport::local::LocalOffer;
use zbelastic_transport::{
    CONTROL_MESSAGE_BYTES_MAX, FrameClass, FrameRules, PeerHello, ReceivedFrame, VERSIONS,
};
use zbelastic_types::{ClusterId, NodeId};

use super::{any, check_text};
use crate::DecodeOutcome;

/// Bytes of the one body that is held: one chunk.
const BODY_BYTES: usize = 10;
/// Bytes of an answer without its chunks, and of a chunk's checksum.
const ANSWER_BYTES: usize = 9;
const CHECKSUM_BYTES: usize = 4;
/// A question for a body without a key.
const QUESTION_BYTES: usize = 18;

thread_local! {
    static RUNTIME: Runtime =
        Builder::new_current_thread().enable_time().build().expect("a thread is all it takes");
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    RUNTIME.with(|runtime| runtime.block_on(work))
}

/// The sender of frames: node 2 may send class 1 without floats, 2 with three and 3 with one and
/// two.
pub(super) const SENDER: PeerIdentity =
    PeerIdentity { cluster: ClusterId(1), role: PeerRole::Worker, node: NodeId(2) };

fn rules() -> FrameRules {
    let mut rules = FrameRules::new();
    for (class, parts) in [(1, vec![]), (2, vec![3]), (3, vec![1, 2])] {
        rules.allow(SENDER.node, FrameClass(class), parts).expect("such frames are short");
    }
    rules
}

fn frame_bytes(frame: &ReceivedFrame) -> Vec<u8> {
    let floats: Vec<u8> =
        frame.parts.iter().flat_map(|part| part.iter().flat_map(|x| x.to_le_bytes())).collect();
    let mut bytes = frame.class.0.to_le_bytes().to_vec();
    bytes.extend((frame.meta.len() as u32).to_le_bytes());
    bytes.extend((floats.len() as u64).to_le_bytes());
    bytes.extend(&frame.meta);
    bytes.extend(floats);
    bytes
}

/// Frames are the bytes they came as; a stream that ends in order was read to its end.
pub fn frames(bytes: &[u8]) -> DecodeOutcome {
    const HEADER_BYTES: usize = 16;
    let (_rules, watched) = watch::channel(Arc::new(rules()));
    let mut reader = FrameReader::new(bytes, SENDER, watched, PartPool::default());
    let mut read = 0;
    loop {
        match block_on(reader.read()) {
            Ok(Some(FrameArrival::Frame(frame))) => {
                assert!(frame.meta.len() <= META_BYTES_MAX);
                let expected = frame_bytes(&frame);
                assert_eq!(bytes[read..][..expected.len()], expected);
                read += expected.len();
            }
            Ok(Some(FrameArrival::Skipped { bytes, .. })) => read += HEADER_BYTES + bytes as usize,
            Ok(None) => {
                assert_eq!(read, bytes.len());
                return DecodeOutcome::Accepted;
            }
            Err(_) => return DecodeOutcome::of(read > 0),
        }
    }
}

/// No message is empty or longer than any may be, and all together are no longer than the bytes
/// that came.
pub fn control(bytes: &[u8]) -> DecodeOutcome {
    let mut reader = ControlReader::new(bytes);
    let mut read = 0;
    while let Ok(Some(message)) = block_on(reader.read()) {
        assert!((1..=CONTROL_MESSAGE_BYTES_MAX).contains(&message.len()));
        read += message.len();
    }
    assert!(read <= bytes.len());
    DecodeOutcome::of(read > 0)
}

/// Bytes that are accepted as a hello are one.
pub fn hellos(mut bytes: &[u8]) -> DecodeOutcome {
    let Ok(hello) = block_on(PeerHello::read(VERSIONS, &mut bytes)) else {
        return DecodeOutcome::Refused;
    };
    let again = block_on(PeerHello::read(VERSIONS, &mut hello.encode().as_slice()));
    assert_eq!(again.expect("it reads what it wrote"), hello);
    DecodeOutcome::Accepted
}

/// A holder answers a question by no more than the body that it holds.
pub fn bulk_questions(bytes: &[u8]) -> DecodeOutcome {
    let body: Arc<dyn BulkBody> = Arc::new(vec![7_u8; BODY_BYTES]);
    let find = move |key: &[u8]| (key == b"body").then(|| Arc::clone(&body));
    let mut answers = Vec::new();
    let served = block_on(serve(bytes, &mut answers, find));
    let questions = bytes.len() / QUESTION_BYTES;
    assert!(answers.len() <= questions * (ANSWER_BYTES + CHECKSUM_BYTES + BODY_BYTES));
    DecodeOutcome::of(served.is_ok_and(|served| served.chunks > 0))
}

/// Bytes that are accepted as an offer are one.
pub fn local_offers(bytes: &[u8]) -> DecodeOutcome {
    let Ok(offer) = LocalOffer::decode(bytes) else { return DecodeOutcome::Refused };
    assert!(offer.path.is_absolute());
    check_same(&LocalOffer::decode(&offer.encode()), &offer);
    DecodeOutcome::Accepted
}

fn check_same<T: PartialEq + Debug, E: Debug>(again: &Result<T, E>, value: &T) {
    assert_eq!(again.as_ref().expect("it reads what it wrote"), value);
}

/// Text that is accepted as a request is one.
pub fn join_requests(bytes: &[u8]) -> DecodeOutcome {
    let Ok(request) = JoinRequest::decode(bytes) else { return DecodeOutcome::Refused };
    check_same(&JoinRequest::decode(&request.encode()), &request);
    DecodeOutcome::Accepted
}

/// Text that is accepted as an answer is one.
pub fn join_answers(bytes: &[u8]) -> DecodeOutcome {
    let Ok(answer) = JoinAnswer::decode(bytes) else { return DecodeOutcome::Refused };
    check_same(&JoinAnswer::decode(&answer.encode()), &answer);
    DecodeOutcome::Accepted
}

/// Tokens, and texts that a right checksum is put behind: no mutation finds it.
pub fn tokens(bytes: &[u8]) -> DecodeOutcome {
    let Ok(text) = std::str::from_utf8(bytes) else { return DecodeOutcome::Refused };
    let check = |text: &str| {
        let Ok(token) = JoinToken::parse(text) else { return DecodeOutcome::Refused };
        assert_eq!(token.reveal(), text.trim_ascii(), "a token is written in one way");
        DecodeOutcome::Accepted
    };
    let body = text.trim_ascii();
    any([check(text), check(&format!("{body}.{:08x}", crc32fast::hash(body.as_bytes())))])
}

/// Names that certificates and messages bear.
pub fn names(bytes: &[u8]) -> DecodeOutcome {
    let Ok(text) = std::str::from_utf8(bytes) else { return DecodeOutcome::Refused };
    any([
        check_text::<PeerIdentity>(text),
        check_text::<PeerRole>(text),
        check_text::<NodeName>(text),
    ])
}
