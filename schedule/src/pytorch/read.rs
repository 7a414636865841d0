//! Reads a file as a program.

use std::collections::{BTreeMap, BTreeSet};

use zbelastic_types::{ChunkIndex, StageIndex};

use super::{COMPUTE_LETTERS, PASSED_OVER, TRANSFER_LETTERS, action};
use crate::boundary::{receive_before, transfer_after};
use crate::generate::generate_sized;
use crate::kind::ScheduleKind;
use crate::limits::{PASS_COUNT_MAX, TEXT_COUNT_MAX};
use crate::op::{Compute, Op, Pass, Transfer};
use crate::orders::PipelineSize;
use crate::placement::{Placement, PlacementShape};
use crate::program::Program;
use crate::solve::kind_of_shape;

/// Why a file is no program. Rows and columns count from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// No row, or none with an action.
    #[error("expected a row of actions for each rank, found none")]
    Empty,
    /// A cell that is no action.
    #[error(
        "row {row}, column {column}: `{found}` is no action: expected a stage, letters and a \
         microbatch such as 2F0, 2I0, 2W0, 2B0, 2SEND_F0, or (0F1;3B0)OVERLAP_F_B, with numbers below \
         {TEXT_COUNT_MAX}"
    )]
    Action {
        /// Number of the row, counted from 1.
        row: usize,
        /// Number of the column, counted from 1.
        column: usize,
        /// Text of the cell.
        found: String,
    },
    /// More passes than any reader of a program accepts.
    #[error("expected at most {PASS_COUNT_MAX} passes (stages times microbatches), found {found}")]
    PassCount {
        /// The passes the file has.
        found: u64,
    },
    /// Stages over ranks in a way that no placement has.
    #[error(
        "stage {stage} is on row {row}; expected stages to be laid over {rows} rows as a line, \
         round and round, or down and up again"
    )]
    Placement {
        /// The first stage that stands wrong in a loop.
        stage: ChunkIndex,
        /// Number of the row that it is on.
        row: usize,
        /// Rows of the file.
        rows: usize,
    },
    /// Something changes ranks and is not sent, or sent twice.
    #[error("row {row}: expected `{action}` once, found it {found} times")]
    Transfer {
        /// Number of the row, counted from 1.
        row: usize,
        /// What should be there.
        action: String,
        /// How often it is.
        found: usize,
    },
    /// Something is sent before it is there, or arrives after it is needed.
    #[error("row {row}: expected `{first}` before `{second}`, found it after")]
    Order {
        /// Number of the row, counted from 1.
        row: usize,
        /// What should come first.
        first: String,
        /// What should come second.
        second: String,
    },
    /// Two ranks receive messages in another order than they are sent in: each would wait for the
    /// other.
    #[error("row {receiver} takes `{found}` next from row {sender}, which sends for `{expected}`")]
    Crossed {
        /// Row of the sending rank, counted from 1.
        sender: usize,
        /// Row of the receiving rank, counted from 1.
        receiver: usize,
        /// The receive that the send is for.
        expected: String,
        /// The receive that comes in its place.
        found: String,
    },
}

/// The arithmetic of a file. Sends and receives, if there are any, are checked and left to
/// [`crate::lower`]. The rest of what makes a program legal is left to [`crate::check`].
///
/// A file does not name its schedule. It gets the name of the one that it is equal to, or else of
/// one that holds any order over the same placement: zb-auto on a line, zb-v over a vee, gis where
/// chunks go round.
///
/// # Errors
/// If a cell is no action, stages are on ranks in no known placement, or transfers do not fit.
pub fn read(text: &str) -> Result<Program, ReadError> {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let rows: Vec<Vec<Op>> =
        (1..).zip(lines).map(|(row, line)| read_row(row, line)).collect::<Result<_, _>>()?;
    let placement = placement_of(&rows)?;
    let microbatches = passes(&rows).map(|(_, pass)| pass.microbatch.0 + 1);
    let microbatch_count = microbatches.max().ok_or(ReadError::Empty)?;
    let found = u64::from(placement.chunk_count()) * u64::from(microbatch_count);
    if found > PASS_COUNT_MAX {
        return Err(ReadError::PassCount { found });
    }
    if rows.iter().flatten().any(is_transfer) {
        check_transfers(&placement, &rows)?;
    }
    let compute = |row: Vec<Op>| row.into_iter().filter(|op| !is_transfer(op)).collect();
    let stages: Vec<Vec<Op>> = rows.into_iter().map(compute).collect();
    let kind = kind_of(&placement, microbatch_count, &stages);
    Ok(Program { kind, placement, microbatch_count, slice_count: 1, window: None, stages })
}

fn kind_of(placement: &Placement, microbatch_count: u32, stages: &[Vec<Op>]) -> ScheduleKind {
    let stage_count = placement.stage_count();
    let chunks_per_stage = placement.chunks_per_stage();
    // A few letters can name a size whose schedules are long: none is generated for a file that is
    // short.
    let is_forward = |op: &&Op| matches!(op, Op::Compute(Compute::F, _));
    let forward_count = stages.iter().flatten().filter(is_forward).count() as u64;
    let pass_count = u64::from(placement.chunk_count()) * u64::from(microbatch_count);
    if forward_count != pass_count {
        return kind_of_shape(placement.shape());
    }
    let size = PipelineSize { stage_count, microbatch_count, chunks_per_stage, slice_count: 1 };
    let is_equal = |kind: &ScheduleKind| {
        let made = generate_sized(*kind, size);
        made.is_ok_and(|made| made.placement == *placement && made.stages == stages)
    };
    let any = kind_of_shape(placement.shape());
    // A file has no actions for copies.
    let copies = |kind: &ScheduleKind| kind.offload_chunks(chunks_per_stage).is_some();
    let mut kinds = ScheduleKind::ALL.into_iter().filter(|kind| !copies(kind));
    kinds.find(is_equal).unwrap_or(any)
}

const fn is_transfer(op: &Op) -> bool {
    matches!(op, Op::Transfer(..))
}

fn read_row(row: usize, line: &str) -> Result<Vec<Op>, ReadError> {
    let mut ops = Vec::new();
    for (column, cell) in (1..).zip(line.split(',')) {
        let cell = cell.trim().trim_matches('"');
        let group = cell.strip_prefix('(').and_then(|rest| rest.strip_suffix(")OVERLAP_F_B"));
        let words = group.unwrap_or(cell).split(';').filter(|word| !word.is_empty());
        for word in words {
            match read_action(word) {
                ParsedAction::Op(op) => ops.push(op),
                ParsedAction::PassedOver => {}
                ParsedAction::Unknown => {
                    return Err(ReadError::Action { row, column, found: cell.to_owned() });
                }
            }
        }
    }
    Ok(ops)
}

enum ParsedAction {
    Op(Op),
    PassedOver,
    Unknown,
}

fn read_action(word: &str) -> ParsedAction {
    let is_digit = |c: char| c.is_ascii_digit();
    let rest = word.trim_start_matches(is_digit);
    let letters = rest.trim_end_matches(is_digit);
    let chunk = &word[..word.len() - rest.len()];
    let microbatch = &rest[letters.len()..];
    if !chunk.is_empty() && PASSED_OVER.contains(&letters) {
        return ParsedAction::PassedOver;
    }
    let (Ok(chunk), Ok(microbatch)) = (chunk.parse(), microbatch.parse()) else {
        return ParsedAction::Unknown;
    };
    if u32::max(chunk, microbatch) >= TEXT_COUNT_MAX {
        return ParsedAction::Unknown;
    }
    let pass = Pass::new(chunk, microbatch);
    let compute = COMPUTE_LETTERS.iter().find(|row| row.1 == letters);
    let transfer = TRANSFER_LETTERS.iter().find(|row| row.2 == letters);
    match (compute, transfer) {
        (Some((compute, _)), _) => ParsedAction::Op(Op::Compute(*compute, pass)),
        (None, Some((transfer, flow, _))) => ParsedAction::Op(Op::Transfer(*transfer, *flow, pass)),
        (None, None) => ParsedAction::Unknown,
    }
}

/// Every pass with its row, counted from 0.
fn passes(rows: &[Vec<Op>]) -> impl Iterator<Item = (u32, Pass)> {
    let ops = (0..).zip(rows).flat_map(|(row, ops)| std::iter::repeat(row).zip(ops));
    ops.filter_map(|(row, op)| Some((row, op.pass()?)))
}

fn placement_of(rows: &[Vec<Op>]) -> Result<Placement, ReadError> {
    let stage_count = u32::try_from(rows.len()).unwrap_or(u32::MAX);
    let placed: BTreeSet<(ChunkIndex, u32)> =
        passes(rows).map(|(row, pass)| (pass.chunk, row)).collect();
    let (last, _) = placed.last().ok_or(ReadError::Empty)?;
    let shapes = [PlacementShape::Line, PlacementShape::Vee, PlacementShape::Loop];
    let stands = |placement: &Placement, (chunk, row): &(ChunkIndex, u32)| {
        placement.stage_of(*chunk) == Some(StageIndex(*row))
    };
    let fits = |placement: &Placement| placed.iter().all(|place| stands(placement, place));
    let of_shape = |shape| Placement::of_shape(shape, stage_count, last.0 + 1).ok();
    if let Some(found) = shapes.into_iter().filter_map(of_shape).find(fits) {
        return Ok(found);
    }
    let wrong = |place: &&(ChunkIndex, u32)| place.0.0 % stage_count != place.1;
    let (stage, row) =
        placed.iter().find(wrong).or(placed.last()).expect("a place was found above");
    Err(ReadError::Placement { stage: *stage, row: *row as usize + 1, rows: rows.len() })
}

/// Checks that everything that changes ranks is sent once and received once, after it is made and
/// before it is needed, and that two ranks exchange in one order.
fn check_transfers(placement: &Placement, rows: &[Vec<Op>]) -> Result<(), ReadError> {
    for (row, ops) in (1..).zip(rows) {
        let mut places: BTreeMap<Op, Vec<usize>> = BTreeMap::new();
        for (at, op) in ops.iter().enumerate() {
            places.entry(*op).or_default().push(at);
        }
        let once = |op: Op| match places.get(&op).map(Vec::as_slice) {
            Some([at]) => Ok(*at),
            other => {
                let found = other.map_or(0, <[usize]>::len);
                Err(ReadError::Transfer { row, action: text(op), found })
            }
        };
        let after = |first: (Op, usize), second: (Op, usize)| {
            let order = || ReadError::Order { row, first: text(first.0), second: text(second.0) };
            if first.1 < second.1 { Ok(()) } else { Err(order()) }
        };
        let mut required_count = 0;
        for (at, op) in ops.iter().enumerate().filter(|(_, op)| !is_transfer(op)) {
            if let Some(receive) = receive_before(placement, *op) {
                after((receive, once(receive)?), (*op, at))?;
                required_count += 1;
            }
            if let Some(send @ Op::Transfer(Transfer::Send, ..)) = transfer_after(placement, *op) {
                after((*op, at), (send, once(send)?))?;
                required_count += 1;
            }
        }
        let transfers = ops.iter().filter(|op| is_transfer(op));
        if transfers.clone().count() != required_count {
            return Err(surplus(placement, row, ops));
        }
    }
    check_exchanges(placement, rows)
}

/// The error for the first transfer that no pass needs.
fn surplus(placement: &Placement, row: usize, ops: &[Op]) -> ReadError {
    let required: BTreeSet<Op> = ops
        .iter()
        .filter(|op| !is_transfer(op))
        .flat_map(|op| [receive_before(placement, *op), transfer_after(placement, *op)])
        .flatten()
        .collect();
    let is_surplus = |op: &&Op| is_transfer(op) && !required.contains(op);
    let found = ops.iter().find(is_surplus).expect("there are more transfers than passes need");
    let same = ops.iter().filter(|op| *op == found).count();
    ReadError::Transfer { row, action: text(*found), found: same }
}

fn check_exchanges(placement: &Placement, rows: &[Vec<Op>]) -> Result<(), ReadError> {
    let mut sent: BTreeMap<(usize, usize), Vec<Op>> = BTreeMap::new();
    for (sender, ops) in rows.iter().enumerate() {
        for op in ops {
            let Op::Transfer(Transfer::Send, flow, pass) = *op else { continue };
            let next = placement.chunk_after(pass.chunk, flow).expect("a checked send");
            let receiver = placement.stage_of(next).expect("a chunk has a stage").index();
            let receive = Op::Transfer(Transfer::Receive, flow, Pass { chunk: next, ..pass });
            sent.entry((sender, receiver)).or_default().push(receive);
        }
    }
    for ((sender, receiver), expected) in sent {
        let of_pair: BTreeSet<&Op> = expected.iter().collect();
        let found = rows[receiver].iter().filter(|op| of_pair.contains(op));
        for (expected, found) in expected.iter().zip(found) {
            if expected != found {
                let sender = sender + 1;
                let receiver = receiver + 1;
                let expected = text(*expected);
                let found = text(*found);
                return Err(ReadError::Crossed { sender, receiver, expected, found });
            }
        }
    }
    Ok(())
}

fn text(op: Op) -> String {
    action(op).expect("what was read is an action")
}

#[cfg(test)]
mod tests {
    use super::{ReadError, read};
    use crate::kind::ScheduleKind;

    fn text(file: &str) -> Result<String, ReadError> {
        let program = read(file)?;
        Ok(program.to_string().lines().skip(1).collect::<Vec<_>>().join("\n"))
    }

    #[test]
    fn empty_cells_quotes_groups_and_other_actions_are_read() {
        let check = |file: &str, expected: &str| assert_eq!(text(file).as_deref(), Ok(expected));
        check("0F0,,0B0\n,1F0,1B0\n", "stage 0: 0F0 0BW0\nstage 1: 1F0 1BW0");
        check("0UNSHARD,0F0,\"0I0\",0W0,0REDUCE_GRAD,0RESHARD", "stage 0: 0F0 0B0 0W0");
        check("(0F0;1F0)OVERLAP_F_B,(1B0;0B0)OVERLAP_F_B", "stage 0: 0F0 1F0 1BW0 0BW0");
        check(
            "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0",
            "stage 0: 0F0 0BW0\nstage 1: 1F0 1BW0",
        );
    }

    #[test]
    fn what_is_no_program_is_named_with_its_place() {
        let check = |file: &str, expected: &str| {
            let error = text(file).expect_err(file).to_string();
            assert!(error.contains(expected), "{file}: {error}");
        };
        check("", "a row of actions for each rank");
        check("0UNSHARD", "a row of actions for each rank");
        check("0F0,0B0\n1F0,1X0", "row 2, column 2: `1X0` is no action");
        check("0F0,F0", "row 1, column 2: `F0` is no action");
        check("0F65536", "`0F65536` is no action");
        check("0F65535,70F0", "at most 4194304 passes");
        check("0F0\n2F0\n1F0", "stage 1 is on row 3; expected stages to be laid over 3 rows");
        check("0F0,1F0\n0B0", "stage 0 is on row 2");
        let sent = "0F0,0SEND_F0,0RECV_B0,0B0";
        check(&format!("{sent}\n1F0,1B0,1SEND_B0"), "row 2: expected `1RECV_F0` once, found it 0");
        let twice = format!("{sent}\n1RECV_F0,1RECV_F0,1F0,1B0,1SEND_B0");
        check(&twice, "row 2: expected `1RECV_F0` once, found it 2 times");
        let late = format!("{sent}\n1F0,1RECV_F0,1B0,1SEND_B0");
        check(&late, "row 2: expected `1RECV_F0` before `1F0`, found it after");
        let early = format!("{sent}\n1RECV_F0,1F0,1SEND_B0,1B0");
        check(&early, "row 2: expected `1B0` before `1SEND_B0`, found it after");
        let surplus = format!("{sent}\n1RECV_F0,1F0,1SEND_F0,1B0,1SEND_B0");
        check(&surplus, "row 2: expected `1SEND_F0` once");
    }

    #[test]
    fn a_file_gets_the_name_of_the_schedule_that_it_is() {
        let check = |file: &str, kind| assert_eq!(read(file).map(|found| found.kind), Ok(kind));
        check("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1", ScheduleKind::OneFOneB);
        check("0F0,0F1,0I0,0W0,0I1,0W1\n1F0,1I0,1F1,1I1,1W0,1W1", ScheduleKind::ZbH1);
        check("0F0,0F1,0I0,0I1,0W0,0W1\n1F0,1I0,1F1,1I1,1W0,1W1", ScheduleKind::ZbAuto);
        check("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0", ScheduleKind::OneFOneBV);
        check("0F0,3F0,3B0,0I0,0W0\n1F0,2F0,2B0,1B0", ScheduleKind::ZbV);
    }

    #[test]
    fn ranks_that_exchange_in_two_orders_are_named() {
        let file = "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n\
                    1RECV_F1,1RECV_F0,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1";
        let crossed = ReadError::Crossed {
            sender: 1,
            receiver: 2,
            expected: "1RECV_F0".to_owned(),
            found: "1RECV_F1".to_owned(),
        };
        assert_eq!(text(file), Err(crossed));
    }
}
