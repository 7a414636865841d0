//! The sample of lives of housekeeping that every change has to pass, as many as have to show all
//! that there is to see. `zbelastic chaos sim --world housekeeping` lives any number more.

use std::num::NonZeroUsize;
use std::thread;

use chaos_tests::housekeeping::{LIVES_FOR_SEEN, campaign, live_quietly};
use chaos_tests::report::CampaignEnding;

/// Lives that are lived twice.
const TWICE_LIVES: u64 = 5;
/// A life with a member whose text rots while it has no store: opening that failed once, and found it damaged then.
const TEXT_ROTS_WITHOUT_STORE: u64 = 1023;

#[test]
fn members_keep_mend_and_believe_what_they_should_and_show_all_there_is_to_see() {
    let jobs = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let report = campaign(jobs, false, 1..=LIVES_FOR_SEEN, |_| ());
    assert_eq!(report.ending(), CampaignEnding::Passed, "\n{report}");
    assert!(report.checkpoints > 10 * report.lives, "{report}");
}

#[test]
fn a_text_that_rots_is_mended_while_its_member_has_no_store() {
    let (outcome, _) = live_quietly(TEXT_ROTS_WITHOUT_STORE);
    assert_eq!(outcome.failure, None);
}

#[test]
fn a_seed_is_the_same_life_each_time() {
    for seed in 1..=TWICE_LIVES {
        assert_eq!(live_quietly(seed), live_quietly(seed), "seed {seed}");
    }
}
