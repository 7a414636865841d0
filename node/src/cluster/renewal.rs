//! Certificates outlive no process and no folder that is used: a node with the authority renews its
//! own and its administrator's, and a member with a certificate that expired while it was off
//! requests another one with the key that the cluster knows it by.

use std::net::SocketAddr;
use std::time::Duration;

use zbelastic_identity::{
    ClockFault, ClusterAuthority, Credentials, IdentityFolderFault, JoinError, JoinRefusal,
    JoinSetup, NodeKey, NodeName, PeerRole, UnixSeconds, join_once,
};
use zbelastic_types::NodeId;
use zbelastic_wording::{CommandFailure, FailureCode, FailureDetail};

use super::ADMIN_NODE;
use super::membership_failure::{cannot_certify, cannot_join, cannot_keep};
use zbelastic_node_folder::NodeDataFolder;
use zbelastic_node_folder::node_record::NodeRecord;

/// Between two attempts of a worker that starts with a certificate that ended.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// How many times it tries, if no controller that leads is reached: ten minutes, which controllers
/// start in.
const ATTEMPTS_MAX: u32 = 600;

/// A controller has the authority, and so can renew its own certificate when it starts.
pub fn controller_credentials(
    folder: &NodeDataFolder,
    node_record: &NodeRecord,
    authority: &ClusterAuthority,
) -> Result<Credentials, CommandFailure> {
    let key = NodeKey::load_or_create(&folder.identity()).map_err(cannot_keep)?;
    let kept = Credentials::load_ended(&folder.identity(), Some(node_record.cluster)).ok();
    let credentials =
        issue_credentials(authority, key, (PeerRole::Controller, node_record.node), kept.as_ref())?;
    credentials.save(&folder.identity()).map_err(cannot_keep)?;
    if folder.read_admin().is_ok() && !is_of_another(folder, authority) {
        renew_admin(folder, authority, Some(&credentials))?;
    }
    Ok(credentials)
}

/// Makes the administrator's certificate, or another one for the same key. It trusts the same
/// authorities as the controller of this folder.
///
/// # Errors
/// If it cannot be made or written.
pub fn renew_admin(
    folder: &NodeDataFolder,
    authority: &ClusterAuthority,
    own: Option<&Credentials>,
) -> Result<(), CommandFailure> {
    let key = NodeKey::load_or_create(&folder.admin()).map_err(cannot_keep)?;
    let admin = issue_credentials(authority, key, (PeerRole::Admin, ADMIN_NODE), own)?;
    admin.save(&folder.admin()).map_err(cannot_keep)
}

/// Whether the certificate in a folder is an operator's, a viewer's, or of another cluster: no
/// person becomes an administrator by files on a controller's machine.
fn is_of_another(folder: &NodeDataFolder, authority: &ClusterAuthority) -> bool {
    let held = Credentials::load_ended(&folder.admin(), None).map(|held| held.identity());
    held.is_ok_and(|held| (held.role, held.cluster) != (PeerRole::Admin, authority.cluster()))
}

/// Makes another one if there is one in this folder, and two thirds of its time are over, or
/// another authority issues now or is trusted.
///
/// # Errors
/// As [`renew_admin`].
pub fn renew_admin_if_due(
    folder: &NodeDataFolder,
    authority: &ClusterAuthority,
    own: &Credentials,
) -> Result<(), CommandFailure> {
    let Ok(admin) = Credentials::load_ended(&folder.admin(), Some(authority.cluster())) else {
        return Ok(());
    };
    let is_admin = admin.identity().role == PeerRole::Admin;
    let is_due = UnixSeconds::now() >= admin.window().renew_after()
        || !admin.is_by(authority.certificate())
        || admin.roots() != own.roots();
    if is_admin && is_due { renew_admin(folder, authority, Some(own)) } else { Ok(()) }
}

/// Credentials by the authority, which is trusted; and so are those that `kept` trusts.
fn issue_credentials(
    authority: &ClusterAuthority,
    key: NodeKey,
    (role, node): (PeerRole, NodeId),
    kept: Option<&Credentials>,
) -> Result<Credentials, CommandFailure> {
    let issued = authority.issue(&key.requested(), role, node, UnixSeconds::now());
    let issued = issued.map_err(cannot_certify)?;
    let mut roots = kept.map_or_else(Vec::new, |kept| kept.roots().to_vec());
    if !roots.contains(authority.certificate()) {
        roots.push(authority.certificate().clone());
    }
    Credentials::new(issued.chain, key, roots).map_err(cannot_certify)
}

/// The identity in a member's folder; with another certificate, if its own ended meanwhile.
///
/// # Errors
/// If it cannot be used, or the cluster does not renew it.
pub async fn member_credentials(
    folder: &NodeDataFolder,
    node_record: &NodeRecord,
    typed: Vec<SocketAddr>,
) -> Result<Credentials, CommandFailure> {
    let identity = folder.identity();
    match Credentials::load(&identity, Some(node_record.cluster), UnixSeconds::now()) {
        Ok(credentials) => Ok(credentials),
        Err(IdentityFolderFault::Clock { fault: ClockFault::Expired { .. }, .. }) => {
            let ended = Credentials::load_ended(&identity, Some(node_record.cluster));
            let ended = ended.map_err(|error| unusable(&error))?;
            let controllers = node_record.controllers.values().flatten().copied();
            let controllers: Vec<_> = typed.into_iter().chain(controllers).collect();
            let renewed =
                request_renewal_with_retries(&ended, &node_record.name, &controllers).await?;
            renewed.save(&identity).map_err(cannot_keep)?;
            Ok(renewed)
        }
        Err(error) => Err(unusable(&error)),
    }
}

/// The same, tried again while there is no leader: after an outage controllers start when workers
/// do.
async fn request_renewal_with_retries(
    ended: &Credentials,
    name: &str,
    controllers: &[SocketAddr],
) -> Result<Credentials, CommandFailure> {
    let mut attempts = 0;
    loop {
        match request_renewal(ended, name, controllers.iter().copied()).await {
            Err(error)
                if error.failure.code == FailureCode::Unreachable && attempts < ATTEMPTS_MAX =>
            {
                attempts += 1;
                tokio::time::sleep(RETRY_PAUSE).await;
            }
            answer => return answer.map_err(|error| error.failure),
        }
    }
}

/// Why a member gets no other certificate.
#[derive(Debug)]
pub struct RenewalError {
    /// Whether the cluster answered that it is no member any more.
    pub is_no_member: bool,
    /// The failure to report.
    pub failure: CommandFailure,
}

impl From<CommandFailure> for RenewalError {
    fn from(failure: CommandFailure) -> Self {
        Self { is_no_member: false, failure }
    }
}

/// Another certificate for a member with an expired one.
///
/// # Errors
/// If no leading controller was reached, or it has no such member.
pub async fn request_renewal(
    ended: &Credentials,
    name: &str,
    controllers: impl Iterator<Item = SocketAddr>,
) -> Result<Credentials, RenewalError> {
    let name = name.parse::<NodeName>().map_err(|error| unusable(&error))?;
    let setup = JoinSetup::of_member(ended, name, controllers.collect());
    let joined = join_once(&setup.map_err(cannot_certify)?).await.map_err(|error| {
        let no_member = matches!(error, JoinError::Refused { refusal: JoinRefusal::NoMember, .. });
        RenewalError { is_no_member: no_member, failure: cannot_join(error) }
    })?;
    let expected = ended.identity();
    let found = joined.credentials.identity();
    if expected != found {
        let message =
            format!("the cluster sent a certificate of {found}, expected one of {expected}");
        return Err(CommandFailure::new(FailureCode::VerificationFailed, message).into());
    }
    Ok(joined.credentials)
}

fn unusable(error: &dyn std::fmt::Display) -> CommandFailure {
    let mut failure = CommandFailure::new(FailureCode::NotAuthorised, error.to_string());
    let hint = "the right time on this machine; else join with a new token and an empty --data-dir";
    failure.details = vec![FailureDetail::new("this node's certificate cannot be used").hint(hint)];
    failure
}

#[cfg(test)]
mod tests {
    use zbelastic_types::ClusterId;

    use super::*;

    /// A folder whose administrator's certificate was made so many days ago.
    fn aged(days: u64) -> (tempfile::TempDir, NodeDataFolder, ClusterAuthority) {
        let root = tempfile::tempdir().expect("a folder");
        let folder = NodeDataFolder::new(root.path().to_owned());
        let then = UnixSeconds::now().minus(days * 24 * 3600);
        let authority = ClusterAuthority::create(ClusterId(7), then).expect("it is made");
        let key = NodeKey::load_or_create(&folder.admin()).expect("writable");
        let issued = authority.issue(&key.requested(), PeerRole::Admin, ADMIN_NODE, then);
        let roots = vec![authority.certificate().clone()];
        let admin = Credentials::new(issued.expect("it is made").chain, key, roots);
        admin.expect("they belong together").save(&folder.admin()).expect("writable");
        (root, folder, authority)
    }

    fn controller(authority: &ClusterAuthority) -> Credentials {
        let now = UnixSeconds::now();
        authority.credentials(PeerRole::Controller, NodeId(1), now).expect("it is made")
    }

    #[test]
    fn the_administrators_certificate_is_by_the_issuing_authority_and_trusts_as_its_controller_does()
     {
        let (_root, folder, old) = aged(1);
        let new = old.successor(UnixSeconds::now()).expect("it is made");
        let both = vec![old.certificate().clone(), new.certificate().clone()];
        let own = controller(&new).with_roots(both).expect("they are of one cluster");
        let admin = || Credentials::load_ended(&folder.admin(), None).expect("it is there");
        renew_admin_if_due(&folder, &new, &own).expect("it is renewed");
        assert!(admin().is_by(new.certificate()));
        assert_eq!(admin().roots(), own.roots());
        let retired = controller(&new);
        renew_admin_if_due(&folder, &new, &retired).expect("it is renewed");
        assert_eq!(admin().roots(), retired.roots());
    }

    #[test]
    fn the_administrators_certificate_is_renewed_after_two_thirds_of_its_time_and_after_its_end() {
        for (days, is_due) in [(1, false), (4, false), (5, true), (30, true)] {
            let (_root, folder, authority) = aged(days);
            let window = |folder: &NodeDataFolder| {
                Credentials::load_ended(&folder.admin(), None).expect("it is there").window()
            };
            let before = window(&folder);
            let own = controller(&authority);
            renew_admin_if_due(&folder, &authority, &own).expect("renewed or not");
            assert_eq!(window(&folder) != before, is_due, "{days} days");
        }
    }

    #[test]
    fn a_controller_without_an_administrators_folder_makes_none() {
        let (root, _, authority) = aged(30);
        let other = NodeDataFolder::new(root.path().join("other"));
        renew_admin_if_due(&other, &authority, &controller(&authority))
            .expect("nothing is to be done");
        assert!(!other.admin().exists());
    }
}
