//! A node that starts again: the record in its folder, compared with the typed flags, and with the
//! other files in the folder. Nothing is created again in the place of something that was lost, and
//! no typed flag is silently without effect.

use zbelastic_api::MemberRole;
use zbelastic_identity::{Credentials, JoinToken, UnixSeconds};
use zbelastic_node_folder::NodeDataFolder;
use zbelastic_node_folder::node_record::NodeRecord;
use zbelastic_wording::{CommandFailure, FailureCode, FailureDetail};

use crate::args::{InitArgs, JoinArgs};

/// The files that a folder holds only after a node began in it.
const TRACES_OF_INIT: [&str; 3] = ["identity/cert.pem", "admin", "log"];
/// The same, for a node that joins: it may have died between its certificate and its `node.json`,
/// and requests another with the same key then.
const TRACES_OF_JOIN: [&str; 2] = ["admin", "log"];

/// Checks that a folder without `node.json` is one in which nothing began.
///
/// # Errors
/// If a node did: which one began there is not known any more.
pub fn check_is_new(folder: &NodeDataFolder, role: StartRole) -> Result<(), CommandFailure> {
    let traces: &[&str] = match role {
        StartRole::Founder => &TRACES_OF_INIT,
        StartRole::Joiner => &TRACES_OF_JOIN,
    };
    let Some(trace) = traces.iter().find(|trace| folder.root().join(trace).exists()) else {
        return Ok(());
    };
    let path = folder.root().display();
    let message = format!("{path} holds {trace} of a node, and does not say of which");
    let mut failure = CommandFailure::new(FailureCode::VerificationFailed, message);
    failure.details = vec![
        FailureDetail::new("identity/node.json is missing; nothing was changed")
            .why("it was removed, or the node's very first start was cut short")
            .hint("the folder from a backup, or another --data-dir"),
    ];
    Err(failure)
}

/// The role in which a node starts in a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartRole {
    /// The node that begins a cluster.
    Founder,
    /// The node that joins a cluster.
    Joiner,
}

/// Checks that `init` means the controller that is in the folder, and adopts the addresses where it
/// is to listen and to be reached.
///
/// # Errors
/// If it is a worker's, or of a cluster with another name.
pub fn rejoin_as_founder(
    args: &InitArgs,
    folder: &NodeDataFolder,
    node_record: &mut NodeRecord,
) -> Result<(), CommandFailure> {
    if node_record.role != MemberRole::Controller {
        let hint = "`zbelastic join` goes on with it; `init` needs another --data-dir";
        return Err(other_node_failure(folder, node_record, "no controller's", hint));
    }
    if let Some(name) = args.name.as_ref().filter(|name| **name != node_record.cluster_name) {
        let hint = "without --name it goes on; a new cluster needs another --data-dir";
        let message = format!("of cluster {}, not {name}", node_record.cluster_name);
        return Err(other_node_failure(folder, node_record, &message, hint));
    }
    if let Some(bind) = args.bind {
        node_record.bind = bind;
    }
    if let Some(advertise) = &args.advertise {
        node_record.advertised = vec![advertise.to_string()];
    }
    Ok(())
}

/// Checks that `join` means the node that is in the folder, and adopts the addresses where it is to
/// listen and to be reached.
///
/// # Errors
/// If another name, another role or another cluster's token was typed.
pub fn rejoin_as_member(
    args: &JoinArgs,
    folder: &NodeDataFolder,
    node_record: &mut NodeRecord,
) -> Result<(), CommandFailure> {
    let hint = "without these flags it returns as the node that it is; another node needs another \
                --data-dir";
    if let Some(role) = args.role.map(MemberRole::from).filter(|role| *role != node_record.role) {
        return Err(other_node_failure(folder, node_record, &format!("no {role}'s"), hint));
    }
    if let Some(name) = args.name.as_ref().filter(|name| **name != node_record.name) {
        return Err(other_node_failure(folder, node_record, &format!("not {name}'s"), hint));
    }
    if let Some(typed) = &args.token.token {
        check_token(typed, folder, node_record, hint)?;
    }
    if let Some(bind) = args.bind {
        node_record.bind = bind;
    }
    if let Some(advertise) = &args.advertise {
        node_record.advertised = vec![advertise.to_string()];
    }
    if let Some(zone) = &args.zone {
        node_record.zone.clone_from(zone);
    }
    Ok(())
}

/// A token that is not needed any more may be of the node's own cluster, and of no other.
fn check_token(
    typed: &str,
    folder: &NodeDataFolder,
    node_record: &NodeRecord,
    hint: &str,
) -> Result<(), CommandFailure> {
    let Ok(token) = JoinToken::parse(typed) else { return Ok(()) };
    // A faulty certificate is reported where it is used.
    let own = Credentials::load(&folder.identity(), Some(node_record.cluster), UnixSeconds::now());
    match own {
        Ok(own) if !own.trusts(token.pin()) => {
            Err(other_node_failure(folder, node_record, "of another cluster than the token", hint))
        }
        Ok(_) | Err(_) => Ok(()),
    }
}

fn other_node_failure(
    folder: &NodeDataFolder,
    node_record: &NodeRecord,
    difference: &str,
    hint: &str,
) -> CommandFailure {
    let path = folder.root().display();
    let message =
        format!("{path} is the folder of {} {}, {difference}", node_record.role, node_record.name);
    let mut failure = CommandFailure::new(FailureCode::WrongState, message);
    failure.details = vec![FailureDetail::new("nothing was changed").hint(hint)];
    failure
}
