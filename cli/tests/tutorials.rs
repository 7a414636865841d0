//! The tutorials, as somebody follows them: each command of a page in a folder that is empty at its
//! beginning, and what is printed.
//!
//! | block | what is done with it |
//! |---|---|
//! | `sh` | run, to its end with 0 |
//! | `sh exit=N` | the same, with N |
//! | `sh stays` | run on, as in a terminal of its own |
//! | `sh elsewhere` | left: it needs what is not here (its commands are parsed by `deploy.rs`) |
//! | `text` | the block before it prints these lines in this order, others between them |
//! | `text later` | what stays prints them meanwhile |
//! | `toml`, `python` | left |
//!
//! Numbers are compared by there being one, whatever their units of time are, and `…` stands for
//! anything.

#[path = "common/blocks.rs"]
mod blocks;

use std::fs;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use blocks::blocks;
use tempfile::TempDir;
use zbelastic_chaos_processes::ports;

/// What may take so long on the slowest machine there is.
const PATIENCE: Duration = Duration::from_secs(240);
/// A process that was signalled to end has so long before it is killed.
const GRACE: Duration = Duration::from_secs(20);

/// A line with each number as `#`, so that it is equal to that of another machine.
fn masked(line: &str) -> String {
    let mut text = String::new();
    for word in line.split_whitespace() {
        let is_hash = word.len() == 64 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
        let word = if is_hash { "#" } else { word };
        let mut letters = word.chars().peekable();
        let mut is_number = false;
        while let Some(letter) = letters.next() {
            // A comma behind a number is none of it.
            let is_inner = matches!(letter, '.' | ',')
                && letters.peek().is_some_and(|next| next.is_ascii_digit());
            let goes_on = is_number && (letter.is_ascii_digit() || is_inner);
            is_number = goes_on || letter.is_ascii_digit();
            match (is_number, goes_on) {
                (true, true) => {}
                (true, false) => text.push('#'),
                (false, _) => text.push(letter),
            }
        }
        text.push(' ');
    }
    let text = text.replace("+#", "#").replace("-#", "#");
    // A slow machine takes seconds where a fast one takes milliseconds.
    text.replace("# ms ", "# s ").replace("#m# ", "# s ").trim_end().to_owned()
}

/// Whether a printed line is one that a page has.
fn is_like(expected: &str, line: &str) -> bool {
    let (expected, line) = (masked(expected), masked(line));
    let mut parts = expected.split('…');
    let Some(mut rest) = line.strip_prefix(parts.next().expect("a part")) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, inner)) = parts.split_last() else { return rest.is_empty() };
    for part in inner {
        let Some((_, behind)) = rest.split_once(part) else { return false };
        rest = behind;
    }
    rest.ends_with(last)
}

/// The first line of `expected` that is not printed behind those before it.
fn missing<'a>(expected: &'a str, printed: &str) -> Option<&'a str> {
    // Bars are drawn over themselves.
    let mut lines = printed.lines().flat_map(|line| line.split('\r'));
    let wanted = expected.lines().map(str::trim).filter(|line| !line.is_empty() && *line != "…");
    { wanted }.find(|wanted| !lines.any(|line| is_like(wanted, line.trim())))
}

/// What was printed so far; a letter of several bytes may be there in part.
fn shown(log: &Path) -> String {
    String::from_utf8_lossy(&fs::read(log).expect("a log")).into_owned()
}

/// Somebody who follows a page.
struct Reader {
    folder: TempDir,
    /// What runs on, and where it prints.
    terminals: Vec<(Child, PathBuf)>,
    /// What the page has, and what stands for it here.
    replaced: Vec<(&'static str, String)>,
}

impl Drop for Reader {
    fn drop(&mut self) {
        for (child, _) in self.terminals.iter_mut().rev() {
            signal(child, "TERM");
            let began = Instant::now();
            while began.elapsed() < GRACE && matches!(child.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(20));
            }
            signal(child, "KILL");
            let _ = child.wait();
        }
    }
}

/// Signals a terminal's processes.
fn signal(child: &Child, name: &str) {
    let group = format!("-{}", child.id());
    let mut kill = Command::new("kill");
    let _ = kill.args(["-s", name, "--", &group]).stderr(Stdio::null()).status();
}

impl Reader {
    fn new(shorter: &[(&'static str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let bin = folder.path().join(".bin");
        fs::create_dir(&bin).expect("made");
        let program = env!("CARGO_BIN_EXE_zbelastic");
        std::os::unix::fs::symlink(program, bin.join("zbelastic")).expect("made");
        let udp = ports::free_address().expect("a port").port();
        let tcp = TcpListener::bind("127.0.0.1:0").expect("a port");
        let tcp = tcp.local_addr().expect("it").port();
        let mut replaced: Vec<_> =
            shorter.iter().map(|(long, short)| (*long, (*short).to_owned())).collect();
        replaced.extend([("7000", udp.to_string()), ("8088", tcp.to_string())]);
        Self { folder, terminals: Vec::new(), replaced }
    }

    /// A command for lines of the shell.
    fn shell(&self, lines: &str) -> Command {
        let mut lines = lines.to_owned();
        for (long, short) in &self.replaced {
            lines = lines.replace(long, short);
        }
        let home = self.folder.path();
        let path = std::env::var("PATH").expect("a path");
        let mut bash = Command::new("bash");
        bash.args(["-euo", "pipefail", "-c", &lines]).current_dir(home).stdin(Stdio::null());
        bash.env("HOME", home).env("PATH", format!("{}:{path}", home.join(".bin").display()));
        bash.env_remove("ZBELASTIC_DATA_DIR").env_remove("ZBELASTIC_CLUSTER");
        bash
    }

    fn log(&self, name: &str) -> PathBuf {
        self.folder.path().join(".bin").join(name)
    }

    /// Runs lines to their end, and yields all that they print.
    fn run(&self, lines: &str, code: i32) -> String {
        let log = self.log("ended");
        let file = fs::File::create(&log).expect("a log");
        let mut bash = self.shell(lines);
        let status = bash.stdout(file.try_clone().expect("a log")).stderr(file).status();
        let printed = shown(&log);
        let found = status.expect("there is a bash").code();
        assert_eq!(found, Some(code), "{lines}\n{printed}\n{}", self.meanwhile());
        printed
    }

    fn stay(&mut self, lines: &str) {
        let log = self.log(&format!("stays-{}", self.terminals.len()));
        let file = fs::File::create(&log).expect("a log");
        let mut bash = self.shell(lines);
        bash.stdout(file.try_clone().expect("a log")).stderr(file).process_group(0);
        self.terminals.push((bash.spawn().expect("there is a bash"), log));
    }

    /// What terminals show.
    fn meanwhile(&self) -> String {
        self.terminals.iter().map(|(_, log)| format!("--\n{}", shown(log))).collect()
    }

    /// Waits until the last terminal has printed these lines.
    fn expect_later(&self, expected: &str) {
        let (_, log) = self.terminals.last().expect("something stays");
        let began = Instant::now();
        loop {
            let printed = shown(log);
            let Some(line) = missing(expected, &printed) else { return };
            let is_over = began.elapsed() > PATIENCE;
            assert!(!is_over, "no line like\n  {line}\nin:\n{printed}{}", self.meanwhile());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Follows a page, with shorter commands in place of some that take minutes.
fn follow(name: &str, shorter: &[(&'static str, &str)]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/tutorials").join(name);
    let page = fs::read_to_string(path).expect("a page");
    for (long, _) in shorter {
        assert!(page.contains(long), "{name} has no {long}");
    }
    let mut reader = Reader::new(shorter);
    let mut printed = None;
    for block in blocks(&page) {
        println!("{}: {}", block.info, block.text);
        match block.info {
            "sh stays" => {
                reader.stay(&block.text);
                printed = None;
            }
            "sh elsewhere" => {}
            "text" if printed.is_none() => reader.expect_later(&block.text),
            "text" => {
                let printed: &String = printed.as_ref().expect("a command ended");
                let line = missing(&block.text, printed);
                assert_eq!(line, None, "{name}: nothing like it in:\n{printed}");
            }
            "text later" => reader.expect_later(&block.text),
            "toml" | "python" => {}
            info => {
                let code = info.strip_prefix("sh exit=").unwrap_or("0");
                assert!(info == "sh" || code != "0", "{name}: a block of {info:?}");
                printed = Some(reader.run(&block.text, code.parse().expect("a code")));
            }
        }
    }
}

#[test]
fn a_first_run() {
    let shorter = [
        ("zbelastic train\n", "zbelastic train --steps 40\n"),
        ("--workers 1 --out alone", "--workers 1 --out alone --steps 40"),
    ];
    follow("first-run.md", &shorter);
}

#[test]
fn own_data() {
    follow("own-data.md", &[]);
}

#[test]
fn a_spot_fleet() {
    follow("spot-fleet.md", &[]);
}

#[test]
fn reading_the_page() {
    follow("reading-the-page.md", &[("--ui ", "--ui 8088 ")]);
}

#[test]
fn lines_are_compared_but_for_their_numbers() {
    let hash = "4b28b3f253950291bc3b7d65a7435dad0ac3455ae47f9be392bf5babcaf1c5f5";
    assert!(is_like("digest  …", &format!("digest  {hash}")));
    assert!(is_like(&format!("digest {hash}"), &format!("digest  {}", hash.replace('4', "5"))));
    assert!(is_like(
        "step 4/360  loss 4.8908  … tok/s …",
        "step  9/12 loss 5.1  90 ms 17.3k tok/s  mfu 2%"
    ));
    assert!(is_like("1f1b 177 ms 21.7%", "1f1b  1.25 s  3.1%"));
    assert!(is_like("1f1b 177 ms 21.7%", "1f1b  3m07  3.1%") && !is_like("177 ms", "177 MiB"));
    assert!(is_like("360 steps in …, 16,042 tok/s", "40 steps in 1m47, 402 tok/s"));
    assert!(!is_like("step 4/360  loss 4.8908", "step  9/12 norm 5.1"));
    assert!(!is_like("digest", "digest  5") && !is_like("a … b", "a c"));
    assert_eq!(missing("a 1\n…\nb", "x\na 20\ny\nb\n"), None);
    assert_eq!(missing("b\na", "a\nb\n"), Some("a"));
}
