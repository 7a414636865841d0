//! The kernels by name, and what a launch consists of.

use std::ffi::c_void;

use super::device::DeviceAddress;
use super::source::KernelFile;

/// A kernel of ours. Its parameters are those in its source, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Kernel {
    EmbedForward,
    EmbedBackward,
    PositionBackward,
    NormForward,
    NormBackward,
    QkNormForward,
    QkNormBackward,
    FinishPlain,
    FinishGelu,
    GeluForward,
    GeluBackward,
    SwigluForward,
    SwigluBackward,
    Rotate,
    RowsFromFloats,
    FloatsFromRows,
    AddFloats,
    AddLowRank,
    ScaleColumns,
    ColumnSums,
    ColumnSumsAgain,
    HeadForward,
    HeadBackward,
    AttentionForward,
    AttentionProducts,
    AttentionBackwardQueries,
    AttentionBackwardKeys,
    AttentionStoreKeys,
    FlashForward64,
    FlashForward128,
    FlashBackwardQueries64,
    FlashBackwardQueries128,
    FlashBackwardKeys64,
    FlashBackwardKeys128,
    AdamwCandidate,
    AdamwInPlace,
    AdamwInPlaceSummed,
    PieceSquares,
    PieceSquaresStepped,
    TensorSquares,
    StateSums,
    AddStateSums,
    Stamp,
    AdamAhead,
    WeightsAlong,
    TrackChange,
    PullTogether,
    MuonLookAhead,
    MuonNormalize,
    MuonCombine,
    MuonStep,
    MuonMomentum,
}

impl Kernel {
    /// All kernels, in the order of the enum.
    pub const ALL: [Self; 52] = [
        Self::EmbedForward,
        Self::EmbedBackward,
        Self::PositionBackward,
        Self::NormForward,
        Self::NormBackward,
        Self::QkNormForward,
        Self::QkNormBackward,
        Self::FinishPlain,
        Self::FinishGelu,
        Self::GeluForward,
        Self::GeluBackward,
        Self::SwigluForward,
        Self::SwigluBackward,
        Self::Rotate,
        Self::RowsFromFloats,
        Self::FloatsFromRows,
        Self::AddFloats,
        Self::AddLowRank,
        Self::ScaleColumns,
        Self::ColumnSums,
        Self::ColumnSumsAgain,
        Self::HeadForward,
        Self::HeadBackward,
        Self::AttentionForward,
        Self::AttentionProducts,
        Self::AttentionBackwardQueries,
        Self::AttentionBackwardKeys,
        Self::AttentionStoreKeys,
        Self::FlashForward64,
        Self::FlashForward128,
        Self::FlashBackwardQueries64,
        Self::FlashBackwardQueries128,
        Self::FlashBackwardKeys64,
        Self::FlashBackwardKeys128,
        Self::AdamwCandidate,
        Self::AdamwInPlace,
        Self::AdamwInPlaceSummed,
        Self::PieceSquares,
        Self::PieceSquaresStepped,
        Self::TensorSquares,
        Self::StateSums,
        Self::AddStateSums,
        Self::Stamp,
        Self::AdamAhead,
        Self::WeightsAlong,
        Self::TrackChange,
        Self::PullTogether,
        Self::MuonLookAhead,
        Self::MuonNormalize,
        Self::MuonCombine,
        Self::MuonStep,
        Self::MuonMomentum,
    ];

    const fn place(self) -> (&'static str, KernelFile) {
        match self {
            Self::EmbedForward => ("embed_forward", KernelFile::Embed),
            Self::EmbedBackward => ("embed_backward", KernelFile::Embed),
            Self::PositionBackward => ("position_backward", KernelFile::Embed),
            Self::NormForward => ("norm_forward", KernelFile::Norm),
            Self::NormBackward => ("norm_backward", KernelFile::Norm),
            Self::QkNormForward => ("qk_norm_forward", KernelFile::Norm),
            Self::QkNormBackward => ("qk_norm_backward", KernelFile::Norm),
            Self::FinishPlain => ("finish_plain", KernelFile::Elementwise),
            Self::FinishGelu => ("finish_gelu", KernelFile::Elementwise),
            Self::GeluForward => ("gelu_forward", KernelFile::Elementwise),
            Self::GeluBackward => ("gelu_backward", KernelFile::Elementwise),
            Self::SwigluForward => ("swiglu_forward", KernelFile::Elementwise),
            Self::SwigluBackward => ("swiglu_backward", KernelFile::Elementwise),
            Self::Rotate => ("rotate", KernelFile::Elementwise),
            Self::RowsFromFloats => ("rows_from_floats", KernelFile::Elementwise),
            Self::FloatsFromRows => ("floats_from_rows", KernelFile::Elementwise),
            Self::AddFloats => ("add_floats", KernelFile::Elementwise),
            Self::AddLowRank => ("add_low_rank", KernelFile::Elementwise),
            Self::ScaleColumns => ("scale_columns", KernelFile::Elementwise),
            Self::ColumnSums => ("column_sums", KernelFile::Columns),
            Self::ColumnSumsAgain => ("column_sums_again", KernelFile::Columns),
            Self::HeadForward => ("head_forward", KernelFile::Head),
            Self::HeadBackward => ("head_backward", KernelFile::Head),
            Self::AttentionForward => ("attention_forward", KernelFile::Attention),
            Self::AttentionProducts => ("attention_products", KernelFile::Attention),
            Self::AttentionBackwardQueries => ("attention_backward_queries", KernelFile::Attention),
            Self::AttentionBackwardKeys => ("attention_backward_keys", KernelFile::Attention),
            Self::AttentionStoreKeys => ("attention_store_keys", KernelFile::Attention),
            Self::FlashForward64 => ("flash_forward_64", KernelFile::Flash),
            Self::FlashForward128 => ("flash_forward_128", KernelFile::Flash),
            Self::FlashBackwardQueries64 => ("flash_backward_queries_64", KernelFile::Flash),
            Self::FlashBackwardQueries128 => ("flash_backward_queries_128", KernelFile::Flash),
            Self::FlashBackwardKeys64 => ("flash_backward_keys_64", KernelFile::Flash),
            Self::FlashBackwardKeys128 => ("flash_backward_keys_128", KernelFile::Flash),
            Self::AdamwCandidate => ("adamw_candidate", KernelFile::Optimizer),
            Self::AdamwInPlace => ("adamw_in_place", KernelFile::Optimizer),
            Self::AdamwInPlaceSummed => ("adamw_in_place_summed", KernelFile::Optimizer),
            Self::PieceSquares => ("piece_squares", KernelFile::Optimizer),
            Self::PieceSquaresStepped => ("piece_squares_stepped", KernelFile::Optimizer),
            Self::TensorSquares => ("tensor_squares", KernelFile::Optimizer),
            Self::StateSums => ("state_sums", KernelFile::Optimizer),
            Self::AddStateSums => ("add_state_sums", KernelFile::Optimizer),
            Self::Stamp => ("stamp", KernelFile::Clock),
            Self::AdamAhead => ("adam_ahead", KernelFile::Versions),
            Self::WeightsAlong => ("weights_along", KernelFile::Versions),
            Self::TrackChange => ("track_change", KernelFile::Versions),
            Self::PullTogether => ("pull_together", KernelFile::Versions),
            Self::MuonLookAhead => ("muon_look_ahead", KernelFile::Muon),
            Self::MuonNormalize => ("muon_normalize", KernelFile::Muon),
            Self::MuonCombine => ("muon_combine", KernelFile::Muon),
            Self::MuonStep => ("muon_step", KernelFile::Muon),
            Self::MuonMomentum => ("muon_momentum", KernelFile::Muon),
        }
    }

    /// Name of the kernel in its source.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.place().0
    }

    /// The source file that the kernel is in.
    #[must_use]
    pub const fn file(self) -> KernelFile {
        self.place().1
    }
}

/// Two words as one, or one and nothing.
fn pair(words: &[u32]) -> u64 {
    u64::from(words[0]) | u64::from(words.get(1).copied().unwrap_or(0)) << 32
}

/// A kernel's arguments, as the driver reads them: in memory, with a pointer to each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arguments {
    words: Vec<u64>,
    starts: Vec<usize>,
}

impl Arguments {
    /// An empty list of arguments.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn push(mut self, words: impl IntoIterator<Item = u64>) -> Self {
        self.starts.push(self.words.len());
        self.words.extend(words);
        self
    }

    /// Appends a pointer to the device's memory.
    #[must_use]
    pub fn address(self, address: DeviceAddress) -> Self {
        self.push([address.0])
    }

    /// Appends a pointer, null if there is nothing.
    #[must_use]
    pub fn address_if(self, address: Option<DeviceAddress>) -> Self {
        self.push([address.map_or(0, |address| address.0)])
    }

    /// Appends a size as a `u32`.
    ///
    /// # Panics
    /// If it does not fit.
    #[must_use]
    pub fn size(self, size: usize) -> Self {
        self.push([u64::from(u32::try_from(size).expect("sizes of one operation fit in 32 bits"))])
    }

    /// Appends a count as a `u64`.
    #[must_use]
    pub fn count(self, count: usize) -> Self {
        self.push([count as u64])
    }

    /// Appends a `u32` that is 1 for true and 0 for false.
    #[must_use]
    pub fn flag(self, flag: bool) -> Self {
        self.push([u64::from(flag)])
    }

    /// Appends a number as a `float`.
    #[must_use]
    pub fn float(self, float: f32) -> Self {
        self.push([u64::from(float.to_bits())])
    }

    /// Appends a structure of 32-bit words.
    #[must_use]
    pub fn structure(self, words: &[u32]) -> Self {
        let pair =
            |pair: &[u32]| u64::from(pair[0]) | u64::from(pair.get(1).copied().unwrap_or(0)) << 32;
        self.push(words.chunks(2).map(pair).collect::<Vec<_>>())
    }

    /// Appends a structure of pointers.
    #[must_use]
    pub fn table(self, addresses: &[DeviceAddress]) -> Self {
        self.table_with(addresses, &[])
    }

    /// Appends a structure of pointers and, behind them, 32-bit words.
    #[must_use]
    pub fn table_with(self, addresses: &[DeviceAddress], words: &[u32]) -> Self {
        let addresses = addresses.iter().map(|address| address.0);
        self.push(addresses.chain(words.chunks(2).map(pair)))
    }

    /// Appends all words of the arguments to `words`, their number and lengths included.
    pub(super) fn write_words(&self, words: &mut Vec<u64>) {
        words.extend([self.starts.len() as u64, self.words.len() as u64]);
        words.extend(self.starts.iter().map(|start| *start as u64));
        words.extend(&self.words);
    }

    /// All arguments as words. Pointers are words of their own.
    #[must_use]
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// A pointer to each argument. The device's code knows how long each is.
    #[must_use]
    pub fn pointers(&self) -> Vec<*mut c_void> {
        let pointer = |start: &usize| (&raw const self.words[*start]).cast_mut().cast();
        self.starts.iter().map(pointer).collect()
    }
}

/// The launch of a kernel: its grid, its memory and its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The kernel that is launched.
    pub kernel: Kernel,
    /// Blocks in two directions.
    pub grid: [u32; 2],
    /// Threads in a block.
    pub threads: u32,
    /// Bytes of shared memory beyond what the source itself declares.
    pub shared_bytes: u32,
    /// The arguments that the kernel is called with.
    pub arguments: Arguments,
}

/// Kernels count threads in 32 bits where they divide by a row's length: divisions of 64 bits would
/// take longer than the memory does. The last block may count beyond the things there are.
pub(super) const THINGS_MAX: usize = (u32::MAX as usize) - 1024;

/// Blocks in the second direction, at most: the hardware's limit.
pub(super) const GRID_Y_MAX: usize = 65_535;

impl Launch {
    /// One thread for each of `count` things.
    ///
    /// # Panics
    /// If kernels cannot count them.
    #[must_use]
    pub fn over(kernel: Kernel, count: usize, arguments: Arguments) -> Self {
        const THREADS: usize = 256;
        assert!(count < THINGS_MAX, "{kernel:?}: {count} threads");
        Self::blocks(kernel, [count.div_ceil(THREADS), 1], THREADS, arguments)
    }

    /// A grid of blocks with `threads` threads each.
    ///
    /// # Panics
    /// If the hardware has no such grid.
    #[must_use]
    pub fn blocks(kernel: Kernel, grid: [usize; 2], threads: usize, arguments: Arguments) -> Self {
        assert!(grid[1] <= GRID_Y_MAX, "{kernel:?}: {} blocks in the second direction", grid[1]);
        assert!(grid[0] <= i32::MAX as usize, "{kernel:?}: {} blocks", grid[0]);
        let grid = grid.map(|blocks| blocks as u32);
        Self { kernel, grid, threads: threads as u32, shared_bytes: 0, arguments }
    }

    /// The same launch with so many bytes of shared memory.
    #[must_use]
    pub fn with_shared_bytes(self, bytes: usize) -> Self {
        Self { shared_bytes: bytes as u32, ..self }
    }

    /// Whether there is nothing to do: the driver refuses a grid without blocks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.grid.contains(&0)
    }
}

#[cfg(test)]
mod tests {
    use super::{Arguments, DeviceAddress, Kernel, Launch};

    #[test]
    fn every_kernel_is_in_the_source_it_names() {
        for kernel in Kernel::ALL {
            let text = kernel.file().text();
            let found = text.matches(&format!(" {}(", kernel.name())).count();
            assert_eq!(found, 1, "{kernel:?}");
        }
        let sources: usize = super::KernelFile::ALL
            .iter()
            .map(|file| file.text().matches("\nKERNEL ").count())
            .sum();
        assert_eq!(sources, Kernel::ALL.len(), "every kernel of a source is in the list");
    }

    #[test]
    fn arguments_lie_where_the_pointers_say() {
        let arguments = Arguments::new()
            .address(DeviceAddress(1 << 40))
            .structure(&[1, 2, 3])
            .float(1.5)
            .table(&[DeviceAddress(7), DeviceAddress(8)])
            .address_if(None);
        let pointers = arguments.pointers();
        // SAFETY: each pointer is to a word that `arguments` holds.
        let word = |index: usize| unsafe { *pointers[index].cast::<u64>() };
        assert_eq!(pointers.len(), 5);
        assert_eq!(word(0), 1 << 40);
        assert_eq!(word(1), 1 | 2 << 32);
        assert_eq!(word(2) as u32, 1.5f32.to_bits());
        assert_eq!(word(3), 7);
        assert_eq!(word(4), 0);
    }

    #[test]
    fn a_launch_has_a_thread_for_each_thing() {
        let blocks = |count| Launch::over(Kernel::AddFloats, count, Arguments::new()).grid[0];
        assert_eq!([0, 1, 256, 257].map(blocks), [0, 1, 1, 2]);
        assert!(Launch::over(Kernel::AddFloats, 0, Arguments::new()).is_empty());
    }
}
