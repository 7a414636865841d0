//! The times of operations, and the floors that they are compared with.

use std::sync::Arc;
use std::time::Instant;

use zbelastic_kernels::cuda::DeviceFault;
use zbelastic_kernels::cuda::device::{Device, MatrixProduct};
use zbelastic_kernels::cuda::source::Precision;
use zbelastic_kernels::cuda::timing::{
    RooflineBound, TimedDevice, TimedSizes, TimingError, TimingHarness, measure, optimism,
};

use crate::device::{EmulatedDevice, LaneOrder};

impl TimedDevice for EmulatedDevice {
    fn seconds(&self, work: &mut dyn FnMut()) -> Result<f64, DeviceFault> {
        let began = Instant::now();
        work();
        Ok(began.elapsed().as_secs_f64())
    }

    /// Half the time of the fastest run, as if there were an algorithm twice as fast.
    fn fastest_product_s(
        &self,
        product: &MatrixProduct,
        runs: u32,
    ) -> Result<Option<f64>, DeviceFault> {
        let mut best = f64::INFINITY;
        for _ in 0..runs {
            let mut done = Ok(());
            best = best.min(self.seconds(&mut || done = self.multiply(product))?);
            done?;
        }
        Ok(Some(best / 2.0))
    }
}

const SIZES: TimedSizes = TimedSizes {
    sequences: 1,
    sequence_len: 64,
    width: 128,
    vocabulary: 96,
    parameters: 1000,
    copied: 1 << 20,
    square: 32,
};

fn emulated(precision: Precision, memory_bytes: u64) -> Option<Arc<EmulatedDevice>> {
    EmulatedDevice::new(precision, LaneOrder::Forwards, memory_bytes)
}

#[test]
fn every_operation_is_timed_beside_a_floor() {
    for precision in Precision::ALL {
        let Some(device) = emulated(precision, 1 << 30) else { return };
        let (rates, rows) =
            measure(&TimingHarness::new(device, 2), SIZES).expect("enough memory, and no fault");
        assert!(rates.bytes_per_s > 0.0 && rates.flop_per_s > 0.0, "{rates:?}");
        let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
        let of_blocks =
            ["qkv", "out", "up", "down"].map(|name| ["F", "B", "W"].map(|pass| (name, pass)));
        for (name, pass) in of_blocks.into_iter().flatten() {
            assert!(names.contains(&format!("{name} {pass}").as_str()), "{names:?}");
        }
        let others = [
            "embed F",
            "embed W",
            "norm F",
            "rotate",
            "swiglu B",
            "adamw commit",
            "head B",
            "attention 64 F",
            "attention 128 B",
        ];
        for name in others {
            assert!(names.contains(&name), "{names:?}");
        }
        let moved = rows.iter().find(|row| row.name == "rotate").expect("it is there");
        assert_eq!(moved.bound, RooflineBound::Memory, "nothing is multiplied with a matrix");
        assert!(rows.iter().all(|row| row.us > 0.0 && row.floor_us > 0.0), "{rows:?}");
        // Four numbers of four bytes are read of each weight, and three are written; the width does
        // not divide the parameters.
        let commit = rows.iter().find(|row| row.name == "adamw commit").expect("it is there");
        let expected = 1e6 * 28.0 * 896.0 / rates.bytes_per_s;
        assert!((commit.floor_us - expected).abs() <= 1e-9 * expected, "{commit:?} {expected}");
        let compared = rows.iter().filter(|row| row.fastest_us.is_some_and(|us| us > 0.0));
        let compared: Vec<&str> = compared.map(|row| row.name.as_str()).collect();
        let products = ["qkv", "out", "up", "down"];
        let passes = products.into_iter().flat_map(|name| ["F", "B", "W"].map(|pass| (name, pass)));
        let expected: Vec<String> = passes.map(|(name, pass)| format!("{name} {pass}")).collect();
        assert_eq!(compared, expected, "products, and nothing else");
        let us = |name| rows.iter().find(|row| row.name == name).expect("it is there").us;
        let ratio = (us("adamw candidate") + us("adamw commit")) / us("adamw in place");
        assert_eq!(optimism(&rows), Some(ratio));
        assert_eq!(optimism(&rows[..1]), None);
        // A product is as long as its arithmetic or as its bytes, whichever is more.
        let down = rows.iter().find(|row| row.name == "down F").expect("it is there");
        let arithmetic = 1e6 * 2.0 * (64 * 128 * 512) as f64 / rates.flop_per_s;
        assert!(down.floor_us >= arithmetic * (1.0 - 1e-9), "{down:?} {arithmetic}");
    }
}

#[test]
fn timing_reports_what_does_not_fit_or_fails() {
    let Some(device) = emulated(Precision::F32, 4 << 20) else { return };
    let found = measure(&TimingHarness::new(device, 1), TimedSizes { copied: 1 << 22, ..SIZES });
    assert!(matches!(found, Err(TimingError::Memory(_))), "{found:?}");
    let device = emulated(Precision::F32, 1 << 30).expect("there was a compiler");
    device.fail();
    let found = measure(&TimingHarness::new(device, 1), SIZES);
    assert!(matches!(found, Err(TimingError::Device(_))), "{found:?}");
}
