//! The connection of a command line to its cluster: with a person's certificate, which is renewed
//! while it is used, or with that of the member in whose folder it runs, which may read.

use std::env;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use zbelastic_api::ADDRESSES_MAX;
use zbelastic_api::client::{ClientError, Exchange};
use zbelastic_identity::{ClusterAuthority, Credentials, PeerRole, UnixSeconds, random_number};
use zbelastic_node::cluster::ADMIN_NODE;
use zbelastic_node::cluster::threads::runtime;
use zbelastic_node_folder::NodeDataFolder;
use zbelastic_node_folder::node_record::NodeRecord;
use zbelastic_transport::{AdminClient, ConnectError, DialProblem, RequestError};
use zbelastic_types::ClusterId;
use zbelastic_wire::{self as wire, NodeAnswer, NodeRequest};
use zbelastic_wording::{CommandFailure, FailureDetail};

use crate::args::{AddressList, ClientArgs};

/// Environment variable that lists addresses of the cluster's controllers.
const CLUSTER_VARIABLE: &str = "ZBELASTIC_CLUSTER";
/// Between two attempts of a command to renew its certificate. It was begun days before the end.
const RENEWAL_PAUSE: Duration = Duration::from_secs(60);

/// An exchange with the cluster of which `folder` has a certificate.
///
/// # Errors
/// If the system gives no threads.
pub fn exchange(folder: &NodeDataFolder) -> Result<Exchange<'static>, CommandFailure> {
    let mut connection = CommandConnection {
        runtime: runtime()?,
        data: folder.clone(),
        open: None,
        renewal_requested: None,
    };
    Ok(Box::new(move |addresses, bytes| connection.send(addresses, bytes)))
}

/// The addresses that were typed, else the environment's.
///
/// # Errors
/// If the environment's are none.
pub fn typed_addresses(typed: Option<&AddressList>) -> Result<Option<AddressList>, CommandFailure> {
    if let Some(typed) = typed {
        return Ok(Some(typed.clone()));
    }
    let text = env::var(CLUSTER_VARIABLE).ok().filter(|text| !text.is_empty());
    let parse = |text: String| {
        AddressList::parse(&text).map_err(|error| {
            let detail = FailureDetail::new(error.to_string()).at(CLUSTER_VARIABLE);
            CommandFailure::usage("the environment", vec![detail])
        })
    };
    text.map(parse).transpose()
}

/// The addresses to send requests to: those that were typed, else the environment's, else the
/// folder's.
///
/// # Errors
/// If the folder has no certificate, or the environment's addresses are none.
pub fn request_addresses(
    args: &ClientArgs,
) -> Result<(NodeDataFolder, Vec<String>), CommandFailure> {
    let folder = NodeDataFolder::of(args.folder.data_dir.as_deref());
    let known = known_addresses(&folder)?;
    let typed = typed_addresses(args.cluster.as_ref())?;
    Ok((folder, typed.map_or(known, |typed| typed.texts())))
}

/// The addresses that the certificate of a folder is used at: a person's, or else that of the member
/// in it.
fn known_addresses(folder: &NodeDataFolder) -> Result<Vec<String>, CommandFailure> {
    let missing = match folder.read_admin() {
        Ok(admin) => return Ok(admin.addresses),
        Err(failure) if folder.admin().exists() => return Err(failure),
        Err(failure) => failure,
    };
    match NodeRecord::load(&folder.identity()) {
        Ok(Some(record)) => Ok(addresses_of_member(&record)),
        Ok(None) | Err(_) => Err(missing),
    }
}

/// Where a member's cluster is reached: at the controllers, of which it may be one.
fn addresses_of_member(record: &NodeRecord) -> Vec<String> {
    let names = record.controller_names.values().flatten().cloned();
    let sockets = record.controllers.values().flatten().map(ToString::to_string);
    names.chain(sockets).take(ADDRESSES_MAX).collect()
}

/// Tries whether a node answers at an address. Without a certificate of its own, as on a machine
/// that is yet to join, one that no cluster knows suffices: a node that refuses it has been
/// reached.
///
/// # Errors
/// With the reason, if no node answers.
pub fn reach(folder: &NodeDataFolder, address: &str) -> Result<(), String> {
    let now = UnixSeconds::now();
    let stranger = || {
        let authority = ClusterAuthority::create(ClusterId(random_number()), now);
        let authority = authority.map_err(|error| error.to_string())?;
        let own = authority.credentials(PeerRole::Viewer, ADMIN_NODE, now);
        own.map_err(|error| error.to_string())
    };
    let credentials = Credentials::load(&folder.admin(), None, now).or_else(|_| stranger())?;
    let runtime = runtime().map_err(|failure| failure.what)?;
    runtime.block_on(async {
        match AdminClient::connect(&[address.to_owned()], credentials).await {
            Ok(client) => {
                client.close().await;
                Ok(())
            }
            Err(error) => match client_error(&error) {
                ClientError::Stranger { .. } | ClientError::Denied { .. } => Ok(()),
                ClientError::Unreachable { tried } => {
                    Err(tried.into_iter().map(|(_, why)| why).collect::<Vec<_>>().join("; "))
                }
                ClientError::Broken { reason } => Err(reason),
            },
        }
    })
}

/// Whose certificate a command line uses.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CertificateHolder {
    /// A person, whose certificate its use renews.
    Person,
    /// The member in whose folder the command runs. Its process renews its certificate.
    Member,
}

impl CertificateHolder {
    /// A person, if there is a certificate of one: that of a member may do less.
    fn of(data: &NodeDataFolder) -> Self {
        if data.admin().exists() { Self::Person } else { Self::Member }
    }

    /// The folder of the certificate.
    fn folder(self, data: &NodeDataFolder) -> PathBuf {
        match self {
            Self::Person => data.admin(),
            Self::Member => data.identity(),
        }
    }
}

/// A command line's connection, which stays open between two questions.
struct CommandConnection {
    runtime: Runtime,
    /// The folder with a certificate. A connection that is never used needs none.
    data: NodeDataFolder,
    open: Option<OpenConnection>,
    /// When a certificate for longer was requested last.
    renewal_requested: Option<Instant>,
}

/// An open connection, and the settings it was opened with.
struct OpenConnection {
    addresses: Vec<String>,
    holder: CertificateHolder,
    client: AdminClient,
    credentials: Credentials,
}

impl CommandConnection {
    fn send(&mut self, addresses: &[String], bytes: &[u8]) -> Result<Vec<u8>, ClientError> {
        let Self { runtime, data, open, renewal_requested } = self;
        // A cluster that is being founded has the member's certificate before the administrator's.
        let holder = CertificateHolder::of(data);
        let folder = &holder.folder(data);
        let is_for =
            |open: &&mut OpenConnection| open.addresses == addresses && open.holder == holder;
        runtime.block_on(async {
            if let Some(found) = open.as_mut().filter(is_for) {
                renew_if_due(folder, found, renewal_requested).await;
                match found.client.request(bytes.to_vec()).await {
                    Ok(answer) => return Ok(answer),
                    // The node may have ended since: another one is tried.
                    Err(RequestError::Broken | RequestError::NoPath) => *open = None,
                    Err(error) => return Err(ClientError::Broken { reason: error.to_string() }),
                }
            }
            let credentials = Credentials::load(folder, None, UnixSeconds::now());
            let credentials =
                credentials.map_err(|error| ClientError::Denied { reason: error.to_string() })?;
            let client = AdminClient::connect(addresses, credentials.clone()).await;
            let client = client.map_err(|error| client_error(&error))?;
            let addresses = addresses.to_vec();
            let mut new = OpenConnection { addresses, holder, client, credentials };
            renew_if_due(folder, &mut new, renewal_requested).await;
            let answer = new.client.request(bytes.to_vec()).await;
            if let Some(before) = open.replace(new) {
                before.client.close().await;
            }
            answer.map_err(|error| ClientError::Broken { reason: error.to_string() })
        })
    }
}

/// Requests a person's certificate that holds for longer, once two thirds of this one's time are over
/// or the controller shows that another authority issues now, and keeps it in the folder. Without it
/// the command continues: the next one tries again.
async fn renew_if_due(
    folder: &Path,
    open: &mut OpenConnection,
    requested_at: &mut Option<Instant>,
) {
    match open.holder {
        CertificateHolder::Person => {}
        CertificateHolder::Member => return,
    }
    let is_late = UnixSeconds::now() >= open.credentials.window().renew_after();
    let issues = open.client.authority();
    let is_due = is_late || issues.is_some_and(|issues| !open.credentials.is_by(&issues));
    if !is_due || requested_at.is_some_and(|requested_at| requested_at.elapsed() < RENEWAL_PAUSE) {
        return;
    }
    *requested_at = Some(Instant::now());
    let request = NodeRequest::Renew { request: open.credentials.key().signing_request() };
    let Ok(answer) = open.client.request(request.encode()).await else { return };
    let Ok(NodeAnswer::Renewed { chain, roots }) = wire::decode(&answer) else { return };
    let renewed = open.credentials.renewed(chain.into_iter().map(Into::into).collect());
    let renewed =
        renewed.and_then(|renewed| renewed.with_roots(roots.into_iter().map(Into::into).collect()));
    if let Ok(renewed) = renewed
        && renewed.save(folder).is_ok()
    {
        open.credentials = renewed;
    }
}

impl Drop for CommandConnection {
    /// Closes the connection, so that the node does not keep it open.
    fn drop(&mut self) {
        if let Some(open) = self.open.take() {
            self.runtime.block_on(open.client.close());
        }
    }
}

fn client_error(error: &ConnectError) -> ClientError {
    for attempt in &error.tried {
        let address = attempt.address.clone();
        let reason = attempt.problem.to_string();
        match attempt.problem {
            DialProblem::NotThisCluster => return ClientError::Stranger { address, reason },
            DialProblem::CertificateExpired { .. }
            | DialProblem::AuthorityRetired
            | DialProblem::Refused(_) => {
                return ClientError::Denied { reason };
            }
            DialProblem::NotAnAddress
            | DialProblem::NoSuchHost
            | DialProblem::NobodyAnswers
            | DialProblem::AnotherNode
            | DialProblem::Version { .. }
            | DialProblem::Other(_) => {}
        }
    }
    let tried = error.tried.iter();
    let tried = tried.map(|attempt| (attempt.address.clone(), attempt.problem.to_string()));
    ClientError::Unreachable { tried: tried.collect() }
}
