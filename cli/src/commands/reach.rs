//! The parts shared by commands that send requests to a cluster: the client, and confirmation by a
//! person.

use std::io::{self, Write};

use serde::Serialize;
use zbelastic_api::client::ApiClient;
use zbelastic_wording::{CommandError, CommandFailure, FailureCode, FailureDetail};

use crate::args::ClientArgs;
use crate::command_connection::{exchange, request_addresses};
use crate::terminal;

/// A client of the cluster that was named.
///
/// # Errors
/// If the folder has no administrator's certificate, if the environment's addresses are none, or if
/// the system gives no threads.
pub fn connect(args: &ClientArgs) -> Result<ApiClient<'static>, CommandFailure> {
    let (folder, addresses) = request_addresses(args)?;
    Ok(ApiClient::new(addresses, exchange(&folder)?))
}

/// Prompts for confirmation, unless `is_yes`; `consequence` is the effect of a yes.
///
/// # Errors
/// If the answer is not yes, or if there is no terminal to prompt on.
pub fn confirm(is_yes: bool, consequence: &str) -> Result<(), CommandFailure> {
    if is_yes {
        return Ok(());
    }
    let mut prompt = terminal::prompt;
    let person = terminal::has_person().then_some(&mut prompt as &mut PromptFn<'_>);
    confirm_with(consequence, person)
}

type PromptFn<'a> = dyn FnMut(&str) -> io::Result<String> + 'a;

fn confirm_with(
    consequence: &str,
    person: Option<&mut PromptFn<'_>>,
) -> Result<(), CommandFailure> {
    let Some(prompt) = person else {
        let mut failure =
            CommandFailure::new(FailureCode::Usage, format!("not confirmed: {consequence}"));
        let detail = FailureDetail::new("there is no terminal to prompt on");
        failure.details = vec![detail.hint("--yes, if that is meant")];
        return Err(failure);
    };
    // An end of input is no yes.
    let answer = prompt(&format!("{consequence}. Go on? [y/N]")).unwrap_or_default();
    if matches!(answer.to_lowercase().as_str(), "y" | "yes") {
        return Ok(());
    }
    Err(CommandFailure::new(FailureCode::Interrupted, "not confirmed: nothing was changed"))
}

/// Prints a value as JSON, over several lines.
///
/// # Errors
/// If `out` cannot be written.
pub fn write_json(out: &mut dyn Write, value: &impl Serialize) -> Result<(), CommandError> {
    let text = serde_json::to_string_pretty(value).expect("numbers, texts and lists are JSON");
    writeln!(out, "{text}")?;
    Ok(())
}

/// Prints a value as one line of JSON, and flushes `out`.
///
/// # Errors
/// If `out` cannot be written.
pub fn write_json_line(out: &mut dyn Write, value: &impl Serialize) -> Result<(), CommandError> {
    let text = serde_json::to_string(value).expect("numbers, texts and lists are JSON");
    writeln!(out, "{text}")?;
    out.flush()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_yes_is_a_yes_and_everything_else_is_none() {
        let mut prompted = String::new();
        let mut answer_with = |answer: &str| {
            let mut prompt = |question: &str| {
                question.clone_into(&mut prompted);
                Ok(answer.to_owned())
            };
            confirm_with("node 3 is removed", Some(&mut prompt)).map_err(|failure| failure.code)
        };
        for yes in ["y", "Y", "yes", "YES"] {
            assert_eq!(answer_with(yes), Ok(()));
        }
        for no in ["", "n", "no", "yep", "y y"] {
            assert_eq!(answer_with(no), Err(FailureCode::Interrupted));
        }
        assert_eq!(prompted, "node 3 is removed. Go on? [y/N]");
    }

    #[test]
    fn without_a_terminal_there_must_be_a_flag() {
        let failure = confirm_with("the run is stopped", None).expect_err("nobody");
        assert_eq!(failure.code, FailureCode::Usage);
        assert!(failure.to_string().contains("--yes"), "{failure}");
        assert_eq!(confirm(true, "the run is stopped"), Ok(()));
        let mut ended = |_: &str| Err(io::ErrorKind::UnexpectedEof.into());
        let failure = confirm_with("it ends", Some(&mut ended)).expect_err("no answer");
        assert_eq!(failure.code, FailureCode::Interrupted);
    }
}
