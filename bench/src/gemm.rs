//! `bench gemm`: the matrix products of the benchmark models, ours beside a library's.

use std::io::Write;
use std::time::{Duration, Instant};

use serde::Serialize;
use zbelastic_kernels::{
    Accumulate, AllocateError, Backend, BackwardEpilogue, BufferView, BufferViewMut, CPU_VARIABLE,
    CpuBackend, DeviceMemory, ForwardEpilogue, InstructionSet, LinearGradient, MatrixShape,
    Precision,
};
use zbelastic_machine::peak_flop_per_s;
use zbelastic_wording::{CommandError, CommandFailure};

use super::case::{BatchSplit, BenchCase};
use super::out_of_resource;
use super::peak::{self, CorePeakRates};
use crate::args::{BenchArgs, BenchConfig};

/// What the probe of the peak finds beside a loop in assembly.
#[derive(Debug, Serialize)]
struct PeakResult {
    instructions: &'static str,
    /// The type of factors.
    factors: &'static str,
    probe_gflop_per_s: f64,
    assembly_gflop_per_s: f64,
    probe_over_assembly: f64,
}

/// The products of a linear layer on one thread, each `rows` by `inputs` by `outputs`. Shares are of
/// a core's multiply-adds.
#[derive(Debug, Serialize)]
struct GemmResult {
    config: &'static str,
    instructions: &'static str,
    name: &'static str,
    rows: usize,
    outputs: usize,
    inputs: usize,
    /// Our kernel, the matrix packed as it is once a step.
    ours_share: f64,
    /// The gradient of the input, as well.
    input_gradient_share: f64,
    /// The gradient of the weights, with both factors packed.
    weight_gradient_share: f64,
    /// The crate matrixmultiply, which packs both factors each time, with whatever instructions it
    /// chooses.
    library_share: f64,
}

/// Runs `bench gemm`.
pub fn run(args: &BenchArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    for set in measured_sets() {
        let cpu = CpuBackend::with_instructions(1, set).map_err(|error| out_of_resource(&error))?;
        if let Some(rates) = peak::measure(&cpu) {
            write_peak((set, "f32"), rates, args.json, out)?;
        }
        let cpu = cpu.with_precision(Precision::Bf16);
        if let Some(rates) = cpu.multiplies_pairs().then(|| peak::measure(&cpu)).flatten() {
            write_peak((set, "bf16"), rates, args.json, out)?;
        }
        for config in args.configs() {
            for product in measure(*config, set, args.quick)? {
                write_product(&product, args.json, out)?;
            }
            out.flush()?;
        }
    }
    Ok(())
}

fn write_peak(
    (set, factors): (InstructionSet, &'static str),
    CorePeakRates { probe, assembly }: CorePeakRates,
    is_json: bool,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    let result = PeakResult {
        instructions: set.name(),
        factors,
        probe_gflop_per_s: probe / 1e9,
        assembly_gflop_per_s: assembly / 1e9,
        probe_over_assembly: probe / assembly,
    };
    if is_json {
        return writeln!(out, "{}", serde_json::to_string(&result).expect("numbers are JSON"));
    }
    let PeakResult { instructions, probe_gflop_per_s, assembly_gflop_per_s, .. } = result;
    let ratio = result.probe_over_assembly;
    writeln!(
        out,
        "peak of a core, {instructions}, {factors}: probe {probe_gflop_per_s:.1} GFLOP/s, \
         loop in assembly {assembly_gflop_per_s:.1} GFLOP/s, {ratio:.3}"
    )
}

fn write_product(product: &GemmResult, is_json: bool, out: &mut dyn Write) -> std::io::Result<()> {
    if is_json {
        return writeln!(out, "{}", serde_json::to_string(product).expect("numbers are JSON"));
    }
    let GemmResult { config, instructions, name, rows, outputs, inputs, .. } = product;
    let shape = format!("{rows} × {inputs} × {outputs}");
    let ours = 100.0 * product.ours_share;
    let input = 100.0 * product.input_gradient_share;
    let weight = 100.0 * product.weight_gradient_share;
    let library = 100.0 * product.library_share;
    writeln!(
        out,
        "{config} {instructions:<8} {name:<5} {shape:>20}  y {ours:5.1} %  dx {input:5.1} %  \
         dw {weight:5.1} %  library {library:5.1} % of peak"
    )
}

/// The instruction sets to measure: the one that the environment names, or all with vectors of
/// their own. Portable code calls a function for each multiply-add where the compiler may use no
/// instruction for it: hours for the products of C.
pub fn measured_sets() -> Vec<InstructionSet> {
    if std::env::var_os(CPU_VARIABLE).is_some_and(|name| !name.is_empty()) {
        return InstructionSet::of_environment().into_iter().collect();
    }
    let sets = InstructionSet::available();
    let fast: Vec<_> =
        sets.iter().copied().filter(|set| *set != InstructionSet::Portable).collect();
    if fast.is_empty() { sets } else { fast }
}

fn measure(
    config: BenchConfig,
    set: InstructionSet,
    is_quick: bool,
) -> Result<Vec<GemmResult>, CommandFailure> {
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
    let time = Duration::from_millis(if is_quick { 100 } else { 1000 });
    let result = |(name, shape): (&'static str, MatrixShape)| {
        let mut bench =
            GemmBench::new(rows, shape, set).map_err(|error| out_of_resource(&error))?;
        let shares = bench.shares(time);
        let MatrixShape { outputs, inputs } = shape;
        Ok(GemmResult {
            config: config.name(),
            instructions: set.name(),
            name,
            rows,
            outputs,
            inputs,
            ours_share: shares[0],
            input_gradient_share: shares[1],
            weight_gradient_share: shares[2],
            library_share: shares[3],
        })
    };
    shapes.into_iter().map(result).collect()
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
    input_gradient: <CpuBackend as DeviceMemory>::Buffer,
    weight_gradient: <CpuBackend as DeviceMemory>::Buffer,
    matrix: <CpuBackend as DeviceMemory>::Matrix,
}

impl GemmBench {
    fn new(rows: usize, shape: MatrixShape, set: InstructionSet) -> Result<Self, AllocateError> {
        let cpu = CpuBackend::with_instructions(1, set)?;
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
        cpu.load_matrix(BufferView::new(&weight_buffer, range), &mut matrix);
        let y = vec![0.0; rows * outputs];
        let y_buffer = cpu.allocate(rows * outputs)?;
        Ok(Self {
            rows,
            shape,
            x,
            weights,
            y,
            x_buffer,
            y_buffer,
            input_gradient: cpu.allocate(rows * inputs)?,
            weight_gradient: weight_buffer,
            matrix,
            cpu,
        })
    }

    /// The shares of the peak that y, dx, dw and the library's y reach in the best of their rounds,
    /// measured in turns with the peak.
    fn shares(&mut self, time: Duration) -> [f64; 4] {
        let products = [Self::ours, Self::input_gradient, Self::weight_gradient, Self::library];
        let mut best = products.map(|product| product(self));
        let mut peak = 0.0;
        let began = Instant::now();
        while began.elapsed() < time || peak == 0.0 {
            peak = f64::max(peak, peak_flop_per_s(&self.cpu, best[0].min(PEAK_RUN_MAX)));
            for (best, product) in best.iter_mut().zip(products) {
                for _ in 0..3 {
                    *best = (*best).min(product(self));
                }
            }
        }
        let flop = 2.0 * (self.rows * self.shape.outputs * self.shape.inputs) as f64;
        best.map(|best| flop / best.as_secs_f64() / peak)
    }

    fn ours(&mut self) -> Duration {
        let began = Instant::now();
        let plain = ForwardEpilogue::Plain;
        let x = &self.x_buffer;
        let y = &mut self.y_buffer;
        self.cpu.linear_forward(self.rows, x, &self.matrix, None, plain, y);
        began.elapsed()
    }

    fn input_gradient(&mut self) -> Duration {
        let began = Instant::now();
        let epilogue = BackwardEpilogue::Plain { gradient: &mut self.input_gradient };
        self.cpu.linear_backward_input(self.rows, &self.y_buffer, &self.matrix, epilogue);
        began.elapsed()
    }

    fn weight_gradient(&mut self) -> Duration {
        let Self { rows, shape, x_buffer, y_buffer, .. } = self;
        let began = Instant::now();
        let weight = 0..shape.outputs * shape.inputs;
        let to = LinearGradient { buffer: &mut self.weight_gradient, weight, bias: None };
        let start = Accumulate::Start;
        self.cpu.linear_backward_weights(*rows, *shape, x_buffer, y_buffer, to, start);
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

    #[test]
    fn both_compute_the_same_product() {
        let shape = MatrixShape { outputs: 7, inputs: 11 };
        let mut bench = GemmBench::new(5, shape, InstructionSet::Portable).expect("memory");
        bench.ours();
        bench.library();
        let ours = bench.cpu.download(BufferView::new(&bench.y_buffer, 0..35));
        for (a, b) in ours.iter().zip(&bench.y) {
            assert!((a - b).abs() < 1e-5, "{a} {b}");
        }
        assert!(ours.iter().any(|y| y.abs() > 0.1));
    }
}
