//! The resources of this machine: cores, memory, disks, NVIDIA devices, its resolver of names, and
//! how fast it multiplies; and texts and weights on its disk, fetched and mended chunk by chunk.

pub mod background_thread;
pub mod data_fetch;
pub mod data_file;
pub mod device;
pub mod device_links;
mod device_selector;
mod disk_weights;
mod kept_weights;
pub mod layer_fetch;
pub mod layer_snapshot;
pub mod machine_id;
pub mod name_resolver;
pub mod own_address;
pub mod peak_rates;
pub mod second_store;
pub mod unused_data;
pub mod upload_file;

pub use device_selector::{DeviceError, DeviceList, DeviceSelector};
pub use disk_weights::DiskWeights;
pub use kept_weights::KeptWeights;

use std::fs;
use std::hint::black_box;
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::statvfs;
use rustix::time::{ClockId, clock_gettime};
use zbelastic_kernels::{
    AllocateError, Backend, CpuBackend, DeviceMemory, ForwardEpilogue, InstructionSet, MatrixShape,
    Precision,
};
use zbelastic_policy::disk_space::DiskSpace;
use zbelastic_types::Bytes;

/// Cores that this process may use.
#[must_use]
pub fn core_count() -> usize {
    thread::available_parallelism().map_or(1, Into::into)
}

/// Cores of the whole machine, of which this process may have fewer; as many as it has where the system
/// does not say.
#[must_use]
pub fn machine_core_count() -> usize {
    let listed = fs::read_to_string("/sys/devices/system/cpu/online").ok();
    listed.and_then(|text| count_listed(text.trim())).unwrap_or(0).max(core_count())
}

/// How many numbers a list of ranges has, such as `0-3,6`.
fn count_listed(text: &str) -> Option<usize> {
    let count = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let length = last.parse::<usize>().ok()?.checked_sub(first.parse().ok()?)?;
        length.checked_add(1)
    };
    text.split(',').map(count).sum()
}

/// Threads to compute with: as many as were requested, or one a core.
#[must_use]
pub fn thread_count(requested: Option<u32>) -> usize {
    requested.map_or_else(core_count, |threads| threads as usize)
}

/// Multiply-adds on registers alone, in floating-point operations a second, of the threads of
/// `cpu` with its instructions: the rate that the arithmetic of a model is compared with. The best
/// of several runs, because any disturbance makes one slower. Each lasts about `duration`, which
/// should be as long as the computation that is compared: no step is as undisturbed as the luckiest
/// millisecond.
#[must_use]
pub fn peak_flop_per_s(cpu: &CpuBackend, duration: Duration) -> f64 {
    let began = Instant::now();
    best_flop_per_s(cpu, duration, || began.elapsed())
}

/// [`peak_flop_per_s`] of `threads` threads, with factors of this precision, by the processor time
/// of this process, which does nothing else meanwhile: what other programs take is not counted, so
/// that the rate is that of the cores, on a machine that is busy as well.
///
/// # Errors
/// If the threads cannot be started.
pub fn own_peak_flop_per_s(threads: usize, precision: Precision) -> Result<f64, AllocateError> {
    Ok(thread_peak_flop_per_s(threads, precision)? * threads as f64)
}

/// The rate of one of `threads` threads, by the processor time of this process, which passes once for
/// each of them.
///
/// # Errors
/// If the threads cannot be started.
pub fn thread_peak_flop_per_s(threads: usize, precision: Precision) -> Result<f64, AllocateError> {
    /// Of each thread and run: short enough not to be noticed at the start of a program.
    const DURATION: Duration = Duration::from_millis(5);
    let cpu = CpuBackend::new(threads)?.with_precision(precision);
    let elapsed = || processor_time(ClockId::ProcessCPUTime);
    Ok(best_flop_per_s(&cpu, DURATION * threads as u32, elapsed))
}

/// The best rate of several runs of about `duration` each, both by `clock`: the time since some
/// moment.
fn best_flop_per_s(cpu: &CpuBackend, duration: Duration, clock: impl Fn() -> Duration) -> f64 {
    const RUNS: usize = 5;
    const ROUNDS: usize = 10_000;
    /// Less than any processor takes for a round: twelve vectors on two units are six cycles. A
    /// coarse clock may not have moved, which would ask for rounds without end.
    const ROUND_SECONDS_MIN: f64 = 0.5e-9;
    let run = |rounds: usize| {
        let before = clock();
        let flop = black_box(cpu.multiply_adds(rounds));
        let seconds = clock().saturating_sub(before).as_secs_f64();
        (flop, seconds.max(rounds as f64 * ROUND_SECONDS_MIN))
    };
    let (_, first) = run(ROUNDS);
    let rounds = (ROUNDS as f64 * duration.as_secs_f64() / first).max(1.0) as usize;
    let rate = |_| {
        let (flop, seconds) = run(rounds);
        flop / seconds
    };
    (0..RUNS).map(rate).fold(0.0, f64::max)
}

/// Processor time of this process, or of the calling thread.
fn processor_time(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

/// The processor's name in what Linux says of it; processors of aarch64 have none there.
fn processor_name(cpuinfo: &str) -> Option<&str> {
    let named = cpuinfo.lines().find_map(|line| line.strip_prefix("model name"));
    let name = named?.split_once(':')?.1.trim();
    (!name.is_empty() && !name.chars().any(char::is_control)).then_some(name)
}

/// The processor, the kernels that this process computes with, whether with instructions for bfloat16, and
/// the others that it could.
///
/// # Panics
/// If `ZBELASTIC_CPU` names kernels that it does not have, which a program checks at its start.
#[must_use]
pub fn kernels_text() -> String {
    let chosen = InstructionSet::of_environment().expect("checked at the start of the program");
    let others = InstructionSet::available().into_iter().filter(|set| *set != chosen);
    let others: Vec<_> = others.map(InstructionSet::name).collect();
    let halves = if chosen.has_bf16() { " with bfloat16" } else { "" };
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let processor = processor_name(&cpuinfo).map_or_else(String::new, |name| format!("{name}, "));
    match others.as_slice() {
        [] => format!("{processor}{chosen} kernels{halves}"),
        others => {
            format!("{processor}{chosen} kernels{halves} (also there: {})", others.join(", "))
        }
    }
}

/// The peak of one thread, and the share of it that a matrix product reaches with the kernels of
/// this process and factors of this precision: 128 rows by a matrix of 384 by 384, whose packed
/// form fits into a second-level cache. The best of a few, and of a peak measured beside them.
///
/// # Errors
/// If memory for it cannot be had.
pub fn product_share(precision: Precision) -> Result<(f64, f64), AllocateError> {
    const ROWS: usize = 128;
    const WIDTH: usize = 384;
    const RUNS: usize = 8;
    let cpu = CpuBackend::new(1)?.with_precision(precision);
    let x = cpu.allocate(ROWS * WIDTH)?;
    let mut y = cpu.allocate(ROWS * WIDTH)?;
    let matrix = cpu.allocate_matrix(MatrixShape { outputs: WIDTH, inputs: WIDTH })?;
    let mut peak: f64 = 0.0;
    let mut best = f64::INFINITY;
    for _ in 0..RUNS {
        let began = Instant::now();
        cpu.linear_forward(ROWS, &x, &matrix, None, ForwardEpilogue::Plain, &mut y);
        best = best.min(began.elapsed().as_secs_f64());
        peak = peak.max(peak_flop_per_s(&cpu, Duration::from_secs_f64(best)));
    }
    Ok((peak, 2.0 * (ROWS * WIDTH * WIDTH) as f64 / best / peak))
}

/// Bytes of the disk that a folder lies on: how many this process may still write, and how many
/// there are. It may block, as every access to a disk.
///
/// # Errors
/// If the folder is not there.
pub fn disk_space(folder: &Path) -> io::Result<(Bytes, Bytes)> {
    let found = statvfs(folder)?;
    let bytes = |blocks: u64| Bytes(blocks.saturating_mul(found.f_frsize));
    Ok((bytes(found.f_bavail), bytes(found.f_blocks)))
}

/// The space on the disk that a folder lies on. It may block, as every access to a disk.
///
/// # Errors
/// If the folder is not there.
pub fn disk_usage(folder: &Path) -> io::Result<DiskSpace> {
    let (free, total) = disk_space(folder)?;
    Ok(DiskSpace { free, total })
}

/// The memory that this process may use, or `None` where the system does not report it: the
/// machine's, or less in a control group.
#[must_use]
pub fn memory_total() -> Option<Bytes> {
    least_memory("MemTotal:", group_memory("max"))
}

/// The memory that is left for what is begun now, or `None` where the system does not report it: the
/// machine's, or less in a control group.
#[must_use]
pub fn memory_available() -> Option<Bytes> {
    let group = group_memory("max").zip(group_memory("current"));
    least_memory("MemAvailable:", group.map(|(most, taken)| most.saturating_sub(taken)))
}

/// A file of the control group that counts memory; one without a limit has no number.
fn group_memory(file: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/sys/fs/cgroup/memory.{file}")).ok()?;
    text.trim().parse().ok()
}

/// A line of the machine's memory, or what the control group has if that is less.
fn least_memory(line: &str, group: Option<u64>) -> Option<Bytes> {
    let machine = fs::read_to_string("/proc/meminfo").ok();
    let machine = machine.and_then(|text| kibibytes_of(&text, line));
    machine.into_iter().chain(group.map(Bytes)).min()
}

/// The most memory this process has had at once, or `None` where the system does not report it.
#[must_use]
pub fn resident_peak() -> Option<Bytes> {
    own_memory("VmHWM:")
}

/// The memory that this process has now, or `None` where the system does not report it. It never waits
/// for a disk.
#[must_use]
pub fn resident_memory() -> Option<Bytes> {
    own_memory("VmRSS:")
}

/// A line of what the system reports of this process.
fn own_memory(line: &str) -> Option<Bytes> {
    kibibytes_of(&fs::read_to_string("/proc/self/status").ok()?, line)
}

/// The value of a line such as `MemTotal:  24576 kB`.
#[must_use]
pub fn kibibytes_of(text: &str, name: &str) -> Option<Bytes> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    kibibytes.checked_mul(1024).map(Bytes)
}

#[cfg(test)]
mod tests {
    use super::{
        Bytes, core_count, count_listed, kibibytes_of, machine_core_count, processor_name,
        resident_memory, resident_peak,
    };

    #[test]
    fn cores_are_counted_from_their_list() {
        let lists = [("0-3\n", 4), ("0", 1), ("0-3,6,8-9", 7)];
        for (list, cores) in lists {
            assert_eq!(count_listed(list.trim()), Some(cores), "{list}");
        }
        for list in ["", "3-0", "all", "0-", "0-18446744073709551615"] {
            assert_eq!(count_listed(list), None, "{list}");
        }
        assert!(machine_core_count() >= core_count());
    }

    #[test]
    fn a_process_has_some_memory_and_never_more_than_it_has_had() {
        let now = resident_memory().expect("Linux reports it");
        let most = resident_peak().expect("Linux reports it");
        assert!(now > Bytes(0) && now <= most, "{now} of {most}");
    }

    #[test]
    fn a_processor_has_a_name_where_linux_gives_it_one() {
        let text = "processor\t: 0\nmodel\t\t: 1\nmodel name\t: AMD EPYC 9B45\n\nprocessor\t: 1\n";
        assert_eq!(processor_name(text), Some("AMD EPYC 9B45"));
        for without in
            ["", "processor\t: 0\nBogoMIPS\t: 243.75\n", "model name\t: \n", "model name"]
        {
            assert_eq!(processor_name(without), None, "{without}");
        }
    }

    #[test]
    fn sizes_are_read_from_their_line() {
        let text = "MemTotal:       24576 kB\nMemFree: \t 1 kB\nOdd: many kB\nBare: 7\n";
        assert_eq!(kibibytes_of(text, "MemTotal:"), Some(Bytes(24576 * 1024)));
        assert_eq!(kibibytes_of(text, "MemFree:"), Some(Bytes(1024)));
        assert_eq!(kibibytes_of(text, "Odd:"), None);
        assert_eq!(kibibytes_of(text, "Bare:"), None);
        assert_eq!(kibibytes_of(text, "Absent:"), None);
    }
}
