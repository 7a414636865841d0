//! Makes a panic end a process that trains or serves. If only its thread ended, the threads that
//! wait for it would wait for ever; and the state it held may be inconsistent.

use std::panic;
use std::process;
use std::thread;

use zbelastic_wording::{CommandFailure, FailureCode, FailureDetail, print_error_line};

/// From now on a panic of any thread ends this process, except one caught where a damaged table is
/// opened.
pub fn end_the_process() {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if zbelastic_checkpoint::is_expected_panic() {
            return;
        }
        usual(info);
        let failure = failure_of(thread::current().name());
        // If standard error is closed, the exit code is all that can be reported.
        print_error_line(&failure);
        process::exit(failure.code as i32);
    }));
}

fn failure_of(thread: Option<&str>) -> CommandFailure {
    let thread = thread.map_or_else(|| "without a name".to_owned(), |name| format!("`{name}`"));
    let what = format!("the thread {thread} panicked, and this process ends with it");
    let mut failure = CommandFailure::new(FailureCode::Internal, what);
    let detail = FailureDetail::new("an assertion of this program failed, and is printed above");
    failure.details = vec![detail.hint("the same command again; and report it, with those lines")];
    failure
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use super::*;

    /// Set for the process in which a thread panics.
    const VARIABLE: &str = "ZBELASTIC_TEST_PANICS";
    const NAME: &str = "panics::tests::a_thread_that_panics_ends_the_process_and_is_named";

    #[test]
    fn a_thread_that_panics_ends_the_process_and_is_named() {
        if std::env::var_os(VARIABLE).is_some() {
            end_the_process();
            let work = || panic!("nothing holds");
            let started = thread::Builder::new().name("store".to_owned()).spawn(work);
            // As a loop that waits for a thread that is gone, though not for ever.
            started.expect("a thread");
            return thread::sleep(Duration::from_secs(60));
        }
        let own = std::env::current_exe().expect("it runs");
        let mut command = Command::new(own);
        let output = command.args([NAME, "--exact", "--nocapture"]).env(VARIABLE, "yes").output();
        let output = output.expect("it runs again");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(FailureCode::Internal as i32), "{stderr}");
        let named = "error: the thread `store` panicked, and this process ends with it";
        assert!(stderr.contains("nothing holds") && stderr.contains(named), "{stderr}");
    }
}
