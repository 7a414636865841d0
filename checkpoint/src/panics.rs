//! Panics that are expected: on some damaged files sled panics, while it opens, where it should
//! return an error. It does so on the thread that opens, or on those of its own that read segments.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// The beginning of the names of sled's own threads.
const OF_SLED: &str = "sled-";

/// How many tables are being opened.
static OPENING: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static IS_OPENING: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Whether a panic of this thread, now, is treated as a damaged table and returned as that error. A
/// panic hook that ends the process ignores these.
#[must_use]
pub fn is_expected_panic() -> bool {
    let is_of_sled = thread::current().name().is_some_and(|name| name.starts_with(OF_SLED));
    IS_OPENING.get() || (is_of_sled && OPENING.load(Ordering::Relaxed) > 0)
}

/// The result of `open`; `None` if it panics.
pub(crate) fn opened<T>(open: impl FnOnce() -> T) -> Option<T> {
    OPENING.fetch_add(1, Ordering::Relaxed);
    let was_opening = IS_OPENING.replace(true);
    let opened = catch_unwind(AssertUnwindSafe(open)).ok();
    IS_OPENING.set(was_opening);
    OPENING.fetch_sub(1, Ordering::Relaxed);
    opened
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_expected_of_the_opening_thread_and_of_those_of_sled_only() {
        let on = |name: &str| {
            let thread = thread::Builder::new().name(name.to_owned()).spawn(is_expected_panic);
            thread.expect("a thread").join().expect("no panic")
        };
        assert!(!is_expected_panic());
        let found = opened(|| (is_expected_panic(), on("sled-io-7"), on("log")));
        assert_eq!(found, Some((true, true, false)));
        assert_eq!(opened(|| panic!("it is damaged")), None::<()>);
        assert!(!is_expected_panic());
    }
}
