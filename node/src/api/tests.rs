//! Messages, refusals and the client.

use zbelastic_types::{Bytes, Digest, NodeId};

use super::*;

fn digest(byte: u8) -> HexDigest {
    HexDigest(Digest([byte; 32]))
}

fn requests() -> Vec<Request> {
    let corpus = CorpusDescription { hash: digest(1), length: Bytes(9) };
    let (id, document) = ("ab12".to_owned(), "[train]\n".to_owned());
    let token = TokenRequest {
        role: MemberRole::Worker,
        ttl_s: 60,
        uses: 1,
        ephemeral: true,
        note: Some("rack 2".to_owned()),
    };
    vec![
        Request::Status,
        Request::Events { from_sequence: 7, max: 3 },
        Request::Logs { node: Some(NodeId(2)), from_sequence: 0, max: 1 },
        Request::TokenCreate(token),
        Request::TokenList,
        Request::TokenRevoke { id, with_nodes: false },
        Request::NodeDrain { node: NodeId(3) },
        Request::NodeRemove { node: NodeId(3), force: true },
        Request::Run { document, corpus },
        Request::PutData { hash: digest(1), offset: 4, bytes: vec![0, 1, 255] },
        Request::Pause,
        Request::Resume,
        Request::Stop,
        Request::CheckpointList,
        Request::CheckpointShow { step: 100 },
        Request::CheckpointVerify { step: 100, layer: 2 },
        Request::CheckpointRestore { step: 100 },
        Request::CheckpointCollect,
        Request::CheckpointExport { step: 100, layer: 2, offset: 0 },
        Request::ClusterInfo,
        Request::ClusterBackup { digest: None, offset: 0 },
    ]
}

#[test]
fn requests_are_read_back_as_they_were() {
    for request in requests() {
        let message = encode_request(&request).expect("small");
        assert_eq!(decode_request(&message).expect("a request"), request);
        let name = format!("\"request\":\"{}\"", request.name());
        assert!(String::from_utf8_lossy(&message).contains(&name), "{request:?}");
    }
}
