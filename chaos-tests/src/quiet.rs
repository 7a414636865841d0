//! Panics that are expected, and reported elsewhere.

use std::cell::Cell;
use std::panic;
use std::sync::Once;

thread_local! {
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Restores the previous setting, also when the work panics.
struct QuietGuard {
    was_quiet: bool,
}

impl Drop for QuietGuard {
    fn drop(&mut self) {
        IS_QUIET.set(self.was_quiet);
    }
}

/// Does the work; a panic on this thread meanwhile prints nothing.
///
/// Panics of other threads are printed as ever: a campaign may run beside a test that fails.
pub fn quietly<T>(work: impl FnOnce() -> T) -> T {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !IS_QUIET.get() {
                usual(info);
            }
        }));
    });
    let _quiet = QuietGuard { was_quiet: IS_QUIET.replace(true) };
    work()
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::{IS_QUIET, quietly};

    #[test]
    fn a_thread_is_quiet_while_it_works_and_no_longer() {
        assert_eq!(quietly(|| quietly(|| 1) + i32::from(IS_QUIET.get())), 2);
        assert!(!IS_QUIET.get());
        assert!(catch_unwind(|| quietly(|| panic!("unheard"))).is_err());
        assert!(!IS_QUIET.get());
    }
}
