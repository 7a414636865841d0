//! `completions` and `man`: what packages of the program carry beside it, made of the command line's
//! own description.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use zbelastic_wording::{CommandError, cannot_write};

use crate::args::Cli;

/// Prints the completions of a shell.
///
/// # Errors
/// If `out` cannot be written.
pub fn completions(shell: Shell, out: &mut dyn Write) -> Result<(), CommandError> {
    // The generator takes a pipe that is closed for a bug; the text is printed as all others are.
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "zbelastic", &mut text);
    Ok(out.write_all(&text)?)
}

/// Prints the manual page, or writes that of each command into a folder.
///
/// # Errors
/// If they cannot be written.
pub fn manual(folder: Option<&Path>, out: &mut dyn Write) -> Result<(), CommandError> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let Some(folder) = folder else { return Ok(out.write_all(&page(&command)?)?) };
    let pages = pages(command)?;
    fs::create_dir_all(folder).map_err(|error| cannot_write(folder, &error))?;
    for (name, page) in &pages {
        let path = folder.join(name);
        fs::write(&path, page).map_err(|error| cannot_write(&path, &error))?;
    }
    writeln!(out, "{} pages in {}", pages.len(), folder.display())?;
    Ok(())
}

fn page(command: &Command) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    Man::new(command.clone()).render(&mut page)?;
    Ok(page)
}

/// The pages of a command and of all below it, by the names of their files.
fn pages(command: Command) -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut pages = Vec::new();
    // Commands are two deep; each has a finite list of those below.
    let mut left = vec![command];
    while let Some(command) = left.pop() {
        let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
        pages.push((format!("{name}.1"), page(&command)?));
        left.extend(command.get_subcommands().filter(|below| !below.is_hide_set()).cloned());
    }
    pages.sort();
    Ok(pages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shell_completes_the_commands() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish, Shell::PowerShell, Shell::Elvish] {
            let mut out = Vec::new();
            completions(shell, &mut out).expect("memory");
            let text = String::from_utf8(out).expect("UTF-8");
            for word in ["train", "completions", "threads-only"] {
                assert!(text.contains(word), "{word} for {shell}");
            }
        }
    }

    #[test]
    fn each_command_has_a_manual_page() {
        let folder = tempfile::tempdir().expect("a folder");
        manual(Some(folder.path()), &mut Vec::new()).expect("it is written");
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).expect(name);
        assert!(read("zbelastic-train.1").contains(".TH zbelastic"));
        assert!(read("zbelastic-ckpt-verify.1").contains("\\-\\-run"));
        assert!(read("zbelastic.1").contains("zbelastic\\-train"));
        let mut out = Vec::new();
        manual(None, &mut out).expect("memory");
        assert_eq!(out, read("zbelastic.1").into_bytes());
    }
}
