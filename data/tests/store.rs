//! Reading of stores: windows over shards, samples, and files that others altered.

mod common;

use std::fs;
use std::num::NonZeroU32;
use std::ops::ControlFlow;
use std::path::Path;

use common::{make, request, source};
use proptest::prelude::*;
use tempfile::TempDir;
use zbelastic_data::cursor::CursorConfig;
use zbelastic_data::encode::BytesEncoder;
use zbelastic_data::mixture::StoreMixture;
use zbelastic_data::prepare::prepare;
use zbelastic_data::show::{ShowRequest, show};
use zbelastic_data::source::LocalStorage;
use zbelastic_data::store::{StoreError, TokenStore};
use zbelastic_data::window::{IGNORE_INDEX, Packing};
use zbelastic_trainer::data::{BatchSource, Corpus, CorpusConfig, IGNORED_TARGET, StepTargets};
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
    let mixture =
        mixture(vec![(open(folder.path()).expect("a store"), 1)], Packing::Concat, &config);
    let before =
        CorpusConfig { shape, microbatch_count: 2, held_out_share: 0.05, seed: 9, vocabulary: 256 };
    let before = Corpus::new(text, &before).expect("long enough");
    for (step, index) in [(0, 0), (0, 1), (7, 1), (1000, 0)] {
        let place = (Step(step), MicrobatchIndex(index));
        assert_eq!(mixture.training(place.0, place.1), before.training(place.0, place.1));
    }
    for index in 0..10 {
        assert_eq!(mixture.held_out(index), before.held_out(index));
    }
}

/// A mixture that has its stores.
fn mixture(
    stores: Vec<(TokenStore, u32)>,
    packing: Packing,
    config: &CursorConfig,
) -> StoreMixture {
    let shares = stores
        .iter()
        .map(|(store, weight)| (store.manifest(), NonZeroU32::new(*weight).expect("a weight")));
    let mixture = StoreMixture::new(shares, packing, config).expect("long enough");
    mixture.provide(stores.into_iter().map(|(store, _)| store).collect());
    mixture
}

const SHAPE: MicrobatchShape = MicrobatchShape { sequences: 4, sequence_len: 50 };
const CONFIG: CursorConfig =
    CursorConfig { shape: SHAPE, microbatch_count: 2, held_out_share: 0.1, seed: 3 };

/// A batch is the windows of its microbatch: documents begin where positions do, and what does not
/// count in the loss is no target.
#[test]
fn batches_are_packed_windows() {
    let one = store();
    let other = tempfile::tempdir().expect("a folder");
    let chat = "{\"messages\": [{\"role\": \"b\", \"content\": \"abc\"}]}\n".repeat(50);
    source(other.path(), "a.jsonl", chat.as_bytes());
    make(&request(other.path(), 1, 1000), usize::MAX).expect("a store");
    let stores = || {
        [(&one, 2), (&other, 1)]
            .map(|(folder, weight)| (open(folder.path()).expect("a store"), weight))
    };
    for packing in [Packing::Concat, Packing::Documents] {
        let mixture = mixture(stores().into(), packing, &CONFIG);
        let read = stores();
        let mut ignored = 0;
        let mut from_other = 0;
        for (step, index) in (0..40).flat_map(|step| [(step, 0), (step, 1)]) {
            let (step, index) = (Step(step), MicrobatchIndex(index));
            let batch = mixture.training(step, index);
            assert_eq!(batch.document_starts.is_some(), packing == Packing::Documents);
            let both = [0, 1].map(|index| mixture.training(step, MicrobatchIndex(index)));
            assert_eq!(mixture.targets(step, 2), StepTargets::of_batches(both));
            for sequence in 0..SHAPE.sequences {
                let address = mixture.cursor().window(step, index, sequence);
                let first = mixture.cursor().first_token(address);
                let window = read[address.source].0.window(first, 50, packing).expect("whole");
                let rows = sequence * 50..(sequence + 1) * 50;
                assert_eq!(batch.inputs[rows.clone()], *window.inputs());
                let labels = window.labels();
                let targets = batch.targets[rows.clone()].iter().map(|target| match *target {
                    IGNORED_TARGET => IGNORE_INDEX,
                    id => id as i32,
                });
                assert!(targets.eq(labels.iter().copied()));
                ignored += labels.iter().filter(|label| **label == IGNORE_INDEX).count();
                from_other += address.source;
                let Some(starts) = &batch.document_starts else { continue };
                for block in window.blocks() {
                    let starts = &starts[rows.clone()][block.clone()];
                    assert!(starts.iter().all(|start| *start == block.start as u32));
                }
            }
        }
        assert_eq!(from_other, 107, "a third of 320, by the block");
        assert!(ignored > 0, "{packing:?}");
    }
}

/// A node with a stage in the middle knows how many batches there are without one shard.
#[test]
fn without_stores_there_are_as_many_batches_and_they_are_empty() {
    let folder = store();
    let store = open(folder.path()).expect("a store");
    let new = |store: &TokenStore| {
        StoreMixture::new([(store.manifest(), NonZeroU32::MIN)], Packing::Concat, &CONFIG)
    };
    let without = new(&store).expect("long enough");
    let whole = mixture(vec![(store, 1)], Packing::Concat, &CONFIG);
    let count = |mixture: &StoreMixture| {
        (0..)
            .map_while(|index| mixture.held_out(index))
            .map(|batch| batch.inputs.len())
            .collect::<Vec<_>>()
    };
    assert_eq!(count(&without).len(), count(&whole).len());
    assert!(count(&without).iter().all(|length| *length == 0));
    assert!(count(&whole).iter().all(|length| *length == 200));
    assert_eq!(without.training(Step(0), MicrobatchIndex(0)).inputs, [0; 0]);
    assert!(without.fault().is_none());
}

/// A shard that is truncated while it is mapped is a fault that names it, and not the end of the
/// process.
#[test]
fn damage_that_is_met_in_training_is_a_fault() {
    let folder = store();
    let check = |damage: &dyn Fn(&Path), is_expected: &dyn Fn(&StoreError) -> bool| {
        let whole =
            mixture(vec![(open(folder.path()).expect("a store"), 1)], Packing::Concat, &CONFIG);
        let first = whole.training(Step(0), MicrobatchIndex(0));
        let shards = fs::read_dir(folder.path().join("store")).expect("readable");
        let shards: Vec<_> = shards.map(|entry| entry.expect("readable").path()).collect();
        let shards: Vec<_> = shards
            .into_iter()
            .filter(|path| path.extension().is_some_and(|found| found == "shard"))
            .map(|path| (fs::read(&path).expect("readable"), path))
            .collect();
        shards.iter().for_each(|(_, path)| damage(path));
        let batch = whole.training(Step(0), MicrobatchIndex(0));
        assert_eq!(batch.inputs.len(), first.inputs.len());
        let fault = whole.fault().expect("met");
        assert!(is_expected(fault) && fault.to_string().contains(".shard: "), "{fault}");
        shards.iter().for_each(|(bytes, path)| {
            // Another file: the one that is mapped stays as it is.
            let _ = fs::remove_file(path);
            fs::write(path, bytes).expect("writable");
        });
    };
    let truncate = |path: &Path| {
        let file = fs::OpenOptions::new().write(true).open(path).expect("writable");
        file.set_len(0).expect("writable");
    };
    check(&truncate, &|fault| matches!(fault, StoreError::Length { found: 0, .. }));
    check(&|path| fs::remove_file(path).expect("removable"), &|fault| {
        matches!(fault, StoreError::Io { .. })
    });
    let overwrite = |path: &Path| {
        let length = fs::metadata(path).expect("there").len() as usize;
        let mut file = fs::OpenOptions::new().write(true).open(path).expect("writable");
        std::io::Write::write_all(&mut file, &vec![0xff; length]).expect("writable");
    };
    check(&overwrite, &|fault| {
        matches!(fault, StoreError::Vocabulary { .. } | StoreError::DocumentEnd { .. })
    });
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
