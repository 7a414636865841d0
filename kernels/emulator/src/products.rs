//! The calls of cublasLt: products of matrices, as a stream's work.

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use cudarc::cublaslt::sys::cublasLtMatmulDescAttributes_t as Description;
use cudarc::cublaslt::sys::cublasLtMatmulPreferenceAttributes_t as Preference;
use cudarc::cublaslt::sys::cublasLtReductionScheme_t as Scheme;
use cudarc::cublaslt::sys::{
    self, cublasComputeType_t, cublasLtHandle_t, cublasLtMatmulAlgo_t, cublasLtMatmulDesc_t,
    cublasLtMatmulDescAttributes_t, cublasLtMatmulHeuristicResult_t, cublasLtMatmulPreference_t,
    cublasLtMatmulPreferenceAttributes_t, cublasLtMatrixLayout_t, cublasStatus_t, cudaDataType,
    cudaDataType_t, cudaStream_t,
};
use cudarc::driver::sys::CUresult;

use crate::driver::{calls, enqueue, has_context};
use crate::machine::product::{EmulatedProduct, MatrixElement, MatrixLayout, MatrixOperand};
use crate::machine::work::StreamWork;
use crate::names::name_of;

const VERSION: usize = 130_000;
const OPERATION_N: u32 = 0;
const OPERATION_T: u32 = 1;

/// The mark of an algorithm that is one of these.
const MARK: u64 = 0x7a62_656c_6173_7469;
/// Bytes of workspace that an algorithm needs that splits sums.
const SPLIT_BYTES: usize = 1 << 20;

/// Which factors of a product are transposed.
#[derive(Default)]
struct MatmulDescription {
    is_first_transposed: bool,
    is_second_transposed: bool,
}

/// The schemes, workspace and alignments that an algorithm may use.
struct MatmulPreference {
    schemes: u32,
    workspace_bytes: u64,
    /// The alignments of the addresses of a, b, c and d.
    alignments: [u32; 4],
}

/// The alignment of addresses if no preference is set.
const ALIGNMENT: u32 = 256;

/// Ways to form a product, the likeliest first. They give different bits, and one that adds parts in
/// place gives others each time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MatmulAlgorithm {
    Whole,
    /// Parts are added behind the product, in the type that it is computed in.
    Split,
    /// Parts are added to the result as they come, or in its type.
    SplitInPlace,
}

/// Products formed with parts in place.
static FORMED_IN_PLACE: AtomicUsize = AtomicUsize::new(0);

impl MatmulAlgorithm {
    const ALL: [Self; 3] = [Self::SplitInPlace, Self::Split, Self::Whole];

    const fn code(self) -> u64 {
        match self {
            Self::Whole => 1,
            Self::Split => 2,
            Self::SplitInPlace => 3,
        }
    }

    const fn workspace_bytes(self) -> usize {
        match self {
            Self::Whole => 0,
            Self::Split | Self::SplitInPlace => SPLIT_BYTES,
        }
    }

    /// The parts of a sum, each rounded.
    fn parts(self) -> usize {
        match self {
            Self::Whole => 1,
            Self::Split => 2,
            Self::SplitInPlace => 2 + FORMED_IN_PLACE.fetch_add(1, Ordering::Relaxed) % 5,
        }
    }

    /// The schemes of which one must be allowed.
    const fn schemes(self) -> u32 {
        match self {
            Self::Whole => 0,
            Self::Split => Scheme::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32,
            Self::SplitInPlace => {
                Scheme::CUBLASLT_REDUCTION_SCHEME_INPLACE as u32
                    | Scheme::CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE as u32
            }
        }
    }

    fn of(algorithm: &cublasLtMatmulAlgo_t) -> Option<Self> {
        let is_it = |known: &Self| algorithm.data[..2] == [MARK, known.code()];
        Self::ALL.into_iter().find(is_it)
    }

    fn is_allowed(self, preference: &MatmulPreference) -> bool {
        let is_allowed = self == Self::Whole || preference.schemes & self.schemes() != 0;
        is_allowed && self.workspace_bytes() as u64 <= preference.workspace_bytes
    }

    /// The algorithm as the library describes it.
    fn result(self, alignments: [u32; 4]) -> cublasLtMatmulHeuristicResult_t {
        let mut data = [0; 8];
        data[..2].copy_from_slice(&[MARK, self.code()]);
        data[2..6].copy_from_slice(&alignments.map(u64::from));
        cublasLtMatmulHeuristicResult_t {
            algo: cublasLtMatmulAlgo_t { data },
            workspaceSize: self.workspace_bytes(),
            state: cublasStatus_t::CUBLAS_STATUS_SUCCESS,
            wavesCount: 1.0,
            reserved: [0; 4],
        }
    }
}

type CublasResult<T> = Result<T, cublasStatus_t>;

const INVALID: cublasStatus_t = cublasStatus_t::CUBLAS_STATUS_INVALID_VALUE;
const SUCCESS: cublasStatus_t = cublasStatus_t::CUBLAS_STATUS_SUCCESS;

fn status(result: CublasResult<()>) -> cublasStatus_t {
    result.err().unwrap_or(SUCCESS)
}

/// # Safety
/// `handle` is null or one of this library's for a `T`.
unsafe fn get<'a, T, H>(handle: *mut H) -> CublasResult<&'a mut T> {
    // SAFETY: as the caller promises.
    unsafe { handle.cast::<T>().as_mut() }.ok_or(INVALID)
}

/// # Safety
/// `to` may be written.
unsafe fn make<T, H>(to: *mut *mut H, value: T) -> cublasStatus_t {
    // SAFETY: as the caller promises.
    unsafe { to.write(Box::into_raw(Box::new(value)).cast()) };
    SUCCESS
}

/// # Safety
/// `handle` is from `make` of a `T`, and destroyed once.
unsafe fn destroy<T, H>(handle: *mut H) -> cublasStatus_t {
    if handle.is_null() {
        return INVALID;
    }
    // SAFETY: as the caller promises.
    drop(unsafe { Box::from_raw(handle.cast::<T>()) });
    SUCCESS
}

/// A setting of exactly the size of its type.
///
/// # Safety
/// `from` may be read so far.
unsafe fn read<T: Copy>(from: *const c_void, bytes: usize) -> CublasResult<T> {
    if from.is_null() || bytes != size_of::<T>() {
        return Err(INVALID);
    }
    // SAFETY: as the caller promises.
    Ok(unsafe { from.cast::<T>().read_unaligned() })
}

/// The matrices of a product whose lengths fit.
///
/// # Safety
/// The handles are this library's.
unsafe fn operands(
    description: cublasLtMatmulDesc_t,
    layouts: [cublasLtMatrixLayout_t; 4],
    starts: [u64; 4],
) -> CublasResult<[MatrixOperand; 4]> {
    // SAFETY: as the caller promises.
    let description = unsafe { get::<MatmulDescription, _>(description)? };
    let transposed =
        [description.is_first_transposed, description.is_second_transposed, false, false];
    let mut all = [None; 4];
    for (index, layout) in layouts.into_iter().enumerate() {
        // SAFETY: as the caller promises.
        let matrix = *unsafe { get::<MatrixLayout, _>(layout)? };
        all[index] =
            Some(MatrixOperand { matrix, start: starts[index], is_transposed: transposed[index] });
    }
    let operands = all.map(|operand| operand.expect("each was set"));
    let [(rows, depth), (other_depth, columns), c, d] = operands.map(|operand| operand.shape());
    if depth != other_depth || c != d || d != (rows, columns) {
        return Err(INVALID);
    }
    if operands[0].matrix.element != operands[1].matrix.element {
        return Err(cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED);
    }
    Ok(operands)
}

calls! {
    fn cublasLtGetVersion() -> usize {
        VERSION
    }

    fn cublasLtGetStatusName(status: cublasStatus_t) -> *const c_char {
        name_of(status)
    }

    fn cublasLtCreate(to: *mut cublasLtHandle_t) -> cublasStatus_t {
        if !has_context() {
            return cublasStatus_t::CUBLAS_STATUS_NOT_INITIALIZED;
        }
        // SAFETY: the caller's pointer.
        unsafe { make(to, ()) }
    }

    fn cublasLtDestroy(handle: cublasLtHandle_t) -> cublasStatus_t {
        // SAFETY: the caller's handle.
        unsafe { destroy::<(), _>(handle) }
    }

    fn cublasLtMatmulDescCreate(
        to: *mut cublasLtMatmulDesc_t,
        compute: cublasComputeType_t,
        scale: cudaDataType_t,
    ) -> cublasStatus_t {
        if compute != cublasComputeType_t::CUBLAS_COMPUTE_32F || scale != cudaDataType_t::CUDA_R_32F {
            return cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED;
        }
        // SAFETY: the caller's pointer.
        unsafe { make(to, MatmulDescription::default()) }
    }

    fn cublasLtMatmulDescDestroy(description: cublasLtMatmulDesc_t) -> cublasStatus_t {
        // SAFETY: the caller's handle.
        unsafe { destroy::<MatmulDescription, _>(description) }
    }

    fn cublasLtMatmulDescSetAttribute(
        description: cublasLtMatmulDesc_t,
        attribute: cublasLtMatmulDescAttributes_t,
        from: *const c_void,
        bytes: usize,
    ) -> cublasStatus_t {
        // SAFETY: the caller's handle and bytes.
        status(unsafe { get::<MatmulDescription, _>(description) }.and_then(|description| {
            // SAFETY: as above.
            let is_transposed = match unsafe { read::<u32>(from, bytes)? } {
                OPERATION_N => false,
                OPERATION_T => true,
                _ => return Err(INVALID),
            };
            if attribute == Description::CUBLASLT_MATMUL_DESC_TRANSA {
                description.is_first_transposed = is_transposed;
            } else if attribute == Description::CUBLASLT_MATMUL_DESC_TRANSB {
                description.is_second_transposed = is_transposed;
            } else {
                return Err(INVALID);
            }
            Ok(())
        }))
    }

    fn cublasLtMatrixLayoutCreate(
        to: *mut cublasLtMatrixLayout_t,
        of: cudaDataType,
        rows: u64,
        columns: u64,
        stride: i64,
    ) -> cublasStatus_t {
        let element = if of == cudaDataType_t::CUDA_R_32F {
            MatrixElement::F32
        } else if of == cudaDataType_t::CUDA_R_16BF {
            MatrixElement::Bf16
        } else {
            return cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED;
        };
        let [rows, columns] = [rows, columns].map(|count| count as usize);
        match usize::try_from(stride) {
            // SAFETY: the caller's pointer.
            Ok(stride) if stride >= rows => unsafe { make(to, MatrixLayout { element, rows, columns, stride }) },
            Ok(_) | Err(_) => INVALID,
        }
    }

    fn cublasLtMatrixLayoutDestroy(layout: cublasLtMatrixLayout_t) -> cublasStatus_t {
        // SAFETY: the caller's handle.
        unsafe { destroy::<MatrixLayout, _>(layout) }
    }

    fn cublasLtMatmulPreferenceCreate(to: *mut cublasLtMatmulPreference_t) -> cublasStatus_t {
        let schemes = Scheme::CUBLASLT_REDUCTION_SCHEME_MASK as u32;
        // SAFETY: the caller's pointer.
        unsafe { make(to, MatmulPreference { schemes, workspace_bytes: 0, alignments: [ALIGNMENT; 4] }) }
    }

    fn cublasLtMatmulPreferenceDestroy(preference: cublasLtMatmulPreference_t) -> cublasStatus_t {
        // SAFETY: the caller's handle.
        unsafe { destroy::<MatmulPreference, _>(preference) }
    }

    fn cublasLtMatmulPreferenceSetAttribute(
        preference: cublasLtMatmulPreference_t,
        attribute: cublasLtMatmulPreferenceAttributes_t,
        from: *const c_void,
        bytes: usize,
    ) -> cublasStatus_t {
        // SAFETY: the caller's handle and bytes.
        status(unsafe { get::<MatmulPreference, _>(preference) }.and_then(|preference| {
            if attribute == Preference::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES {
                // SAFETY: as above.
                preference.workspace_bytes = unsafe { read::<u64>(from, bytes)? };
                return Ok(());
            }
            // SAFETY: as above.
            let number = unsafe { read::<u32>(from, bytes)? };
            let alignments = [
                Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
            ];
            if attribute == Preference::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK {
                preference.schemes = number;
                return Ok(());
            }
            let index = alignments.iter().position(|known| *known == attribute).ok_or(INVALID)?;
            if !number.is_power_of_two() {
                return Err(INVALID);
            }
            preference.alignments[index] = number;
            Ok(())
        }))
    }

    fn cublasLtMatmulAlgoGetHeuristic(
        handle: cublasLtHandle_t,
        description: cublasLtMatmulDesc_t,
        a: cublasLtMatrixLayout_t,
        b: cublasLtMatrixLayout_t,
        c: cublasLtMatrixLayout_t,
        d: cublasLtMatrixLayout_t,
        preference: cublasLtMatmulPreference_t,
        capacity: c_int,
        to: *mut cublasLtMatmulHeuristicResult_t,
        count: *mut c_int,
    ) -> cublasStatus_t {
        if handle.is_null() || capacity < 1 {
            return INVALID;
        }
        // SAFETY: the caller's handles; there is memory for so many results.
        status(unsafe { operands(description, [a, b, c, d], [0; 4]) }.and_then(|_| {
            // SAFETY: as above.
            let preference = unsafe { get::<MatmulPreference, _>(preference)? };
            let is_allowed = |algorithm: &MatmulAlgorithm| algorithm.is_allowed(preference);
            let allowed = MatmulAlgorithm::ALL.into_iter().filter(is_allowed);
            let mut written = 0;
            for algorithm in allowed.take(capacity as usize) {
                // SAFETY: as above.
                unsafe { to.add(written).write(algorithm.result(preference.alignments)) };
                written += 1;
            }
            // SAFETY: as above.
            unsafe { count.write(written as c_int) };
            if written == 0 { Err(cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED) } else { Ok(()) }
        }))
    }

    fn cublasLtMatmulAlgoCheck(
        handle: cublasLtHandle_t,
        description: cublasLtMatmulDesc_t,
        a: cublasLtMatrixLayout_t,
        b: cublasLtMatrixLayout_t,
        c: cublasLtMatrixLayout_t,
        d: cublasLtMatrixLayout_t,
        algorithm: *const cublasLtMatmulAlgo_t,
        to: *mut cublasLtMatmulHeuristicResult_t,
    ) -> cublasStatus_t {
        if handle.is_null() {
            return INVALID;
        }
        // SAFETY: the caller's handles and pointers.
        status(unsafe { operands(description, [a, b, c, d], [0; 4]) }.and_then(|_| {
            // SAFETY: as above.
            let encoded = unsafe { algorithm.as_ref() }.ok_or(INVALID)?;
            let algorithm = MatmulAlgorithm::of(encoded);
            let algorithm = algorithm.ok_or(cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED)?;
            let alignments = std::array::from_fn(|i| encoded.data[2 + i] as u32);
            // SAFETY: as above.
            unsafe { to.write(algorithm.result(alignments)) };
            Ok(())
        }))
    }

    fn cublasLtMatmul(
        handle: cublasLtHandle_t,
        description: cublasLtMatmulDesc_t,
        alpha: *const c_void,
        a: *const c_void,
        a_layout: cublasLtMatrixLayout_t,
        b: *const c_void,
        b_layout: cublasLtMatrixLayout_t,
        beta: *const c_void,
        c: *const c_void,
        c_layout: cublasLtMatrixLayout_t,
        d: *mut c_void,
        d_layout: cublasLtMatrixLayout_t,
        algorithm: *const cublasLtMatmulAlgo_t,
        workspace: *mut c_void,
        workspace_bytes: usize,
        stream: cudaStream_t,
    ) -> cublasStatus_t {
        if handle.is_null() {
            return INVALID;
        }
        let layouts = [a_layout, b_layout, c_layout, d_layout];
        let starts = [a as u64, b as u64, c as u64, d as u64];
        // SAFETY: the caller's handles and pointers.
        status(unsafe { operands(description, layouts, starts) }.and_then(
            |[a, b, c, d]| {
                // SAFETY: as above.
                let encoded = unsafe { algorithm.as_ref() }.ok_or(INVALID)?;
                let algorithm = MatmulAlgorithm::of(encoded).ok_or(INVALID)?;
                let starts = [a.start, b.start, c.start, d.start];
                let mut aligned = starts.iter().zip(&encoded.data[2..6]);
                if !aligned.all(|(start, alignment)| start.is_multiple_of(*alignment))
                    || !(workspace as u64).is_multiple_of(u64::from(ALIGNMENT))
                {
                    return Err(INVALID);
                }
                if algorithm.workspace_bytes() > workspace_bytes {
                    return Err(INVALID);
                }
                // SAFETY: as above; both are f32, as the product's description requires.
                let [alpha, beta] = unsafe { [alpha, beta].map(|x| x.cast::<f32>().read()) };
                let workspace = (workspace as u64, workspace_bytes);
                let parts = algorithm.parts();
                let product = EmulatedProduct { a, b, c, d, alpha, beta, parts, workspace };
                let enqueued = enqueue(stream as u64, StreamWork::Product(product));
                if enqueued != CUresult::CUDA_SUCCESS {
                    return Err(cublasStatus_t::CUBLAS_STATUS_EXECUTION_FAILED);
                }
                Ok(())
            },
        ))
    }
}
