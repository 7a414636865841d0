//! Reading of stores: windows over shards, samples, and files that others altered.

mod common;

use std::fs;
use std::num::NonZeroU32;
use std::ops::ControlFlow;
use std::path::Path;

use common::{make, request, source};
use proptest::prelude::*;
use tempfile::TempDir;
use zbelastic_data::cursor::{CursorConfig, StoreMixture};
use zbelastic_data::encode::BytesEncoder;
use zbelastic_data::prepare::prepare;
use zbelastic_data::show::{ShowRequest, show};
use zbelastic_data::source::LocalStorage;
use zbelastic_data::store::{StoreError, TokenStore};
use zbelastic_data::window::Packing;
use zbelastic_trainer::data::{BatchSource, Corpus, CorpusConfig};
use zbelastic_trainer::model::MicrobatchShape;
use zbelastic_types::{MicrobatchIndex, Step};

/// A store of three chats and some texts, in many shards.
fn store() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let chat = "{\"messages\": [{\"role\": \"b\", \"content\": \"abc\"}]}\n".repeat(3);
    source(folder.path(), "a.jsonl", chat.as_bytes());
    let text = |n: usize| format!("{{\"text\": \"{}\"}}\n", "xy".repeat(n % 7));
    // A batch has up to 4,096 items, and a shard is at least a batch.
    let texts: String = (0..9000).map(text).collect();
    source(folder.path(), "b.jsonl", texts.as_bytes());
    make(&request(folder.path(), 2, 1), usize::MAX).expect("a store");
    folder
}

fn open(folder: &Path) -> Result<TokenStore, StoreError> {
    TokenStore::open(&folder.join("store"))
}

#[test]
fn windows_do_not_see_shards() {
    let folder = store();
    let store = open(folder.path()).expect("a store");
    assert!(store.manifest().shards.len() > 2);
    let whole = store.read(0..store.tokens()).expect("whole");
    let starts = whole.documents.windows(2).filter(|pair| pair[0] + 1 == pair[1]).count();
    assert_eq!(starts as u64 + 1, store.documents());
    let first_end = store.manifest().shards[0].tokens;
    for first in [0, 1, first_end - 33, first_end - 32, first_end - 1, first_end] {
        let window = store.window(first, 32, Packing::Documents).expect("whole");
        let range = first as usize..first as usize + 33;
        assert_eq!(window.ids, whole.ids[range.clone()]);
        assert_eq!(window.documents, whole.documents[range]);
    }
    let end = store.tokens();
    assert!(store.window(end - 33, 32, Packing::Concat).is_ok());
    let error = store.window(end - 32, 32, Packing::Concat).expect_err("beyond the last");
    assert!(matches!(error, StoreError::Range { .. }), "{error}");
}

#[test]
fn samples_show_documents_and_what_counts_in_the_loss() {
    let folder = store();
    let store = open(folder.path()).expect("a store");
    let request = ShowRequest { sequence_len: 60, packing: Packing::Documents, samples: 5 };
    let decode = |ids: &[u32]| ids.iter().map(|id| char::from_u32(*id).unwrap_or('?')).collect();
    let view = show(&store, &request, &decode).expect("whole");
    assert_eq!(view.samples.len(), 5);
    let sample = &view.samples[0];
    let chat = "{\"messages\": [{\"role\": \"b\", \"content\": \"abc\"}]}";
    assert_eq!(sample.documents[0].text, chat);
    assert_eq!(sample.documents[1].text, chat[..61 - chat.len()]);
    let letters = chat.match_indices('b').map(|(at, _)| at - 1..at);
    assert_eq!(sample.loss_spans, letters.collect::<Vec<_>>());
    assert_eq!(sample.window, 0);
}

#[test]
fn bytes_of_one_text_are_trained_on_as_before() {
    let folder = tempfile::tempdir().expect("a folder");
    let text: Vec<u8> = (0..5000_u32).map(|n| b'a' + (n * n % 23) as u8).collect();
    source(folder.path(), "a.txt", &text);
    let request = request(folder.path(), 2, 1000);
    let mut on_progress = |_: &_| ControlFlow::Continue(());
    prepare(&request, &LocalStorage, &BytesEncoder, &mut on_progress).expect("a store");
    let shape = MicrobatchShape { sequences: 3, sequence_len: 16 };
    let config = CursorConfig { shape, microbatch_count: 2, held_out_share: 0.05, seed: 9 };
    let stores = vec![(open(folder.path()).expect("a store"), NonZeroU32::MIN)];
    let mixture = StoreMixture::new(stores, Packing::Concat, &config).expect("long enough");
    let before =
        CorpusConfig { shape, microbatch_count: 2, held_out_share: 0.05, seed: 9, vocabulary: 256 };
    let before = Corpus::new(text, &before).expect("long enough");
    for (step, index) in [(0, 0), (0, 1), (7, 1), (1000, 0)] {
        let expected = before.training(Step(step), MicrobatchIndex(index));
        let found = mixture.training(Step(step), MicrobatchIndex(index)).expect("whole");
        let inputs: Vec<_> = found.iter().flat_map(|window| window.inputs().to_vec()).collect();
        assert_eq!(inputs, expected.inputs);
        let labels: Vec<_> = found.iter().flat_map(|window| window.labels()).collect();
        assert!(labels.iter().map(|label| *label as u32).eq(expected.targets));
    }
    for index in 0..10 {
        let expected = before.held_out(index).map(|batch| batch.inputs);
        let found = mixture.held_out(index).expect("whole");
        let inputs = |window: &zbelastic_data::window::PackedWindow| window.inputs().to_vec();
        assert_eq!(found.map(|all| all.iter().flat_map(inputs).collect::<Vec<_>>()), expected);
    }
}

#[test]
fn altered_shards_are_named_with_what_was_expected() {
    let folder = store();
    let shard = folder.path().join("store/00001.shard");
    let whole = fs::read(&shard).expect("readable");
    fs::write(&shard, &whole[..whole.len() - 1]).expect("writable");
    let len = whole.len() as u64;
    match open(folder.path()) {
        Err(StoreError::Length { path, found, expected }) => {
            assert_eq!((path, found, expected), (shard.clone(), len - 1, len));
        }
        other => panic!("{other:?}"),
    }
    let mut altered = whole.clone();
    altered[0] ^= 2;
    fs::write(&shard, &altered).expect("writable");
    match open(folder.path()).expect("the lengths fit").verify() {
        Err(StoreError::Hash { path, found, expected }) => {
            assert_eq!(path, shard);
            assert_eq!((found, expected), (blake3::hash(&altered), blake3::hash(&whole)));
        }
        other => panic!("{other:?}"),
    }
    fs::remove_file(&shard).expect("removable");
    assert!(matches!(open(folder.path()), Err(StoreError::Io { path, .. }) if path == shard));
}

/// Opens and reads everything; damage is an error or unnoticed, and never a panic.
fn read_everything(folder: &Path) -> Result<(), StoreError> {
    let store = open(folder)?;
    let verified = store.verify();
    for first in (0..store.tokens()).step_by(5000) {
        store.read(first..store.tokens().min(first + 5000))?;
    }
    verified
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_manifest_is_read_or_refused(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        at in 0.0..1.0_f64,
        digits in "[0-9]{0,20}",
    ) {
        let folder = store();
        let path = folder.path().join("store/manifest.json");
        let whole = fs::read(&path).expect("readable");
        fs::write(&path, &bytes).expect("writable");
        prop_assert!(read_everything(folder.path()).is_err());
        // A number is replaced, and the checksum is not.
        let text = String::from_utf8(whole).expect("JSON");
        let numbers: Vec<_> = text.match_indices(": ").collect();
        let number = numbers[(at * numbers.len() as f64) as usize].0 + 2;
        let rest = text[number..].trim_start_matches(|c: char| c.is_ascii_digit());
        let altered = format!("{}{digits}{rest}", &text[..number]);
        fs::write(&path, &altered).expect("writable");
        prop_assert!(read_everything(folder.path()).is_err() || altered == text);
    }

    #[test]
    fn any_shard_is_read_or_refused(
        bytes in proptest::collection::vec(any::<u8>(), 1..64),
        at in 0.0..1.0_f64,
    ) {
        let folder = store();
        let path = folder.path().join("store/00001.shard");
        let mut shard = fs::read(&path).expect("readable");
        let whole = shard.clone();
        let first = (at * (shard.len() - bytes.len()) as f64) as usize;
        shard[first..first + bytes.len()].copy_from_slice(&bytes);
        fs::write(&path, &shard).expect("writable");
        prop_assert!(read_everything(folder.path()).is_err() || shard == whole);
    }
}
