//! The bytes of records, and what is not a record.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::super::{
    HardVote, LogEntry, Members, NodeChange, Payload, RaftRecord, RaftRecordFault, RecoverError,
    RecoveredLog, SnapshotImage, decode_record, encode_record,
};
use super::cluster::n;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn samples() -> Vec<(RaftRecord, &'static str)> {
    let data = LogEntry { index: 300, term: 2, payload: Payload::Data(b"seal".to_vec()) };
    let steps = vec![NodeChange::Remove(n(3)), NodeChange::Voter(n(4)), NodeChange::Learner(n(5))];
    let change = LogEntry { index: 301, term: 2, payload: Payload::Change(steps) };
    let members = Members {
        voters: BTreeSet::from([n(1), n(2)]),
        outgoing: BTreeSet::from([n(3)]),
        learners: BTreeSet::from([n(200)]),
    };
    let image = SnapshotImage { index: 9, term: 1, members, data: b"state".to_vec() };
    let hard = HardVote { term: 7, vote: Some(n(2)), commit: 300 };
    vec![
        (RaftRecord::HardState(hard), "0106000000b9e3b34200070102ac02"),
        (
            RaftRecord::HardState(HardVote { term: 1, vote: None, commit: 1 }),
            "0104000000b654fd0300010001",
        ),
        (
            RaftRecord::Append(vec![data, change]),
            "01160000004276267d0102ac020200047365616cad02020103020300040105",
        ),
        (RaftRecord::Snapshot(image), "0111000000f711ca0c020901020102010301c801057374617465"),
        (RaftRecord::Boot { node: n(1), boot: 3 }, "0103000000c81b341a030103"),
        (
            RaftRecord::PeerBoot { node: n(2), boot: 3, life: 1 << 40 },
            "0109000000c76fd746040203808080808020",
        ),
    ]
}

#[test]
fn records_have_these_bytes() {
    for (record, golden) in samples() {
        let bytes = encode_record(&record);
        assert_eq!(hex(&bytes), golden, "{record:?}");
        assert_eq!(decode_record(&bytes), Ok(record));
    }
}

#[test]
fn each_flipped_bit_and_each_cut_is_noticed() {
    for (record, _) in samples() {
        let bytes = encode_record(&record);
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(decode_record(&bytes).is_err(), "{record:?}, bit {bit}");
        }
        for kept in 0..bytes.len() {
            let fault = decode_record(&bytes[..kept]).unwrap_err();
            assert!(fault.may_be_torn(), "{record:?}, {kept} bytes");
        }
        let longer = [bytes.clone(), vec![0]].concat();
        assert!(matches!(decode_record(&longer), Err(RaftRecordFault::WrongLength { .. })));
    }
}

#[test]
fn record_of_a_newer_program_is_not_taken_for_a_torn_one() {
    let mut newer = encode_record(&RaftRecord::Boot { node: n(1), boot: 1 });
    newer[0] = 2;
    let fault = RaftRecordFault::UnknownVersion { found: 2 };
    assert_eq!(decode_record(&newer), Err(fault));
    let refusal = RecoveredLog::from_records([newer.as_slice()]).unwrap_err();
    assert_eq!(refusal, RecoverError::BadRecord { number: 0, fault });
}

#[test]
fn zeros_are_a_torn_write() {
    for bytes in [vec![], vec![0; 4], vec![0; 9], vec![0; 100]] {
        assert!(RecoveredLog::from_records([bytes.as_slice()]).unwrap().torn);
    }
}

fn check_refusal(records: &[RaftRecord], expected: RecoverError) {
    let bytes: Vec<_> = records.iter().map(encode_record).collect();
    let refusal = RecoveredLog::from_records(bytes.iter().map(Vec::as_slice)).unwrap_err();
    assert_eq!(refusal, expected);
}

#[test]
fn records_that_do_not_add_up_are_refused() {
    let entry = |index, term| {
        let payload = Payload::Data(vec![1]);
        RaftRecord::Append(vec![LogEntry { index, term, payload }])
    };
    let hard = |term, commit| RaftRecord::HardState(HardVote { term, vote: None, commit });
    let number = 1;
    check_refusal(&[entry(1, 1), entry(3, 1)], RecoverError::Gap { number, expected: 2, found: 3 });
    let quantity = "the term of an entry";
    let back = RecoverError::WentBack { number, quantity, before: 5, found: 4 };
    check_refusal(&[entry(1, 5), entry(2, 4)], back);
    let back = RecoverError::WentBack { number, quantity: "the term", before: 5, found: 4 };
    check_refusal(&[hard(5, 0), hard(4, 0)], back);
    let back = RecoverError::WentBack { number, quantity: "the commit index", before: 3, found: 2 };
    check_refusal(&[hard(5, 3), hard(5, 2)], back);
    let replaces = RecoverError::ReplacesCommitted { number: 2, commit: 1, found: 1 };
    check_refusal(&[entry(1, 1), hard(1, 1), entry(1, 2)], replaces);
    let boot = |node, boot| RaftRecord::Boot { node: n(node), boot };
    let two = RecoverError::TwoNodes { number, expected: n(1), found: n(2) };
    check_refusal(&[boot(1, 1), boot(2, 2)], two);
    let back = RecoverError::WentBack { number, quantity: "the boot", before: 2, found: 1 };
    check_refusal(&[boot(1, 2), boot(1, 1)], back);
}

proptest! {
    #[test]
    fn any_bytes_are_refused_or_are_exactly_a_record(
        bytes in proptest::collection::vec(any::<u8>(), 0..80)
    ) {
        if let Ok(record) = decode_record(&bytes) {
            prop_assert_eq!(encode_record(&record), bytes);
        }
    }
}
