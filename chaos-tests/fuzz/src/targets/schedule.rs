//! Programs, in the four forms in which they are read.

use zbelastic_consensus::codec::{decode, encode};
use zbelastic_schedule::asynchronous::{AsyncProgram, check_async};
use zbelastic_schedule::pytorch::{CsvFormat, read, write};
use zbelastic_schedule::{PASS_COUNT_MAX, Program, check};

use super::check_text;
use crate::DecodeOutcome;

/// Passes of a program that is also checked here: the time of a check grows with the program.
const CHECKED_PASSES: u64 = 512;
/// A few bytes may be a program of [`PASS_COUNT_MAX`] passes, each of which is up to 12 operations
/// of 16 bytes, in a vector that grows by doubling.
pub const PROGRAM_MEMORY: usize = PASS_COUNT_MAX as usize * 12 * 16 * 3;

fn check_legal(program: &Program) {
    if program.pass_count() <= CHECKED_PASSES {
        let _ = check(program);
    }
}

/// A program is written in one way and read as the same program; a check of it ends.
pub fn programs(bytes: &[u8]) -> DecodeOutcome {
    let Ok(text) = std::str::from_utf8(bytes) else { return DecodeOutcome::Refused };
    let Ok(program) = text.parse::<Program>() else { return DecodeOutcome::Refused };
    check_legal(&program);
    check_text::<Program>(text)
}

/// The same of a packed one.
pub fn packed_programs(bytes: &[u8]) -> DecodeOutcome {
    let Ok(program) = decode::<Program>(bytes, bytes.len()) else { return DecodeOutcome::Refused };
    let again = encode(&program);
    assert!(decode(&again, again.len()) == Ok(program.clone()), "it reads what it wrote");
    check_legal(&program);
    DecodeOutcome::Accepted
}

/// The same of an asynchronous one.
pub fn async_programs(bytes: &[u8]) -> DecodeOutcome {
    let Ok(text) = std::str::from_utf8(bytes) else { return DecodeOutcome::Refused };
    let Ok(program) = text.parse::<AsyncProgram>() else { return DecodeOutcome::Refused };
    if program.pass_count() <= CHECKED_PASSES {
        let _ = check_async(&program);
    }
    check_text::<AsyncProgram>(text)
}

/// A file that is a legal program is written as one that is read as the same.
pub fn pytorch_schedules(bytes: &[u8]) -> DecodeOutcome {
    let Ok(text) = std::str::from_utf8(bytes) else { return DecodeOutcome::Refused };
    let Ok(program) = read(text) else { return DecodeOutcome::Refused };
    if program.pass_count() > CHECKED_PASSES || check(&program).is_err() {
        return DecodeOutcome::Accepted;
    }
    for form in [CsvFormat::ComputeOnly, CsvFormat::WithCommunication] {
        if let Ok(written) = write(&program, form) {
            assert_eq!(read(&written), Ok(program.clone()), "{written}");
        }
    }
    DecodeOutcome::Accepted
}
