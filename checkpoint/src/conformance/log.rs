//! The duties of every log.

use super::{LogFixture, noise};
use crate::log::{LogError, RECORD_BYTES_MAX, RecordLog};

/// Records with these lengths, each with other bytes.
fn records(lengths: &[usize]) -> Vec<Vec<u8>> {
    (0..).zip(lengths).map(|(seed, length)| noise(seed, *length)).collect()
}

fn check(log: &impl RecordLog, first: u64, expected: &[Vec<u8>]) {
    assert_eq!(log.first(), first, "the first number");
    assert_eq!(log.next(), first + expected.len() as u64, "the next number");
    let found = log.read_all().expect("readable");
    let expected: Vec<(u64, Vec<u8>)> = (first..).zip(expected.iter().cloned()).collect();
    assert!(found == expected, "records {first}.. come back as they were written");
}

fn check_refused(result: Result<(), LogError>, expected: u64) {
    match result {
        Err(LogError::NoRecord { found, .. }) => assert_eq!(found, expected),
        other => panic!("{expected} is no record, got {other:?}"),
    }
}

/// Case of the suite.
pub fn a_new_log_is_empty(fixture: &mut impl LogFixture) {
    check(&fixture.open(None), 0, &[]);
}

/// Case of the suite.
pub fn records_come_back_in_order(fixture: &mut impl LogFixture) {
    let mut log = fixture.open(None);
    let written = records(&[10, 300, 1, 7]);
    log.append(&written[..3]).expect("durable");
    check(&log, 0, &written[..3]);
    log.append(&written[3..]).expect("durable");
    check(&log, 0, &written);
}

/// Case of the suite.
pub fn numbers_go_on_after_opening_again(fixture: &mut impl LogFixture) {
    let mut log = fixture.open(None);
    let written = records(&[5; 9]);
    for (count, batch) in (1..).zip(written.chunks(3)) {
        log.append(batch).expect("durable");
        log = fixture.open(Some(log));
        check(&log, 0, &written[..3 * count]);
    }
}

/// Case of the suite.
pub fn an_empty_batch_changes_nothing(fixture: &mut impl LogFixture) {
    let mut log = fixture.open(None);
    log.append(&[]).expect("nothing to do");
    check(&fixture.open(Some(log)), 0, &[]);
}

/// Case of the suite.
pub fn an_empty_record_is_one(fixture: &mut impl LogFixture) {
    let mut log = fixture.open(None);
    let written = records(&[0, 3, 0]);
    log.append(&written).expect("durable");
    check(&fixture.open(Some(log)), 0, &written);
}

/// Case of the suite.
pub fn records_of_any_length_come_back(fixture: &mut impl LogFixture) {
    let mut log = fixture.open(None);
    let around = [4079, 4080, 4081, 4096, 8176, 8177, 128 << 10, (1 << 20) + 1];
    let written = records(&around);
    for record in &written {
        log.append(std::slice::from_ref(record)).expect("durable");
    }
    check(&fixture.open(Some(log)), 0, &written);
}

/// Case of the suite.
pub fn a_record_that_is_too_long_is_refused_with_its_batch(fixture: &mut impl LogFixture) {
    let mut log = fixture.open(None);
    let long = vec![vec![1], vec![0; RECORD_BYTES_MAX + 1]];
    match log.append(&long) {
        Err(LogError::TooLong { found }) => assert_eq!(found, RECORD_BYTES_MAX + 1),
        other => panic!("too long, got {other:?}"),
    }
    check(&log, 0, &[]);
    log.append(&long[..1]).expect("the log goes on");
    check(&log, 0, &long[..1]);
}

/// Case of the suite.
pub fn trimming_keeps_numbers(fixture: &mut impl LogFixture) {
    let mut log = fixture.open(None);
    let mut written = records(&[20; 40]);
    log.append(&written).expect("durable");
    log.trim(17).expect("those are there");
    check(&log, 17, &written[17..]);
    log.append(&[vec![9]]).expect("durable");
    written.push(vec![9]);
    check(&log, 17, &written[17..]);
}

/// Case of the suite.
pub fn trimming_everything_keeps_the_next_number(fixture: &mut impl LogFixture) {
    let mut log = fixture.open(None);
    log.append(&records(&[20; 4])).expect("durable");
    log.trim(4).expect("all of them");
    check(&log, 4, &[]);
    log.append(&[vec![9]]).expect("durable");
    check(&fixture.open(Some(log)), 4, &[vec![9]]);
}

/// Case of the suite.
pub fn trimming_twice_is_trimming_once(fixture: &mut impl LogFixture) {
    let mut log = fixture.open(None);
    let written = records(&[20; 4]);
    log.append(&written).expect("durable");
    log.trim(2).expect("those are there");
    log.trim(2).expect("nothing to do");
    check(&log, 2, &written[2..]);
}

/// Case of the suite.
pub fn trimming_beyond_the_end_is_refused(fixture: &mut impl LogFixture) {
    let mut log = fixture.open(None);
    let written = records(&[20; 4]);
    log.append(&written).expect("durable");
    check_refused(log.trim(5), 5);
    check(&log, 0, &written);
}

/// Case of the suite.
pub fn trimming_what_is_gone_is_refused(fixture: &mut impl LogFixture) {
    let mut log = fixture.open(None);
    let written = records(&[20; 4]);
    log.append(&written).expect("durable");
    log.trim(3).expect("those are there");
    check_refused(log.trim(2), 2);
    check(&log, 3, &written[3..]);
}

/// Case of the suite.
pub fn cutting_the_last_record_frees_its_number(fixture: &mut impl LogFixture) {
    let mut log = fixture.open(None);
    let mut written = records(&[20; 4]);
    log.append(&written).expect("durable");
    log.cut_from(3).expect("it is there");
    check(&log, 0, &written[..3]);
    written[3] = vec![1, 2];
    log.append(&written[3..]).expect("durable");
    check(&fixture.open(Some(log)), 0, &written);
}

/// Case of the suite.
pub fn cutting_everything_keeps_the_first_number(fixture: &mut impl LogFixture) {
    let mut log = fixture.open(None);
    log.append(&records(&[20; 6])).expect("durable");
    log.trim(2).expect("those are there");
    log.cut_from(2).expect("it is there");
    check(&log, 2, &[]);
    check(&fixture.open(Some(log)), 2, &[]);
}

/// Case of the suite.
pub fn cutting_what_is_not_there_is_refused(fixture: &mut impl LogFixture) {
    let mut log = fixture.open(None);
    check_refused(log.cut_from(0), 0);
    let written = records(&[20; 4]);
    log.append(&written).expect("durable");
    check_refused(log.cut_from(4), 4);
    log.trim(2).expect("those are there");
    check_refused(log.cut_from(1), 1);
    check(&log, 2, &written[2..]);
}

/// Case of the suite.
pub fn a_cut_is_there_after_opening_again(fixture: &mut impl LogFixture) {
    let mut log = fixture.open(None);
    let written = records(&[20; 4]);
    log.append(&written).expect("durable");
    log.cut_from(1).expect("it is there");
    check(&fixture.open(Some(log)), 0, &written[..1]);
}

/// Case of the suite.
pub fn a_trimmed_log_goes_on_after_opening_again(fixture: &mut impl LogFixture) {
    let mut log = fixture.open(None);
    let written = records(&[20; 4]);
    log.append(&written).expect("durable");
    log.trim(2).expect("those are there");
    log.append(&[vec![5]]).expect("durable, and the trim with it");
    let mut log = fixture.open(Some(log));
    check(&log, 2, &[written[2].clone(), written[3].clone(), vec![5]]);
    log.append(&[vec![6]]).expect("durable");
    assert_eq!(log.next(), 6);
}

/// Case of the suite.
pub fn many_batches_come_back(fixture: &mut impl LogFixture) {
    let mut log = fixture.open(None);
    let written: Vec<Vec<u8>> = (0..200).map(|seed| noise(seed, 300)).collect();
    for batch in written.chunks(7) {
        log.append(batch).expect("durable");
    }
    check(&fixture.open(Some(log)), 0, &written);
}

/// Case of the suite.
pub fn a_large_record_that_is_cut_leaves_nothing(fixture: &mut impl LogFixture) {
    let mut log = fixture.open(None);
    log.append(&records(&[10, 100_000])).expect("durable");
    log.cut_from(1).expect("it is there");
    let written = [noise(0, 10), noise(9, 5000)];
    log.append(&written[1..]).expect("durable");
    check(&fixture.open(Some(log)), 0, &written);
}

/// Case of the suite.
pub fn reading_changes_nothing(fixture: &mut impl LogFixture) {
    let mut log = fixture.open(None);
    let written = records(&[20; 4]);
    log.append(&written).expect("durable");
    check(&log, 0, &written);
    check(&log, 0, &written);
}
