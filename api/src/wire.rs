//! Encoding of API requests and answers as bytes.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::answer::{ApiAnswer, BackupPiece, LayerPiece, TracePiece};
use super::request::ApiRequest;
use super::{ANSWER_HEAD_BYTES_MAX, PIECE_BYTES_MAX, REQUEST_HEAD_BYTES_MAX};

/// The first bytes of every message: the number is that of the form.
const MAGIC: [u8; 4] = *b"zbe1";
/// Bytes before the head.
const PREFIX_BYTES: usize = 8;

/// Why bytes are no message.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// They do not begin as a message does.
    #[error("no message of this version: it begins with {found:02x?}, expected {MAGIC:02x?}")]
    Magic {
        /// The first bytes of the message.
        found: Vec<u8>,
    },
    /// The head is longer than allowed, or than there are bytes.
    #[error("a head of {found} bytes, at most {max}")]
    Head {
        /// Its length as announced.
        found: usize,
        /// Bytes there may be.
        max: usize,
    },
    /// The body is too long.
    #[error("a body of {found} bytes, at most {PIECE_BYTES_MAX}")]
    Body {
        /// Bytes that the body has.
        found: usize,
    },
    /// A message of a kind without a body has one.
    #[error("a body of {found} bytes, expected none")]
    BodyUnexpected {
        /// Bytes that the body has.
        found: usize,
    },
    /// The head is not of the expected form.
    #[error("the head cannot be read: {0}")]
    Json(#[from] serde_json::Error),
}

/// The request as bytes.
///
/// # Errors
/// If it is larger than a message may be.
pub fn encode_request(request: &ApiRequest) -> Result<Vec<u8>, WireError> {
    encode(request, request.body(), REQUEST_HEAD_BYTES_MAX)
}

/// The request that bytes are.
///
/// # Errors
/// If they are none.
pub fn decode_request(message: &[u8]) -> Result<ApiRequest, WireError> {
    let (mut request, body): (ApiRequest, _) = decode(message, REQUEST_HEAD_BYTES_MAX)?;
    attach(request.body_mut(), body)?;
    Ok(request)
}

/// The answer as bytes.
///
/// # Errors
/// If it is larger than a message may be.
pub fn encode_answer(answer: &ApiAnswer) -> Result<Vec<u8>, WireError> {
    encode(answer, answer.body(), ANSWER_HEAD_BYTES_MAX)
}

/// The answer that bytes are.
///
/// # Errors
/// If they are none.
pub fn decode_answer(message: &[u8]) -> Result<ApiAnswer, WireError> {
    let (mut answer, body): (ApiAnswer, _) = decode(message, ANSWER_HEAD_BYTES_MAX)?;
    attach(answer.body_mut(), body)?;
    Ok(answer)
}

fn encode(header: &impl Serialize, body: &[u8], head_max: usize) -> Result<Vec<u8>, WireError> {
    let header = serde_json::to_vec(header).expect("numbers, texts and lists are JSON");
    if header.len() > head_max {
        return Err(WireError::Head { found: header.len(), max: head_max });
    }
    if body.len() > PIECE_BYTES_MAX {
        return Err(WireError::Body { found: body.len() });
    }
    let mut message = Vec::with_capacity(PREFIX_BYTES + header.len() + body.len());
    message.extend(MAGIC);
    message.extend((header.len() as u32).to_le_bytes());
    message.extend(header);
    message.extend(body);
    Ok(message)
}

fn decode<T: DeserializeOwned>(message: &[u8], head_max: usize) -> Result<(T, &[u8]), WireError> {
    let Some((prefix, rest)) = message.split_at_checked(PREFIX_BYTES) else {
        return Err(WireError::Magic { found: message.to_vec() });
    };
    let (magic, length) = prefix.split_at(MAGIC.len());
    if magic != MAGIC {
        return Err(WireError::Magic { found: magic.to_vec() });
    }
    let length = u32::from_le_bytes(length.try_into().expect("four bytes")) as usize;
    let max = rest.len().min(head_max);
    if length > max {
        return Err(WireError::Head { found: length, max });
    }
    let (header, body) = rest.split_at(length);
    if body.len() > PIECE_BYTES_MAX {
        return Err(WireError::Body { found: body.len() });
    }
    Ok((serde_json::from_slice(header)?, body))
}

fn attach(attachment: Option<&mut Vec<u8>>, body: &[u8]) -> Result<(), WireError> {
    match attachment {
        Some(attachment) => *attachment = body.to_vec(),
        None if body.is_empty() => {}
        None => return Err(WireError::BodyUnexpected { found: body.len() }),
    }
    Ok(())
}

impl ApiRequest {
    fn body_mut(&mut self) -> Option<&mut Vec<u8>> {
        match self {
            Self::PutData { bytes, .. } => Some(bytes),
            Self::Status
            | Self::Events { .. }
            | Self::Logs { .. }
            | Self::TokenCreate(_)
            | Self::TokenList
            | Self::TokenRevoke { .. }
            | Self::NodeDrain { .. }
            | Self::NodeRemove { .. }
            | Self::Run { .. }
            | Self::RunContinue { .. }
            | Self::Pause
            | Self::Resume
            | Self::Stop
            | Self::RunList
            | Self::RunRemove { .. }
            | Self::CheckpointList { .. }
            | Self::CheckpointShow { .. }
            | Self::CheckpointVerify { .. }
            | Self::CheckpointRestore { .. }
            | Self::CheckpointCollect
            | Self::CheckpointExport { .. }
            | Self::CheckpointSubtree { .. }
            | Self::ClusterInfo
            | Self::Trace { .. }
            | Self::ClusterRotateCa { .. }
            | Self::ClusterBackup { .. } => None,
        }
    }

    fn body(&self) -> &[u8] {
        if let Self::PutData { bytes, .. } = self { bytes } else { &[] }
    }
}

impl ApiAnswer {
    fn body_mut(&mut self) -> Option<&mut Vec<u8>> {
        match self {
            Self::Layer(piece) => Some(&mut piece.bytes),
            Self::Backup(piece) => Some(&mut piece.bytes),
            Self::Trace(piece) => Some(&mut piece.bytes),
            Self::Status(_)
            | Self::Events(_)
            | Self::Logs(_)
            | Self::Token(_)
            | Self::Tokens(_)
            | Self::Done(_)
            | Self::Run(_)
            | Self::DataWanted(_)
            | Self::Job(_)
            | Self::Runs(_)
            | Self::Checkpoints(_)
            | Self::Checkpoint(_)
            | Self::Verified(_)
            | Self::Collected(_)
            | Self::Subtree(_)
            | Self::Cluster(_)
            | Self::Redirect { .. }
            | Self::NoQuorum { .. }
            | Self::Refused(_) => None,
        }
    }

    fn body(&self) -> &[u8] {
        if let Self::Layer(LayerPiece { bytes, .. })
        | Self::Backup(BackupPiece { bytes, .. })
        | Self::Trace(TracePiece { bytes, .. }) = self
        {
            bytes
        } else {
            &[]
        }
    }
}
