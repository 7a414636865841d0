//! The terminal, if there is one: its width, and prompts.

use std::ffi::OsString;
use std::io::{self, BufRead, IsTerminal, Write};

use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcgetwinsize, tcsetattr};

/// The width where standard output is no terminal, or reports none.
pub const WIDTH_DEFAULT: usize = 100;
/// The narrowest and widest that text is fitted to.
const WIDTH_RANGE: (usize, usize) = (40, 240);

/// Columns of standard output.
#[must_use]
pub fn width() -> usize {
    let size = tcgetwinsize(io::stdout()).ok().map(|size| usize::from(size.ws_col));
    let found = size.filter(|columns| *columns > 0).unwrap_or(WIDTH_DEFAULT);
    found.clamp(WIDTH_RANGE.0, WIDTH_RANGE.1)
}

/// Whether a person can be prompted: they see standard error and type on standard input.
#[must_use]
pub fn has_person() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Whether standard output shows colours: on a terminal, unless `NO_COLOR` or `TERM` says otherwise.
#[must_use]
pub fn has_colours() -> bool {
    let variable = |name| std::env::var_os(name);
    io::stdout().is_terminal() && may_have_colours(variable("NO_COLOR"), variable("TERM"))
}

/// By what the variables say: `NO_COLOR` of any text forbids them.
fn may_have_colours(no_color: Option<OsString>, term: Option<OsString>) -> bool {
    let is_set = |variable: &OsString| !variable.is_empty();
    !no_color.is_some_and(|text| is_set(&text))
        && term.is_some_and(|term| is_set(&term) && term != "dumb")
}

/// The letter, or the replacement character for one that a terminal might interpret as a command.
#[must_use]
pub fn printable(letter: char) -> char {
    match letter {
        '\n' | '\t' => letter,
        other if other.is_control() => char::REPLACEMENT_CHARACTER,
        other => other,
    }
}

/// Prompts on standard error, and reads a line.
///
/// # Errors
/// If there is no line.
pub fn prompt(question: &str) -> io::Result<String> {
    let mut error = io::stderr();
    write!(error, "{question} ")?;
    error.flush()?;
    read_line()
}

/// The same for a secret: the typed letters are not shown.
///
/// # Errors
/// If there is no line.
pub fn prompt_secret(question: &str) -> io::Result<String> {
    let input = io::stdin();
    let shown = tcgetattr(&input)?;
    let mut hidden = shown.clone();
    hidden.local_modes.remove(LocalModes::ECHO);
    tcsetattr(&input, OptionalActions::Flush, &hidden)?;
    let answer = prompt(question);
    // Shown again after any answer.
    tcsetattr(&input, OptionalActions::Flush, &shown)?;
    writeln!(io::stderr())?;
    answer
}

fn read_line() -> io::Result<String> {
    let mut line = String::new();
    if io::stdin().lock().read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::may_have_colours;

    #[test]
    fn colours_are_for_terminals_that_have_them_and_people_who_want_them() {
        let check = |no_color: Option<&str>, term: Option<&str>, expected: bool| {
            let found = may_have_colours(no_color.map(Into::into), term.map(Into::into));
            assert_eq!(found, expected, "{no_color:?} {term:?}");
        };
        check(None, Some("xterm-256color"), true);
        check(Some(""), Some("xterm"), true);
        check(Some("1"), Some("xterm"), false);
        check(None, Some("dumb"), false);
        check(None, Some(""), false);
        check(None, None, false);
    }
}
