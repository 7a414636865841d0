//! Nodes as folders with bulk lanes between them, and data in them that rotted.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;

use tokio::io::{DuplexStream, ReadHalf, WriteHalf, duplex, split};
use zbelastic_transport::BulkBody;
use zbelastic_transport::bulk::{CHUNK_BYTES, fetch_checked_into, fetch_into, serve};

use super::*;
use crate::data_file::{FileBody, list_path, served_hashes};

/// The first bytes of keys, before a hash.
const BYTES: u8 = 0;
const HASHES: u8 = 1;

/// Folders with data, each of a node.
struct Folders(BTreeMap<NodeId, tempfile::TempDir>);

impl Folders {
    fn of(count: u64) -> Self {
        let folder = |node| (NodeId(node), tempfile::tempdir().expect("a folder"));
        Self((1..=count).map(folder).collect())
    }

    fn path(&self, node: u64, name: DataName) -> PathBuf {
        self.0[&NodeId(node)].path().join(format!("{}.data", name.hash))
    }

    /// Writes sound data with its list, and flips a bit of some chunks.
    fn put(&self, node: u64, data: &[u8], rotten: &[usize]) {
        let path = self.path(node, DataName::of(data));
        let mut bytes = data.to_vec();
        rotten.iter().for_each(|chunk| bytes[chunk * CHUNK_BYTES + 3] ^= 1);
        fs::write(&path, bytes).expect("writable");
        keep_hashes(&path, &ChunkHashes::of(data, ChunkSize::BULK));
    }

    /// A stream to a node that serves what lies in its folder.
    fn open(
        &self,
        node: NodeId,
    ) -> impl Future<Output = io::Result<(ReadHalf<DuplexStream>, WriteHalf<DuplexStream>)>>
    + Send
    + 'static {
        let folder = self.0[&node].path().to_owned();
        async move {
            let (near, far) = duplex(1 << 16);
            let find = move |key: &[u8]| -> Option<Arc<dyn BulkBody>> {
                let (part, hash) = key.split_first()?;
                let hash = Digest(hash.try_into().ok()?);
                let path = folder.join(format!("{hash}.data"));
                match *part {
                    BYTES => Some(Arc::new(FileBody::open(&path).ok()?)),
                    HASHES => Some(Arc::new(served_hashes(&path, hash)?)),
                    _ => None,
                }
            };
            let (reader, writer) = split(far);
            tokio::spawn(serve(reader, writer, find));
            Ok(split(near))
        }
    }

    /// What a node does that finds its data missing or damaged. Yields the nodes that it names.
    async fn mend(&self, node: u64, name: DataName) -> Result<Vec<u64>, DataFetchError> {
        Ok(self.wanted(node, name).keep().await?.into_iter().map(|node| node.0).collect())
    }

    fn is_sound(&self, node: u64, data: &[u8]) -> bool {
        fs::read(self.path(node, DataName::of(data))).is_ok_and(|found| found == data)
    }
}

impl DataHolders for Folders {
    fn fetch<S: ChunkSink>(
        &self,
        request: BulkFetch,
        sink: S,
    ) -> impl Future<Output = Result<S, BulkError>> + Send {
        fetch_into(request, sink, move |node| self.open(node))
    }

    fn fetch_checked<S: ChunkSink>(
        &self,
        request: BulkFetch,
        chunks: CheckedChunks,
        sink: S,
    ) -> impl Future<Output = CheckedFetch<S>> + Send {
        fetch_checked_into(request, chunks, sink, move |node| self.open(node))
    }
}

fn data(chunks: usize) -> Vec<u8> {
    let length = chunks * CHUNK_BYTES - 100;
    (0..length).map(|at| (at % 251 + at / CHUNK_BYTES) as u8).collect()
}

#[tokio::test]
async fn data_that_rotted_everywhere_in_different_places_is_whole_again_everywhere() {
    let data = data(5);
    let name = DataName::of(&data);
    let folders = Folders::of(3);
    folders.put(1, &data, &[1, 4]);
    folders.put(2, &data, &[0, 3]);
    // A node that joins: each chunk is sound somewhere.
    let mut named = folders.mend(3, name).await.expect("each chunk is sound somewhere");
    assert!(folders.is_sound(3, &data));
    named.retain(|node| *node > 2);
    assert_eq!(named, Vec::<u64>::new());
    fs::remove_file(folders.path(3, name)).expect("there");
    // Both holders mend theirs of each other.
    folders.mend(1, name).await.expect("node 2 has what is damaged");
    assert!(folders.is_sound(1, &data));
    folders.put(1, &data, &[1, 4]);
    folders.mend(2, name).await.expect("node 1 has what is damaged");
    assert!(folders.is_sound(2, &data));
    folders.mend(1, name).await.expect("node 2 is sound");
    assert!(folders.is_sound(1, &data));
}

#[tokio::test]
async fn a_chunk_that_is_sound_nowhere_is_an_error_that_names_the_nodes() {
    let data = data(3);
    let name = DataName::of(&data);
    let folders = Folders::of(3);
    folders.put(1, &data, &[1]);
    folders.put(2, &data, &[1, 2]);
    let error = folders.mend(3, name).await.expect_err("chunk 1 is sound nowhere");
    assert_eq!(error.missing(), Some(name.hash));
    let DataFetchError::AllDamaged { nodes, .. } = error else { panic!("{error}") };
    assert_eq!(nodes, [NodeId(1), NodeId(2)]);
    assert!(!folders.path(3, name).exists(), "what is not whole leaves nothing");
    assert_eq!(fs::read_dir(folders.0[&NodeId(3)].path()).expect("readable").count(), 0);
}

#[tokio::test]
async fn what_each_node_answered_not_to_have_is_missing() {
    let data = data(2);
    let name = DataName::of(&data);
    let error = Folders::of(3).mend(3, name).await.expect_err("it is nowhere");
    assert!(matches!(error, DataFetchError::Nowhere { hash } if hash == name.hash), "{error}");
    assert_eq!(error.missing(), Some(name.hash));
    // Where nobody was asked, it may be anywhere.
    let error = Folders::of(1).mend(1, name).await.expect_err("there is nobody");
    assert_eq!(error.missing(), None, "{error}");
}

#[tokio::test]
async fn what_is_left_of_a_file_that_was_cut_short_stays() {
    let data = data(4);
    let name = DataName::of(&data);
    let folders = Folders::of(2);
    folders.put(1, &data, &[0]);
    folders.put(2, &data, &[]);
    let file = File::options().write(true).open(folders.path(2, name)).expect("there");
    file.set_len(CHUNK_BYTES as u64 + 7).expect("writable");
    assert_eq!(folders.mend(2, name).await.expect("node 1 has the others"), Vec::<u64>::new());
    assert!(folders.is_sound(2, &data));
    assert_eq!(folders.mend(1, name).await.expect("node 2 has chunk 0"), Vec::<u64>::new());
    assert!(folders.is_sound(1, &data));
}

#[tokio::test]
async fn lists_are_made_of_sound_data_and_a_damaged_list_is_not_believed() {
    let data = data(2);
    let name = DataName::of(&data);
    let folders = Folders::of(4);
    for node in [1, 2, 3] {
        folders.put(node, &data, if node == 2 { &[1] } else { &[] });
        let list = list_path(&folders.path(node, name));
        match node {
            // As a disk damages it; as an earlier version of the program leaves it; as well.
            1 => fs::write(list, [7; 64]).expect("writable"),
            _ => fs::remove_file(list).expect("there"),
        }
    }
    let named = folders.mend(4, name).await.expect("node 3 has all of it");
    assert!(folders.is_sound(4, &data));
    assert!(named.contains(&1) && !named.contains(&3), "{named:?}");
    let list = |node| fs::read(list_path(&folders.path(node, name))).ok();
    assert_eq!(list(3), list(4));
    assert_eq!(list(2), None, "its data is not sound");
    assert!(list(3).is_some());
}

#[test]
fn what_is_not_whole_leaves_nothing_and_what_has_no_space_is_not_begun() {
    let folder = tempfile::tempdir().expect("a folder");
    let partial = PartialFile(folder.path().join("one.0.part"));
    let error = partial.create(1 << 60).expect_err("no disk is so large");
    assert!(matches!(error, DataFetchError::Room(_)), "{error}");
    let mut sink = FileSink(partial.create(8).expect("space"));
    sink.write(4, b"half").expect("writable");
    assert_eq!(fs::read(&partial.0).expect("there"), b"\0\0\0\0half");
    drop(partial);
    assert_eq!(fs::read_dir(folder.path()).expect("readable").count(), 0);
}

/// What a node has of data that it opened, fetched chunk by chunk.
struct Arriving {
    opened: ArrivingData,
    written: Arc<std::sync::Mutex<Vec<u64>>>,
}

impl Folders {
    fn wanted(&self, node: u64, name: DataName) -> WantedData<'_, Self> {
        let others = self.0.keys().copied().filter(|other| other.0 != node);
        let key = |part| [&[part][..], &name.hash.0].concat();
        WantedData {
            name,
            keys: DataKeys { bytes: key(BYTES), hashes: key(HASHES) },
            path: self.path(node, name),
            connections: self,
            holders: others.collect(),
            progress: WorkCounter::default(),
        }
    }

    async fn open_data(&self, node: u64, name: DataName) -> Arriving {
        match self.wanted(node, name).open(u64::MAX).await.expect("another node has it").0 {
            OpenedData::Arriving(opened) => Arriving { opened, written: Arc::default() },
            OpenedData::Whole => panic!("nothing was fetched"),
        }
    }

    async fn fetch_chunks(&self, node: u64, name: DataName, arriving: &Arriving, chunks: &[u64]) {
        let written = arriving.written.clone();
        let on_chunk = move |chunk| written.lock().expect("no panic").push(chunk);
        let wanted = self.wanted(node, name);
        let fetched = wanted.fetch_chunks(&arriving.opened, chunks.to_vec(), on_chunk).await;
        fetched.expect("each chunk is sound somewhere");
    }
}

#[tokio::test]
async fn chunks_arrive_in_the_order_of_requests_and_the_file_gets_its_name_when_all_are_here() {
    let data = data(4);
    let name = DataName::of(&data);
    let folders = Folders::of(3);
    folders.put(1, &data, &[2]);
    folders.put(2, &data, &[0]);
    let arriving = folders.open_data(3, name).await;
    assert_eq!(arriving.opened.found(), [0_u64; 0]);
    folders.fetch_chunks(3, name, &arriving, &[2]).await;
    let (file, part) = arriving.opened.file();
    let mut bytes = vec![0; CHUNK_BYTES];
    file.read_exact_at(&mut bytes, 2 * CHUNK_BYTES as u64).expect("as long as the data");
    assert_eq!(bytes, data[2 * CHUNK_BYTES..3 * CHUNK_BYTES]);
    assert!(!folders.path(3, name).exists() && part.exists());
    // The process is started again, and goes on with what is there.
    drop(arriving);
    let arriving = folders.open_data(3, name).await;
    assert_eq!(arriving.opened.found(), [2]);
    folders.fetch_chunks(3, name, &arriving, &[0, 1]).await;
    folders.fetch_chunks(3, name, &arriving, &[3]).await;
    let mut written = arriving.written.lock().expect("no panic").clone();
    written.sort_unstable();
    assert_eq!(written, [0, 1, 3]);
    arriving.opened.publish().await.expect("writable");
    assert!(folders.is_sound(3, &data));
    let (opened, damaged) = folders.wanted(3, name).open(u64::MAX).await.expect("it is here");
    assert!(matches!(opened, OpenedData::Whole) && damaged.is_empty());
    assert!(list_path(&folders.path(3, name)).exists(), "it can be fetched from here");
}

#[tokio::test]
async fn a_chunk_that_no_node_has_leaves_the_others() {
    let data = data(2);
    let name = DataName::of(&data);
    let folders = Folders::of(2);
    folders.put(1, &data, &[1]);
    let arriving = folders.open_data(2, name).await;
    let wanted = folders.wanted(2, name);
    let (sender, written) = std::sync::mpsc::channel();
    let on_chunk = move |chunk| sender.send(chunk).expect("it is received");
    let error = wanted.fetch_chunks(&arriving.opened, vec![0, 1], on_chunk).await;
    let Err(DataFetchError::AllDamaged { nodes, .. }) = error else { panic!("{error:?}") };
    assert_eq!(nodes, [NodeId(1)]);
    assert_eq!(written.recv(), Ok(0));
    drop(arriving);
    assert_eq!(folders.open_data(2, name).await.opened.found(), [0]);
}

#[tokio::test]
async fn chunks_whose_space_was_freed_take_none_and_are_the_same_when_they_are_fetched_again() {
    let data = data(6);
    let name = DataName::of(&data);
    let folders = Folders::of(2);
    folders.put(1, &data, &[]);
    let arriving = folders.open_data(2, name).await;
    folders.fetch_chunks(2, name, &arriving, &[0, 1, 2, 3, 5]).await;
    let (file, part) = arriving.opened.file();
    file.sync_all().expect("writable");
    let blocks = || std::os::unix::fs::MetadataExt::blocks(&fs::metadata(part).expect("there"));
    let blocks_before = blocks();
    match arriving.opened.free(vec![1, 2, 5]).await {
        // Nothing is freed in such a folder.
        Err(DataFetchError::NoHoles { path }) => return assert_eq!(path, part),
        freed => freed.expect("writable"),
    }
    let chunk_bytes = CHUNK_BYTES as u64;
    let freed = (blocks_before - blocks()) * 512;
    assert!(freed >= 2 * chunk_bytes && freed <= 3 * chunk_bytes, "{freed} bytes");
    assert_eq!(file.metadata().expect("there").len(), name.length, "it is mapped");
    let read = |chunk: usize| {
        let length = CHUNK_BYTES.min(data.len() - chunk * CHUNK_BYTES);
        let mut bytes = vec![7; length];
        file.read_exact_at(&mut bytes, (chunk * CHUNK_BYTES) as u64).expect("as long as before");
        bytes
    };
    let expected = |chunk: usize| data.chunks(CHUNK_BYTES).nth(chunk).expect("a chunk");
    assert!([1, 2, 5].iter().all(|chunk| read(*chunk).iter().all(|byte| *byte == 0)));
    assert!([0, 3].iter().all(|chunk| read(*chunk) == expected(*chunk)), "others stay");
    // A process that is started again finds what is left.
    drop(arriving);
    let arriving = folders.open_data(2, name).await;
    assert_eq!(arriving.opened.found(), [0, 3]);
    folders.fetch_chunks(2, name, &arriving, &[1, 5]).await;
    assert!([0, 1, 3, 5].iter().all(|chunk| read(*chunk) == expected(*chunk)));
}
