//! Files of token ids, as nanoGPT and llm.c store them.
//!
//! nanoGPT's have no header: 16-bit ids, with the end-of-text token behind each document. llm.c's
//! begin with 256 32-bit numbers (magic, version, number of ids, zeros), and have the end-of-text
//! token in front of each document; here it is moved behind, so that a corpus gives the same store
//! in either form. All numbers are little endian.

use std::io::Read;

use super::{SourceError, SourceItem};

/// Ids of an item.
const ITEM_IDS: usize = 1 << 16;
/// Bytes of llm.c's header.
const HEADER_BYTES: usize = 1024;
/// llm.c's headers: the magic number and version for 16-bit ids of GPT-2, and for 32-bit ids of
/// Llama 3 (`dev/data/data_common.py`).
const LLMC_GPT2: (u32, u32) = (20_240_520, 1);
const LLMC_LLAMA3: (u32, u32) = (20_240_801, 7);
/// A vocabulary of more than this does not fit 16 bits.
pub(crate) const NARROW_VOCABULARY_MAX: u32 = 1 << 16;

/// How ids lie in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenFileKind {
    /// Without a header, 2 bytes an id.
    NanoGpt,
    /// Without a header, 4 bytes an id: the form that is written where a vocabulary is too large
    /// for 2.
    WideNanoGpt,
    /// llm.c's header for GPT-2, 2 bytes an id.
    LlmcGpt2,
    /// llm.c's header for Llama 3, 4 bytes an id.
    LlmcLlama3,
}

impl TokenFileKind {
    fn id_bytes(self) -> usize {
        match self {
            Self::NanoGpt | Self::LlmcGpt2 => 2,
            Self::WideNanoGpt | Self::LlmcLlama3 => 4,
        }
    }

    fn is_end_in_front(self) -> bool {
        match self {
            Self::NanoGpt | Self::WideNanoGpt => false,
            Self::LlmcGpt2 | Self::LlmcLlama3 => true,
        }
    }

    fn header_bytes(self) -> usize {
        if self.is_end_in_front() { HEADER_BYTES } else { 0 }
    }
}

/// Consecutive ids of a file, and where documents end among them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct TokenRun {
    pub(crate) ids: Vec<u32>,
    /// Numbers of ids, from the run's beginning, behind which a document ends.
    pub(crate) ends: Vec<usize>,
    /// Documents that end in the run and have no ids but the end-of-text token.
    pub(crate) empty: u64,
}

/// Reads the ids of a file, a run at a time.
pub(super) struct TokenFileReader<R> {
    file: String,
    reader: R,
    kind: TokenFileKind,
    /// The beginning of the file, which was read to know its kind.
    head: Vec<u8>,
    ids_left: u64,
    end_of_text: Option<u32>,
    /// Whether a document has begun and not ended.
    is_open: bool,
    /// Ids of that document.
    open_ids: u64,
}

fn word(bytes: &[u8], index: usize) -> Option<u32> {
    let (words, _) = bytes.as_chunks::<4>();
    words.get(index).map(|word| u32::from_le_bytes(*word))
}

impl<R: Read> TokenFileReader<R> {
    /// Reads the header, if there is one, of a file of so many bytes.
    pub(super) fn new(
        file: String,
        mut reader: R,
        file_bytes: u64,
        vocabulary: u32,
        end_of_text: Option<u32>,
    ) -> Result<Self, SourceError> {
        let mut head = Vec::new();
        let read = reader.by_ref().take(HEADER_BYTES as u64).read_to_end(&mut head);
        read.map_err(|source| SourceError::Io { file: file.clone(), source })?;
        let kind = kind_of(&file, &head, vocabulary)?;
        let found = file_bytes.saturating_sub(kind.header_bytes() as u64);
        let id_bytes = kind.id_bytes() as u64;
        let expected = if kind.is_end_in_front() {
            u64::from(word(&head, 2).unwrap_or(0)) * id_bytes
        } else {
            found / id_bytes * id_bytes
        };
        if found != expected {
            return Err(SourceError::TokenCount { file, found, expected });
        }
        head.drain(..kind.header_bytes());
        let ids_left = found / id_bytes;
        Ok(Self { file, reader, kind, head, ids_left, end_of_text, is_open: false, open_ids: 0 })
    }

    fn read_ids(&mut self) -> Result<Vec<u32>, SourceError> {
        let count = self.ids_left.min(ITEM_IDS as u64) as usize;
        let bytes_needed = count * self.kind.id_bytes();
        let mut bytes = self.head.split_off(self.head.len().min(bytes_needed));
        std::mem::swap(&mut bytes, &mut self.head);
        let from_head = bytes.len();
        bytes.resize(bytes_needed, 0);
        let read = self.reader.read_exact(&mut bytes[from_head..]);
        read.map_err(|source| SourceError::Io { file: self.file.clone(), source })?;
        self.ids_left -= count as u64;
        Ok(match self.kind.id_bytes() {
            2 => bytes.as_chunks::<2>().0.iter().map(|b| u16::from_le_bytes(*b).into()).collect(),
            _ => bytes.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect(),
        })
    }

    fn next_run(&mut self) -> Result<TokenRun, SourceError> {
        let is_end_in_front = self.kind.is_end_in_front();
        let mut run = TokenRun::default();
        for id in self.read_ids()? {
            let is_end = Some(id) == self.end_of_text;
            if !is_end {
                run.ids.push(id);
                self.open_ids += 1;
            } else if !is_end_in_front || self.is_open {
                run.ids.push(id);
                self.end_document(&mut run);
            }
            self.is_open = is_end_in_front || !is_end;
        }
        if self.ids_left == 0 && self.is_open {
            run.ids.extend(self.end_of_text.filter(|_| is_end_in_front));
            self.end_document(&mut run);
        }
        Ok(run)
    }

    fn end_document(&mut self, run: &mut TokenRun) {
        run.ends.push(run.ids.len());
        run.empty += u64::from(self.open_ids == 0);
        self.open_ids = 0;
    }
}

fn kind_of(file: &str, head: &[u8], vocabulary: u32) -> Result<TokenFileKind, SourceError> {
    let kinds = [(LLMC_GPT2, TokenFileKind::LlmcGpt2), (LLMC_LLAMA3, TokenFileKind::LlmcLlama3)];
    let magic = word(head, 0).filter(|_| head.len() == HEADER_BYTES);
    for ((expected_magic, expected), kind) in kinds {
        if magic != Some(expected_magic) {
            continue;
        }
        let found = word(head, 1).unwrap_or(0);
        if found != expected {
            let file = file.to_owned();
            let magic = expected_magic;
            return Err(SourceError::TokenVersion { file, magic, found, expected });
        }
        return Ok(kind);
    }
    let is_narrow = vocabulary <= NARROW_VOCABULARY_MAX;
    Ok(if is_narrow { TokenFileKind::NanoGpt } else { TokenFileKind::WideNanoGpt })
}

impl<R: Read> Iterator for TokenFileReader<R> {
    type Item = Result<SourceItem, SourceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ids_left == 0 {
            return None;
        }
        let run = self.next_run();
        if run.is_err() {
            self.ids_left = 0;
        }
        Some(run.map(SourceItem::Tokens))
    }
}

#[cfg(test)]
mod tests {
    use super::{ITEM_IDS, TokenFileReader, TokenRun};
    use crate::source::{SourceError, SourceItem};

    fn runs(bytes: &[u8], vocabulary: u32) -> Result<Vec<TokenRun>, SourceError> {
        let len = bytes.len() as u64;
        let reader = TokenFileReader::new("a.bin".to_owned(), bytes, len, vocabulary, Some(0))?;
        let of = |item| {
            let SourceItem::Tokens(run) = item else { panic!("a token reader yields {item:?}") };
            run
        };
        reader.map(|item| item.map(of)).collect()
    }

    fn narrow(ids: &[u16]) -> Vec<u8> {
        ids.iter().flat_map(|id| id.to_le_bytes()).collect()
    }

    fn header(magic: u32, version: u32, count: u32) -> Vec<u8> {
        let mut header = Vec::new();
        [magic, version, count].iter().for_each(|word| header.extend(word.to_le_bytes()));
        header.resize(1024, 0);
        header
    }

    fn run(ids: &[u32], ends: &[usize], empty: u64) -> Vec<TokenRun> {
        vec![TokenRun { ids: ids.to_vec(), ends: ends.to_vec(), empty }]
    }

    #[test]
    fn ends_stand_behind_documents_whatever_the_form() {
        let check = |bytes: &[u8], vocabulary, expected: Vec<TokenRun>| {
            assert_eq!(runs(bytes, vocabulary).expect("whole"), expected);
        };
        check(&[], 10, vec![]);
        check(&narrow(&[1, 2, 0, 0, 3]), 10, run(&[1, 2, 0, 0, 3], &[3, 4, 5], 1));
        let wide: Vec<u8> = [70_000_u32, 0].iter().flat_map(|id| id.to_le_bytes()).collect();
        check(&wide, 80_000, run(&[70_000, 0], &[2], 0));
        let gpt2 = [header(20_240_520, 1, 5), narrow(&[0, 1, 2, 0, 0])].concat();
        check(&gpt2, 10, run(&[1, 2, 0, 0, 0], &[3, 4, 5], 2));
        let continued = [header(20_240_520, 1, 3), narrow(&[1, 0, 2])].concat();
        check(&continued, 10, run(&[1, 0, 2, 0], &[2, 4], 0));
        let llama3 = [header(20_240_801, 7, 2), [0_u32, 7].map(u32::to_le_bytes).concat()].concat();
        check(&llama3, 80_000, run(&[7, 0], &[2], 0));
    }

    #[test]
    fn a_document_goes_on_from_run_to_run() {
        let mut ids = vec![1; ITEM_IDS + 3];
        ids[ITEM_IDS + 1] = 0;
        let found = runs(&narrow(&ids), 10).expect("whole");
        assert_eq!((found[0].ids.len(), &*found[0].ends), (ITEM_IDS, &[] as &[usize]));
        assert_eq!(found[1], TokenRun { ids: vec![1, 0, 1], ends: vec![2, 3], empty: 0 });
    }

    #[test]
    fn headers_that_do_not_fit_are_refused() {
        let gpt2 = |version, count| [header(20_240_520, version, count), narrow(&[0, 1])].concat();
        let error = runs(&gpt2(2, 2), 10).expect_err("another version");
        assert!(matches!(error, SourceError::TokenVersion { found: 2, expected: 1, .. }));
        let error = runs(&gpt2(1, 3), 10).expect_err("an id is missing");
        assert!(matches!(error, SourceError::TokenCount { found: 4, expected: 6, .. }));
        let error = runs(&[1, 0, 2], 10).expect_err("half an id");
        assert!(matches!(error, SourceError::TokenCount { found: 3, expected: 2, .. }));
    }
}
