//! The live page of a cluster: a process of the binary that is tested, killed when it is dropped.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use super::contract::{SubcommandError, end_of, line};

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
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().map_err(wrong)?;
        // Whatever fails from here on, dropping this ends the process.
        let mut page = Self { child, address: String::new() };
        let mut first = String::new();
        if let Some(out) = page.child.stdout.take() {
            BufReader::new(out).read_line(&mut first).map_err(wrong)?;
        }
        if let Some(address) = first.trim().strip_prefix("page").map(str::trim) {
            address.clone_into(&mut page.address);
            return Ok(page);
        }
        let mut output = String::new();
        if let Some(mut err) = page.child.stderr.take() {
            err.read_to_string(&mut output).map_err(wrong)?;
        }
        let code = page.child.wait().map_err(wrong)?.to_string();
        Err(SubcommandError::Failed { command_line, code, output: end_of(&output) })
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
