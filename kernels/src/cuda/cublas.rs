//! Matrix products by cublasLt.
//!
//! For each shape the library is queried once for the best of its algorithms; the algorithm is
//! cached and may be kept with a run ([`AlgorithmPin`]), so that a shape has one algorithm for
//! ever. Gradients of weights, which are sums over all tokens and may have few tiles, and Muon's products
//! of the same kind may be split over blocks if the parts are added by a launch of their own; no other
//! sum is split. The workspace is ours. So the bits that a product gives depend on its operands, the
//! device and the version of the library alone.
//!
//! The library counts columns first. A row-major matrix is the transpose of a column-major one, so
//! each product here is requested as its transpose, `result^T = right^T * left^T`.

mod search;

use std::collections::HashMap;
use std::ffi::{CStr, c_void};
use std::mem::size_of;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use cudarc::cublaslt::sys;
use cudarc::cublaslt::sys::cublasLtReductionScheme_t as Scheme;

use super::device::{Device, DeviceAddress, MatrixProduct, ProductKind};
use super::devices::memory_here;
use super::driver::CudaDevice;
use super::error::DeviceFault;
use super::memory::ALIGNMENT;
use super::source::Precision;
use crate::fault::AllocationPurpose;
use crate::sizes::DeviceSizes;

/// Enough for the algorithms of Hopper and later, by the library's documentation.
const WORKSPACE_BYTES: u64 = DeviceSizes::WORKSPACE_BYTES;

/// cublasOperation_t, which belongs to a part of cudarc that is not needed otherwise.
const OPERATION_N: u32 = 0;
const OPERATION_T: u32 = 1;

/// The key that decides which algorithm a product gets. Lengths, types and alignments are all that
/// the library looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct AlgorithmKey {
    kind: ProductKind,
    precision: Precision,
    rows: usize,
    outputs: usize,
    inputs: usize,
    /// The largest powers of two up to [`ALIGNMENT`] that divide the addresses.
    alignments: [u64; 3],
    /// The same of the addend.
    addend: Option<u64>,
}

impl AlgorithmKey {
    fn of(precision: Precision, product: &MatrixProduct) -> Self {
        let MatrixProduct { kind, rows, outputs, inputs, left, right, result, addend } = *product;
        let alignments = [left, right, result].map(alignment);
        let addend = addend.map(alignment);
        assert!(addend.is_none() || kind == ProductKind::Forward, "nothing is added to others");
        Self { kind, precision, rows, outputs, inputs, alignments, addend }
    }

    fn text(&self) -> String {
        let Self { kind, precision, rows, outputs, inputs, alignments, addend } = self;
        let [left, right, result] = alignments;
        let added = addend.map_or_else(String::new, |addend| format!(" +@{addend}"));
        format!(
            "{kind:?} {precision:?} {rows} {outputs} {inputs} @{left} @{right} @{result}{added}"
        )
    }
}

fn alignment(address: DeviceAddress) -> u64 {
    let zeros = address.0.trailing_zeros().min(ALIGNMENT.trailing_zeros());
    1 << zeros
}

/// The algorithm that a product has for ever.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlgorithmPin {
    /// The product: its kind, lengths, types and alignments as text.
    pub product: String,
    /// The version of cublasLt that named the algorithm.
    pub library_version: u64,
    /// The algorithm as the library describes it, opaque.
    pub algorithm: [u64; 8],
}

/// A matrix as the library sees it: columns of a row-major matrix are its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FactorLayout {
    /// Floats a row in memory.
    width: usize,
    /// The number of rows in memory.
    count: usize,
    is_transposed: bool,
}

/// `result^T = first * second` with the factors' layouts in memory.
struct ProductLayout {
    first: FactorLayout,
    second: FactorLayout,
    result: FactorLayout,
}

impl ProductLayout {
    fn of(key: &AlgorithmKey) -> Self {
        let AlgorithmKey { kind, rows, outputs, inputs, .. } = *key;
        let plain = |count, width| FactorLayout { width, count, is_transposed: false };
        let transposed = |count, width| FactorLayout { width, count, is_transposed: true };
        match kind {
            ProductKind::Forward => Self {
                first: transposed(outputs, inputs),
                second: plain(rows, inputs),
                result: plain(rows, outputs),
            },
            ProductKind::Input => Self {
                first: plain(outputs, inputs),
                second: plain(rows, outputs),
                result: plain(rows, inputs),
            },
            ProductKind::Weights { .. } => Self {
                first: plain(rows, inputs),
                second: transposed(rows, outputs),
                result: plain(outputs, inputs),
            },
        }
    }
}

fn check(call: &'static str, status: sys::cublasStatus_t) -> Result<(), DeviceFault> {
    if status == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS {
        return Ok(());
    }
    // On a device that failed earlier the library fails, too, and only the driver reports why.
    memory_here()?;
    // SAFETY: the library returns a string of its own for every status.
    let name = unsafe { CStr::from_ptr(sys::cublasLtGetStatusName(status)) };
    let name = name.to_string_lossy().into_owned();
    Err(DeviceFault::Refused { call, code: status as u32, name })
}

/// A handle of the library's that is destroyed with its owner.
struct CublasHandle<T: Copy> {
    raw: T,
    destroy: unsafe fn(T) -> sys::cublasStatus_t,
}

impl<T: Copy> Drop for CublasHandle<T> {
    fn drop(&mut self) {
        // SAFETY: made by the library, destroyed once.
        let _destroyed = unsafe { (self.destroy)(self.raw) };
    }
}

/// Everything a call needs beside addresses.
struct MatmulPlan {
    description: CublasHandle<sys::cublasLtMatmulDesc_t>,
    first: CublasHandle<sys::cublasLtMatrixLayout_t>,
    second: CublasHandle<sys::cublasLtMatrixLayout_t>,
    result: CublasHandle<sys::cublasLtMatrixLayout_t>,
    algorithm: sys::cublasLtMatmulAlgo_t,
}

/// The library with its plans.
pub(super) struct CublasProducts {
    library: CublasHandle<sys::cublasLtHandle_t>,
    version: u64,
    workspace: DeviceAddress,
    stream: sys::cudaStream_t,
    /// Plans, and algorithms that were pinned before the first call of their product.
    state: Mutex<PlanCache>,
}

#[derive(Default)]
struct PlanCache {
    plans: HashMap<AlgorithmKey, MatmulPlan>,
    pins: HashMap<String, [u64; 8]>,
}

const fn data_type(precision: Precision) -> sys::cudaDataType {
    match precision {
        Precision::F32 => sys::cudaDataType_t::CUDA_R_32F,
        Precision::Bf16 => sys::cudaDataType_t::CUDA_R_16BF,
    }
}

fn layout(
    factor: FactorLayout,
    of: sys::cudaDataType,
) -> Result<CublasHandle<sys::cublasLtMatrixLayout_t>, DeviceFault> {
    let FactorLayout { width, count, .. } = factor;
    let mut raw = ptr::null_mut();
    // SAFETY: the library writes a handle, which its owner destroys.
    let status = unsafe {
        let width_ = width as u64;
        let count = count as u64;
        sys::cublasLtMatrixLayoutCreate(&mut raw, of, width_, count, width as i64)
    };
    check("cublasLtMatrixLayoutCreate", status)?;
    Ok(CublasHandle { raw, destroy: sys::cublasLtMatrixLayoutDestroy })
}

fn description(
    layout: &ProductLayout,
) -> Result<CublasHandle<sys::cublasLtMatmulDesc_t>, DeviceFault> {
    let mut raw = ptr::null_mut();
    let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
    let scale = sys::cudaDataType_t::CUDA_R_32F;
    // SAFETY: the library writes a handle, which its owner destroys.
    let status = unsafe { sys::cublasLtMatmulDescCreate(&mut raw, compute, scale) };
    check("cublasLtMatmulDescCreate", status)?;
    let description = CublasHandle { raw, destroy: sys::cublasLtMatmulDescDestroy };
    use sys::cublasLtMatmulDescAttributes_t as Attribute;
    let operations = [
        (Attribute::CUBLASLT_MATMUL_DESC_TRANSA, layout.first),
        (Attribute::CUBLASLT_MATMUL_DESC_TRANSB, layout.second),
    ];
    for (attribute, factor) in operations {
        let operation = if factor.is_transposed { OPERATION_T } else { OPERATION_N };
        let value = (&raw const operation).cast::<c_void>();
        // SAFETY: the library reads four bytes.
        let status =
            unsafe { sys::cublasLtMatmulDescSetAttribute(description.raw, attribute, value, 4) };
        check("cublasLtMatmulDescSetAttribute", status)?;
    }
    Ok(description)
}

/// The ways in which an algorithm may add the parts of a sum that it splits over blocks. Products that make
/// activations have tiles enough, and how they are split would depend on the number of rows: they are
/// not. A gradient of weights may have parts in floats in the workspace, which a launch behind the product
/// adds (COMPUTE_TYPE). Added in place, they come in an order that is the library's affair; in the type of
/// the result, a bfloat16 would be rounded twice.
const fn splits(kind: ProductKind) -> Scheme {
    match kind {
        ProductKind::Forward | ProductKind::Input => Scheme::CUBLASLT_REDUCTION_SCHEME_NONE,
        ProductKind::Weights { .. } => Scheme::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE,
    }
}

/// The preference for an algorithm: our workspace, these alignments, and these ways to add split
/// sums.
fn preference(
    key: &AlgorithmKey,
    schemes: Scheme,
) -> Result<CublasHandle<sys::cublasLtMatmulPreference_t>, DeviceFault> {
    let mut raw = ptr::null_mut();
    // SAFETY: the library writes a handle, which its owner destroys.
    check("cublasLtMatmulPreferenceCreate", unsafe {
        sys::cublasLtMatmulPreferenceCreate(&mut raw)
    })?;
    let preference = CublasHandle { raw, destroy: sys::cublasLtMatmulPreferenceDestroy };
    use sys::cublasLtMatmulPreferenceAttributes_t as Attribute;
    let set = |attribute, value: *const c_void, bytes| {
        // SAFETY: the library reads as many bytes as `value` points to.
        let status = unsafe {
            sys::cublasLtMatmulPreferenceSetAttribute(preference.raw, attribute, value, bytes)
        };
        check("cublasLtMatmulPreferenceSetAttribute", status)
    };
    let schemes = schemes as u32;
    let scheme = Attribute::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK;
    set(scheme, (&raw const schemes).cast(), size_of::<u32>())?;
    let bytes = WORKSPACE_BYTES;
    let workspace = Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
    set(workspace, (&raw const bytes).cast(), size_of::<u64>())?;
    // The library's first factor is our right one.
    let [left, right, result] = key.alignments.map(|alignment| alignment as u32);
    let addend = key.addend.map_or(result, |alignment| alignment as u32);
    let alignments = [
        (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, right),
        (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, left),
        (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, addend),
        (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, result),
    ];
    for (attribute, alignment) in alignments {
        set(attribute, (&raw const alignment).cast(), size_of::<u32>())?;
    }
    Ok(preference)
}

/// cublasLt's version, once it is known to be there.
pub(super) fn library_version() -> u64 {
    // SAFETY: the library is there.
    unsafe { sys::cublasLtGetVersion() as u64 }
}

impl CublasProducts {
    pub(super) fn new(device: &CudaDevice) -> Result<Self, DeviceFault> {
        let mut raw = ptr::null_mut();
        // SAFETY: the library is there and the context current; it writes a handle.
        check("cublasLtCreate", unsafe { sys::cublasLtCreate(&mut raw) })?;
        let library = CublasHandle { raw, destroy: sys::cublasLtDestroy };
        let version = library_version();
        let workspace = device.allocate(WORKSPACE_BYTES);
        let workspace =
            workspace.map_err(|fault| fault.with_purpose(AllocationPurpose::Workspace))?;
        let stream = device.stream().cast();
        Ok(Self { library, version, workspace, stream, state: Mutex::default() })
    }

    /// The workspace, which the device frees when it closes.
    pub(super) fn workspace(&self) -> DeviceAddress {
        self.workspace
    }

    fn plan(
        &self,
        key: &AlgorithmKey,
        pinned: Option<[u64; 8]>,
    ) -> Result<MatmulPlan, DeviceFault> {
        let layouts = ProductLayout::of(key);
        let rows_type = data_type(key.precision);
        let result_type = match key.kind {
            ProductKind::Forward | ProductKind::Input => rows_type,
            ProductKind::Weights { .. } => sys::cudaDataType_t::CUDA_R_32F,
        };
        let description = description(&layouts)?;
        let first = layout(layouts.first, rows_type)?;
        let second = layout(layouts.second, rows_type)?;
        let result = layout(layouts.result, result_type)?;
        let algorithm = sys::cublasLtMatmulAlgo_t { data: pinned.unwrap_or_default() };
        let mut plan = MatmulPlan { description, first, second, result, algorithm };
        match pinned {
            Some(_) => self.check_algorithm(&plan)?,
            None => plan.algorithm = self.best(key, &plan)?,
        }
        Ok(plan)
    }

    /// Whether the library accepts a pinned algorithm for its product.
    fn check_algorithm(&self, plan: &MatmulPlan) -> Result<(), DeviceFault> {
        let mut found: sys::cublasLtMatmulHeuristicResult_t =
            // SAFETY: a structure of numbers, which the library fills in.
            unsafe { std::mem::zeroed() };
        // SAFETY: live handles, and memory for one result.
        let status = unsafe {
            sys::cublasLtMatmulAlgoCheck(
                self.library.raw,
                plan.description.raw,
                plan.first.raw,
                plan.second.raw,
                plan.result.raw,
                plan.result.raw,
                &plan.algorithm,
                &mut found,
            )
        };
        check("cublasLtMatmulAlgoCheck", status)
    }

    /// The first algorithm that the library proposes.
    fn best(
        &self,
        key: &AlgorithmKey,
        plan: &MatmulPlan,
    ) -> Result<sys::cublasLtMatmulAlgo_t, DeviceFault> {
        match self.proposals::<1>(plan, &preference(key, splits(key.kind))?)?.first() {
            Some(found) => Ok(found.algo),
            None => Err(DeviceFault::NoAlgorithm {
                product: key.text(),
                library_version: self.version,
                workspace_bytes: WORKSPACE_BYTES,
            }),
        }
    }

    /// The library's proposals for a plan, the likeliest first, `COUNT` at most.
    fn proposals<const COUNT: usize>(
        &self,
        plan: &MatmulPlan,
        preference: &CublasHandle<sys::cublasLtMatmulPreference_t>,
    ) -> Result<Vec<sys::cublasLtMatmulHeuristicResult_t>, DeviceFault> {
        let mut count = 0;
        // SAFETY: structures of numbers, which the library fills in.
        let mut found: [sys::cublasLtMatmulHeuristicResult_t; COUNT] =
            unsafe { std::mem::zeroed() };
        // SAFETY: live handles, and memory for as many results as are requested.
        let status = unsafe {
            sys::cublasLtMatmulAlgoGetHeuristic(
                self.library.raw,
                plan.description.raw,
                plan.first.raw,
                plan.second.raw,
                plan.result.raw,
                plan.result.raw,
                preference.raw,
                COUNT as i32,
                found.as_mut_ptr(),
                &mut count,
            )
        };
        if status == sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED {
            return Ok(Vec::new());
        }
        check("cublasLtMatmulAlgoGetHeuristic", status)?;
        Ok(found.into_iter().take(usize::try_from(count).unwrap_or(0)).collect())
    }

    pub(super) fn multiply(
        &self,
        precision: Precision,
        product: &MatrixProduct,
    ) -> Result<(), DeviceFault> {
        let key = AlgorithmKey::of(precision, product);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !state.plans.contains_key(&key) {
            let pinned = state.pins.get(&key.text()).copied();
            let plan = self.plan(&key, pinned)?;
            state.plans.insert(key, plan);
        }
        self.call(&state.plans[&key], product)
    }

    fn call(&self, plan: &MatmulPlan, product: &MatrixProduct) -> Result<(), DeviceFault> {
        let one = 1.0f32;
        let is_added = product.kind == ProductKind::Weights { is_added: true };
        let beta = f32::from(u8::from(is_added || product.addend.is_some()));
        let addend = product.addend.unwrap_or(product.result);
        let pointer = |address: DeviceAddress| address.0 as *mut c_void;
        // SAFETY: live handles; the addresses are the caller's, of the lengths of the layouts.
        let status = unsafe {
            sys::cublasLtMatmul(
                self.library.raw,
                plan.description.raw,
                (&raw const one).cast(),
                pointer(product.right),
                plan.first.raw,
                pointer(product.left),
                plan.second.raw,
                (&raw const beta).cast(),
                pointer(addend),
                plan.result.raw,
                pointer(product.result),
                plan.result.raw,
                &plan.algorithm,
                pointer(self.workspace),
                WORKSPACE_BYTES as usize,
                self.stream,
            )
        };
        check("cublasLtMatmul", status)
    }

    /// The algorithms in use, by product.
    pub(super) fn pins(&self) -> Vec<AlgorithmPin> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut pins: Vec<AlgorithmPin> = { state.plans.iter() }
            .map(|(key, plan)| AlgorithmPin {
                product: key.text(),
                library_version: self.version,
                algorithm: plan.algorithm.data,
            })
            .collect();
        pins.sort_by(|a, b| a.product.cmp(&b.product));
        pins
    }

    pub(super) fn pin(&self, pins: &[AlgorithmPin]) -> Result<(), DeviceFault> {
        check_versions(pins, self.version)?;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.plans.clear();
        state.pins.extend(pins.iter().map(|pin| (pin.product.clone(), pin.algorithm)));
        Ok(())
    }
}

/// An algorithm is a number that only the version which named it understands.
fn check_versions(pins: &[AlgorithmPin], library_version: u64) -> Result<(), DeviceFault> {
    match pins.iter().find(|pin| pin.library_version != library_version) {
        None => Ok(()),
        Some(pin) => Err(DeviceFault::OtherLibrary {
            product: pin.product.clone(),
            pinned_version: pin.library_version,
            library_version,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        AlgorithmKey, AlgorithmPin, DeviceAddress, MatrixProduct, Precision, ProductKind,
        ProductLayout, Scheme, check_versions, splits,
    };
    use crate::cuda::DeviceFault;

    const KINDS: [ProductKind; 3] =
        [ProductKind::Forward, ProductKind::Input, ProductKind::Weights { is_added: true }];

    fn key(kind: ProductKind) -> AlgorithmKey {
        let product = MatrixProduct {
            kind,
            rows: 5,
            outputs: 3,
            inputs: 2,
            left: DeviceAddress(1 << 20),
            right: DeviceAddress(3 << 7),
            result: DeviceAddress(68),
            addend: None,
        };
        AlgorithmKey::of(Precision::F32, &product)
    }

    /// The product as the library would form it: all matrices column by column.
    fn by_the_library(kind: ProductKind, left: &[f64], right: &[f64]) -> Vec<f64> {
        let ProductLayout { first, second, result } = ProductLayout::of(&key(kind));
        let element = |factor: super::FactorLayout, floats: &[f64], row: usize, column: usize| {
            let (row, column) = if factor.is_transposed { (column, row) } else { (row, column) };
            assert!(row < factor.width && column < factor.count);
            floats[column * factor.width + row]
        };
        let depth = if first.is_transposed { first.width } else { first.count };
        let other_depth = if second.is_transposed { second.count } else { second.width };
        assert_eq!(depth, other_depth);
        let mut product = vec![0.0; result.width * result.count];
        for (index, to) in product.iter_mut().enumerate() {
            let row = index % result.width;
            let column = index / result.width;
            let term = |k| element(first, right, row, k) * element(second, left, k, column);
            *to = (0..depth).map(term).sum();
        }
        product
    }

    #[test]
    fn layouts_name_the_three_products() {
        use crate::reference::{linear_backward_input, linear_backward_weights, linear_forward};
        let shape = crate::MatrixShape { outputs: 3, inputs: 2 };
        let floats = |len: usize| (0..len).map(|i| (i * i % 7) as f64 - 2.0).collect::<Vec<_>>();
        let x = floats(10);
        let dy = floats(15);
        let w = floats(6);
        let [forward, input, weights] = KINDS;
        assert_eq!(by_the_library(forward, &x, &w), linear_forward(shape, &x, &w, None));
        assert_eq!(by_the_library(input, &dy, &w), linear_backward_input(shape, &w, &dy));
        assert_eq!(by_the_library(weights, &dy, &x), linear_backward_weights(shape, &x, &dy).0);
    }

    #[test]
    fn gradients_of_weights_alone_are_split() {
        let [forward, input, weights] = KINDS.map(splits);
        assert_eq!(forward, Scheme::CUBLASLT_REDUCTION_SCHEME_NONE);
        assert_eq!(input, Scheme::CUBLASLT_REDUCTION_SCHEME_NONE);
        assert_eq!(weights, Scheme::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
    }

    #[test]
    fn alignments_are_part_of_the_key() {
        let key = key(ProductKind::Forward);
        assert_eq!(key.alignments, [256, 128, 4]);
        assert_eq!(key.text(), "Forward F32 5 3 2 @256 @128 @4");
        let with_addend = AlgorithmKey { addend: Some(16), ..key };
        assert_eq!(with_addend.text(), "Forward F32 5 3 2 @256 @128 @4 +@16");
    }

    #[test]
    fn pins_of_another_library_are_refused() {
        let pin = |version| AlgorithmPin {
            product: "p".to_owned(),
            library_version: version,
            algorithm: [0; 8],
        };
        assert_eq!(check_versions(&[pin(7), pin(7)], 7), Ok(()));
        let error = DeviceFault::OtherLibrary {
            product: "p".to_owned(),
            pinned_version: 6,
            library_version: 7,
        };
        assert_eq!(check_versions(&[pin(7), pin(6)], 7), Err(error));
    }
}
