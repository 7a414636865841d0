//! The functions that the system offers and the standard library does not: signals by number,
//! children that die with us, limits of a process that runs, waiting for several sockets.
//!
//! All `unsafe` of the package is in this file: it passes no memory.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::net::sockopt;
use rustix::process::{
    Pid, Resource, Rlimit, Signal, getpid, getppid, getrlimit, kill_process, prlimit,
    set_parent_process_death_signal,
};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

/// A signal that is sent to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessSignal {
    /// The process dies at once (SIGKILL).
    Kill,
    /// The process stands still (SIGSTOP).
    Stop,
    /// The process goes on (SIGCONT).
    Continue,
    /// The process is to leave in order (SIGTERM).
    Terminate,
}

impl ProcessSignal {
    /// The number of the signal in the system.
    #[must_use]
    pub const fn number(self) -> i32 {
        self.signal().as_raw()
    }

    const fn signal(self) -> Signal {
        match self {
            Self::Kill => Signal::KILL,
            Self::Stop => Signal::STOP,
            Self::Continue => Signal::CONT,
            Self::Terminate => Signal::TERM,
        }
    }
}

fn pid(number: u32) -> io::Result<Pid> {
    let number = i32::try_from(number).ok().and_then(Pid::from_raw);
    number.ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

/// Sends a signal to a child that was not waited for yet, so that its number is still its own.
///
/// # Errors
/// The error of the system.
pub fn send(child: u32, signal: ProcessSignal) -> io::Result<()> {
    Ok(kill_process(pid(child)?, signal.signal())?)
}

/// The command's process has a group of its own, dies when the thread that starts it dies, and gets
/// an error, not a signal, where a file would grow past its limit.
///
/// A group of its own, because Ctrl-C in a terminal is meant for the program that started the
/// cluster.
pub fn tie(command: &mut Command) {
    let parent = getpid();
    command.process_group(0);
    let before_exec = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // SAFETY: it may be called between fork and exec, and no memory is passed.
        if unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) } == libc::SIG_ERR {
            return Err(io::Error::last_os_error());
        }
        // The signal does not come for a parent that died before it was set.
        if getppid() != Some(parent) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        Ok(())
    };
    // SAFETY: the closure allocates nothing and acquires no lock.
    unsafe { command.pre_exec(before_exec) };
}

/// No file of this child may grow past `bytes`, or past nothing again.
///
/// # Errors
/// The error of the system.
pub fn limit_files(child: u32, bytes: Option<u64>) -> io::Result<()> {
    // The hard limit stays as the child inherited it, so that the soft one can be raised again.
    let maximum = getrlimit(Resource::Fsize).maximum;
    let current = bytes.into_iter().chain(maximum).min();
    prlimit(Some(pid(child)?), Resource::Fsize, Rlimit { current, maximum })?;
    Ok(())
}

/// Gives this thread, and the processes that it starts, mounts of its own: they go when the last of
/// them ends.
///
/// # Errors
/// Without the right to do so.
pub fn own_mounts() -> io::Result<()> {
    // SAFETY: threads go on to share their descriptors.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
    Ok(mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)?)
}

/// Gives this thread, and the processes that it starts, a network of its own.
///
/// # Errors
/// Without the right to do so.
pub fn own_network() -> io::Result<()> {
    // SAFETY: threads go on to share their descriptors.
    Ok(unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?)
}

/// This thread, with the processes that it starts, is in this network from now on.
///
/// # Errors
/// If it is none, or without the right to do so.
pub fn enter_network_here(network: &impl AsFd) -> io::Result<()> {
    Ok(move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?)
}

/// The process that the command starts is in this network.
pub fn enter_network(command: &mut Command, network: impl AsFd + Send + Sync + 'static) {
    let before_exec = move || enter_network_here(&network);
    // SAFETY: the closure allocates nothing and acquires no lock.
    unsafe { command.pre_exec(before_exec) };
}

/// Waits until one of these can be read, or for so long. `ready` gets the places of those that can.
///
/// # Errors
/// The error of the system. Being interrupted is not an error: nothing is ready then.
pub fn wait_readable(
    sockets: &[BorrowedFd<'_>],
    longest: Duration,
    ready: &mut Vec<usize>,
) -> io::Result<()> {
    let mut entries: Vec<PollFd<'_>> =
        sockets.iter().map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
    // A time that the system cannot count is as good as none.
    let limit = Timespec::try_from(longest).ok();
    ready.clear();
    match poll(&mut entries, limit.as_ref()) {
        Err(Errno::INTR) => return Ok(()),
        other => other?,
    };
    let readable = entries.iter().enumerate().filter(|(_, entry)| !entry.revents().is_empty());
    ready.extend(readable.map(|(place, _)| place));
    Ok(())
}

/// Requests a longer queue of datagrams. The system may give less.
pub fn widen(socket: impl AsFd, bytes: u32) {
    let bytes = bytes as usize;
    // A refusal changes nothing.
    let _ = sockopt::set_socket_recv_buffer_size(&socket, bytes);
    let _ = sockopt::set_socket_recv_buffer_size_force(&socket, bytes);
    let _ = sockopt::set_socket_send_buffer_size(&socket, bytes);
    let _ = sockopt::set_socket_send_buffer_size_force(&socket, bytes);
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::UdpSocket;
    use std::os::fd::AsFd;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use super::{ProcessSignal, limit_files, send, tie, wait_readable};

    #[test]
    fn a_child_is_killed_by_number() {
        let mut command = Command::new("sleep");
        command.arg("600");
        tie(&mut command);
        let mut child = command.spawn().expect("sleep starts");
        send(child.id(), ProcessSignal::Stop).expect("it lives");
        send(child.id(), ProcessSignal::Kill).expect("it lives");
        assert_eq!(child.wait().expect("it ended").signal(), Some(ProcessSignal::Kill.number()));
    }

    #[test]
    fn a_child_dies_with_the_thread_that_started_it() {
        let starter = std::thread::spawn(|| {
            let mut command = Command::new("sleep");
            command.arg("600");
            tie(&mut command);
            command.spawn().expect("sleep starts")
        });
        let mut child = starter.join().expect("it started one");
        assert_eq!(child.wait().expect("it ended").signal(), Some(ProcessSignal::Kill.number()));
    }

    #[test]
    fn a_file_past_its_limit_is_an_error_and_no_death() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("grows");
        let mut command = Command::new("sh");
        command.args(["-c", "read line; head -c 9000 /dev/zero > \"$0\"; echo done $?"]).arg(&path);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        tie(&mut command);
        let mut child = command.spawn().expect("sh starts");
        limit_files(child.id(), Some(4096)).expect("a limit");
        child.stdin.take().expect("piped").write_all(b"go\n").expect("it reads");
        let mut output = String::new();
        child.stdout.take().expect("piped").read_to_string(&mut output).expect("it tells");
        assert_eq!(output, "done 1\n");
        assert_eq!(std::fs::metadata(&path).expect("there").len(), 4096);
        assert!(child.wait().expect("it ended").success());
    }

    #[test]
    fn a_limit_is_lifted_again() {
        let mut command = Command::new("sh");
        command.args(["-c", "read line; ulimit -f"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        tie(&mut command);
        let mut child = command.spawn().expect("sh starts");
        limit_files(child.id(), Some(4096)).expect("a limit");
        limit_files(child.id(), None).expect("none");
        drop(child.stdin.take());
        let output = child.wait_with_output().expect("it ended").stdout;
        assert_eq!(String::from_utf8_lossy(&output), "unlimited\n");
    }

    #[test]
    fn readable_sockets_are_reported() {
        let [one, two] = [0, 1].map(|_| UdpSocket::bind("127.0.0.1:0").expect("a port"));
        let sockets = [one.as_fd(), two.as_fd()];
        let mut ready = vec![7];
        wait_readable(&sockets, Duration::ZERO, &mut ready).expect("it waits");
        assert!(ready.is_empty());
        one.send_to(b"x", two.local_addr().expect("bound")).expect("sent");
        wait_readable(&sockets, Duration::from_secs(600), &mut ready).expect("it waits");
        assert_eq!(ready, [1]);
    }
}
