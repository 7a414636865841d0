//! The operations a program is made of, and their text.
//!
//! Letters follow the zero-bubble paper (Qi et al., ICLR 2024, section 2): F is the forward pass, B
//! the half of the backward pass that yields the gradient of the input, W the half that yields the
//! gradient of the weights, BW both in one. R runs the forward pass again. An operation on a chunk
//! is written `<chunk><letters><microbatch>`, as in `2F0`, `3SEND_F1` or `2OFFLOAD0`; in a program
//! with slices the slice follows after a point, as in `2F0.1`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use zbelastic_types::{ChunkIndex, MicrobatchIndex, SliceIndex};

use crate::reduction::{Reduction, TreeExchange};

/// One chunk's share of one microbatch, or of one slice of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "PassForm", into = "PassForm")]
pub struct Pass {
    /// The piece of the model that works.
    pub chunk: ChunkIndex,
    /// The microbatch it works on.
    pub microbatch: MicrobatchIndex,
    /// The slice of the microbatch's sequences; number 0 where they are not sliced.
    pub slice: SliceIndex,
}

/// A pass as it is stored and travels. The number of its slice is the upper half of a number whose
/// lower half is the microbatch: so a pass without slices has the bytes that it had before there
/// were any.
#[derive(Serialize, Deserialize)]
struct PassForm {
    chunk: ChunkIndex,
    microbatch: u64,
}

impl From<Pass> for PassForm {
    fn from(pass: Pass) -> Self {
        let microbatch = u64::from(pass.slice.0) << 32 | u64::from(pass.microbatch.0);
        Self { chunk: pass.chunk, microbatch }
    }
}

impl From<PassForm> for Pass {
    fn from(form: PassForm) -> Self {
        Self::sliced(form.chunk.0, form.microbatch as u32, (form.microbatch >> 32) as u32)
    }
}

impl Pass {
    /// The pass of chunk number `chunk` over microbatch number `microbatch`, or over its first
    /// slice.
    #[must_use]
    pub const fn new(chunk: u32, microbatch: u32) -> Self {
        Self::sliced(chunk, microbatch, 0)
    }

    /// The pass of chunk number `chunk` over slice number `slice` of microbatch number
    /// `microbatch`.
    #[must_use]
    pub const fn sliced(chunk: u32, microbatch: u32, slice: u32) -> Self {
        Self {
            chunk: ChunkIndex(chunk),
            microbatch: MicrobatchIndex(microbatch),
            slice: SliceIndex(slice),
        }
    }

    /// The microbatch as it is written: with the slice behind a point if there are `slice_count` of
    /// them and not one.
    #[must_use]
    pub fn microbatch_text(self, slice_count: u32) -> String {
        if slice_count > 1 || self.slice > SliceIndex(0) {
            format!("{}.{}", self.microbatch, self.slice)
        } else {
            self.microbatch.to_string()
        }
    }
}

/// Arithmetic on a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Compute {
    /// The forward pass of a chunk.
    F,
    /// The gradient of the chunk's input.
    B,
    /// The gradient of the chunk's weights: all of it, or the part that [`Compute::WE`] left.
    W,
    /// The part of W that keeps so large an operand that it runs right after its B: the output
    /// head, whose operand is one number per token and vocabulary entry.
    WE,
    /// B and W in one, as schedules without the split run it: the input's gradient is sent
    /// only when the weights' is done as well.
    BW,
    /// The forward pass again, from the tensors kept after [`MemoryOp::Drop`]: it makes the
    /// operands that B and W need, and its result is not sent.
    R,
}

impl Compute {
    /// Whether the operation adds to the weights' gradient, and so destroys the gradient of the
    /// step before (rule R1 of `docs/validation.md`).
    #[must_use]
    pub const fn accumulates(self) -> bool {
        match self {
            Self::W | Self::WE | Self::BW => true,
            Self::F | Self::B | Self::R => false,
        }
    }

    /// Whether the operation yields the gradient of the chunk's input.
    #[must_use]
    pub const fn yields_input_gradient(self) -> bool {
        match self {
            Self::B | Self::BW => true,
            Self::F | Self::W | Self::WE | Self::R => false,
        }
    }
}

/// The direction in which a boundary tensor flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Flow {
    /// Activations, from a chunk to the next one of the model.
    Forward,
    /// Gradients, from a chunk to the one before.
    Backward,
}

impl Flow {
    /// The direction opposite to this one.
    #[must_use]
    pub const fn reverse(self) -> Self {
        match self {
            Self::Forward => Self::Backward,
            Self::Backward => Self::Forward,
        }
    }
}

/// How a boundary tensor gets from one chunk to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Transfer {
    /// The named chunk's result is sent to another stage.
    Send,
    /// The named chunk's operand arrives from another stage.
    Receive,
    /// The named chunk's result goes to a chunk on the same stage.
    Local,
}

/// An operation on the memory that a pass keeps between F and B. Copies run on a lane of their own
/// beside the passes, in the order of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum MemoryOp {
    /// From here on the memory is free: the activations of the pass were copied to a second store.
    /// The copy may begin when the pass's F is done; here it is waited for.
    Offload,
    /// The offloaded activations use memory again. The copy begins here; the next R, B or BW of the
    /// pass waits for it.
    Reload,
    /// The activations that R will recompute are freed.
    Drop,
}

/// An operation of the optimizer step and its validation (`docs/validation.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum UpdateOp {
    /// Freeze the gradient, send its sums of squares to the leader.
    Report,
    /// Compute the candidate weights.
    Step,
    /// Wait for the verdict on the step before this one.
    GatePrevious,
    /// Wait for the verdict on this step.
    GateThis,
    /// Make the gated step's candidate the state.
    Commit,
}

/// One operation of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Op {
    /// Arithmetic of a pass on its chunk.
    Compute(Compute, Pass),
    /// A boundary tensor is sent, received or passed on; the pass names the chunk at the executing
    /// stage.
    Transfer(Transfer, Flow, Pass),
    /// The step and its validation.
    Update(UpdateOp),
    /// Gradients of a chunk's replicas, or of the model's two ends, become one.
    Reduce(Reduction, ChunkIndex),
    /// The activations of a pass are offloaded, reloaded or dropped.
    Memory(MemoryOp, Pass),
}

impl Op {
    /// Whether it copies the activations of a pass to the second store, or back.
    pub(crate) const fn is_copy(self) -> bool {
        matches!(self, Self::Memory(MemoryOp::Offload | MemoryOp::Reload, _))
    }

    /// The arithmetic and its pass, if it computes.
    pub(crate) const fn arithmetic(self) -> Option<(Compute, Pass)> {
        match self {
            Self::Compute(compute, pass) => Some((compute, pass)),
            Self::Transfer(..) | Self::Update(_) | Self::Reduce(..) | Self::Memory(..) => None,
        }
    }

    /// The pass the operation is about, if it is about one.
    #[must_use]
    pub const fn pass(self) -> Option<Pass> {
        match self {
            Self::Compute(_, pass) | Self::Transfer(_, _, pass) | Self::Memory(_, pass) => {
                Some(pass)
            }
            Self::Update(_) | Self::Reduce(..) => None,
        }
    }

    /// The chunk the operation is on, if it is on one.
    #[must_use]
    pub const fn chunk(self) -> Option<ChunkIndex> {
        match self {
            Self::Compute(_, pass) | Self::Transfer(_, _, pass) | Self::Memory(_, pass) => {
                Some(pass.chunk)
            }
            Self::Reduce(_, chunk) => Some(chunk),
            Self::Update(_) => None,
        }
    }

    /// Whether the operation gathers candidate weights, behind STEP.
    #[must_use]
    pub fn gathers_candidates(self) -> bool {
        match self {
            Self::Reduce(reduction, _) => {
                reduction.exchange().is_some_and(TreeExchange::is_of_candidates)
            }
            Self::Compute(..) | Self::Transfer(..) | Self::Update(_) | Self::Memory(..) => false,
        }
    }

    /// Whether the operation adds to a weights' gradient ([`Compute::accumulates`]).
    #[must_use]
    pub const fn accumulates(self) -> bool {
        match self {
            Self::Compute(compute, _) => compute.accumulates(),
            Self::Transfer(..) | Self::Update(_) | Self::Reduce(..) | Self::Memory(..) => false,
        }
    }

    /// The operation as a program with `slice_count` slices writes it. Without that knowledge, as
    /// in the message of an error, [`fmt::Display`] leaves slice 0 out.
    #[must_use]
    pub fn text(self, slice_count: u32) -> String {
        let (letters, pass) = match self {
            Self::Compute(compute, pass) => (lookup(&COMPUTE_TEXT, &compute), pass),
            Self::Transfer(transfer, flow, pass) => {
                let row = TRANSFER_TEXT.iter().find(|(t, w, _)| *t == transfer && *w == flow);
                (row.expect("the table names every pair").2, pass)
            }
            Self::Memory(memory, pass) => (lookup(&MEMORY_TEXT, &memory), pass),
            Self::Update(update) => return update.to_string(),
            Self::Reduce(reduction, chunk) => return format!("{chunk}{reduction}"),
        };
        format!("{}{letters}{}", pass.chunk, pass.microbatch_text(slice_count))
    }
}

const COMPUTE_TEXT: [(Compute, &str); 6] = [
    (Compute::F, "F"),
    (Compute::B, "B"),
    (Compute::W, "W"),
    (Compute::WE, "WE"),
    (Compute::BW, "BW"),
    (Compute::R, "R"),
];

const TRANSFER_TEXT: [(Transfer, Flow, &str); 6] = [
    (Transfer::Send, Flow::Forward, "SEND_F"),
    (Transfer::Receive, Flow::Forward, "RECV_F"),
    (Transfer::Local, Flow::Forward, "LOCAL_F"),
    (Transfer::Send, Flow::Backward, "SEND_B"),
    (Transfer::Receive, Flow::Backward, "RECV_B"),
    (Transfer::Local, Flow::Backward, "LOCAL_B"),
];

const UPDATE_TEXT: [(UpdateOp, &str); 5] = [
    (UpdateOp::Report, "REPORT"),
    (UpdateOp::Step, "STEP"),
    (UpdateOp::GatePrevious, "GATE_PREVIOUS"),
    (UpdateOp::GateThis, "GATE_THIS"),
    (UpdateOp::Commit, "COMMIT"),
];

const MEMORY_TEXT: [(MemoryOp, &str); 3] =
    [(MemoryOp::Offload, "OFFLOAD"), (MemoryOp::Reload, "RELOAD"), (MemoryOp::Drop, "DROP")];

fn lookup<K: PartialEq>(table: &[(K, &'static str)], key: &K) -> &'static str {
    table.iter().find(|(k, _)| k == key).expect("the table names every variant").1
}

impl fmt::Display for Compute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(lookup(&COMPUTE_TEXT, self))
    }
}

impl fmt::Display for MemoryOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(lookup(&MEMORY_TEXT, self))
    }
}

impl fmt::Display for UpdateOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(lookup(&UPDATE_TEXT, self))
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(1))
    }
}

/// Why a word is no operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpParseError {
    /// Neither an update, nor a reduction, nor of the form chunk, letters, microbatch.
    #[error(
        "`{word}` is no operation: expected an update such as REPORT, \
         or a chunk, letters and a microbatch such as 2F0"
    )]
    Form {
        /// The word as found.
        word: String,
    },
    /// The letters between chunk and microbatch are not known.
    #[error("`{word}`: unknown operation `{letters}`; expected one of {}", known_letters())]
    Letters {
        /// The word as found.
        word: String,
        /// The letters that name no operation.
        letters: String,
    },
}

fn known_letters() -> String {
    let compute = COMPUTE_TEXT.iter().map(|row| row.1);
    let transfer = TRANSFER_TEXT.iter().map(|row| row.2);
    let memory = MEMORY_TEXT.iter().map(|row| row.1);
    compute.chain(transfer).chain(memory).collect::<Vec<_>>().join(", ")
}

impl FromStr for Op {
    type Err = OpParseError;

    fn from_str(word: &str) -> Result<Self, OpParseError> {
        if let Some((update, _)) = UPDATE_TEXT.iter().find(|(_, text)| *text == word) {
            return Ok(Self::Update(*update));
        }
        let form = || OpParseError::Form { word: word.to_owned() };
        let letters_at = word.find(|c: char| !c.is_ascii_digit()).ok_or_else(form)?;
        let (chunk, rest) = word.split_at(letters_at);
        if let Some(reduction) = Reduction::parse(rest) {
            let chunk = chunk.parse().map_err(|_| form())?;
            return Ok(Self::Reduce(reduction, ChunkIndex(chunk)));
        }
        let digits_at = rest.find(|c: char| c.is_ascii_digit()).ok_or_else(form)?;
        let (letters, numbers) = rest.split_at(digits_at);
        let (microbatch, slice) = numbers.split_once('.').unwrap_or((numbers, "0"));
        let number = |digits: &str| digits.parse().map_err(|_| form());
        let pass = Pass::sliced(number(chunk)?, number(microbatch)?, number(slice)?);
        if let Some((compute, _)) = COMPUTE_TEXT.iter().find(|(_, text)| *text == letters) {
            return Ok(Self::Compute(*compute, pass));
        }
        if let Some((transfer, flow, _)) = TRANSFER_TEXT.iter().find(|row| row.2 == letters) {
            return Ok(Self::Transfer(*transfer, *flow, pass));
        }
        if let Some((memory, _)) = MEMORY_TEXT.iter().find(|(_, text)| *text == letters) {
            return Ok(Self::Memory(*memory, pass));
        }
        Err(OpParseError::Letters { word: word.to_owned(), letters: letters.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::{Compute, Flow, MemoryOp, Op, OpParseError, Pass, Reduction, Transfer, UpdateOp};
    use crate::reduction::{TreeExchange, TreeLevel};
    use zbelastic_types::ChunkIndex;

    #[test]
    fn text_and_operation_are_inverses() {
        let check = |text: &str, op: Op| {
            assert_eq!(op.to_string(), text);
            assert_eq!(text.parse(), Ok(op));
        };
        check("0F0", Op::Compute(Compute::F, Pass::new(0, 0)));
        check("12BW345", Op::Compute(Compute::BW, Pass::new(12, 345)));
        check("3WE7", Op::Compute(Compute::WE, Pass::new(3, 7)));
        check("3SEND_F1", Op::Transfer(Transfer::Send, Flow::Forward, Pass::new(3, 1)));
        check("2LOCAL_B9", Op::Transfer(Transfer::Local, Flow::Backward, Pass::new(2, 9)));
        check("GATE_PREVIOUS", Op::Update(UpdateOp::GatePrevious));
        let up = |level| TreeExchange::Reduce(TreeLevel(level));
        let down = |level| TreeExchange::Gather(TreeLevel(level));
        check("3REDUCE", Op::Reduce(Reduction::Merge(up(0)), ChunkIndex(3)));
        check("3REDUCE.2", Op::Reduce(Reduction::Merge(up(2)), ChunkIndex(3)));
        check("1SEND_G.1", Op::Reduce(Reduction::Send(up(1)), ChunkIndex(1)));
        check("1SEND_S.1", Op::Reduce(Reduction::Send(down(1)), ChunkIndex(1)));
        check("1RECV_S", Op::Reduce(Reduction::Receive(down(0)), ChunkIndex(1)));
        check("1LOCAL_S", Op::Reduce(Reduction::Local(down(0)), ChunkIndex(1)));
        check("3GATHER.2", Op::Reduce(Reduction::Merge(down(2)), ChunkIndex(3)));
        let candidates = |level| TreeExchange::GatherCandidates(TreeLevel(level));
        check("3SEND_C", Op::Reduce(Reduction::Send(candidates(0)), ChunkIndex(3)));
        check("1GATHER_C.2", Op::Reduce(Reduction::Merge(candidates(2)), ChunkIndex(1)));
        check("0TIE", Op::Reduce(Reduction::Tie, ChunkIndex(0)));
        check("3SEND_T", Op::Reduce(Reduction::SendTied, ChunkIndex(3)));
        check("3RECV_T", Op::Reduce(Reduction::ReceiveTied, ChunkIndex(3)));
        check("10RECV_G", Op::Reduce(Reduction::Receive(up(0)), ChunkIndex(10)));
        check("2R0", Op::Compute(Compute::R, Pass::new(2, 0)));
        check("2OFFLOAD0", Op::Memory(MemoryOp::Offload, Pass::new(2, 0)));
        check("2RELOAD10", Op::Memory(MemoryOp::Reload, Pass::new(2, 10)));
        check("12DROP3", Op::Memory(MemoryOp::Drop, Pass::new(12, 3)));
        check("2BW0.1", Op::Compute(Compute::BW, Pass::sliced(2, 0, 1)));
        check(
            "2RECV_F10.3",
            Op::Transfer(Transfer::Receive, Flow::Forward, Pass::sliced(2, 10, 3)),
        );
    }

    #[test]
    fn slice_zero_is_written_where_there_are_others() {
        let op: Op = "2F0.0".parse().expect("an operation");
        assert_eq!(op, Op::Compute(Compute::F, Pass::new(2, 0)));
        assert_eq!((op.text(1), op.text(2)), ("2F0".to_owned(), "2F0.0".to_owned()));
        assert_eq!(Op::Update(UpdateOp::Step).text(2), "STEP");
    }

    #[test]
    fn a_word_that_is_no_operation_is_named() {
        let form = |word: &str| Err(OpParseError::Form { word: word.to_owned() });
        let check = |word: &str, expected| assert_eq!(word.parse::<Op>(), expected);
        check("", form(""));
        check("17", form("17"));
        check("F0", form("F0"));
        check("0F", form("0F"));
        check("REDUCE", form("REDUCE"));
        check("0F0x", form("0F0x"));
        check("99999999999F0", form("99999999999F0"));
        check("0F0.", form("0F0."));
        check("0F0.1.1", form("0F0.1.1"));
        let letters = OpParseError::Letters { word: "0X1".into(), letters: "X".into() };
        check("0X1", Err(letters));
    }
}
