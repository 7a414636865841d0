//! What the system offers and the standard library does not: signals by number, children that die
//! with us, limits of a process that runs, waiting for several sockets.
//!
//! All `unsafe` of the package is in this file. Each block calls one function of the C library with
//! memory that lives on this side.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

/// What is sent to a process.
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
    pub const fn number(self) -> libc::c_int {
        match self {
            Self::Kill => libc::SIGKILL,
            Self::Stop => libc::SIGSTOP,
            Self::Continue => libc::SIGCONT,
            Self::Terminate => libc::SIGTERM,
        }
    }
}

/// Sends a signal to a child that was not waited for yet, so that its number is still its own.
///
/// # Errors
/// The error of the system.
pub fn send(pid: u32, signal: ProcessSignal) -> io::Result<()> {
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: no memory is passed.
    check(unsafe { libc::kill(pid, signal.number()) })
}

/// The command's process has a group of its own, dies when the thread that starts it dies, and gets
/// an error, not a signal, where a file would grow past its limit.
///
/// A group of its own, because Ctrl-C in a terminal is meant for the program that started the
/// cluster.
pub fn tie(command: &mut Command) {
    let parent = std::process::id();
    command.process_group(0);
    let before_exec = move || {
        // SAFETY: these calls may be made between fork and exec, and no memory is passed.
        unsafe {
            check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
            if libc::signal(libc::SIGXFSZ, libc::SIG_IGN) == libc::SIG_ERR {
                return Err(io::Error::last_os_error());
            }
            // The signal does not come for a parent that died before the line above.
            if u32::try_from(libc::getppid()) != Ok(parent) {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
        }
        Ok(())
    };
    // SAFETY: the closure allocates nothing and takes no lock.
    unsafe { command.pre_exec(before_exec) };
}

/// No file of this process may grow past `bytes`, or past nothing again.
///
/// # Errors
/// The error of the system.
pub fn limit_files(pid: u32, bytes: Option<u64>) -> io::Result<()> {
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is writable for the call.
    check(unsafe { libc::prlimit64(pid, libc::RLIMIT_FSIZE, std::ptr::null(), &raw mut limit) })?;
    // The hard limit stays, so that the soft one can be raised again.
    limit.rlim_cur = bytes.unwrap_or(limit.rlim_max).min(limit.rlim_max);
    // SAFETY: `limit` is readable for the call.
    check(unsafe {
        libc::prlimit64(pid, libc::RLIMIT_FSIZE, &raw const limit, std::ptr::null_mut())
    })
}

/// Gives this thread, and what it starts, mounts of its own: they go when the last of them ends.
///
/// # Errors
/// Without the right to do so.
pub fn own_mounts() -> io::Result<()> {
    // SAFETY: no memory is passed.
    check(unsafe { libc::unshare(libc::CLONE_NEWNS) })?;
    // SAFETY: the strings end with a zero, and null is allowed for the rest.
    check(unsafe {
        libc::mount(
            std::ptr::null(),
            c"/".as_ptr(),
            std::ptr::null(),
            libc::MS_REC | libc::MS_PRIVATE,
            std::ptr::null(),
        )
    })
}

/// Gives this thread, and what it starts, a network of its own.
///
/// # Errors
/// Without the right to do so.
pub fn own_network() -> io::Result<()> {
    // SAFETY: no memory is passed.
    check(unsafe { libc::unshare(libc::CLONE_NEWNET) })
}

/// This thread, and what it starts, is in this network from now on.
///
/// # Errors
/// If it is none, or without the right to do so.
pub fn enter_network_here(network: &impl AsFd) -> io::Result<()> {
    // SAFETY: no memory is passed, and the descriptor is open for the call.
    check(unsafe { libc::setns(network.as_fd().as_raw_fd(), libc::CLONE_NEWNET) })
}

/// What the command starts is in this network.
pub fn enter_network(command: &mut Command, network: impl AsFd + Send + Sync + 'static) {
    let before_exec = move || enter_network_here(&network);
    // SAFETY: the closure allocates nothing and takes no lock.
    unsafe { command.pre_exec(before_exec) };
}

/// Waits until one of these can be read, or for so long. `ready` gets the places of those that can.
///
/// # Errors
/// The error of the system. Being interrupted is not an error: nothing is ready then.
pub fn wait_readable(
    sockets: &[RawFd],
    longest: Duration,
    ready: &mut Vec<usize>,
) -> io::Result<()> {
    let entry = |fd: &RawFd| libc::pollfd { fd: *fd, events: libc::POLLIN, revents: 0 };
    let mut entries: Vec<libc::pollfd> = sockets.iter().map(entry).collect();
    let count = libc::nfds_t::try_from(entries.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let limit = libc::timespec {
        tv_sec: libc::time_t::try_from(longest.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(longest.subsec_nanos()),
    };
    ready.clear();
    // SAFETY: `entries` has `count` entries, and both live through the call.
    let found =
        unsafe { libc::ppoll(entries.as_mut_ptr(), count, &raw const limit, std::ptr::null()) };
    match check(found) {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
        other => other?,
    }
    let readable = entries.iter().enumerate().filter(|(_, entry)| entry.revents != 0);
    ready.extend(readable.map(|(place, _)| place));
    Ok(())
}

/// Requests a longer queue of datagrams. The system may give less.
pub fn widen(socket: RawFd, bytes: u32) {
    let value = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    for option in [libc::SO_RCVBUF, libc::SO_RCVBUFFORCE, libc::SO_SNDBUF, libc::SO_SNDBUFFORCE] {
        // SAFETY: `value` is readable for the call, and has `length` bytes. A refusal changes
        // nothing.
        let _ = unsafe {
            libc::setsockopt(socket, libc::SOL_SOCKET, option, (&raw const value).cast(), length)
        };
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd;
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
        assert_eq!(child.wait().expect("it ended").signal(), Some(libc::SIGKILL));
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
        assert_eq!(child.wait().expect("it ended").signal(), Some(libc::SIGKILL));
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
        let sockets = [one.as_raw_fd(), two.as_raw_fd()];
        let mut ready = vec![7];
        wait_readable(&sockets, Duration::ZERO, &mut ready).expect("it waits");
        assert!(ready.is_empty());
        one.send_to(b"x", two.local_addr().expect("bound")).expect("sent");
        wait_readable(&sockets, Duration::from_secs(600), &mut ready).expect("it waits");
        assert_eq!(ready, [1]);
    }
}
