//! The texts that people write, type and request, and the messages between nodes beside the
//! protocol.

use std::fmt::Debug;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use zbelastic_api::{decode_answer, decode_request, encode_answer, encode_request};
use zbelastic_cli::args::{AddressList, HostPort};
use zbelastic_config::{ConfigValue, NODES_MAX, load_document, parse_injections, read_nodes};
use zbelastic_consensus::codec::{decode as decode_form, encode as encode_form};
use zbelastic_machine::{DeviceList, DeviceSelector};
use zbelastic_node::cluster::recovery::CheckpointDocument;
use zbelastic_node_folder::NodeDataFolder;
use zbelastic_node_folder::node_record::NodeRecord;
use zbelastic_preemption::{MetadataUrl, NoticeSource};
use zbelastic_transport::{FrameClass, FramePart, ReceivedFrame};
use zbelastic_wire::document::{DataName, JobDocument};
use zbelastic_wire::frames::{FrameAssembly, IncomingFrame, incoming};
use zbelastic_wire::{BulkKey, NodeAnswer, NodeMessage, NodeRequest, decode, encode};
use zbelastic_wording::parse_duration;

use super::transport::SENDER;
use super::{any, file, folder};
use crate::DecodeOutcome;

/// Floats of one input's frames.
const FLOATS_MAX: usize = 64;

/// A request is written as bytes that are read as it.
pub fn api_requests(bytes: &[u8]) -> DecodeOutcome {
    let Ok(request) = decode_request(bytes) else { return DecodeOutcome::Refused };
    let Ok(again) = encode_request(&request) else { return DecodeOutcome::Refused };
    assert_eq!(
        format!("{:?}", decode_request(&again).expect("it reads what it wrote")),
        format!("{request:?}")
    );
    DecodeOutcome::Accepted
}

/// The same for the answers of the API.
pub fn api_answers(bytes: &[u8]) -> DecodeOutcome {
    let Ok(answer) = decode_answer(bytes) else { return DecodeOutcome::Refused };
    let Ok(again) = encode_answer(&answer) else { return DecodeOutcome::Refused };
    assert_eq!(
        format!("{:?}", decode_answer(&again).expect("it reads what it wrote")),
        format!("{answer:?}")
    );
    DecodeOutcome::Accepted
}

fn check_decoded<T: Serialize + DeserializeOwned + Debug>(bytes: &[u8]) -> DecodeOutcome {
    let Ok(value) = decode::<T>(bytes) else { return DecodeOutcome::Refused };
    let again = encode(&value);
    let read: T = decode(&again).expect("it reads what it wrote");
    assert_eq!(encode(&read), again, "{value:?}");
    DecodeOutcome::Accepted
}

/// A message between nodes that is read survives being written and read again.
pub fn node_messages(bytes: &[u8]) -> DecodeOutcome {
    let request = NodeRequest::decode(bytes);
    if let Some(request) = &request {
        assert_eq!(NodeRequest::decode(&request.encode()).as_ref(), Some(request));
    }
    any([
        DecodeOutcome::of(request.is_some()),
        check_decoded::<NodeMessage>(bytes),
        check_decoded::<NodeAnswer>(bytes),
        check_decoded::<BulkKey>(bytes),
    ])
}

/// A frame as a test writes it: its class, its meta, and the floats of each of its parts.
pub type FrameFields = (u32, Vec<u8>, Vec<Vec<f32>>);

/// Frames of one peer, in order: each is one of a worker's, a piece of one, or refused.
pub fn worker_frames(bytes: &[u8]) -> DecodeOutcome {
    let Ok(frames) = decode_form::<Vec<FrameFields>>(bytes, bytes.len()) else {
        return DecodeOutcome::Refused;
    };
    let mut assembly = FrameAssembly::default();
    let mut is_taken = false;
    for (class, meta, parts) in frames {
        let floats = |floats: Vec<f32>| {
            FramePart::from(floats.into_iter().take(FLOATS_MAX).collect::<Vec<_>>())
        };
        let parts = parts.into_iter().map(floats).collect();
        let frame = ReceivedFrame { from: SENDER, class: FrameClass(class), meta, parts };
        let mut longer = frame.clone();
        longer.meta.push(0);
        // A head that is cut short may be whole with another byte.
        let is_one = incoming(frame.clone()).is_ok();
        assert!(!is_one || incoming(longer).is_err(), "a head has an end and nothing behind it");
        match incoming(frame) {
            Ok(IncomingFrame::Whole(frame)) => {
                assert_eq!(frame.sender.node, SENDER.node);
                is_taken = true;
            }
            Ok(IncomingFrame::Piece(piece)) => drop(assembly.push(*piece)),
            Ok(IncomingFrame::Link(frame)) => assert_eq!(frame.sender.node, SENDER.node),
            Err(fault) => drop(fault.to_string()),
        }
    }
    DecodeOutcome::of(is_taken)
}

/// The document of a job is written as bytes that are read as it.
pub fn job_documents(bytes: &[u8]) -> DecodeOutcome {
    let Ok(document) = JobDocument::decode(bytes) else { return DecodeOutcome::Refused };
    let Ok(again) = document.encode() else { return DecodeOutcome::Refused };
    let read = JobDocument::decode(&again).expect("it reads what it wrote");
    assert_eq!(format!("{read:?}"), format!("{document:?}"));
    DecodeOutcome::Accepted
}

/// The document of a checkpoint is written as bytes that are read as it, and leads to a manifest of its version. The
/// right name is given to its job, which no mutation finds.
pub fn checkpoint_documents(bytes: &[u8]) -> DecodeOutcome {
    let Some(mut document) = CheckpointDocument::decode(bytes) else {
        return DecodeOutcome::Refused;
    };
    let again = encode_form(&document);
    let read = CheckpointDocument::decode(&again).expect("it reads what it wrote");
    assert_eq!(encode_form(&read), again);
    let spec = Arc::make_mut(&mut document.spec);
    spec.config = DataName::of(&spec.document).hash;
    let Some(manifest) = document.manifest() else { return DecodeOutcome::Refused };
    let version = manifest.version;
    assert_eq!((version.run, version.version), (document.spec.run, document.record.version));
    assert_eq!(manifest.layers.len(), document.record.layers.len());
    DecodeOutcome::Accepted
}

/// The effective configuration is one that leads to itself.
pub fn configurations(bytes: &[u8]) -> DecodeOutcome {
    let Ok(text) = std::str::from_utf8(bytes) else { return DecodeOutcome::Refused };
    // Nothing is read from this machine.
    if text.contains("from_hf") {
        return DecodeOutcome::Refused;
    }
    let Ok(loaded) = load_document("input", text) else { return DecodeOutcome::Refused };
    let effective = loaded.config.effective();
    let again = load_document("effective", &effective).expect("what is in force is legal");
    assert_eq!(again.config, loaded.config, "{effective}");
    DecodeOutcome::Accepted
}

/// A file of machines has as many as may be, each of them whole.
pub fn machines(bytes: &[u8]) -> DecodeOutcome {
    let Ok(found) = read_nodes(&file("nodes.toml", bytes)) else { return DecodeOutcome::Refused };
    assert!((1..=NODES_MAX).contains(&found.nodes.len()));
    DecodeOutcome::Accepted
}

/// The values of flags.
pub fn flags(bytes: &[u8]) -> DecodeOutcome {
    let Ok(text) = std::str::from_utf8(bytes) else { return DecodeOutcome::Refused };
    if let Ok(address) = HostPort::parse(text) {
        assert_eq!(HostPort::parse(&address.to_string()), Ok(address));
    }
    if let Ok(devices) = DeviceList::parse(text) {
        assert_eq!(DeviceList::parse(&devices.to_string()), Ok(devices));
    }
    let is_text = [
        HostPort::parse(text).is_ok(),
        AddressList::parse(text).is_ok(),
        DeviceSelector::parse(text).is_ok(),
        DeviceList::parse(text).is_ok(),
        parse_duration(text).is_ok(),
        MetadataUrl::parse(text).is_ok(),
        text.parse::<NoticeSource>().is_ok(),
        parse_injections(&[text.to_owned()]).is_ok(),
    ];
    let value = ConfigValue::parse(text);
    if let Ok(value @ (ConfigValue::Text(_) | ConfigValue::Whole(_) | ConfigValue::Flag(_))) =
        &value
    {
        assert_eq!(ConfigValue::parse(&value.to_string()).as_ref(), Ok(value));
    }
    DecodeOutcome::of(is_text.contains(&true) || value.is_ok())
}

/// The two files by which a node and an administrator know themselves.
pub fn node_files(bytes: &[u8]) -> DecodeOutcome {
    file("node.json", bytes);
    let root = folder();
    let record = NodeRecord::load(&root);
    if let Ok(Some(record)) = &record {
        record.save(&root).expect("the folder can be written");
        assert_eq!(NodeRecord::load(&root).expect("it reads what it wrote").as_ref(), Some(record));
    }
    let folder = NodeDataFolder::new(root.join("admin-root"));
    std::fs::create_dir_all(folder.admin()).expect("a folder can be made");
    super::write(&folder.admin().join("cluster.json"), bytes);
    any([DecodeOutcome::of(record.is_ok()), DecodeOutcome::of(folder.read_admin().is_ok())])
}
