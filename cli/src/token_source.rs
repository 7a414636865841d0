//! Where a token that is used comes from.

use std::env;
use std::fs::File;
use std::io::{self, BufRead, Read};

use zbelastic_wording::{CommandFailure, FailureCode, FailureDetail};

use crate::args::TokenSourceArgs;
use crate::terminal;

/// Environment variable that holds a token.
pub const TOKEN_VARIABLE: &str = "ZBELASTIC_TOKEN";
/// Most bytes of a token, far more than any has.
const TOKEN_BYTES_MAX: u64 = 4096;

/// The token to join with: from a flag, a file, the environment, or a person.
///
/// # Errors
/// If there is none, or the file cannot be read.
pub fn find_token(source: &TokenSourceArgs) -> Result<String, CommandFailure> {
    let token = match (&source.token, &source.token_file) {
        (Some(token), _) => token.clone(),
        (None, Some(path)) if path.as_os_str() == "-" => read_line("-", io::stdin().lock())?,
        (None, Some(path)) => {
            let shown = path.display().to_string();
            let file = File::open(path).map_err(|error| unreadable(&shown, &error))?;
            read_token(&shown, file)?
        }
        (None, None) => match env::var(TOKEN_VARIABLE) {
            Ok(token) if !token.is_empty() => token,
            Ok(_) | Err(_) if terminal::has_person() => terminal::prompt_secret("Token:")
                .map_err(|error| unreadable("the terminal", &error))?,
            Ok(_) | Err(_) => String::new(),
        },
    };
    let token = token.trim();
    if token.is_empty() { Err(no_token()) } else { Ok(token.to_owned()) }
}

fn read_token(path: &str, from: impl Read) -> Result<String, CommandFailure> {
    let mut text = String::new();
    let read = from.take(TOKEN_BYTES_MAX + 1).read_to_string(&mut text);
    check_length(path, text, read)
}

/// The first line: who writes it may keep the pipe open, as `train` does for its workers.
fn read_line(path: &str, from: impl BufRead) -> Result<String, CommandFailure> {
    let mut text = String::new();
    let read = from.take(TOKEN_BYTES_MAX + 1).read_line(&mut text);
    check_length(path, text, read)
}

fn check_length(
    path: &str,
    text: String,
    read: io::Result<usize>,
) -> Result<String, CommandFailure> {
    let length = read.map_err(|error| unreadable(path, &error))?;
    if length as u64 <= TOKEN_BYTES_MAX {
        return Ok(text);
    }
    let what = format!("{path} holds more than a token: at most {TOKEN_BYTES_MAX} bytes expected");
    Err(CommandFailure::new(FailureCode::Usage, what))
}

fn unreadable(path: &str, error: &io::Error) -> CommandFailure {
    CommandFailure::new(FailureCode::Usage, format!("cannot read the token from {path}: {error}"))
}

fn no_token() -> CommandFailure {
    let mut failure = CommandFailure::new(FailureCode::Usage, "there is no token to join with");
    let detail = FailureDetail::new("a cluster can be joined only with one").hint(
        "`zbelastic token create` on the cluster makes one; then --token-file FILE, \
         --token TOKEN or ZBELASTIC_TOKEN",
    );
    failure.details = vec![detail];
    failure
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_comes_from_a_flag_or_a_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("token");
        let from_file = || {
            let source = TokenSourceArgs { token: None, token_file: Some(path.clone()) };
            find_token(&source).map_err(|failure| failure.code)
        };
        assert_eq!(from_file(), Err(FailureCode::Usage));
        std::fs::write(&path, " zbe1-secret \n").expect("writable");
        assert_eq!(from_file(), Ok("zbe1-secret".to_owned()));
        std::fs::write(&path, "\n").expect("writable");
        assert_eq!(from_file(), Err(FailureCode::Usage));
        std::fs::write(&path, "x".repeat(4096)).expect("writable");
        assert_eq!(from_file().map(|token| token.len()), Ok(4096));
        std::fs::write(&path, "x".repeat(4097)).expect("writable");
        assert_eq!(from_file(), Err(FailureCode::Usage));
        let line = |text: &str| read_line("-", text.as_bytes()).map_err(|failure| failure.code);
        assert_eq!(line("zbe1-secret\nmore"), Ok("zbe1-secret\n".to_owned()));
        assert_eq!(line(&"x".repeat(4097)), Err(FailureCode::Usage));
        let flag = TokenSourceArgs { token: Some("flag".to_owned()), token_file: None };
        assert_eq!(find_token(&flag), Ok("flag".to_owned()));
    }
}
