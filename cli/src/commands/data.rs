//! `data`: token stores, made and shown.

mod prepare;
mod samples;
mod show;

pub(crate) use show::open_store;

use std::io::Write;

use zbelastic_wording::CommandError;

use crate::args::DataCommand;

/// Runs a `data` command.
///
/// # Errors
/// If the sources, the tokenizer or the store are wrong, or the store or `out` cannot be written.
pub fn run(command: &DataCommand, out: &mut dyn Write) -> Result<(), CommandError> {
    match command {
        DataCommand::Prepare(args) => prepare::run(args, out),
        DataCommand::Show(args) => show::run(args, out),
    }
}
