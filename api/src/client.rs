//! The client of the API: a command line.
//!
//! It uses no socket. Bytes travel through an [`Exchange`] that the caller brings. A redirect is
//! followed, a few times. If the leader that it names is not reached, nothing was sent, and the nodes
//! are requested again until they have elected another one. Nothing else is tried again in silence:
//! a failure is reported, with its means for a script.

use std::thread;
use std::time::Duration;

use zbelastic_types::NodeId;
use zbelastic_wording::{CommandFailure, FailureCode, FailureDetail};

use super::answer::{
    ApiAnswer, BackupPiece, ChangeSummary, CheckpointDetail, ClusterInfo, CollectionReport,
    EventPage, LayerPiece, LayerVerified, LogPage, RunStatus, TokenCreated, TokenInfo, TracePiece,
    UploadProgress,
};
use super::hex::HexDigest;
use super::refusal::ApiRefusal;
use super::request::{ApiRequest, TokenRequest};
use super::status::{CheckpointStatus, JobStatus, StatusReport};
use super::wire::{WireError, decode_answer, encode_request};
use super::{ADDRESSES_MAX, LOG_LINES_MAX, escape};

/// Redirects that are followed for one question: leaders change, but not that often.
pub const REDIRECTS_MAX: usize = 4;
/// Times that a leader is not reached until that is reported: several elections, with [`LEADER_PAUSE`]
/// before each further one.
pub const LEADERS_MISSED_MAX: usize = 20;
/// As long as an election takes.
const LEADER_PAUSE: Duration = Duration::from_millis(500);

/// Sends a message to the first of these addresses that answers, and returns its answer.
pub type Exchange<'a> = Box<dyn FnMut(&[String], &[u8]) -> Result<Vec<u8>, ClientError> + 'a>;

/// Why a message got no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// No node answers at any address.
    #[error("the cluster does not answer")]
    Unreachable {
        /// Each address with the reason.
        tried: Vec<(String, String)>,
    },
    /// A node answers, and does not accept the certificate.
    #[error("the cluster does not accept this certificate: {reason}")]
    Denied {
        /// Why the cluster does not accept it.
        reason: String,
    },
    /// The answering node cannot show that it belongs to the cluster.
    #[error("{address} is not of this cluster: {reason}")]
    Stranger {
        /// The address that answered.
        address: String,
        /// Why it is not of this cluster.
        reason: String,
    },
    /// The connection ended before the answer arrived. Whether the command was applied is not
    /// known.
    #[error("the connection ended before the answer came: {reason}")]
    Broken {
        /// Why the connection ended.
        reason: String,
    },
}

/// Why a question has no good answer.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The message got no answer.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The bytes received, or those to be sent, are no message.
    #[error("the node sent a message that cannot be decoded: {0}")]
    Wire(#[from] WireError),
    /// Too few controllers are there.
    #[error("too few controllers are there to decide")]
    NoQuorum {
        /// Milliseconds without a leader.
        since_ms: u64,
        /// Names of the voters that are not reachable.
        missing: Vec<String>,
    },
    /// No node names the leader.
    #[error("no leader was found after {redirects} redirects")]
    NoLeader {
        /// Redirects that were followed.
        redirects: usize,
    },
    /// The node refused the request.
    #[error("{0}")]
    Refused(ApiRefusal),
    /// The answer is one to another question.
    #[error("the node answered {request} with {found}")]
    Unexpected {
        /// Name of the request that was sent.
        request: &'static str,
        /// Name of the answer that was received.
        found: &'static str,
    },
}

/// Sends requests to a cluster, and receives their answers.
pub struct ApiClient<'a> {
    addresses: Vec<String>,
    /// Name of the run that checkpoints are requested of; none for the newest run's.
    run: Option<String>,
    exchange: Exchange<'a>,
}

/// Most bytes of a trace that are requested: eight steps of a hundred thousand operations.
const TRACE_BYTES_MAX: usize = 128 << 20;

/// Sends a request, and returns the answer that belongs to it.
macro_rules! answer_to {
    ($client:expr, $request:expr, $pattern:pat => $value:expr) => {{
        let request = $request;
        let answer = $client.send(&request)?;
        let found = answer.name();
        let $pattern = answer else {
            return Err(ApiError::Unexpected { request: request.name(), found });
        };
        Ok($value)
    }};
}

impl<'a> ApiClient<'a> {
    /// A client that begins at these addresses.
    #[must_use]
    pub fn new(addresses: Vec<String>, exchange: Exchange<'a>) -> Self {
        Self { addresses, run: None, exchange }
    }

    /// The same client; its requests about checkpoints concern this run from now on.
    #[must_use]
    pub fn with_run(self, run: Option<String>) -> Self {
        Self { run, ..self }
    }

    /// Sends a request, and follows redirects. The address that answered is tried first the next
    /// time.
    ///
    /// # Errors
    /// If there is no answer, or the node refuses.
    pub fn send(&mut self, request: &ApiRequest) -> Result<ApiAnswer, ApiError> {
        let message = encode_request(request)?;
        let mut targets = self.addresses.clone();
        let (mut redirects, mut missed) = (0, 0);
        loop {
            let exchanged = (self.exchange)(&targets, &message);
            let is_missed = matches!(exchanged, Err(ClientError::Unreachable { .. }));
            if is_missed && redirects > 0 && missed < LEADERS_MISSED_MAX {
                missed += 1;
                redirects = 0;
                targets.clone_from(&self.addresses);
                thread::sleep(LEADER_PAUSE);
                continue;
            }
            let answer = decode_answer(&exchanged?)?;
            match answer {
                ApiAnswer::Redirect { addresses }
                    if addresses.is_empty() || redirects == REDIRECTS_MAX =>
                {
                    return Err(ApiError::NoLeader { redirects });
                }
                ApiAnswer::Redirect { mut addresses } => {
                    addresses.truncate(ADDRESSES_MAX);
                    targets = addresses;
                    redirects += 1;
                }
                ApiAnswer::NoQuorum { since_ms, missing } => {
                    return Err(ApiError::NoQuorum { since_ms, missing });
                }
                ApiAnswer::Refused(refusal) => return Err(ApiError::Refused(refusal)),
                answer @ (ApiAnswer::Status(_)
                | ApiAnswer::Events(_)
                | ApiAnswer::Logs(_)
                | ApiAnswer::Token(_)
                | ApiAnswer::Tokens(_)
                | ApiAnswer::Done(_)
                | ApiAnswer::Run(_)
                | ApiAnswer::DataWanted(_)
                | ApiAnswer::Job(_)
                | ApiAnswer::Runs(_)
                | ApiAnswer::Checkpoints(_)
                | ApiAnswer::Checkpoint(_)
                | ApiAnswer::Verified(_)
                | ApiAnswer::Collected(_)
                | ApiAnswer::Layer(_)
                | ApiAnswer::Subtree(_)
                | ApiAnswer::Trace(_)
                | ApiAnswer::Cluster(_)
                | ApiAnswer::Backup(_)) => {
                    self.prefer_addresses(targets);
                    return Ok(answer);
                }
            }
        }
    }

    /// Requests the status of the cluster.
    ///
    /// # Errors
    /// If there is no answer, or the node refuses; so for all that follow.
    pub fn status(&mut self) -> Result<StatusReport, ApiError> {
        answer_to!(self, ApiRequest::Status, ApiAnswer::Status(status) => *status)
    }

    /// The events from a sequence number on.
    pub fn events(&mut self, from_sequence: u64, max: u32) -> Result<EventPage, ApiError> {
        let request = ApiRequest::Events { from_sequence, max };
        answer_to!(self, request, ApiAnswer::Events(events) => events)
    }

    /// The lines that a node logged from a sequence number on.
    pub fn logs(&mut self, node: Option<NodeId>, from_sequence: u64) -> Result<LogPage, ApiError> {
        let request = ApiRequest::Logs { node, from_sequence, max: LOG_LINES_MAX };
        answer_to!(self, request, ApiAnswer::Logs(logs) => logs)
    }

    /// Creates a token with which nodes or clients join.
    pub fn create_token(&mut self, token: TokenRequest) -> Result<TokenCreated, ApiError> {
        answer_to!(self, ApiRequest::TokenCreate(token), ApiAnswer::Token(token) => token)
    }

    /// Lists all tokens that the cluster still records.
    pub fn tokens(&mut self) -> Result<Vec<TokenInfo>, ApiError> {
        answer_to!(self, ApiRequest::TokenList, ApiAnswer::Tokens(tokens) => tokens)
    }

    /// Sends a command that is answered by a summary of its changes.
    pub fn change(&mut self, request: ApiRequest) -> Result<ChangeSummary, ApiError> {
        answer_to!(self, request, ApiAnswer::Done(summary) => summary)
    }

    /// Sends a command about the run, and returns the state of the run after it.
    pub fn change_job(&mut self, request: ApiRequest) -> Result<JobStatus, ApiError> {
        answer_to!(self, request, ApiAnswer::Job(job) => *job)
    }

    /// Sends a piece of a text.
    pub fn put_data(&mut self, request: ApiRequest) -> Result<UploadProgress, ApiError> {
        answer_to!(self, request, ApiAnswer::DataWanted(held) => held)
    }

    /// Every run that is kept, oldest first.
    pub fn runs(&mut self) -> Result<Vec<RunStatus>, ApiError> {
        answer_to!(self, ApiRequest::RunList, ApiAnswer::Runs(runs) => runs)
    }

    /// Lists the checkpoints of the run.
    pub fn checkpoints(&mut self) -> Result<Vec<CheckpointStatus>, ApiError> {
        let request = ApiRequest::CheckpointList { run: self.run.clone() };
        answer_to!(self, request, ApiAnswer::Checkpoints(list) => list)
    }

    /// Requests the layers of one checkpoint, and the nodes that hold them.
    pub fn checkpoint(&mut self, step: u64) -> Result<CheckpointDetail, ApiError> {
        let request = ApiRequest::CheckpointShow { run: self.run.clone(), step };
        answer_to!(self, request, ApiAnswer::Checkpoint(detail) => detail)
    }

    /// The operations of stages in the last steps, as the text of a trace file, if there is one. Steps
    /// before number `from` are left out if that is one of them; 0 for none.
    pub fn trace(&mut self, from: u64) -> Result<Option<String>, ApiError> {
        let mut text = Vec::new();
        let mut total = None;
        loop {
            let piece = self.trace_piece(text.len() as u64, from)?;
            // Another reader's request came in between, and the rest is of another text.
            if *total.get_or_insert(piece.total) != piece.total {
                return Ok(None);
            }
            text.extend(&piece.bytes);
            let is_over = piece.bytes.is_empty() || text.len() as u64 >= piece.total;
            if is_over || text.len() > TRACE_BYTES_MAX {
                return Ok(String::from_utf8(text).ok().filter(|text| !text.is_empty()));
            }
        }
    }

    fn trace_piece(&mut self, offset: u64, from: u64) -> Result<TracePiece, ApiError> {
        answer_to!(self, ApiRequest::Trace { offset, from }, ApiAnswer::Trace(piece) => piece)
    }

    /// Reads every copy of a layer.
    pub fn verify(&mut self, step: u64, layer: u32) -> Result<LayerVerified, ApiError> {
        let request = ApiRequest::CheckpointVerify { run: self.run.clone(), step, layer };
        answer_to!(self, request, ApiAnswer::Verified(verified) => verified)
    }

    /// Removes the pieces that no checkpoint needs.
    pub fn collect(&mut self) -> Result<Vec<CollectionReport>, ApiError> {
        answer_to!(self, ApiRequest::CheckpointCollect, ApiAnswer::Collected(collected) => collected)
    }

    /// A piece of a layer's image.
    pub fn layer_piece(
        &mut self,
        step: u64,
        layer: u32,
        offset: u64,
    ) -> Result<LayerPiece, ApiError> {
        let request = ApiRequest::CheckpointExport { run: self.run.clone(), step, layer, offset };
        answer_to!(self, request, ApiAnswer::Layer(piece) => piece)
    }

    /// The same of a run by its name, whichever is the newest by then.
    pub fn layer_piece_of(
        &mut self,
        run: &str,
        (step, layer): (u64, u32),
        offset: u64,
    ) -> Result<LayerPiece, ApiError> {
        let request =
            ApiRequest::CheckpointExport { run: Some(run.to_owned()), step, layer, offset };
        answer_to!(self, request, ApiAnswer::Layer(piece) => piece)
    }

    /// The chaining value of a subtree behind a layer's weights.
    pub fn layer_subtree(
        &mut self,
        step: u64,
        layer: u32,
        subtree: u32,
    ) -> Result<HexDigest, ApiError> {
        let request = ApiRequest::CheckpointSubtree { run: self.run.clone(), step, layer, subtree };
        answer_to!(self, request, ApiAnswer::Subtree(value) => value)
    }

    /// Requests the cluster's name, format, leader and voters.
    pub fn cluster(&mut self) -> Result<ClusterInfo, ApiError> {
        answer_to!(self, ApiRequest::ClusterInfo, ApiAnswer::Cluster(info) => *info)
    }

    /// A piece of a backup.
    pub fn backup_piece(
        &mut self,
        digest: Option<HexDigest>,
        offset: u64,
    ) -> Result<BackupPiece, ApiError> {
        let request = ApiRequest::ClusterBackup { digest, offset };
        answer_to!(self, request, ApiAnswer::Backup(backup) => backup)
    }

    /// Puts the addresses that answered first, and keeps the others for when they do not any more.
    fn prefer_addresses(&mut self, answered: Vec<String>) {
        let previous = std::mem::take(&mut self.addresses);
        let others: Vec<String> =
            previous.into_iter().filter(|previous| !answered.contains(previous)).collect();
        self.addresses = answered.into_iter().chain(others).take(ADDRESSES_MAX).collect();
    }
}

impl ApiError {
    /// The exit code of a command that ends with this error.
    #[must_use]
    pub const fn code(&self) -> FailureCode {
        match self {
            Self::Client(ClientError::Denied { .. }) => FailureCode::NotAuthorised,
            Self::Client(
                ClientError::Unreachable { .. }
                | ClientError::Stranger { .. }
                | ClientError::Broken { .. },
            ) => FailureCode::Unreachable,
            Self::NoQuorum { .. } | Self::NoLeader { .. } => FailureCode::NoQuorum,
            Self::Refused(refusal) => refusal.code(),
            Self::Wire(_) | Self::Unexpected { .. } => FailureCode::Internal,
        }
    }
}

impl From<ApiError> for CommandFailure {
    fn from(error: ApiError) -> Self {
        let code = error.code();
        let what = escape(&error.to_string()).into_owned();
        let details = match error {
            ApiError::Refused(refusal) => return refusal.failure(),
            ApiError::Client(error) => client_details(&error),
            ApiError::NoQuorum { since_ms, missing } => quorum_details(since_ms, &missing),
            ApiError::NoLeader { .. } => vec![
                FailureDetail::new(
                    "the controllers are choosing a leader, or cannot reach each other",
                )
                .hint("again in a moment, then `zbelastic status`"),
            ],
            ApiError::Wire(_) | ApiError::Unexpected { .. } => vec![
                FailureDetail::new("the two programs may be of different versions")
                    .hint("`zbelastic --version` on both sides"),
            ],
        };
        Self { code, what, details }
    }
}

fn client_details(error: &ClientError) -> Vec<FailureDetail> {
    match error {
        ClientError::Unreachable { tried } => {
            let mut details: Vec<FailureDetail> = tried
                .iter()
                .take(ADDRESSES_MAX)
                .map(|(address, reason)| FailureDetail::new(escape(reason)).at(escape(address)))
                .collect();
            let hint = "--cluster ADDR with a node that runs; its port must be open for UDP";
            match details.last_mut() {
                Some(last) => last.hint = Some(hint.to_owned()),
                None => details.push(FailureDetail::new("no address is known").hint(hint)),
            }
            details
        }
        ClientError::Denied { .. } => vec![
            FailureDetail::new(
                "the certificate has ended, was revoked, is by an authority that was replaced, or belongs to \
                 another cluster",
            )
                .hint(
                    "--data-dir with the folder of whoever ran `zbelastic init`: its controller renews the \
                     certificate; a copy elsewhere takes its admin/ again, an operator or a viewer logs in with \
                     another token",
                ),
        ],
        ClientError::Stranger { .. } => vec![
            FailureDetail::new("another cluster or another program may listen there now")
                .hint("--cluster ADDR with a node of this cluster"),
        ],
        ClientError::Broken { .. } => vec![
            FailureDetail::new("whether the command was applied is not known")
                .hint("`zbelastic status`, then again"),
        ],
    }
}

fn quorum_details(since_ms: u64, missing: &[String]) -> Vec<FailureDetail> {
    if missing.is_empty() {
        return vec![
            FailureDetail::new("all controllers are reachable, and did not agree in time")
                .why("their disks may be slow, or the leader was lost just now")
                .hint("`zbelastic status`, then again; `zbelastic doctor` measures a disk"),
        ];
    }
    let names: Vec<_> = missing.iter().map(|name| escape(name)).collect();
    vec![
        FailureDetail::new(format!(
            "nothing received for {:.1} s from {}",
            since_ms as f64 / 1e3,
            names.join(", ")
        ))
        .why("what is agreed on needs more than half of the controllers")
        .hint(
            "start them again; if they are lost for good, \
                 `zbelastic cluster recover --force-new-cluster`",
        ),
    ]
}
