//! The processes of a cluster, and the road to one.

use std::path::PathBuf;

use crate::api::client::{ClientError, Exchange};
use crate::args::{InitArgs, JoinArgs, RecoverArgs};
use crate::data_folder::DataFolder;
use crate::failure::{Failure, FailureCode, Stop};

/// The process behind `init`.
///
/// # Errors
/// If it ends before it is told to.
pub fn init(_args: &InitArgs) -> Result<std::process::ExitCode, Stop> {
    Err(absent().into())
}

/// The process behind `join`.
///
/// # Errors
/// If it ends before it is told to.
pub fn join(_args: &JoinArgs) -> Result<std::process::ExitCode, Stop> {
    Err(absent().into())
}

/// A new cluster out of one controller's folder; returns what was kept of the old one.
///
/// # Errors
/// If the folder is not a controller's, or is in use.
pub fn recover(_args: &RecoverArgs) -> Result<PathBuf, Failure> {
    Err(absent())
}

/// The road to the cluster that `folder` has an administrator's certificate of.
///
/// # Errors
/// If there is no certificate, or it cannot be used.
pub fn exchange(_folder: &DataFolder) -> Result<Exchange<'static>, Failure> {
    Ok(Box::new(|addresses, _| {
        let tried = addresses.iter().map(|address| (address.clone(), "no transport".to_owned()));
        Err(ClientError::Unreachable { tried: tried.collect() })
    }))
}

fn absent() -> Failure {
    Failure::new(FailureCode::Internal, "this build has no cluster process")
}
