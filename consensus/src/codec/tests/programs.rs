//! Programs as bytes.

use zbelastic_schedule::{Op, Pass, Program, ScheduleKind, generate};

use super::super::{decode, encode};
use super::golden::hex;

/// More than any of these take.
const BYTES_MAX: usize = 4096;

#[test]
fn slices_take_no_bytes_where_there_are_none() {
    let check = |pass: Pass, expected: &str| {
        assert_eq!(hex(&encode(&pass)), expected, "{pass:?}");
        assert_eq!(decode(&encode(&pass), BYTES_MAX), Ok(pass));
    };
    check(Pass::new(1, 2), "090102");
    check(Pass::new(1, 300), "0901ac02");
    check(Pass::sliced(1, 2, 1), "09018280808010");
    check(Pass::sliced(1, u32::MAX, u32::MAX), "0901ffffffffffffffffff01");
    let header = |text: &str| {
        let program: Program = text.parse().expect("the text is a program");
        hex(&encode(&program))
    };
    let plain = "program gpipe line stages 1 chunks 1 microbatches 2 window -\nstage 0:";
    assert_eq!(header(plain), "090000010102 00 03010000".replace(' ', ""));
    let sliced = plain.replace("window", "slices 2 window");
    assert_eq!(header(&sliced), "090000010182808080100003010000");
}

#[test]
fn programs_with_slices_are_read_again() {
    let mut program = generate(ScheduleKind::Seq1F1B, 3, 4).expect("the size is legal");
    assert_eq!(decode(&encode(&program), BYTES_MAX), Ok(program.clone()));
    program.slice_count = u32::MAX;
    assert_eq!(decode(&encode(&program), BYTES_MAX), Ok(program.clone()));
    let op: Op = "2F0.1".parse().expect("an operation");
    assert_eq!(decode(&encode(&op), BYTES_MAX), Ok(op));
}
