//! Submits a run: the configuration, and the text and the weights if they are not there yet.

use std::io::Write;

use zbelastic_api::client::{ApiClient, ApiError};
use zbelastic_api::{
    ApiAnswer, ApiRequest, CorpusDescription, HexDigest, PIECE_BYTES_MAX, RunAccepted,
    UploadProgress,
};
use zbelastic_types::Bytes;
use zbelastic_wording::{CommandFailure, FailureCode};

/// A run's configuration, text and weights, as they are submitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunSubmission {
    /// The effective configuration, as TOML.
    pub document: String,
    /// Hash and length of the text.
    pub corpus: CorpusDescription,
    /// Bytes of the text.
    pub text: Vec<u8>,
    /// The name and the bytes of the weights to begin with, if they are not drawn.
    pub weights: Option<(CorpusDescription, Vec<u8>)>,
    /// The name of the run, if one was given.
    pub name: Option<String>,
    /// The run that it goes on from, if it does.
    pub from: Option<String>,
}

/// Bytes that the cluster requests.
struct RequestedBlob<'a> {
    kind: &'static str,
    hash: HexDigest,
    bytes: &'a [u8],
}

impl RunSubmission {
    /// The weights if they have this hash, or else the text: the answer is checked against it.
    fn blob_of(&self, hash: HexDigest) -> RequestedBlob<'_> {
        match &self.weights {
            Some((name, bytes)) if name.hash == hash => {
                RequestedBlob { kind: "weights", hash, bytes: bytes.as_slice() }
            }
            Some(_) | None => {
                RequestedBlob { kind: "text", hash: self.corpus.hash, bytes: self.text.as_slice() }
            }
        }
    }
}

/// How often the cluster may request the text or the weights of one submission: a new leader may
/// have neither.
const UPLOADS_MAX: u32 = 6;

/// Submits, and uploads the text and the weights that the cluster requests. Prints to `progress`
/// the bytes that are sent.
///
/// # Errors
/// If the cluster refuses, or requests them too often.
pub fn submit(
    submission: &RunSubmission,
    client: &mut ApiClient<'_>,
    progress: &mut dyn Write,
) -> Result<RunAccepted, CommandFailure> {
    let RunSubmission { document, corpus, weights, name, from, .. } = submission;
    let weights = weights.as_ref().map(|(name, _)| *name);
    let document = document.clone();
    let name = name.clone();
    let from = from.clone();
    let request = ApiRequest::Run { document, corpus: *corpus, weights, name, from };
    for _ in 0..=UPLOADS_MAX {
        let answer = client.send(&request)?;
        let found = answer.name();
        if let ApiAnswer::Run(accepted) = answer {
            return Ok(accepted);
        }
        let ApiAnswer::DataWanted(held) = answer else {
            return Err(ApiError::Unexpected { request: request.name(), found }.into());
        };
        // With standard error closed there is nowhere to print it.
        let blob = submission.blob_of(held.hash);
        let length = Bytes(blob.bytes.len() as u64);
        let _ = writeln!(progress, "sent: {length} of {}", blob.kind);
        upload(&blob, held, client)?;
    }
    let kind = format!("the cluster has lost what it was sent {UPLOADS_MAX} times");
    Err(CommandFailure::new(FailureCode::Internal, kind))
}

fn upload(
    blob: &RequestedBlob<'_>,
    held: UploadProgress,
    client: &mut ApiClient<'_>,
) -> Result<(), CommandFailure> {
    let RequestedBlob { hash, bytes: all, .. } = *blob;
    let mut begin = check_held(held, hash, 0, all.len())?;
    while begin < all.len() {
        let end = all.len().min(begin + PIECE_BYTES_MAX);
        let bytes = all[begin..end].to_vec();
        let piece = ApiRequest::PutData { hash, offset: begin as u64, bytes };
        let held = client.put_data(piece)?;
        // Each piece must get further, so this ends.
        begin = check_held(held, hash, begin + 1, all.len())?;
    }
    Ok(())
}

/// Where the next piece begins, if that makes sense.
fn check_held(
    held: UploadProgress,
    hash: HexDigest,
    min: usize,
    max: usize,
) -> Result<usize, CommandFailure> {
    let begin = usize::try_from(held.held).ok().filter(|begin| (min..=max).contains(begin));
    begin.filter(|_| held.hash == hash).ok_or_else(|| {
        let found = Bytes(held.held);
        let length = Bytes(max as u64);
        let what = format!("the cluster says it has {found} of {length}: out of order");
        CommandFailure::new(FailureCode::Internal, what)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbelastic_api::sample::{self, digest, scripted};
    use zbelastic_api::{ApiRefusal, RunDisposition, WrongState};

    fn submission(length: usize) -> RunSubmission {
        let corpus = CorpusDescription { hash: digest(1), length: Bytes(length as u64) };
        let text = (0..length).map(|index| index as u8).collect();
        let document = "[train]\n".to_owned();
        RunSubmission { document, corpus, text, weights: None, name: None, from: None }
    }

    fn held(held: u64) -> ApiAnswer {
        ApiAnswer::DataWanted(UploadProgress { hash: digest(1), held })
    }

    fn accepted() -> ApiAnswer {
        let disposition = RunDisposition::Started;
        ApiAnswer::Run(RunAccepted { disposition, events_from: 3, job: sample::job() })
    }

    fn submitted(
        answers: Vec<ApiAnswer>,
        length: usize,
    ) -> (Result<u64, FailureCode>, Vec<ApiRequest>) {
        let (mut client, requests) = scripted(answers.into_iter().map(Ok).collect());
        let ended = submit(&submission(length), &mut client, &mut Vec::new());
        let ended = ended.map(|accepted| accepted.events_from).map_err(|failure| failure.code);
        let requests = requests.borrow().clone();
        (ended, requests)
    }

    /// Offset and length of every piece.
    fn pieces(requests: &[ApiRequest]) -> Vec<(u64, usize)> {
        let piece = |request: &ApiRequest| {
            let ApiRequest::PutData { offset, bytes, .. } = request else { return None };
            assert_eq!(bytes[0], *offset as u8);
            Some((*offset, bytes.len()))
        };
        requests.iter().filter_map(piece).collect()
    }

    #[test]
    fn a_text_travels_in_pieces_from_where_it_stopped() {
        let length = 2 * PIECE_BYTES_MAX + 7;
        let answers = vec![
            held(100),
            held(100 + PIECE_BYTES_MAX as u64),
            held(100 + 2 * PIECE_BYTES_MAX as u64 - 100),
            held(length as u64),
            accepted(),
        ];
        let (ended, requests) = submitted(answers, length);
        assert_eq!(ended, Ok(3));
        let middle = 100 + PIECE_BYTES_MAX as u64;
        let expected = [
            (100, PIECE_BYTES_MAX),
            (middle, PIECE_BYTES_MAX - 93),
            (2 * PIECE_BYTES_MAX as u64, 7),
        ];
        assert_eq!(pieces(&requests), expected);
    }

    #[test]
    fn weights_travel_like_the_text_and_are_named_by_their_own_hash() {
        let named = CorpusDescription { hash: digest(7), length: Bytes(5) };
        let weights = Some((named, vec![0, 1, 2, 3, 4]));
        let submission = RunSubmission { weights, ..submission(10) };
        let of_weights = |held| ApiAnswer::DataWanted(UploadProgress { hash: digest(7), held });
        let answers = [held(0), held(10), of_weights(0), of_weights(5), accepted()];
        let (mut client, requests) = scripted(answers.into_iter().map(Ok).collect());
        let mut progress = Vec::new();
        submit(&submission, &mut client, &mut progress).expect("taken");
        let requests = requests.borrow().clone();
        let is_run = |request: &&ApiRequest| {
            let ApiRequest::Run { weights, .. } = request else { return false };
            *weights == Some(named)
        };
        assert_eq!(requests.iter().filter(is_run).count(), 3, "asked before and after each");
        let piece = |request: &ApiRequest| {
            let ApiRequest::PutData { hash, bytes, .. } = request else { return None };
            Some((*hash, bytes.len()))
        };
        let sent: Vec<_> = requests.iter().filter_map(piece).collect();
        assert_eq!(sent, [(digest(1), 10), (digest(7), 5)]);
        let progress = String::from_utf8(progress).expect("words");
        assert_eq!(progress, "sent: 10 B of text\nsent: 5 B of weights\n");
    }

    #[test]
    fn a_text_that_is_there_does_not_travel() {
        let (ended, requests) = submitted(vec![accepted()], 10);
        assert_eq!((ended, pieces(&requests).len()), (Ok(3), 0));
    }

    #[test]
    fn a_cluster_that_gets_nowhere_is_not_fed_for_ever() {
        let (ended, _) = submitted(vec![held(0), held(0)], 10);
        assert_eq!(ended, Err(FailureCode::Internal));
        let (ended, _) = submitted(vec![held(11)], 10);
        assert_eq!(ended, Err(FailureCode::Internal));
        let other = ApiAnswer::DataWanted(UploadProgress { hash: digest(2), held: 0 });
        let (ended, _) = submitted(vec![other], 10);
        assert_eq!(ended, Err(FailureCode::Internal));
        let forgetful = [held(0), held(10)].into_iter().cycle().take(14).collect();
        let (ended, requests) = submitted(forgetful, 10);
        assert_eq!((ended, pieces(&requests).len()), (Err(FailureCode::Internal), 7));
    }

    #[test]
    fn another_run_is_in_the_way() {
        let state = WrongState::OtherRun { config: digest(9), step: 5, step_count: 10 };
        let (ended, _) = submitted(vec![ApiAnswer::Refused(ApiRefusal::WrongState(state))], 10);
        assert_eq!(ended, Err(FailureCode::WrongState));
    }
}
