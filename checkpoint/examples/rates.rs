//! Measures the log and the store against the disk they lie on.
//!
//! `cargo run --release -p zbelastic-checkpoint --example rates -- FOLDER`
//!
//! Append of a record of 300 bytes beside a bare write of 300 bytes with fdatasync, and the writing
//! of pieces beside a bare sequential write of as many bytes with fsync. The two of a pair take
//! turns, so that a disk whose rate drifts is the same for both; medians are printed.
//!
//! Beside the rates of pieces stands the processor time of this process, in programs and in the
//! system, per GiB: what a training on the same machine loses. It is read from `/proc/self/stat`,
//! and missing where there is none. What the system does later in threads of its own is not in it.

use std::error::Error;
use std::fs::{self, File};
use std::hint::black_box;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use zbelastic_checkpoint::conformance::noise;
use zbelastic_checkpoint::files::RealFileSystem;
use zbelastic_checkpoint::{
    CHUNK_BYTES, CheckpointId, CheckpointStore, PieceName, PieceRecord, RecordLog, SledLog,
    SledStore,
};
use zbelastic_types::{Digest, LayerId, RunId, Step};

const RECORD_BYTES: usize = 300;
const RECORDS: usize = 400;
const PIECE_BYTES: usize = 256 << 20;
const PIECES: u32 = 5;
/// Milliseconds of a tick in `/proc`, the same on every Linux that programs see.
const TICK_MS: u64 = 10;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).ok_or("give a folder on the disk to measure")?;
    let folder = Path::new(&folder).join("rates");
    fs::create_dir_all(&folder)?;
    let measured = appends(&folder).and_then(|()| pieces(&folder));
    fs::remove_dir_all(&folder)?;
    measured
}

fn appends(folder: &Path) -> Result<(), Box<dyn Error>> {
    let mut log = SledLog::open(Arc::new(RealFileSystem), &folder.join("log"))?;
    let mut file = File::create(folder.join("plain"))?;
    let record = noise(1, RECORD_BYTES);
    let mut plain = Vec::new();
    let mut ours = Vec::new();
    for number in 0..RECORDS {
        plain.push(timed(|| Ok(file.write_all(&record).and_then(|()| file.sync_data())?))?);
        ours.push(timed(|| Ok(log.append(std::slice::from_ref(&record))?))?);
        if number % 100 == 99 {
            log.trim(log.next() - 50)?;
        }
    }
    let worst = |times: &mut Vec<Duration>| times[times.len() * 99 / 100];
    let plain_middle = median(&mut plain);
    let ours_middle = median(&mut ours);
    println!("append of {RECORD_BYTES} bytes, {RECORDS} times, median and 99th of 100:");
    println!("  bare fdatasync  {plain_middle:>10.1?} {:>10.1?}", worst(&mut plain));
    println!("  log             {ours_middle:>10.1?} {:>10.1?}", worst(&mut ours));
    println!("  ratio           {:>10.2}", ours_middle.as_secs_f64() / plain_middle.as_secs_f64());
    Ok(())
}

fn pieces(folder: &Path) -> Result<(), Box<dyn Error>> {
    let store_folder = folder.join("store");
    let store = SledStore::open(Arc::new(RealFileSystem), &store_folder)?;
    let mut plain = WorkTimes::default();
    let mut ours = WorkTimes::default();
    let mut hashes = WorkTimes::default();
    let mut rewrites = WorkTimes::default();
    let mut reads = WorkTimes::default();
    for number in 0..PIECES {
        let bytes = noise(u64::from(number) + 2, PIECE_BYTES);
        let path = folder.join(format!("plain-{number}"));
        plain.measure(|| {
            let mut file = File::create(&path)?;
            bytes.chunks(CHUNK_BYTES).try_for_each(|chunk| file.write_all(chunk))?;
            Ok(file.sync_all()?)
        })?;
        fs::remove_file(&path)?;
        let layer = LayerId(number);
        let name = PieceName {
            version: CheckpointId { run: RunId(1), version: Step(1) },
            layer,
            digest: Digest::default(),
        };
        hashes.measure(|| {
            black_box(PieceRecord::of(&bytes));
            Ok(())
        })?;
        ours.measure(|| Ok(store.put(name, &bytes).map(drop)?))?;
        let record = store.record(name)?.ok_or("it was put")?;
        reads.measure(|| {
            for hash in &record.chunks {
                black_box(store.chunk(*hash)?);
            }
            Ok(())
        })?;
        rewrites.measure(|| Ok(store.put(name, &bytes).map(drop)?))?;
    }
    println!(
        "pieces of {} MiB, {PIECES} times, median, and all their processor time:",
        PIECE_BYTES >> 20
    );
    plain.print("bare write and fsync");
    hashes.print("hashing alone");
    ours.print("put");
    reads.print("chunks, after put");
    rewrites.print("put of what is there");
    let plain = plain.rate();
    let ours = ours.rate();
    println!("  put against bare     {:>8.0} %", 100.0 * ours / plain);
    Ok(())
}

/// How long one kind of work on a piece took, each time.
#[derive(Default)]
struct WorkTimes {
    times: Vec<Duration>,
    /// Processor time of all of them, if it can be read.
    processor: Option<Duration>,
}

impl WorkTimes {
    fn measure(
        &mut self,
        work: impl FnOnce() -> Result<(), Box<dyn Error>>,
    ) -> Result<(), Box<dyn Error>> {
        let before = processor_time();
        self.times.push(timed(work)?);
        let spent = processor_time().zip(before).map(|(after, before)| after - before);
        self.processor = spent.map(|spent| self.processor.unwrap_or_default() + spent);
        Ok(())
    }

    /// MiB in a second, the median.
    fn rate(&mut self) -> f64 {
        (PIECE_BYTES >> 20) as f64 / median(&mut self.times).as_secs_f64()
    }

    fn print(&mut self, name: &str) {
        let gib = (PIECE_BYTES * self.times.len()) as f64 / f64::from(1 << 30);
        let processor = self.processor.map_or(String::new(), |processor| {
            format!(", {:.2} s of a processor per GiB", processor.as_secs_f64() / gib)
        });
        println!("  {name:<20} {:>8.0} MiB/s{processor}", self.rate());
    }
}

/// The processor time of this process until now, in programs and in the system.
fn processor_time() -> Option<Duration> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // Behind the name, which may hold anything: the state is the 3rd field, utime the 14th, stime
    // the 15th.
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks = fields.split_ascii_whitespace().skip(14 - 3).take(2);
    let ticks: u64 = ticks.map(|field| field.parse::<u64>().ok()).sum::<Option<u64>>()?;
    Some(Duration::from_millis(ticks * TICK_MS))
}

fn timed(work: impl FnOnce() -> Result<(), Box<dyn Error>>) -> Result<Duration, Box<dyn Error>> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed())
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() / 2]
}
