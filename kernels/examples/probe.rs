use std::time::Instant;
use zbelastic_kernels::*;
fn fill(cpu: &CpuBackend, n: usize) -> CpuBuffer {
    let mut b = cpu.allocate(n).unwrap();
    for (i, x) in b.as_mut_slice().iter_mut().enumerate() {
        *x = ((i * 7919) % 1000) as f32 / 1000.0 - 0.5;
    }
    b
}
fn main() {
    let t: usize = std::env::args().nth(1).map_or(1, |x| x.parse().unwrap());
    let cpu = CpuBackend::new(t).unwrap();
    let peak = || {
        let m = (0..20)
            .map(|_| {
                let s = Instant::now();
                let f = measure_peak();
                f / s.elapsed().as_secs_f64() / 1e9
            })
            .fold(0.0, f64::max);
        m
    };
    let mut best = std::collections::BTreeMap::<String, f64>::new();
    let mut pk = 0.0f64;
    let shapes = [
        ("A qkv", 1024, 768, 256),
        ("A up", 1024, 1024, 256),
        ("A down", 1024, 256, 1024),
        ("B qkv", 2048, 1152, 384),
        ("B up", 2048, 1536, 384),
        ("B down", 2048, 384, 1536),
        ("B head", 2048, 4096, 384),
        ("C up", 512, 3072, 768),
        ("Bm4 up", 512, 1536, 384),
    ];
    for _ in 0..8 {
        pk = pk.max(peak());
        for (name, rows, o, i) in shapes {
            let x = fill(&cpu, rows * i);
            let w = fill(&cpu, o * i);
            let mut m = cpu.allocate_matrix(MatrixShape { outputs: o, inputs: i }).unwrap();
            let s = Instant::now();
            cpu.load_matrix(View::new(&w, 0..o * i), &mut m);
            let pack = s.elapsed().as_secs_f64();
            let e = best.entry(format!("{name} pack ns/elt")).or_insert(1e9);
            *e = e.min(pack / (o * i) as f64 * 1e9);
            let mut y = cpu.allocate(rows * o).unwrap();
            let mut dx = cpu.allocate(rows * i).unwrap();
            let mut g = cpu.allocate(o * i + o).unwrap();
            let fl = 2.0 * (rows * o * i) as f64 / 1e9;
            for _ in 0..3 {
                let s = Instant::now();
                cpu.linear_forward(rows, &x, &m, None, ForwardEpilogue::Plain, &mut y);
                let e = best.entry(format!("{name} F")).or_insert(0.0);
                *e = e.max(fl / s.elapsed().as_secs_f64());
                let s = Instant::now();
                cpu.linear_backward_input(
                    rows,
                    &y,
                    &m,
                    BackwardEpilogue::Plain { gradient: &mut dx },
                );
                let e = best.entry(format!("{name} B")).or_insert(0.0);
                *e = e.max(fl / s.elapsed().as_secs_f64());
                let s = Instant::now();
                cpu.linear_backward_weights(
                    rows,
                    MatrixShape { outputs: o, inputs: i },
                    &x,
                    &y,
                    LinearGradient {
                        buffer: &mut g,
                        weight: 0..o * i,
                        bias: Some(o * i..o * i + o),
                    },
                    Accumulate::Start,
                );
                let e = best.entry(format!("{name} W")).or_insert(0.0);
                *e = e.max(fl / s.elapsed().as_secs_f64());
            }
        }
        for (name, b, s, h, dh) in
            [("A attn", 8, 128, 4, 64), ("B attn", 8, 256, 6, 64), ("C attn", 2, 256, 12, 64)]
        {
            let sh = AttentionShape {
                sequences: b,
                sequence_len: s,
                heads: h,
                kv_heads: h,
                head_width: dh,
            };
            let mut qkv = fill(&cpu, sh.rows() * sh.qkv_width());
            let mut o = cpu.allocate(sh.rows() * sh.query_width()).unwrap();
            let mut l = cpu.allocate(sh.rows() * h).unwrap();
            let d = fill(&cpu, sh.rows() * sh.query_width());
            let fl = 2.0 * (b * s * s * h * dh) as f64 / 1e9;
            for _ in 0..3 {
                let st = Instant::now();
                cpu.attention_forward(sh, &qkv, &mut o, &mut l);
                let e = best.entry(format!("{name} F")).or_insert(0.0);
                *e = e.max(fl / st.elapsed().as_secs_f64());
                let st = Instant::now();
                cpu.attention_backward(sh, &o, &l, &d, &mut qkv);
                let e = best.entry(format!("{name} B(2.0x+0.5)")).or_insert(0.0);
                *e = e.max(2.0 * fl / st.elapsed().as_secs_f64());
                qkv = fill(&cpu, sh.rows() * sh.qkv_width());
            }
        }
    }
    println!("peak {pk:.1} x{t}");
    for (k, v) in best {
        println!("{k:24} {v:8.2} {:.3}", v / pk / t as f64);
    }
}
#[cfg(target_arch = "x86_64")]
fn measure_peak() -> f64 {
    use std::arch::x86_64::*;
    #[target_feature(enable = "avx512f,fma")]
    fn go(n: usize) -> f32 {
        let mut acc = [_mm512_setzero_ps(); 24];
        let a = _mm512_set1_ps(1.0000001);
        let b = _mm512_set1_ps(1e-9);
        for _ in 0..n {
            for i in 0..24 {
                acc[i] = _mm512_fmadd_ps(acc[i], a, b);
            }
        }
        let mut s = _mm512_setzero_ps();
        for i in 0..24 {
            s = _mm512_add_ps(s, acc[i]);
        }
        _mm512_reduce_add_ps(s)
    }
    let n = 100_000;
    let r = unsafe { go(n) };
    assert!(r > 0.0);
    n as f64 * 24.0 * 32.0
}
