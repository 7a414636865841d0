//! `top` in a real terminal, which tmux is, against a real cluster.

#[expect(dead_code, reason = "the tests of a cluster use more of it")]
#[path = "cluster/harness.rs"]
mod harness;
#[path = "common/tools.rs"]
mod tools;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use harness::{PATIENCE, SpawnedCluster};
use tools::{content, tool};

const STEPS: u64 = 10;
/// Counts which of both modes of the terminal are off that a shell needs.
const RAW: &str = r#"echo "raw $(stty -a | tr ' ' '\n' | grep -cx -e -icanon -e -echo)""#;

/// A server of tmux with one window, which does not outlive the test.
struct Terminal {
    socket: PathBuf,
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = Command::new("tmux").arg("-S").arg(&self.socket).arg("kill-server").output();
    }
}

impl Terminal {
    fn tmux(&self, arguments: &[&str]) -> String {
        content(Command::new("tmux").arg("-S").arg(&self.socket).args(arguments))
    }

    /// A window of this size in which `shell` runs.
    fn open(&self, width: u16, height: u16, shell: &str) {
        let (width, height) = (width.to_string(), height.to_string());
        let window = ["-f", "/dev/null", "new-session", "-d", "-x", &width, "-y", &height, shell];
        self.tmux(&window);
    }

    /// Waits until the window shows something, and yields all of it.
    fn wait(&self, what: &str, is_shown: impl Fn(&str) -> bool) -> String {
        let began = Instant::now();
        loop {
            let shown = self.tmux(&["capture-pane", "-p"]);
            if is_shown(&shown) {
                return shown;
            }
            assert!(began.elapsed() < PATIENCE, "{what} is not shown:\n{shown}");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
}

#[test]
fn top_draws_in_a_terminal_of_any_size_and_leaves_it_as_it_was() {
    if tool("tmux").is_none() {
        return;
    }
    let mut cluster = SpawnedCluster::new();
    cluster.begin(&["a", "b"], STEPS);
    cluster.digest(STEPS);
    let terminal = |name: &str| Terminal { socket: cluster.root.path().join(name) };
    let top = format!(
        "{} top --data-dir {} --cluster {}",
        env!("CARGO_BIN_EXE_zbelastic"),
        cluster.nodes[0].folder.display(),
        cluster.addresses[0],
    );
    let process = cluster.root.path().join("top");
    for end in ["q", "Escape", "C-c", "TERM", "HUP"] {
        let shown = process.display();
        let top = format!("sh -c 'echo $$ > {shown}; exec {top}'");
        let shell = format!("echo before; {top}; code=$?; {RAW}; echo \"ended $code\"; cat");
        let terminal = terminal(end);
        terminal.open(80, 24, &shell);
        let shown = terminal.wait("the end of the run", |shown| shown.contains("step 10 of 10"));
        assert!(shown.contains("test / ") && shown.contains("q quit"), "{shown}");
        assert!(!shown.contains("before"), "a screen of its own:\n{shown}");
        terminal.tmux(&["resize-window", "-x", "140", "-y", "50"]);
        terminal.wait("a wider screen", |shown| {
            shown.lines().any(|line| line.chars().count() > 100) && shown.contains("q quit")
        });
        terminal.tmux(&["resize-window", "-x", "20", "-y", "5"]);
        terminal.wait("a tiny one", |shown| shown.contains("test / "));
        terminal.tmux(&["resize-window", "-x", "80", "-y", "24"]);
        if ["TERM", "HUP"].contains(&end) {
            let process = std::fs::read_to_string(&process).expect("its number");
            content(Command::new("kill").args(["-s", end, process.trim()]));
        } else {
            terminal.tmux(&["send-keys", end]);
        }
        let left = terminal.wait("the shell", |shown| shown.contains("ended 0"));
        let is_as_before = left.contains("before") && left.contains("raw 0");
        assert!(is_as_before, "{end}:\n{left}");
    }
    close_under(&terminal("closed"), &top, &process);
    let terminal = terminal("dumb");
    terminal.open(80, 24, &format!("TERM=dumb {top} --interval 100ms"));
    let lines = terminal.wait("lines", |shown| shown.matches("step 10").count() > 2);
    assert!(!lines.contains("q quit"), "{lines}");
}

/// Closes a terminal that `top` draws in, and waits until its process has ended.
fn close_under(terminal: &Terminal, top: &str, process: &Path) {
    let shown = process.display();
    terminal.open(80, 24, &format!("sh -c 'echo $$ > {shown}; exec {top}'"));
    terminal.wait("the end of the run", |shown| shown.contains("step 10 of 10"));
    let process = std::fs::read_to_string(process).expect("its number");
    let stat = Path::new("/proc").join(process.trim()).join("stat");
    // One that ended and that nobody waits for is left as a zombie.
    let runs = || std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z "));
    terminal.tmux(&["kill-server"]);
    let began = Instant::now();
    while runs() {
        assert!(began.elapsed() < PATIENCE, "it goes on without a terminal");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}
