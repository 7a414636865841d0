//! Command line of `doctor`.

use std::path::PathBuf;

use clap::Args;

/// The examples that `doctor --help` ends with.
pub const DOCTOR_EXAMPLES: &str = "\
Exit code 0 if nothing stands in the way, 7 if the machine has too little of something, 6 if it is
in a state to be mended first.

Examples:
  zbelastic doctor
  zbelastic doctor --data-dir /var/lib/zbelastic --json
  zbelastic doctor --cluster 10.0.0.1:7000";

/// `doctor`.
#[derive(Args, Clone, Debug)]
pub struct DoctorArgs {
    /// Folder that a node of this machine has or would have its data in [env: ZBELASTIC_DATA_DIR]
    /// [default: .zbelastic].
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Member of a cluster that is tried to be reached.
    #[arg(long, value_name = "ADDR")]
    pub cluster: Option<String>,
}
