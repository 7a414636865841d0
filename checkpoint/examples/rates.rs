//! Measures the log and the store against the disk they lie on.
//!
//! `cargo run --release -p zbelastic-checkpoint --example rates -- FOLDER`
//!
//! Append of a record of 300 bytes beside a bare write of 300 bytes with fdatasync, and the writing
//! of pieces beside a bare sequential write of as many bytes with fsync. The two of a pair take
//! turns, so that a disk whose rate drifts is the same for both; medians are printed.

use std::error::Error;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use zbelastic_checkpoint::files::RealFiles;
use zbelastic_checkpoint::{CheckpointId, PieceName, RecordLog, SledLog, SledStore, Store};
use zbelastic_types::{Digest, LayerId, RunId, Step};

const RECORD_BYTES: usize = 300;
const RECORDS: usize = 400;
const PIECE_BYTES: usize = 256 << 20;
const PIECES: u32 = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).ok_or("give a folder on the disk to measure")?;
    let folder = Path::new(&folder).join("rates");
    fs::create_dir_all(&folder)?;
    let measured = appends(&folder).and_then(|()| pieces(&folder));
    fs::remove_dir_all(&folder)?;
    measured
}

fn appends(folder: &Path) -> Result<(), Box<dyn Error>> {
    let mut log = SledLog::open(Arc::new(RealFiles), &folder.join("log"))?;
    let mut file = File::create(folder.join("plain"))?;
    let record = noise(1, RECORD_BYTES);
    let (mut plain, mut ours) = (Vec::new(), Vec::new());
    for number in 0..RECORDS {
        plain.push(timed(|| Ok(file.write_all(&record).and_then(|()| file.sync_data())?))?);
        ours.push(timed(|| Ok(log.append(std::slice::from_ref(&record))?))?);
        if number % 100 == 99 {
            log.trim(log.next() - 50)?;
        }
    }
    let worst = |times: &mut Vec<Duration>| times[times.len() * 99 / 100];
    let (plain_middle, ours_middle) = (median(&mut plain), median(&mut ours));
    println!("append of {RECORD_BYTES} bytes, {RECORDS} times, median and 99th of 100:");
    println!("  bare fdatasync  {plain_middle:>10.1?} {:>10.1?}", worst(&mut plain));
    println!("  log             {ours_middle:>10.1?} {:>10.1?}", worst(&mut ours));
    println!("  ratio           {:>10.2}", ours_middle.as_secs_f64() / plain_middle.as_secs_f64());
    Ok(())
}

fn pieces(folder: &Path) -> Result<(), Box<dyn Error>> {
    let store_folder = folder.join("store");
    let store = SledStore::open(Arc::new(RealFiles), &store_folder)?;
    let (mut plain, mut ours, mut again, mut reads) = (vec![], vec![], vec![], vec![]);
    for number in 0..PIECES {
        let bytes = noise(u64::from(number) + 2, PIECE_BYTES);
        let path = folder.join(format!("plain-{number}"));
        plain.push(timed(|| {
            let mut file = File::create(&path)?;
            bytes.chunks(4 << 20).try_for_each(|chunk| file.write_all(chunk))?;
            Ok(file.sync_all()?)
        })?);
        fs::remove_file(&path)?;
        let layer = LayerId(number);
        let name = PieceName {
            version: CheckpointId { run: RunId(1), version: Step(1) },
            layer,
            digest: Digest::default(),
        };
        ours.push(timed(|| Ok(store.put(name, &bytes).map(drop)?))?);
        again.push(timed(|| Ok(store.put(name, &bytes).map(drop)?))?);
        reads.push(timed(|| Ok(store.get(name).map(drop)?))?);
    }
    let rate = |times: &mut Vec<Duration>| (PIECE_BYTES >> 20) as f64 / median(times).as_secs_f64();
    let (plain, ours) = (rate(&mut plain), rate(&mut ours));
    println!("pieces of {} MiB, {PIECES} times, median:", PIECE_BYTES >> 20);
    println!("  bare write and fsync {plain:>8.0} MiB/s");
    println!("  put                  {ours:>8.0} MiB/s, {:.0} % of it", 100.0 * ours / plain);
    println!("  put of what is there {:>8.0} MiB/s", rate(&mut again));
    println!("  get, from memory     {:>8.0} MiB/s", rate(&mut reads));
    Ok(())
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

/// Bytes that no two chunks share.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for word in bytes.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
    }
    bytes
}
