//! The fastest that the library can do for a product, whatever bits it gives: what the algorithm
//! that a product really gets is measured against. Nothing is kept of it.

use cudarc::cublaslt::sys;

use super::{AlgorithmKey, CublasProducts, MatmulPlan, WORKSPACE_BYTES, preference};
use crate::cuda::device::{Device, MatrixProduct};
use crate::cuda::driver::CudaDevice;
use crate::cuda::error::DeviceFault;

/// Calls of a run: what the host takes for one is hidden behind the one before.
const CALLS: u32 = 10;
/// Algorithms that are tried for a product. The library gives the likeliest first.
const TRIED_MAX: usize = 32;

impl CublasProducts {
    /// The seconds that the fastest of the library's algorithms takes, split sums among them, of
    /// `runs` runs each.
    pub(in crate::cuda) fn fastest_s(
        &self,
        device: &CudaDevice,
        product: &MatrixProduct,
        runs: u32,
    ) -> Result<f64, DeviceFault> {
        let key = AlgorithmKey::of(device.precision(), product);
        let mut plan = self.plan(&key, None)?;
        let mut best = f64::INFINITY;
        for algorithm in self.all(&key, &plan)? {
            plan.algorithm = algorithm;
            let call = || {
                let _guard = device.enter()?;
                self.call(&plan, product)
            };
            // An algorithm that the library proposes and then refuses is skipped.
            if call().is_err() {
                continue;
            }
            for _ in 0..runs {
                let before = device.record_event()?;
                (0..CALLS).try_for_each(|_| call())?;
                let seconds = before.seconds_until(&device.record_event()?)?;
                best = best.min(seconds / f64::from(CALLS));
            }
        }
        Ok(best)
    }

    /// The algorithms that fit into the workspace.
    fn all(
        &self,
        key: &AlgorithmKey,
        plan: &MatmulPlan,
    ) -> Result<Vec<sys::cublasLtMatmulAlgo_t>, DeviceFault> {
        let any = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_MASK;
        let found = self.proposals::<TRIED_MAX>(plan, &preference(key, any)?)?.into_iter();
        let works = found.filter(|result| {
            result.state == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS
                && result.workspaceSize <= WORKSPACE_BYTES as usize
        });
        Ok(works.map(|result| result.algo).collect())
    }
}
