//! The live page of a cluster: a process of the binary that is tested, killed when it is dropped.

use std::io::{self, BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::thread;

use super::contract::{SubcommandError, contents, end_of, line, scratch};

/// A page that is served until it is dropped.
#[derive(Debug)]
pub struct LivePage {
    child: Child,
    address: String,
}

impl LivePage {
    /// Starts the process, and waits until it has printed where the page is.
    ///
    /// # Errors
    /// If it ends before.
    pub fn start(mut command: Command) -> Result<Self, SubcommandError> {
        let command_line = line(&command);
        let wrong = |source| SubcommandError::Start { command_line: command_line.clone(), source };
        // A file, because a process blocks on a full pipe that is not read.
        let mut errors = scratch().map_err(wrong)?;
        command.stdout(Stdio::piped()).stderr(errors.try_clone().map_err(wrong)?);
        let child = command.spawn().map_err(wrong)?;
        // Whatever fails from here on, dropping this ends the process.
        let mut page = Self { child, address: String::new() };
        let mut first = String::new();
        if let Some(out) = page.child.stdout.take() {
            let mut out = BufReader::new(out);
            out.read_line(&mut first).map_err(wrong)?;
            // Read on until the process ends: it would end by itself at a closed pipe.
            let rest = move || drop(io::copy(&mut out, &mut io::sink()));
            thread::Builder::new().name("page".to_owned()).spawn(rest).map_err(wrong)?;
        }
        if let Some(address) = first.trim().strip_prefix("page").map(str::trim) {
            address.clone_into(&mut page.address);
            return Ok(page);
        }
        let code = page.child.wait().map_err(wrong)?.to_string();
        let output = end_of(&contents(&mut errors).map_err(wrong)?);
        Err(SubcommandError::Failed { command_line, code, output })
    }

    /// Its address, as a browser is given it.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }
}

impl Drop for LivePage {
    fn drop(&mut self) {
        // One that has ended already is what was wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `timeout` ends what blocks for ever.
    fn shell(text: &str) -> Command {
        let mut command = Command::new("timeout");
        command.args(["60", "sh", "-c", text]);
        command
    }

    #[test]
    fn a_page_that_prints_much_goes_on() {
        let much = "head -c 300000 /dev/zero | tr '\\0' x";
        let text = format!("echo 'page    http://127.0.0.1:1/'; {much} >&2; {much}; exit 7");
        let mut page = LivePage::start(shell(&text)).expect("it said where it is");
        assert_eq!(page.address(), "http://127.0.0.1:1/");
        assert_eq!(page.child.wait().expect("it ends").code(), Some(7));
    }

    #[test]
    fn the_end_of_a_page_that_does_not_come_up_is_reported() {
        let text =
            "head -c 300000 /dev/zero | tr '\\0' x >&2; echo 'the port is taken' >&2; exit 3";
        match LivePage::start(shell(text)) {
            Err(SubcommandError::Failed { code, output, .. }) => {
                assert!(code.contains('3') && output.ends_with("the port is taken"), "{output}");
            }
            other => panic!("{other:?}"),
        }
    }
}
