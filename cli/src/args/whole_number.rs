//! What is printed about an argument that should be a whole number.

use std::error::Error;
use std::num::{IntErrorKind, ParseIntError};

use clap::error::{ContextKind, ErrorKind};

/// The error in words where its own are those of Rust's parser of integers, which do not say what was
/// expected; else the error as it is.
pub(super) fn explained(error: clap::Error) -> clap::Error {
    let source = error.source().and_then(|source| source.downcast_ref::<ParseIntError>());
    let Some(kind) = source.map(ParseIntError::kind) else { return error };
    let is_out_of_range = matches!(kind, IntErrorKind::PosOverflow | IntErrorKind::NegOverflow);
    let expected =
        if is_out_of_range { "no such number is taken here" } else { "expected a whole number" };
    let context = |kind| error.get(kind).map(ToString::to_string).unwrap_or_default();
    let value = context(ContextKind::InvalidValue);
    let argument = context(ContextKind::InvalidArg);
    let message = format!(
        "invalid value '{value}' for '{argument}': {expected}\n\n\
         For more information, try '--help'.\n"
    );
    clap::Error::raw(ErrorKind::ValueValidation, message)
}
