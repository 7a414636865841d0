//! How fast the operations are on a device: bytes a second beside a plain copy's, and operations a
//! second of products and attention. `cargo run --release -p zbelastic-kernels --example cuda_times`.
//!
//! Shapes are those of GPT-2 with 124 million parameters, 16 sequences of 1,024 tokens.

#[cfg(not(feature = "cuda"))]
fn main() {
    println!("the feature `cuda` is off");
}

#[cfg(feature = "cuda")]
fn main() {
    use zbelastic_kernels::cuda::source::Precision;
    for precision in Precision::ALL {
        if let Err(error) = times::run(precision) {
            println!("{precision:?}: {error}");
            return;
        }
    }
}

#[cfg(feature = "cuda")]
mod times {
    use std::sync::Arc;

    use zbelastic_kernels::cuda::cache::Cache;
    use zbelastic_kernels::cuda::source::Precision;
    use zbelastic_kernels::cuda::{
        CudaBackend, CudaBuffer, CudaDevice, CudaMatrix, DeviceFault, OpenError,
    };
    use zbelastic_kernels::{
        Accumulate, AdamWNumbers, AttentionShape, Backend, BackwardEpilogue, ForwardEpilogue,
        LinearGradient, MatrixShape, Norm, Rows, View, ViewMut,
    };

    type Buffer = CudaBuffer<CudaDevice>;

    const ROWS: usize = 16 * 1024;
    const WIDTH: usize = 768;
    const VOCABULARY: usize = 50_304;
    const PARAMETERS: usize = 124 << 20;
    /// Runs of which the fastest counts.
    const RUNS: usize = 10;

    struct Bench {
        device: Arc<CudaDevice>,
        backend: CudaBackend,
        /// Of a plain copy.
        copy_bytes_per_s: f64,
    }

    pub fn run(precision: Precision) -> Result<(), OpenError> {
        let opened = CudaDevice::open(0, precision, &Cache::of_environment())?;
        opened.warnings.iter().for_each(|warning| println!("{warning}"));
        let device = opened.device;
        let info = device.info();
        println!("{precision:?} on {}, {}", info.name, info.architecture);
        let backend = CudaBackend::new(device.clone());
        let mut bench = Bench { device, backend, copy_bytes_per_s: 0.0 };
        bench.copy()?;
        bench.norm()?;
        bench.activations()?;
        bench.optimizer()?;
        bench.linear()?;
        bench.head()?;
        for head_width in [64, 128] {
            bench.attention(head_width)?;
        }
        match bench.backend.fault() {
            Some(fault) => Err(fault.into()),
            None => Ok(()),
        }
    }

    impl Bench {
        fn rows(&self, width: usize) -> Buffer {
            self.backend.allocate_rows(ROWS * width).expect("memory")
        }

        fn floats(&self, len: usize) -> Buffer {
            self.backend.allocate(len).expect("memory")
        }

        fn matrix(&self, outputs: usize, inputs: usize) -> CudaMatrix<CudaDevice> {
            self.backend.allocate_matrix(MatrixShape { outputs, inputs }).expect("memory")
        }

        /// The fastest of some runs, after one that does not count.
        fn seconds(&self, mut operation: impl FnMut(&CudaBackend)) -> Result<f64, DeviceFault> {
            operation(&self.backend);
            let mut best = f64::INFINITY;
            for _ in 0..RUNS {
                let before = self.device.mark()?;
                operation(&self.backend);
                best = best.min(before.seconds_until(&self.device.mark()?)?);
            }
            Ok(best)
        }

        fn print_bytes(&self, what: &str, bytes: usize, seconds: f64) {
            let rate = bytes as f64 / seconds;
            let share = 100.0 * rate / self.copy_bytes_per_s;
            println!("{what:24} {:9.1} us {:8.0} GB/s {share:5.0} %", seconds * 1e6, rate / 1e9);
        }

        fn print_operations(&self, what: &str, operations: f64, seconds: f64) {
            let rate = operations / seconds / 1e12;
            println!("{what:24} {:9.1} us {rate:8.1} TFLOP/s", seconds * 1e6);
        }

        fn row_bytes(&self, width: usize) -> usize {
            ROWS * width * self.backend.precision().bytes()
        }

        fn copy(&mut self) -> Result<(), DeviceFault> {
            let len = 256 << 20;
            let (from, mut to) = (self.floats(len), self.floats(len));
            let seconds = self.seconds(|device| {
                device.copy(View::new(&from, 0..len), ViewMut::new(&mut to, 0..len));
            })?;
            self.copy_bytes_per_s = 8.0 * len as f64 / seconds;
            self.print_bytes("copy", 8 * len, seconds);
            Ok(())
        }

        fn norm(&self) -> Result<(), DeviceFault> {
            let rows = Rows { count: ROWS, width: WIDTH };
            let norm = Norm::Layer { epsilon: 1e-5 };
            let (x, mut y, mut dx) = (self.rows(WIDTH), self.rows(WIDTH), self.rows(WIDTH));
            let (weight, bias) = (self.floats(WIDTH), self.floats(WIDTH));
            let (mut statistics, mut partials) = (self.floats(2 * ROWS), self.floats(2 * WIDTH));
            let view = |buffer| View::new(buffer, 0..WIDTH);
            let seconds = self.seconds(|device| {
                let bias = Some(view(&bias));
                device.norm_forward(norm, rows, &x, view(&weight), bias, &mut y, &mut statistics);
            })?;
            self.print_bytes("norm forward", 2 * self.row_bytes(WIDTH), seconds);
            let seconds = self.seconds(|device| {
                let (skip, weight, partials) = (Some(&y), view(&weight), &mut partials);
                let (x, dx) = (&x, &mut dx);
                device.norm_backward_input(norm, rows, x, skip, weight, &statistics, dx, partials);
            })?;
            self.print_bytes("norm backward", 4 * self.row_bytes(WIDTH), seconds);
            Ok(())
        }

        fn activations(&self) -> Result<(), DeviceFault> {
            let rows = Rows { count: ROWS, width: 4 * WIDTH };
            let bytes = self.row_bytes(WIDTH);
            let (before, mut h) = (self.rows(4 * WIDTH), self.rows(4 * WIDTH));
            let seconds = self.seconds(|device| device.gelu_forward(rows, &before, &mut h))?;
            self.print_bytes("gelu", 8 * bytes, seconds);
            let mut gate_up = self.rows(8 * WIDTH);
            let seconds = self.seconds(|device| device.swiglu_forward(rows, &gate_up, &mut h))?;
            self.print_bytes("swiglu forward", 12 * bytes, seconds);
            let seconds = self.seconds(|device| device.swiglu_backward(rows, &h, &mut gate_up))?;
            self.print_bytes("swiglu backward", 20 * bytes, seconds);
            Ok(())
        }

        fn optimizer(&self) -> Result<(), DeviceFault> {
            let all = 0..PARAMETERS;
            let [w, mut m, mut v, g, mut to] = [(); 5].map(|()| self.floats(PARAMETERS));
            let numbers = AdamWNumbers {
                decay: 0.9999,
                beta1: 0.9,
                beta1_rest: 0.1,
                beta2: 0.95,
                beta2_rest: 0.05,
                correction2: 1.0,
                epsilon: 1e-8,
                step: -1e-3,
                clip: 1.0,
            };
            let seconds = self.seconds(|device| {
                device.adamw_candidate(all.clone(), &w, &m, &v, &g, numbers, &mut to, &mut []);
            })?;
            self.print_bytes("adamw candidate", 20 * PARAMETERS, seconds);
            let seconds = self.seconds(|device| {
                device.adamw_commit(all.clone(), &g, numbers, &mut m, &mut v);
            })?;
            self.print_bytes("adamw commit", 20 * PARAMETERS, seconds);
            let seconds = self.seconds(|device| {
                let _sum = device.sum_squares(View::new(&g, all.clone()));
            })?;
            self.print_bytes("sum of squares", 4 * PARAMETERS, seconds);
            let seconds = self.seconds(|device| {
                let _fingerprint = device.fingerprint(View::new(&g, all.clone()));
            })?;
            self.print_bytes("fingerprint", 4 * PARAMETERS, seconds);
            Ok(())
        }

        fn linear(&self) -> Result<(), DeviceFault> {
            let shapes = [("qkv", 3, 1), ("proj", 1, 1), ("fc", 4, 1), ("down", 1, 4)];
            for (name, outputs, inputs) in shapes {
                let shape = MatrixShape { outputs: outputs * WIDTH, inputs: inputs * WIDTH };
                let MatrixShape { outputs, inputs } = shape;
                let operations = 2.0 * (ROWS * outputs * inputs) as f64;
                let (mut x, mut y) = (self.rows(inputs), self.rows(outputs));
                let matrix = self.matrix(outputs, inputs);
                let seconds = self.seconds(|device| {
                    let plain = ForwardEpilogue::Plain;
                    device.linear_forward(ROWS, &x, &matrix, None, plain, &mut y);
                })?;
                self.print_operations(&format!("{name} F"), operations, seconds);
                let seconds = self.seconds(|device| {
                    let to = BackwardEpilogue::Plain { gradient: &mut x };
                    device.linear_backward_input(ROWS, &y, &matrix, to);
                })?;
                self.print_operations(&format!("{name} B"), operations, seconds);
                let len = outputs * inputs;
                let mut gradient = self.floats(len + outputs);
                let seconds = self.seconds(|device| {
                    let bias = Some(len..len + outputs);
                    let to = LinearGradient { buffer: &mut gradient, weight: 0..len, bias };
                    device.linear_backward_weights(ROWS, shape, &x, &y, to, Accumulate::Add);
                })?;
                self.print_operations(&format!("{name} W and bias"), operations, seconds);
            }
            Ok(())
        }

        fn head(&self) -> Result<(), DeviceFault> {
            let targets: Vec<u32> = (0..ROWS as u32).map(|row| row * 3).collect();
            let matrix = self.matrix(VOCABULARY, WIDTH);
            let (x, mut dx) = (self.rows(WIDTH), self.rows(WIDTH));
            let (mut logits, mut log_sums) = (self.rows(VOCABULARY), self.floats(ROWS));
            let operations = 2.0 * (ROWS * VOCABULARY * WIDTH) as f64;
            let seconds = self.seconds(|device| {
                let _loss = device.head_forward(&x, &matrix, &targets, &mut logits, &mut log_sums);
            })?;
            self.print_operations("head F", operations, seconds);
            let seconds = self.seconds(|device| {
                let logits = &mut logits;
                device.head_backward_input(&targets, 1.0, &log_sums, &matrix, logits, &mut dx);
            })?;
            self.print_operations("head B", operations, seconds);
            Ok(())
        }

        fn attention(&self, head_width: usize) -> Result<(), DeviceFault> {
            let (sequence_len, heads) = (1024, WIDTH / head_width);
            let sequences = ROWS / sequence_len;
            let shape =
                AttentionShape { sequences, sequence_len, heads, kv_heads: heads, head_width };
            let (mut qkv, mut out) = (self.rows(3 * WIDTH), self.rows(WIDTH));
            let (dout, mut log_sums) = (self.rows(WIDTH), self.floats(ROWS * heads));
            // One product over half of the square, two operations a term.
            let product = (ROWS * sequence_len * WIDTH) as f64;
            let seconds = self.seconds(|device| {
                device.attention_forward(shape, &qkv, &mut out, &mut log_sums);
            })?;
            self.print_operations(&format!("attention {head_width} F"), 2.0 * product, seconds);
            let seconds = self.seconds(|device| {
                device.attention_backward(shape, &out, &log_sums, &dout, &mut qkv);
            })?;
            self.print_operations(&format!("attention {head_width} B"), 5.0 * product, seconds);
            Ok(())
        }
    }
}
