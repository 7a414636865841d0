//! The lists of a program as bytes: the period that a steady pipeline repeats is written once.
//!
//! A plan of many stages and microbatches has millions of operations, and must fit into an entry of
//! a log and into a message. Each operation becomes a *symbol*: its kind, which of the stage's
//! chunks it is on, and how far its microbatch and slice are from those of the operation before of
//! the same kind on the same chunk. In a steady pipeline the symbols of a stage repeat with a short
//! period, and those of the next stage are nearly the same. So they are written as in LZ77: symbols
//! as they are, and copies of symbols written before.
//!
//! Nothing is assumed of the program: every program comes out as it went in, legal or not.

use std::collections::BTreeMap;

use zbelastic_types::{ChunkIndex, StageIndex};

use crate::op::{Compute, Flow, MemoryOp, Op, Pass, Transfer, UpdateOp};
use crate::placement::Placement;
use crate::reduction::{Reduction, TreeExchange, TreeLevel};

/// Operations for each pass at most: F, B, W, WE and R, two transfers in each direction, and what
/// is dropped, offloaded and reloaded.
const OPS_PER_PASS_MAX: u64 = 12;
/// Operations that are on no pass, for each chunk: an upper bound, as memory requires, of SEND_G, RECV_G
/// and REDUCE at each level of the tree, SEND_S, RECV_S and GATHER or SEND_C, RECV_C and GATHER_C at each,
/// SEND_T, RECV_T and TIE, and the five updates of a stage.
const OTHER_OPS_MAX: u64 = 50;
const _: () = assert!(3 * 2 * TreeLevel::COUNT_MAX as u64 + 3 + 5 <= OTHER_OPS_MAX);
/// Symbols of the shortest copy: the encoding of a copy has up to as many bytes.
const COPY_MIN: usize = 4;
/// Positions within a copy at which later copies may begin: the others are reached by the periods
/// that a copy continues.
const INDEXED_IN_COPY: usize = 64;

/// Why bytes are not the lists of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UnpackError {
    /// The bytes end before the lists do.
    #[error("the bytes of the lists end early")]
    Short,
    /// Something follows behind the last list.
    #[error("{count} bytes behind the last list")]
    Trailing {
        /// Number of bytes left.
        count: usize,
    },
    /// There are more operations than passes allow.
    #[error("{found} operations, at most {ops_max} for so many passes")]
    Ops {
        /// Number of operations allowed.
        ops_max: u64,
        /// Number of operations that the bytes announce.
        found: u64,
    },
    /// A symbol, or the symbols that one copies, was never written.
    #[error("a list names symbol or position {found}, there are {count}")]
    Unknown {
        /// How many there are.
        count: u64,
        /// The symbol or position that is named.
        found: u64,
    },
    /// A number is not one of an operation.
    #[error("{found} is no kind, chunk, microbatch or slice of an operation")]
    Number {
        /// The number as found.
        found: i64,
    },
}

/// Every kind of operation on a pass, on a chunk and on neither, and those on a chunk that came
/// later. The number that is written is the place here.
const PASS_KINDS: [fn(Pass) -> Op; 15] = [
    |pass| Op::Compute(Compute::F, pass),
    |pass| Op::Compute(Compute::B, pass),
    |pass| Op::Compute(Compute::W, pass),
    |pass| Op::Compute(Compute::WE, pass),
    |pass| Op::Compute(Compute::BW, pass),
    |pass| Op::Compute(Compute::R, pass),
    |pass| Op::Transfer(Transfer::Send, Flow::Forward, pass),
    |pass| Op::Transfer(Transfer::Send, Flow::Backward, pass),
    |pass| Op::Transfer(Transfer::Receive, Flow::Forward, pass),
    |pass| Op::Transfer(Transfer::Receive, Flow::Backward, pass),
    |pass| Op::Transfer(Transfer::Local, Flow::Forward, pass),
    |pass| Op::Transfer(Transfer::Local, Flow::Backward, pass),
    |pass| Op::Memory(MemoryOp::Offload, pass),
    |pass| Op::Memory(MemoryOp::Reload, pass),
    |pass| Op::Memory(MemoryOp::Drop, pass),
];
const CHUNK_KINDS: [fn(TreeExchange) -> Reduction; 4] =
    [Reduction::Send, Reduction::Receive, Reduction::Local, Reduction::Merge];
const TIED_KINDS: [Reduction; 3] = [Reduction::SendTied, Reduction::ReceiveTied, Reduction::Tie];
/// The first place of a kind on chunks above the first level of the tree.
const ABOVE_LEAVES: usize = PASS_KINDS.len() + CHUNK_KINDS.len() + UPDATES.len() + TIED_KINDS.len();
/// The first place of a kind on chunks on the way down the tree.
const GATHERS: usize = ABOVE_LEAVES + (TreeLevel::COUNT_MAX as usize - 1) * CHUNK_KINDS.len();
/// The first place of a kind on chunks where candidates come down the tree.
const OF_CANDIDATES: usize = GATHERS + TreeLevel::COUNT_MAX as usize * CHUNK_KINDS.len();
const UPDATES: [UpdateOp; 5] = [
    UpdateOp::Report,
    UpdateOp::Step,
    UpdateOp::GatePrevious,
    UpdateOp::GateThis,
    UpdateOp::Commit,
];

/// The place of an operation's kind: those on passes first, then those on chunks, the updates, and
/// those of tied ends. Behind them come those on chunks of each level above the first, and those of the
/// way down of each level.
const fn kind_of(op: Op) -> usize {
    let on_chunks = PASS_KINDS.len();
    let tied = on_chunks + CHUNK_KINDS.len() + UPDATES.len();
    match op {
        Op::Compute(compute, _) => match compute {
            Compute::F => 0,
            Compute::B => 1,
            Compute::W => 2,
            Compute::WE => 3,
            Compute::BW => 4,
            Compute::R => 5,
        },
        Op::Transfer(transfer, flow, _) => match (transfer, flow) {
            (Transfer::Send, Flow::Forward) => 6,
            (Transfer::Send, Flow::Backward) => 7,
            (Transfer::Receive, Flow::Forward) => 8,
            (Transfer::Receive, Flow::Backward) => 9,
            (Transfer::Local, Flow::Forward) => 10,
            (Transfer::Local, Flow::Backward) => 11,
        },
        Op::Memory(memory, _) => match memory {
            MemoryOp::Offload => 12,
            MemoryOp::Reload => 13,
            MemoryOp::Drop => 14,
        },
        Op::Reduce(reduction, _) => match reduction {
            Reduction::Send(exchange) => kind_at(exchange, 0),
            Reduction::Receive(exchange) => kind_at(exchange, 1),
            Reduction::Local(exchange) => kind_at(exchange, 2),
            Reduction::Merge(exchange) => kind_at(exchange, 3),
            Reduction::SendTied => tied,
            Reduction::ReceiveTied => tied + 1,
            Reduction::Tie => tied + 2,
        },
        Op::Update(update) => {
            on_chunks
                + CHUNK_KINDS.len()
                + match update {
                    UpdateOp::Report => 0,
                    UpdateOp::Step => 1,
                    UpdateOp::GatePrevious => 2,
                    UpdateOp::GateThis => 3,
                    UpdateOp::Commit => 4,
                }
        }
    }
}

/// The place of a kind on chunks in an exchange.
const fn kind_at(exchange: TreeExchange, kind: usize) -> usize {
    match exchange {
        TreeExchange::Reduce(TreeLevel(0)) => PASS_KINDS.len() + kind,
        TreeExchange::Reduce(TreeLevel(level)) => {
            ABOVE_LEAVES + (level as usize - 1) * CHUNK_KINDS.len() + kind
        }
        TreeExchange::Gather(TreeLevel(level)) => {
            GATHERS + level as usize * CHUNK_KINDS.len() + kind
        }
        TreeExchange::GatherCandidates(TreeLevel(level)) => {
            OF_CANDIDATES + level as usize * CHUNK_KINDS.len() + kind
        }
    }
}

/// An operation, relative to the one before of its kind and chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Symbol {
    kind: u64,
    /// Its place among the stage's chunks; behind them come all chunks, for one of another stage.
    chunk: u64,
    microbatches: i64,
    slices: i64,
}

/// Turns the operations of one stage into symbols and back.
struct StageCodec {
    chunks: Vec<ChunkIndex>,
    /// Microbatch and slice of the last operation of each kind on each chunk.
    last: BTreeMap<(u64, u64), (i64, i64)>,
}

impl StageCodec {
    fn new(placement: &Placement, stage: StageIndex) -> Self {
        Self { chunks: placement.chunks_of(stage).collect(), last: BTreeMap::new() }
    }

    fn symbol(&mut self, op: Op) -> Symbol {
        let kind = kind_of(op) as u64;
        let Some(chunk) = op.chunk() else { return Symbol { kind, ..Symbol::default() } };
        let position = self.chunks.iter().position(|found| *found == chunk);
        let foreign = self.chunks.len() as u64 + u64::from(chunk.0);
        let chunk = position.map_or(foreign, |position| position as u64);
        let Some(pass) = op.pass() else { return Symbol { kind, chunk, ..Symbol::default() } };
        let microbatch = i64::from(pass.microbatch.0);
        let slice = i64::from(pass.slice.0);
        let before = self.last.insert((kind, chunk), (microbatch, slice)).unwrap_or((-1, 0));
        Symbol { kind, chunk, microbatches: microbatch - before.0, slices: slice - before.1 }
    }

    fn op(&mut self, symbol: Symbol) -> Result<Op, UnpackError> {
        let Symbol { kind, chunk, microbatches, slices } = symbol;
        let bad = UnpackError::Number { found: kind as i64 };
        let place = usize::try_from(kind).map_err(|_| bad)?;
        let on_passes = PASS_KINDS.len();
        let on_chunks = PASS_KINDS.len() + CHUNK_KINDS.len();
        let updates = on_chunks + UPDATES.len();
        if (on_chunks..updates).contains(&place) {
            return Ok(Op::Update(UPDATES[place - on_chunks]));
        }
        let own = usize::try_from(chunk).ok().and_then(|place| self.chunks.get(place)).copied();
        let foreign = |chunk: u64| small(chunk.wrapping_sub(self.chunks.len() as u64) as i64);
        let index = own.map_or_else(|| foreign(chunk).map(ChunkIndex), Ok)?;
        if place >= ABOVE_LEAVES {
            let kind = CHUNK_KINDS[(place - ABOVE_LEAVES) % CHUNK_KINDS.len()];
            let rows = (place - ABOVE_LEAVES) / CHUNK_KINDS.len();
            let rows = u8::try_from(rows).map_err(|_| bad)?;
            // Rows of the way up begin with level 1.
            let exchange = match rows.checked_sub(TreeLevel::COUNT_MAX - 1) {
                None => TreeExchange::Reduce(TreeLevel(rows + 1)),
                Some(level) if level < TreeLevel::COUNT_MAX => {
                    TreeExchange::Gather(TreeLevel(level))
                }
                Some(row) if row < 2 * TreeLevel::COUNT_MAX => {
                    TreeExchange::GatherCandidates(TreeLevel(row - TreeLevel::COUNT_MAX))
                }
                Some(_) => return Err(bad),
            };
            return Ok(Op::Reduce(kind(exchange), index));
        }
        if place >= updates {
            let reduction = TIED_KINDS.get(place - updates).copied().ok_or(bad)?;
            return Ok(Op::Reduce(reduction, index));
        }
        if place >= on_passes {
            let reduction = CHUNK_KINDS[place - on_passes];
            return Ok(Op::Reduce(reduction(TreeExchange::Reduce(TreeLevel::LEAVES)), index));
        }
        let before = self.last.get(&(kind, chunk)).copied().unwrap_or((-1, 0));
        let now = (before.0.wrapping_add(microbatches), before.1.wrapping_add(slices));
        self.last.insert((kind, chunk), now);
        Ok(PASS_KINDS[place](Pass::sliced(index.0, small(now.0)?, small(now.1)?)))
    }
}

fn small(found: i64) -> Result<u32, UnpackError> {
    u32::try_from(found).map_err(|_| UnpackError::Number { found })
}

/// The bytes of the lists.
pub(crate) fn pack(placement: &Placement, lists: &[Vec<Op>]) -> Vec<u8> {
    let mut known = BTreeMap::new();
    let mut symbols = Vec::new();
    let mut numbers: Vec<u32> = Vec::with_capacity(lists.iter().map(Vec::len).sum());
    for (stage, list) in (0..).map(StageIndex).zip(lists) {
        let mut stage = StageCodec::new(placement, stage);
        for op in list {
            let symbol = stage.symbol(*op);
            let number = *known.entry(symbol).or_insert_with(|| {
                symbols.push(symbol);
                symbols.len() as u32 - 1
            });
            numbers.push(number);
        }
    }
    let mut bytes = Vec::new();
    put(&mut bytes, lists.len() as u64);
    lists.iter().for_each(|list| put(&mut bytes, list.len() as u64));
    put(&mut bytes, symbols.len() as u64);
    for Symbol { kind, chunk, microbatches, slices } in symbols {
        let signed = [zigzag(microbatches), zigzag(slices)];
        [kind, chunk].into_iter().chain(signed).for_each(|number| put(&mut bytes, number));
    }
    write_runs(&mut bytes, &numbers);
    bytes
}

/// Symbols as they are, and copies: an even number is twice the count of symbols that follow, an
/// odd one twice the length of a copy and one, behind which stands how far back it begins.
fn write_runs(bytes: &mut Vec<u8>, numbers: &[u32]) {
    let key = |at: usize| numbers.get(at..at + COPY_MIN).map(<[u32]>::to_vec);
    let mut seen: BTreeMap<Vec<u32>, usize> = BTreeMap::new();
    let mut at = 0;
    let mut plain = 0;
    while at < numbers.len() {
        let from = key(at).and_then(|key| seen.insert(key, at));
        let Some(from) = from else {
            at += 1;
            continue;
        };
        let pairs = numbers[from..].iter().zip(&numbers[at..]);
        let length = pairs.take_while(|(one, other)| one == other).count();
        write_plain(bytes, &numbers[plain..at]);
        put(bytes, 2 * length as u64 + 1);
        put(bytes, (at - from) as u64);
        let end = at + length;
        for inside in (at + 1..end).take(INDEXED_IN_COPY) {
            seen.extend(key(inside).map(|key| (key, inside)));
        }
        (at, plain) = (end, end);
    }
    write_plain(bytes, &numbers[plain..]);
}

fn write_plain(bytes: &mut Vec<u8>, numbers: &[u32]) {
    if !numbers.is_empty() {
        put(bytes, 2 * numbers.len() as u64);
        numbers.iter().for_each(|number| put(bytes, u64::from(*number)));
    }
}

/// The lists in `bytes`, of a program of so many passes.
pub(crate) fn unpack(
    placement: &Placement,
    passes: u64,
    bytes: &[u8],
) -> Result<Vec<Vec<Op>>, UnpackError> {
    let mut reader = PackedReader { bytes };
    let chunks = u64::from(placement.chunk_count()) + u64::from(placement.stage_count());
    let ops_max = passes * OPS_PER_PASS_MAX + chunks * OTHER_OPS_MAX;
    let lengths = reader.lengths(ops_max)?;
    let symbols = reader.symbols()?;
    let numbers = reader.numbers(lengths.iter().sum(), symbols.len())?;
    let count = reader.bytes.len();
    if count > 0 {
        return Err(UnpackError::Trailing { count });
    }
    let mut numbers = numbers.into_iter();
    let list = |(stage, length): (u32, &u64)| {
        let mut stage = StageCodec::new(placement, StageIndex(stage));
        let numbers = numbers.by_ref().take(*length as usize);
        numbers.map(|number| stage.op(symbols[number as usize])).collect()
    };
    (0..).zip(&lengths).map(list).collect()
}

struct PackedReader<'a> {
    bytes: &'a [u8],
}

impl PackedReader<'_> {
    /// A number of seven bits a byte, the lowest ones first.
    fn number(&mut self) -> Result<u64, UnpackError> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.bytes.split_first().ok_or(UnpackError::Short)?;
            self.bytes = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(UnpackError::Number { found: number as i64 })
    }

    fn signed(&mut self) -> Result<i64, UnpackError> {
        let number = self.number()?;
        Ok((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    /// Operations of each stage. Each length has a byte of its own, so they are not too many.
    fn lengths(&mut self, ops_max: u64) -> Result<Vec<u64>, UnpackError> {
        let count = self.number()?;
        let mut lengths = Vec::new();
        let mut found = 0_u64;
        for _ in 0..count {
            let length = self.number()?;
            found = found.saturating_add(length);
            if found > ops_max {
                return Err(UnpackError::Ops { ops_max, found });
            }
            lengths.push(length);
        }
        Ok(lengths)
    }

    fn symbols(&mut self) -> Result<Vec<Symbol>, UnpackError> {
        let count = self.number()?;
        let mut symbols = Vec::new();
        for _ in 0..count {
            let kind = self.number()?;
            let chunk = self.number()?;
            let microbatches = self.signed()?;
            let slices = self.signed()?;
            symbols.push(Symbol { kind, chunk, microbatches, slices });
        }
        Ok(symbols)
    }

    /// So many symbols of so many.
    fn numbers(&mut self, ops: u64, symbols: usize) -> Result<Vec<u32>, UnpackError> {
        let mut numbers: Vec<u32> = Vec::new();
        while (numbers.len() as u64) < ops {
            let head = self.number()?;
            let length = head >> 1;
            let is_copy = head & 1 == 1;
            let count = numbers.len() as u64;
            let left = ops - numbers.len() as u64;
            if length == 0 || length > left {
                return Err(UnpackError::Ops { ops_max: left, found: length });
            }
            if !is_copy {
                for _ in 0..length {
                    let found = self.number()?;
                    if found >= symbols as u64 {
                        return Err(UnpackError::Unknown { count: symbols as u64, found });
                    }
                    numbers.push(found as u32);
                }
                continue;
            }
            let found = self.number()?;
            if found == 0 || found > count {
                return Err(UnpackError::Unknown { count, found });
            }
            let from = (count - found) as usize;
            (from..from + length as usize).for_each(|at| numbers.push(numbers[at]));
        }
        Ok(numbers)
    }
}

fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

const fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)) as u64
}

#[cfg(test)]
mod tests {
    use super::{PASS_KINDS, UnpackError, kind_of, pack, unpack};
    use crate::generate::generate;
    use crate::kind::ScheduleKind;
    use crate::lower::{LowerOptions, lower};
    use crate::op::Pass;
    use crate::placement::Placement;
    use crate::program::{Program, Window};
    use crate::ties::tie_ends;

    fn lowered(kind: ScheduleKind, stages: u32, microbatches: u32) -> Program {
        let options = LowerOptions { window: Window::One, early_head_weights: true };
        lower(&generate(kind, stages, microbatches).expect("the size is legal"), options)
    }

    fn check(program: &Program, bytes_max: usize) {
        let bytes = pack(&program.placement, &program.stages);
        let found = unpack(&program.placement, program.pass_count(), &bytes);
        assert_eq!(found.as_ref(), Ok(&program.stages));
        assert!(bytes.len() <= bytes_max, "{} bytes, {bytes_max} at most", bytes.len());
        for length in 0..bytes.len().min(200) {
            let cut = unpack(&program.placement, program.pass_count(), &bytes[..length]);
            assert!(cut.is_err(), "{length} of {} bytes", bytes.len());
        }
    }

    #[test]
    fn kinds_are_the_places_in_the_table() {
        for (place, make) in PASS_KINDS.iter().enumerate() {
            assert_eq!(kind_of(make(Pass::new(0, 0))), place);
        }
    }

    #[test]
    fn every_schedule_comes_out_as_it_went_in() {
        for kind in ScheduleKind::ALL {
            for (stages, microbatches) in [(2, 4), (4, 8), (8, 32)] {
                let options = LowerOptions { window: Window::One, early_head_weights: true };
                if let Ok(program) = generate(kind, stages, microbatches) {
                    let lowered = lower(&program, options);
                    check(&lowered, usize::MAX);
                    check(&tie_ends(&lowered), usize::MAX);
                }
            }
        }
    }

    #[test]
    fn what_no_list_may_be_comes_out_too() {
        let header = "program gpipe line stages 2 chunks 2 microbatches 3 window -";
        let text = format!("{header}\nstage 0: 1F7 1F7 0F2 0B1 0REDUCE_ADD REPORT\nstage 1:");
        let text = text.replace(" 0REDUCE_ADD", "");
        check(&text.parse().expect("the text is a program"), 100);
    }

    /// A plan of 256 stages must fit into an entry of the log, with all else that is in it.
    #[test]
    fn a_large_program_is_a_small_number_of_bytes() {
        check(&lowered(ScheduleKind::ZbV, 256, 512), 256 << 10);
        check(&lowered(ScheduleKind::OneFOneB, 256, 2048), 64 << 10);
    }

    #[test]
    fn bytes_that_no_program_has_are_refused() {
        let placement = Placement::line(1);
        let refuse = |bytes: &[u8], expected| {
            assert_eq!(unpack(&placement, 1, bytes), Err(expected));
        };
        refuse(&[1, 120], UnpackError::Ops { ops_max: 112, found: 120 });
        refuse(&[1, 0, 0, 9], UnpackError::Trailing { count: 1 });
        refuse(&[1, 1, 0, 2, 0], UnpackError::Unknown { count: 0, found: 0 });
        refuse(&[1, 1, 1, 0, 0, 2, 0, 3, 1], UnpackError::Unknown { count: 0, found: 1 });
        refuse(&[1, 1, 1, 0, 0, 2, 0, 0], UnpackError::Ops { ops_max: 1, found: 0 });
        refuse(&[1, 1, 1, 120, 0, 2, 0, 2, 0], UnpackError::Number { found: 120 });
        refuse(&[1, 1, 1, 0, 0, 1, 0, 2, 0], UnpackError::Number { found: -2 });
    }
}
