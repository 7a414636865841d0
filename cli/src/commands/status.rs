//! `status`: how everything stands, once or again and again.

mod render;

pub use render::render_status;

use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;
use std::thread;

use zbelastic_api::client::ApiClient;
use zbelastic_wording::{CommandError, CommandFailure};

use super::reach::{connect, write_json, write_json_line};
use crate::args::StatusArgs;
use crate::terminal;

/// Width of lines where standard output is no terminal: nothing is cut.
const WIDTH_ENDLESS: usize = usize::MAX;
/// Escape sequence that clears a terminal.
const CLEAR: &str = "\u{1b}[2J\u{1b}[H";

/// Where a status is shown, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StatusOutputMode {
    /// One JSON object a line.
    JsonLines,
    /// A terminal of this width, drawn again each time.
    Redrawn(usize),
    /// One block after the other.
    Blocks,
}

/// Runs `status`.
///
/// # Errors
/// If the cluster does not answer, or `out` cannot be written.
pub fn run(args: &StatusArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    let mut client = connect(&args.read.client)?;
    let is_terminal = io::stdout().is_terminal();
    let width = if is_terminal { terminal::width() } else { WIDTH_ENDLESS };
    if !args.watch {
        return once((args.read.json, width), &mut client, out);
    }
    let mode = match (args.read.json, is_terminal) {
        (true, _) => StatusOutputMode::JsonLines,
        (false, true) => StatusOutputMode::Redrawn(width),
        (false, false) => StatusOutputMode::Blocks,
    };
    let mut pause = || {
        thread::sleep(args.interval);
        ControlFlow::Continue(())
    };
    watch(mode, &mut client, out, &mut pause)
}

fn once(
    (is_json, width): (bool, usize),
    client: &mut ApiClient<'_>,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let status = client.status().map_err(CommandFailure::from)?;
    if is_json {
        return write_json(out, &status);
    }
    out.write_all(render_status(&status, width).as_bytes())?;
    Ok(())
}

/// Shows the status until `pause` breaks, `out` cannot be written, or the cluster does not answer.
fn watch(
    mode: StatusOutputMode,
    client: &mut ApiClient<'_>,
    out: &mut dyn Write,
    pause: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<(), CommandError> {
    loop {
        let status = client.status().map_err(CommandFailure::from)?;
        match mode {
            StatusOutputMode::JsonLines => write_json_line(out, &status)?,
            StatusOutputMode::Redrawn(width) => {
                write!(out, "{CLEAR}{}", render_status(&status, width))?;
            }
            StatusOutputMode::Blocks => writeln!(out, "{}", render_status(&status, WIDTH_ENDLESS))?,
        }
        out.flush()?;
        if pause().is_break() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbelastic_api::client::ClientError;
    use zbelastic_api::sample::{self, scripted};
    use zbelastic_api::{ApiAnswer, StatusReport};
    use zbelastic_wording::FailureCode;

    fn watched(mode: StatusOutputMode, rounds: usize) -> String {
        let answers = (0..rounds).map(|_| Ok(ApiAnswer::Status(Box::new(sample::status()))));
        let (mut client, _) = scripted(answers.collect());
        let mut out = Vec::new();
        let mut left = rounds;
        let mut pause = || {
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        watch(mode, &mut client, &mut out, &mut pause).expect("shown");
        String::from_utf8(out).expect("UTF-8")
    }

    #[test]
    fn a_terminal_is_drawn_again_and_a_pipe_gets_blocks() {
        let block = render_status(&sample::status(), WIDTH_ENDLESS);
        assert_eq!(watched(StatusOutputMode::Blocks, 2), format!("{block}\n{block}\n"));
        let narrow = render_status(&sample::status(), 60);
        assert_eq!(
            watched(StatusOutputMode::Redrawn(60), 2),
            format!("{CLEAR}{narrow}{CLEAR}{narrow}")
        );
        let lines = watched(StatusOutputMode::JsonLines, 3);
        assert_eq!(lines.lines().count(), 3);
        let read: StatusReport =
            serde_json::from_str(lines.lines().next().expect("a line")).expect("it");
        assert_eq!(read, sample::status());
    }

    #[test]
    fn a_cluster_that_does_not_answer_ends_it_with_3() {
        let tried = vec![("a:7000".to_owned(), "no answer".to_owned())];
        let (mut client, _) = scripted(vec![Err(ClientError::Unreachable { tried })]);
        let ended = once((false, 80), &mut client, &mut Vec::new());
        let Err(CommandError::Failed(failure)) = ended else { panic!("nobody answers") };
        assert_eq!(failure.code, FailureCode::Unreachable);
        assert!(failure.to_string().contains("a:7000: no answer"), "{failure}");
    }

    #[test]
    fn a_closed_pipe_is_no_failure() {
        struct ClosedPipe;
        impl Write for ClosedPipe {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let (mut client, _) = scripted(vec![Ok(ApiAnswer::Status(Box::new(sample::status())))]);
        let mut endless = || ControlFlow::Continue(());
        let ended = watch(StatusOutputMode::Blocks, &mut client, &mut ClosedPipe, &mut endless);
        let Err(CommandError::Output(error)) = ended else { panic!("it is closed") };
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
