//! Hands a run over: the configuration, and the text if it is not there yet.

use std::io::Write;

use zbelastic_types::Bytes;

use crate::api::client::{ApiClient, ApiError};
use crate::api::{
    Answer, CorpusDescription, DataHeld, HexDigest, PIECE_BYTES_MAX, Request, RunAccepted,
};
use crate::failure::{Failure, FailureCode};

/// What is handed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submission {
    /// The effective configuration.
    pub document: String,
    /// The text's name.
    pub corpus: CorpusDescription,
    /// The text.
    pub text: Vec<u8>,
}

/// How often the cluster may want the text of one submission: a leader that takes over may not
/// have it.
const UPLOADS_MAX: u32 = 3;

/// Submits, and uploads the text as far as it is wanted. Tells `told` about a text that travels.
///
/// # Errors
/// If the cluster says no, or wants the text for ever.
pub fn submit(
    submission: &Submission,
    client: &mut ApiClient<'_>,
    told: &mut dyn Write,
) -> Result<RunAccepted, Failure> {
    let Submission { document, corpus, .. } = submission;
    let request = Request::Run { document: document.clone(), corpus: *corpus };
    for _ in 0..=UPLOADS_MAX {
        let answer = client.ask(&request)?;
        let found = answer.name();
        if let Answer::Run(accepted) = answer {
            return Ok(accepted);
        }
        let Answer::DataWanted(held) = answer else {
            return Err(ApiError::Unexpected { request: request.name(), found }.into());
        };
        // Whoever closed standard error does not want to know.
        let _ = writeln!(told, "the text is sent: {}", corpus.length);
        upload(submission, held, client)?;
    }
    let what = format!("the cluster has lost the text {UPLOADS_MAX} times");
    Err(Failure::new(FailureCode::Internal, what))
}

fn upload(
    submission: &Submission,
    held: DataHeld,
    client: &mut ApiClient<'_>,
) -> Result<(), Failure> {
    let (hash, text) = (submission.corpus.hash, submission.text.as_slice());
    let mut begin = check_held(held, hash, 0, text.len())?;
    while begin < text.len() {
        let end = text.len().min(begin + PIECE_BYTES_MAX);
        let bytes = text[begin..end].to_vec();
        let piece = Request::PutData { hash, offset: begin as u64, bytes };
        let held = client.put_data(piece)?;
        // Each piece must get further, so this ends.
        begin = check_held(held, hash, begin + 1, text.len())?;
    }
    Ok(())
}

/// Where the next piece begins, if that makes sense.
fn check_held(held: DataHeld, hash: HexDigest, min: usize, max: usize) -> Result<usize, Failure> {
    let begin = usize::try_from(held.held).ok().filter(|begin| (min..=max).contains(begin));
    begin.filter(|_| held.hash == hash).ok_or_else(|| {
        let (found, length) = (Bytes(held.held), Bytes(max as u64));
        let what = format!("the cluster says it has {found} of a text of {length}: out of order");
        Failure::new(FailureCode::Internal, what)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::sample::{self, digest, scripted};
    use crate::api::{Refusal, RunDisposition, WrongState};

    fn submission(length: usize) -> Submission {
        let corpus = CorpusDescription { hash: digest(1), length: Bytes(length as u64) };
        let text = (0..length).map(|index| index as u8).collect();
        Submission { document: "[train]\n".to_owned(), corpus, text }
    }

    fn held(held: u64) -> Answer {
        Answer::DataWanted(DataHeld { hash: digest(1), held })
    }

    fn accepted() -> Answer {
        let disposition = RunDisposition::Started;
        Answer::Run(RunAccepted { disposition, events_from: 3, job: sample::job() })
    }

    fn submitted(answers: Vec<Answer>, length: usize) -> (Result<u64, FailureCode>, Vec<Request>) {
        let (mut client, asked) = scripted(answers.into_iter().map(Ok).collect());
        let ended = submit(&submission(length), &mut client, &mut Vec::new());
        let ended = ended.map(|accepted| accepted.events_from).map_err(|failure| failure.code);
        let asked = asked.borrow().clone();
        (ended, asked)
    }

    /// Offset and length of every piece.
    fn pieces(asked: &[Request]) -> Vec<(u64, usize)> {
        let piece = |request: &Request| {
            let Request::PutData { offset, bytes, .. } = request else { return None };
            assert_eq!(bytes[0], *offset as u8);
            Some((*offset, bytes.len()))
        };
        asked.iter().filter_map(piece).collect()
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
        let (ended, asked) = submitted(answers, length);
        assert_eq!(ended, Ok(3));
        let middle = 100 + PIECE_BYTES_MAX as u64;
        let expected = [
            (100, PIECE_BYTES_MAX),
            (middle, PIECE_BYTES_MAX - 93),
            (2 * PIECE_BYTES_MAX as u64, 7),
        ];
        assert_eq!(pieces(&asked), expected);
    }

    #[test]
    fn a_text_that_is_there_does_not_travel() {
        let (ended, asked) = submitted(vec![accepted()], 10);
        assert_eq!((ended, pieces(&asked).len()), (Ok(3), 0));
    }

    #[test]
    fn a_cluster_that_gets_nowhere_is_not_fed_for_ever() {
        let (ended, _) = submitted(vec![held(0), held(0)], 10);
        assert_eq!(ended, Err(FailureCode::Internal));
        let (ended, _) = submitted(vec![held(11)], 10);
        assert_eq!(ended, Err(FailureCode::Internal));
        let other = Answer::DataWanted(DataHeld { hash: digest(2), held: 0 });
        let (ended, _) = submitted(vec![other], 10);
        assert_eq!(ended, Err(FailureCode::Internal));
        let forgetful = [held(0), held(10)].into_iter().cycle().take(8).collect();
        let (ended, asked) = submitted(forgetful, 10);
        assert_eq!((ended, pieces(&asked).len()), (Err(FailureCode::Internal), 4));
    }

    #[test]
    fn another_run_is_in_the_way() {
        let state = WrongState::OtherRun { config: digest(9), step: 5, step_count: 10 };
        let (ended, _) = submitted(vec![Answer::Refused(Refusal::WrongState(state))], 10);
        assert_eq!(ended, Err(FailureCode::WrongState));
    }
}
