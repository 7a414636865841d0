//! `bench gemm`: the matrix products of the benchmark models, ours beside a library's.

use std::io::Write;
use std::time::{Duration, Instant};

use serde::Serialize;
use zbelastic_kernels::{
    Backend, BufferViewMut, CpuBackend, DeviceMemory, ForwardEpilogue, MatrixShape,
};
use zbelastic_machine::peak_flop_per_s;
use zbelastic_wording::{CommandError, CommandFailure};

use super::case::{BatchSplit, BenchCase};
use super::out_of_resource;
use crate::args::{BenchArgs, BenchConfig};

/// One product, `rows` by `inputs` times `inputs` by `outputs`, on one thread.
#[derive(Debug, Serialize)]
struct GemmResult {
    config: &'static str,
    name: &'static str,
    rows: usize,
    outputs: usize,
    inputs: usize,
    /// Of a core's multiply-adds: our kernel with its matrix packed, as it is once a step.
    ours_share: f64,
    /// The crate matrixmultiply, which packs both factors each time.
    library_share: f64,
}

/// Runs `bench gemm`.
pub fn run(args: &BenchArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    for config in args.configs() {
        for product in measure(*config, args.quick)? {
            if args.json {
                writeln!(out, "{}", serde_json::to_string(&product).expect("numbers are JSON"))?;
                continue;
            }
            let GemmResult { config, name, rows, outputs, inputs, .. } = product;
            let ours = 100.0 * product.ours_share;
            let library = 100.0 * product.library_share;
            let shape = format!("{rows} × {inputs} × {outputs}");
            writeln!(
                out,
                "{config} {name:<5} {shape:>20}  ours {ours:5.1} %  library {library:5.1} % of peak"
            )?;
        }
        out.flush()?;
    }
    Ok(())
}

fn measure(config: BenchConfig, is_quick: bool) -> Result<Vec<GemmResult>, CommandFailure> {
    let case = BenchCase::new(config)?;
    let rows = case.batch(BatchSplit::Whole).microbatch.rows();
    let model = &case.model;
    let shapes = [
        ("qkv", model.qkv_matrix()),
        ("out", model.out_matrix()),
        ("up", model.up_matrix()),
        ("down", model.down_matrix()),
        ("head", model.head_matrix()),
    ];
    let time = Duration::from_millis(if is_quick { 60 } else { 600 });
    shapes.into_iter().map(|(name, shape)| product(config, name, rows, shape, time)).collect()
}

fn product(
    config: BenchConfig,
    name: &'static str,
    rows: usize,
    shape: MatrixShape,
    time: Duration,
) -> Result<GemmResult, CommandFailure> {
    let MatrixShape { outputs, inputs } = shape;
    let mut bench = GemmBench::new(rows, shape).map_err(|error| out_of_resource(&error))?;
    let flop = 2.0 * (rows * outputs * inputs) as f64;
    let mut ours = bench.ours();
    let mut library = Duration::MAX;
    let mut peak = 0.0;
    let began = Instant::now();
    while began.elapsed() < time || peak == 0.0 {
        let found =
            peak_flop_per_s(1, ours.min(PEAK_RUN_MAX)).map_err(|error| out_of_resource(&error))?;
        peak = f64::max(peak, found);
        for _ in 0..4 {
            ours = ours.min(bench.ours());
            library = library.min(bench.library());
        }
    }
    let share = |best: Duration| flop / best.as_secs_f64() / peak;
    let ours_share = share(ours);
    let library_share = share(library);
    Ok(GemmResult { config: config.name(), name, rows, outputs, inputs, ours_share, library_share })
}

/// A peak run lasts as long as a product, but for the largest.
const PEAK_RUN_MAX: Duration = Duration::from_millis(50);

/// The same numbers in both forms.
struct GemmBench {
    cpu: CpuBackend,
    rows: usize,
    shape: MatrixShape,
    x: Vec<f32>,
    weights: Vec<f32>,
    y: Vec<f32>,
    x_buffer: <CpuBackend as DeviceMemory>::Buffer,
    y_buffer: <CpuBackend as DeviceMemory>::Buffer,
    matrix: <CpuBackend as DeviceMemory>::Matrix,
}

impl GemmBench {
    fn new(rows: usize, shape: MatrixShape) -> Result<Self, zbelastic_kernels::AllocateError> {
        let cpu = CpuBackend::new(1)?;
        let MatrixShape { outputs, inputs } = shape;
        let floats = |len: usize| (0..len).map(|i| (i % 61) as f32 / 61.0 - 0.5).collect();
        let x: Vec<f32> = floats(rows * inputs);
        let weights: Vec<f32> = floats(outputs * inputs);
        let mut x_buffer = cpu.allocate(x.len())?;
        cpu.upload(&x, BufferViewMut::new(&mut x_buffer, 0..x.len()));
        let mut weight_buffer = cpu.allocate(weights.len())?;
        cpu.upload(&weights, BufferViewMut::new(&mut weight_buffer, 0..weights.len()));
        let mut matrix = cpu.allocate_matrix(shape)?;
        let range = 0..weights.len();
        cpu.load_matrix(zbelastic_kernels::BufferView::new(&weight_buffer, range), &mut matrix);
        let y = vec![0.0; rows * outputs];
        let y_buffer = cpu.allocate(rows * outputs)?;
        Ok(Self { cpu, rows, shape, x, weights, y, x_buffer, y_buffer, matrix })
    }

    fn ours(&mut self) -> Duration {
        let began = Instant::now();
        let plain = ForwardEpilogue::Plain;
        let x = &self.x_buffer;
        let y = &mut self.y_buffer;
        self.cpu.linear_forward(self.rows, x, &self.matrix, None, plain, y);
        began.elapsed()
    }

    fn library(&mut self) -> Duration {
        let MatrixShape { outputs, inputs } = self.shape;
        let began = Instant::now();
        // SAFETY: x is `rows` by `inputs`, the weights are `outputs` by `inputs` and read as their
        // transpose, y is `rows` by `outputs`; all are row by row without gaps, y overlaps neither.
        unsafe {
            matrixmultiply::sgemm(
                self.rows,
                inputs,
                outputs,
                1.0,
                self.x.as_ptr(),
                inputs as isize,
                1,
                self.weights.as_ptr(),
                1,
                inputs as isize,
                0.0,
                self.y.as_mut_ptr(),
                outputs as isize,
                1,
            );
        }
        began.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbelastic_kernels::BufferView;

    #[test]
    fn both_compute_the_same_product() {
        let mut bench = GemmBench::new(5, MatrixShape { outputs: 7, inputs: 11 }).expect("memory");
        bench.ours();
        bench.library();
        let ours = bench.cpu.download(BufferView::new(&bench.y_buffer, 0..35));
        for (a, b) in ours.iter().zip(&bench.y) {
            assert!((a - b).abs() < 1e-5, "{a} {b}");
        }
        assert!(ours.iter().any(|y| y.abs() > 0.1));
    }
}
