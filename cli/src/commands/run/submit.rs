//! Submits a run: the configuration, and its data where that is not there yet.

use std::io::Write;

use zbelastic_api::client::{ApiClient, ApiError};
use zbelastic_api::{ApiAnswer, ApiRequest, HexDigest, RunAccepted};
use zbelastic_types::Bytes;
use zbelastic_wording::{CommandFailure, FailureCode};

use crate::blob::Blob;

/// A run as it is submitted, with what may have to be uploaded for it.
#[derive(Clone, Debug, PartialEq)]
pub struct RunSubmission {
    /// The request, which is sent again behind each upload.
    pub request: ApiRequest,
    /// The text or the shards of the stores, and the weights.
    pub blobs: Vec<Blob>,
}

impl RunSubmission {
    /// The data with this hash, or else the first: the answer is checked against it.
    fn blob_of(&self, hash: HexDigest) -> Option<&Blob> {
        let found = self.blobs.iter().find(|blob| HexDigest(blob.name.hash) == hash);
        found.or(self.blobs.first())
    }
}

/// How often the cluster may request the data of one submission: a new leader may have none.
const UPLOADS_MAX: usize = 6;

/// Submits, and uploads the data that the cluster requests. Prints to `progress`
/// the bytes that are sent.
///
/// # Errors
/// If the cluster refuses, or requests them too often.
pub fn submit(
    submission: &RunSubmission,
    client: &mut ApiClient<'_>,
    progress: &mut dyn Write,
) -> Result<RunAccepted, CommandFailure> {
    let request = &submission.request;
    for _ in 0..=UPLOADS_MAX * submission.blobs.len() {
        let answer = client.send(request)?;
        let found = answer.name();
        if let ApiAnswer::Run(accepted) = answer {
            return Ok(accepted);
        }
        let ApiAnswer::DataWanted(held) = answer else {
            return Err(ApiError::Unexpected { request: request.name(), found }.into());
        };
        let Some(blob) = submission.blob_of(held.hash) else { break };
        let length = Bytes(blob.name.length);
        // With standard error closed there is nowhere to print it.
        let _ = writeln!(progress, "sent: {length} of {}", blob.kind);
        blob.upload(held, client)?;
    }
    let kind = format!("the cluster has lost what it was sent {UPLOADS_MAX} times");
    Err(CommandFailure::new(FailureCode::Internal, kind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbelastic_api::sample::{self, digest, scripted};
    use zbelastic_api::{
        ApiRefusal, CorpusDescription, PIECE_BYTES_MAX, RunDisposition, UploadProgress, WrongState,
    };

    fn text(length: usize) -> Blob {
        Blob::of_bytes("text", (0..length).map(|index| index as u8).collect())
    }

    fn submission(length: usize) -> RunSubmission {
        let text = text(length);
        let corpus =
            CorpusDescription { hash: HexDigest(text.name.hash), length: Bytes(length as u64) };
        let document = "[train]\n".to_owned();
        let blobs = vec![text];
        let request = ApiRequest::Run { document, corpus, weights: None, name: None, from: None };
        RunSubmission { request, blobs }
    }

    /// A request for the text of a submission.
    fn held_of(length: usize, held: u64) -> ApiAnswer {
        let hash = HexDigest(text(length).name.hash);
        ApiAnswer::DataWanted(UploadProgress { hash, held })
    }

    fn held(held: u64) -> ApiAnswer {
        held_of(10, held)
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
        let held = |at: usize| held_of(length, at as u64);
        let answers = vec![
            held(100),
            held(100 + PIECE_BYTES_MAX),
            held(2 * PIECE_BYTES_MAX),
            held(length),
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
        let blob = Blob::of_bytes("weights", vec![0, 1, 2, 3, 4]);
        let hash = HexDigest(blob.name.hash);
        let named = CorpusDescription { hash, length: Bytes(5) };
        let blobs = vec![text(10), blob];
        let mut request = submission(10).request;
        if let ApiRequest::Run { weights, .. } = &mut request {
            *weights = Some(named);
        }
        let submission = RunSubmission { request, blobs };
        let of_weights = |held| ApiAnswer::DataWanted(UploadProgress { hash, held });
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
        assert_eq!(sent, [(HexDigest(text(10).name.hash), 10), (hash, 5)]);
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
