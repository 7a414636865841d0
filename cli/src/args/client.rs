//! Flags of every command that sends requests to a cluster.

use std::path::PathBuf;

use clap::Args;

use super::address::AddressList;

/// Where a node's data is.
#[derive(Args, Clone, Debug, Default)]
pub struct FolderArgs {
    /// The node's folder [env: ZBELASTIC_DATA_DIR] [default: .zbelastic].
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
}

/// Which cluster is asked, and with whose right.
#[derive(Args, Clone, Debug, Default)]
pub struct ClientArgs {
    /// Members to ask, with commas [env: ZBELASTIC_CLUSTER] [default: as the folder knows them].
    #[arg(long, value_name = "ADDR,...", value_parser = AddressList::parse)]
    pub cluster: Option<AddressList>,
    /// The folder with the administrator's certificate.
    #[command(flatten)]
    pub folder: FolderArgs,
}

/// A question to a cluster.
#[derive(Args, Clone, Debug, Default)]
pub struct ReadArgs {
    /// The cluster.
    #[command(flatten)]
    pub client: ClientArgs,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}
