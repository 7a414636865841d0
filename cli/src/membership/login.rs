//! `login`: a command line is admitted with a token, to change runs or to read only.
//!
//! It is the handshake of `join`, and its result is no member: a folder with a certificate,
//! which commands are given, and which they renew as they do the administrator's.

use std::io::Write;

use zbelastic_api::client::ApiClient;
use zbelastic_identity::{
    Credentials, JoinSetup, JoinToken, NodeKey, NodeName, PeerRole, UnixSeconds, join_cluster,
};
use zbelastic_node::cluster::membership_failure::{cannot_join, cannot_keep};
use zbelastic_node::cluster::threads::runtime;
use zbelastic_node_folder::{AdminFile, NodeDataFolder};
use zbelastic_wording::{CommandError, CommandFailure, FailureCode, FailureDetail};

use super::{host_name, parse_token, resolve_all};
use crate::args::LoginArgs;
use crate::command_connection::exchange;
use crate::token_source::find_token;

/// Runs `login`.
///
/// # Errors
/// If the folder has a certificate that is good still, if the token admits no command line, or if
/// the granted certificate cannot be written.
pub fn login(args: &LoginArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    let folder = NodeDataFolder::of(args.folder.data_dir.as_deref());
    check_is_free(&folder)?;
    let token = parse_token(&find_token(&args.token)?)?;
    let role = role_of(&token)?;
    let key = NodeKey::load_or_create(&folder.admin()).map_err(cannot_keep)?;
    let name = args.name.clone().unwrap_or_else(|| host_name(&key));
    let name: NodeName = name.parse().map_err(|error| {
        let detail = FailureDetail::new(format!("{error}")).at("--name");
        CommandFailure::usage("the command line", vec![detail])
    })?;
    let cluster = resolve_all(&args.cluster)?;
    let setup = JoinSetup { token, role, name, key, cluster, advertised: Vec::new() };
    let joined = runtime()?.block_on(join_cluster(&setup)).map_err(cannot_join)?;
    let id = joined.credentials.identity().cluster.to_string();
    let granted = joined.controllers.into_iter().flat_map(|controller| controller.addresses);
    let mut addresses = args.cluster.texts();
    for address in granted.map(|address| address.to_string()) {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    let mut admin = AdminFile { name: String::new(), id, addresses };
    folder.write_admin(&admin)?;
    joined.credentials.save(&folder.admin()).map_err(cannot_keep)?;
    // The first request that is sent with it: the cluster's name.
    let mut client = ApiClient::new(admin.addresses.clone(), exchange(&folder)?);
    admin.name = client.cluster().map_err(CommandFailure::from)?.name;
    folder.write_admin(&admin)?;
    let name = &admin.name;
    let shown = folder.root().display();
    writeln!(out, "{role} of cluster {name}: commands with --data-dir {shown} ask it")?;
    Ok(())
}

/// Neither an administrator's certificate, ended or not, nor one that is good still is written
/// over, and a node's folder has no other user's.
fn check_is_free(folder: &NodeDataFolder) -> Result<(), CommandFailure> {
    let held = Credentials::load_ended(&folder.admin(), None).ok();
    let is_admin = held.is_some_and(|held| held.identity().role == PeerRole::Admin);
    let is_good = Credentials::load(&folder.admin(), None, UnixSeconds::now()).is_ok();
    let is_whole = is_good && folder.read_admin().is_ok();
    if !is_admin && !is_whole && !folder.identity().exists() {
        return Ok(());
    }
    let message = format!("{} has an identity already", folder.root().display());
    let mut failure = CommandFailure::new(FailureCode::WrongState, message);
    let detail = FailureDetail::new("a folder is of one node or one person").at("--data-dir");
    failure.details = vec![detail.hint("another folder")];
    Err(failure)
}

/// The role that a token grants, if it admits a command line.
fn role_of(token: &JoinToken) -> Result<PeerRole, CommandFailure> {
    match token.role() {
        role @ (PeerRole::Operator | PeerRole::Viewer) => Ok(role),
        role @ (PeerRole::Admin | PeerRole::Controller | PeerRole::Worker) => {
            let detail = FailureDetail::new(format!("the token admits the role {role}"));
            let hint = "`zbelastic join` for a node; `zbelastic token create --role operator` for a person";
            let mut failure = CommandFailure::new(FailureCode::NotAuthorised, "no person's token");
            failure.details = vec![detail.hint(hint)];
            Err(failure)
        }
    }
}
