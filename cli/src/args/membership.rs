//! `init`, `join`, `leave`, `token`, `node` and `cluster` as typed.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use zbelastic_api::{MemberRole, TOKEN_USES_MAX, TokenRole};
use zbelastic_machine::DeviceSelector;
use zbelastic_preemption::NoticeSource;
use zbelastic_types::Bytes;
use zbelastic_wording::parse_duration_above_zero;

use super::address::{AddressList, HostPort, PORT_DEFAULT, parse_bind};
use super::client::{ClientArgs, FolderArgs, ReadArgs};
use super::quantity::{parse_bytes, parse_name, parse_note, parse_zone};
use super::ui::PageArgs;
use super::{THREADS_MAX, short};

pub(super) const INIT_EXAMPLES: &str = "\
The process is the cluster's first controller, and runs until `zbelastic leave`. Run again on the
same folder it goes on as the same controller.

Examples:
  zbelastic init
  zbelastic init --name wiki --advertise 10.0.0.1:7000
  zbelastic init --bind 127.0.0.1:7000 --data-dir /var/lib/zbelastic
  zbelastic init --ui                                 with a live page in a browser";

pub(super) const JOIN_EXAMPLES: &str = "\
The process is a member until `zbelastic leave`. Run again on the same folder it comes back as the
same node, and needs no token. Without --token, --token-file and ZBELASTIC_TOKEN it prompts for one.

Examples:
  zbelastic join --cluster 10.0.0.1:7000 --token-file token
  zbelastic join --cluster a,b,c --role controller --data-dir controller-2 --ui
  ZBELASTIC_TOKEN=... zbelastic join --cluster a:7000 --memory 8GiB --threads 4";

pub(super) const LOGIN_EXAMPLES: &str = "\
An administrator makes the token: `zbelastic token create --role operator --print-join`. An operator
starts, holds, ends, removes and exports runs and their checkpoints; a viewer reads status and events.

Examples:
  zbelastic login --cluster 10.0.0.1:7000 --token-file token --data-dir ~/.zbelastic-wiki
  zbelastic status --data-dir ~/.zbelastic-wiki";

pub(super) const LEAVE_EXAMPLES: &str = "\
Signals the process of this folder to leave, as Ctrl-C in its terminal does: a worker hands over its
layers first. Waits until it is gone.

Examples:
  zbelastic leave
  zbelastic leave --data-dir worker-2 --deadline 2m";

/// `init`.
#[derive(Args, Clone, Debug)]
pub struct InitArgs {
    /// What the cluster is called [default: zbelastic].
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    pub name: Option<String>,
    /// Where others reach this node [default: the address of the interface that leads outside].
    #[arg(long, value_name = "ADDR", value_parser = HostPort::parse)]
    pub advertise: Option<HostPort>,
    /// Where to listen, over UDP [default: 0.0.0.0:7000].
    #[arg(long, value_name = "ADDR", value_parser = parse_bind)]
    pub bind: Option<SocketAddr>,
    /// Where its data is.
    #[command(flatten)]
    pub folder: FolderArgs,
    /// The page of the cluster, while this process runs.
    #[command(flatten)]
    pub page: PageArgs,
}

/// `join`.
#[derive(Args, Clone, Debug)]
pub struct JoinArgs {
    /// Members of the cluster, with commas; any few will do [env: ZBELASTIC_CLUSTER].
    #[arg(long, value_name = "ADDR,...", value_parser = AddressList::parse)]
    pub cluster: Option<AddressList>,
    /// Where the token is from.
    #[command(flatten)]
    pub token: TokenSourceArgs,
    /// What this node is for [default: worker].
    #[arg(long, value_name = "ROLE")]
    pub role: Option<RoleArg>,
    /// What a worker computes on: cpu, or an NVIDIA device by number, as in cuda:0.
    #[arg(long, value_name = "DEVICE", default_value = "cpu", value_parser = DeviceSelector::parse)]
    pub device: DeviceSelector,
    /// What this node is called [default: the machine's name].
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    pub name: Option<String>,
    /// Where others reach this node [default: where it reaches the controllers from].
    #[arg(long, value_name = "ADDR", value_parser = HostPort::parse)]
    pub advertise: Option<HostPort>,
    /// Where to listen, over UDP [default: any free port].
    #[arg(long, value_name = "ADDR", value_parser = parse_bind)]
    pub bind: Option<SocketAddr>,
    /// Where its data is.
    #[command(flatten)]
    pub folder: FolderArgs,
    /// Threads that compute [default: this machine's cores].
    #[arg(long, value_name = "T", value_parser = clap::value_parser!(u32).range(1..=THREADS_MAX))]
    pub threads: Option<u32>,
    /// Memory for training, as in 8GiB [default: this machine's, or what is free on the device].
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub memory: Option<Bytes>,
    /// The run's text, if it is here already: it must be the same, byte for byte.
    #[arg(long, value_name = "PATH", num_args = 1..)]
    pub data_path: Vec<String>,
    /// Disk space for the token stores of a run, as in 20GiB: what no coming step reads soon makes room, and is
    /// fetched again when one does [default: all that is read is kept].
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub data_cache: Option<Bytes>,
    /// The zone that this machine stands in: copies of a stage's layers are kept in others [default:
    /// the one that the metadata service of --spot's cloud names].
    #[arg(long, value_name = "ZONE", value_parser = parse_zone)]
    pub zone: Option<String>,
    /// Whose notices of taking this machine away are listened to: auto, aws, gcp, azure or none.
    #[arg(long, value_name = "CLOUD", default_value_t = NoticeSource::Auto)]
    pub spot: NoticeSource,
    /// The page of the cluster beside a controller.
    #[command(flatten)]
    pub page: PageArgs,
}

/// Where a token is from.
#[derive(Args, Clone, Debug, Default)]
pub struct TokenSourceArgs {
    /// The token; others on this machine can see it [env: ZBELASTIC_TOKEN].
    #[arg(long, value_name = "TOKEN", conflicts_with = "token_file")]
    pub token: Option<String>,
    /// A file with the token; - reads standard input.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

/// `leave`.
#[derive(Args, Clone, Debug)]
pub struct LeaveArgs {
    /// Where the node's data is.
    #[command(flatten)]
    pub folder: FolderArgs,
    /// How long to wait for it.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_duration_above_zero)]
    pub deadline: Duration,
}

/// A role as typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RoleArg {
    /// Runs a stage.
    Worker,
    /// Votes on what is agreed.
    Controller,
}

impl From<RoleArg> for MemberRole {
    fn from(role: RoleArg) -> Self {
        match role {
            RoleArg::Worker => Self::Worker,
            RoleArg::Controller => Self::Controller,
        }
    }
}

/// What a token lets in, as typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TokenRoleArg {
    /// A node that runs a stage.
    Worker,
    /// A node that votes on what is agreed.
    Controller,
    /// A person who gives orders about runs and checkpoints (`zbelastic login`).
    Operator,
    /// A person who looks on (`zbelastic login`).
    Viewer,
}

impl From<TokenRoleArg> for TokenRole {
    fn from(role: TokenRoleArg) -> Self {
        match role {
            TokenRoleArg::Worker => Self::Worker,
            TokenRoleArg::Controller => Self::Controller,
            TokenRoleArg::Operator => Self::Operator,
            TokenRoleArg::Viewer => Self::Viewer,
        }
    }
}

/// `login`.
#[derive(Args, Clone, Debug)]
pub struct LoginArgs {
    /// Controllers of the cluster, with commas; any few will do.
    #[arg(long, value_name = "ADDR,...", value_parser = AddressList::parse)]
    pub cluster: AddressList,
    /// The token.
    #[command(flatten)]
    pub token: TokenSourceArgs,
    /// What others see of who this is [default: the machine's name and a number].
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    pub name: Option<String>,
    /// The folder that commands are then given.
    #[command(flatten)]
    pub folder: FolderArgs,
}

/// `token`.
#[derive(Clone, Debug, Subcommand)]
pub enum TokenCommand {
    /// Make a token that lets nodes join, or people in.
    #[command(after_help = "\
The token is printed once and not kept. Whoever has it can join until it ends or is used up.

Examples:
  zbelastic token create --print-join
  zbelastic token create --role controller --ttl 15m
  zbelastic token create --role viewer --print-join --note dashboard
  zbelastic token create --uses 8 --ephemeral --note spot-fleet")]
    Create(TokenCreateArgs),
    /// List tokens: role, uses, end. Their secrets are not kept.
    #[command(after_help = "Example:\n  zbelastic token list --json")]
    List(ReadArgs),
    /// Revoke a token: nobody joins with it any more.
    #[command(after_help = "\
Examples:
  zbelastic token revoke 7f3a
  zbelastic token revoke 7f3a --with-nodes --yes")]
    Revoke(TokenRevokeArgs),
}

/// `token create`.
#[derive(Args, Clone, Debug)]
pub struct TokenCreateArgs {
    /// The role that it lets in.
    #[arg(long, value_name = "ROLE", default_value = "worker")]
    pub role: TokenRoleArg,
    /// How long it can be used.
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = parse_duration_above_zero)]
    pub ttl: Duration,
    /// How often it can be used.
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(TOKEN_USES_MAX)))]
    pub uses: u32,
    /// Forget nodes that join with it as soon as they are lost.
    #[arg(long)]
    pub ephemeral: bool,
    /// A note that `token list` shows.
    #[arg(long, value_name = "TEXT", value_parser = parse_note)]
    pub note: Option<String>,
    /// Print the line to paste on the other machine, instead of the token.
    #[arg(long)]
    pub print_join: bool,
    /// The cluster, and how to answer.
    #[command(flatten)]
    pub read: ReadArgs,
}

/// `token revoke`.
#[derive(Args, Clone, Debug)]
pub struct TokenRevokeArgs {
    /// Its id, or how it begins.
    #[arg(value_name = "ID", value_parser = short)]
    pub id: String,
    /// Remove the nodes that joined with it as well.
    #[arg(long)]
    pub with_nodes: bool,
    /// Do not ask for confirmation.
    #[arg(long)]
    pub yes: bool,
    /// The cluster.
    #[command(flatten)]
    pub client: ClientArgs,
}

/// `node`.
#[derive(Clone, Debug, Subcommand)]
pub enum NodeCommand {
    /// List members.
    #[command(after_help = "Example:\n  zbelastic node list --json")]
    List(ReadArgs),
    /// Show one member.
    #[command(
        after_help = "Examples:\n  zbelastic node show 3\n  zbelastic node show gpu-b --json"
    )]
    Show {
        /// Its number, its name, or how its name begins.
        #[arg(value_name = "NODE", value_parser = short)]
        node: String,
        /// The cluster, and how to answer.
        #[command(flatten)]
        read: ReadArgs,
    },
    /// Drain a member: it hands over its layers, then its process ends.
    #[command(after_help = "Example:\n  zbelastic node drain gpu-b")]
    Drain {
        /// Its number, its name, or how its name begins.
        #[arg(value_name = "NODE", value_parser = short)]
        node: String,
        /// The cluster.
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Remove a member for good: it can come back with a new token only.
    #[command(after_help = "\
Examples:
  zbelastic node remove gpu-b --yes
  zbelastic node remove 3 --force --yes     even if it is live, without handing over")]
    Remove(NodeRemoveArgs),
}

/// `node remove`.
#[derive(Args, Clone, Debug)]
pub struct NodeRemoveArgs {
    /// Its number, its name, or how its name begins.
    #[arg(value_name = "NODE", value_parser = short)]
    pub node: String,
    /// Even if it is live.
    #[arg(long)]
    pub force: bool,
    /// Do not ask for confirmation.
    #[arg(long)]
    pub yes: bool,
    /// The cluster.
    #[command(flatten)]
    pub client: ClientArgs,
}

/// `cluster`.
#[derive(Clone, Debug, Subcommand)]
pub enum ClusterCommand {
    /// Show the cluster itself: who votes, how many may be lost.
    #[command(after_help = "Example:\n  zbelastic cluster info --json")]
    Info(ReadArgs),
    /// Write what a cluster is recovered from, without the weights.
    #[command(after_help = "\
The file holds secrets: it is written for its owner alone.

Example:
  zbelastic cluster backup wiki.backup")]
    Backup {
        /// Where to.
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// The cluster.
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Replace the certificate authority while the cluster runs; again, show how far that is.
    #[command(after_help = "\
Members get other certificates by themselves, and training does not wait. The old authority is
retired once all members that are there have them, and people had seven days to use a command;
--force does not wait for who is away. Tokens that name the old authority are revoked with it.
`zbelastic cluster info` shows how far it is and whom it waits for.

Example:
  zbelastic cluster rotate-ca --yes")]
    RotateCa(RotateCaArgs),
    /// Make a new cluster out of one controller's folder, when most controllers are lost for good.
    #[command(after_help = "\
Members of the old cluster are strangers to the new one, and join with new tokens. What the lost
controllers had agreed on and this one had not received is lost. Its process must not run.

Example:
  zbelastic cluster recover --force-new-cluster --data-dir controller-1 --yes")]
    Recover(RecoverArgs),
}

/// `cluster rotate-ca`.
#[derive(Args, Clone, Debug)]
pub struct RotateCaArgs {
    /// Wait for nobody who is away.
    #[arg(long)]
    pub force: bool,
    /// Do not ask for confirmation.
    #[arg(long)]
    pub yes: bool,
    /// The cluster.
    #[command(flatten)]
    pub client: ClientArgs,
}

pub(super) const MIRROR_EXAMPLES: &str = "\
`checkpoint.mirror` of a run does this beside its leader, without a process of one's own. A place is a
folder, `s3://BUCKET/FOLDER`, `gs://` or `az://`, and of one cluster. As many checkpoints stay as the run
keeps. Credentials are found as the cloud's own tools find them.

Examples:
  zbelastic mirror s3://backups/wiki
  zbelastic mirror /mnt/nfs/wiki --once";

/// `mirror`.
#[derive(Args, Clone, Debug)]
pub struct MirrorArgs {
    /// Where to [default: the run's `checkpoint.mirror`].
    #[arg(value_name = "PLACE")]
    pub place: Option<String>,
    /// Copy the newest checkpoint, and end.
    #[arg(long)]
    pub once: bool,
    /// A controller's folder of texts (DATA/data): what the run reads and is there is copied too.
    #[arg(long, value_name = "DIR")]
    pub texts: Option<PathBuf>,
    /// The cluster.
    #[command(flatten)]
    pub client: ClientArgs,
}

pub(super) const RECOVER_EXAMPLES: &str = "\
The folder becomes that of the first controller of a new cluster; `zbelastic init` on it begins. The run
goes on behind the checkpoint, to the same bits. The new cluster writes the mirror from then on.

Examples:
  zbelastic recover --from s3://backups/wiki --list
  zbelastic recover --from s3://backups/wiki --advertise 10.0.0.1:7000
  zbelastic recover --from /mnt/nfs/wiki --step 1200 --data-dir controller";

/// `recover`.
#[derive(Args, Clone, Debug)]
pub struct RecoverFromArgs {
    /// The mirror: a folder, s3://, gs:// or az://.
    #[arg(long, value_name = "PLACE")]
    pub from: String,
    /// Show the checkpoints that it has, and do nothing.
    #[arg(long)]
    pub list: bool,
    /// Go on behind this step [default: the newest].
    #[arg(long, value_name = "N")]
    pub step: Option<u64>,
    /// What the new cluster is called [default: as the old one].
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    pub name: Option<String>,
    /// Where others reach this node [default: the address of the interface that leads outside].
    #[arg(long, value_name = "ADDR", value_parser = HostPort::parse)]
    pub advertise: Option<HostPort>,
    /// Where to listen, over UDP [default: 0.0.0.0:7000].
    #[arg(long, value_name = "ADDR", value_parser = parse_bind)]
    pub bind: Option<SocketAddr>,
    /// Where its data is to be.
    #[command(flatten)]
    pub folder: FolderArgs,
}

/// Where a first controller listens if nothing is typed.
#[must_use]
pub fn default_bind() -> SocketAddr {
    (Ipv4Addr::UNSPECIFIED, PORT_DEFAULT).into()
}

/// `cluster recover`.
#[derive(Args, Clone, Debug)]
pub struct RecoverArgs {
    /// Really make a new cluster.
    #[arg(long, required = true)]
    pub force_new_cluster: bool,
    /// Do not ask for confirmation.
    #[arg(long)]
    pub yes: bool,
    /// The controller's folder.
    #[command(flatten)]
    pub folder: FolderArgs,
}
