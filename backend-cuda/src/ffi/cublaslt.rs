//! The matrix products of cuBLASLt: layouts, descriptors, the heuristic, the product itself.

use super::library::{MissingLibrary, Wanted};
use super::memory::DevicePointer;
use super::stream::{Raw, RawStream};
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

/// The library.
pub(crate) const WANTED: Wanted = Wanted {
    library: "cuBLASLt",
    names: &["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"],
    fix: "install `nvidia-cublas` (PyPI) or the CUDA toolkit's cuBLAS, and add its folder to LD_LIBRARY_PATH",
};

/// A status that is not success.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Status(pub(crate) c_int);

impl Status {
    /// `CUBLAS_STATUS_ALLOC_FAILED`.
    pub(crate) const NO_MEMORY: Self = Self(3);

    /// The name of a status.
    pub(crate) const fn name(self) -> &'static str {
        match self.0 {
            1 => "CUBLAS_STATUS_NOT_INITIALIZED",
            3 => "CUBLAS_STATUS_ALLOC_FAILED",
            7 => "CUBLAS_STATUS_INVALID_VALUE",
            8 => "CUBLAS_STATUS_ARCH_MISMATCH",
            11 => "CUBLAS_STATUS_MAPPING_ERROR",
            13 => "CUBLAS_STATUS_EXECUTION_FAILED",
            14 => "CUBLAS_STATUS_INTERNAL_ERROR",
            15 => "CUBLAS_STATUS_NOT_SUPPORTED",
            16 => "CUBLAS_STATUS_LICENSE_ERROR",
            _ => "an unknown status",
        }
    }
}

fn check(status: c_int) -> Result<(), Status> {
    if status == 0 { Ok(()) } else { Err(Status(status)) }
}

/// `cudaDataType`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Data {
    F32 = 0,
    F16 = 2,
    Bf16 = 14,
}

/// `cublasLtMatmulAlgo_t`.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Algorithm {
    data: [u64; 8],
}

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Found {
    algorithm: Algorithm,
    workspace: usize,
    state: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

const COMPUTE_32F: c_int = 68;
const ATTRIBUTE_TRANSPOSE_A: c_int = 3;
const OPERATION_TRANSPOSE: c_int = 1;
const PREFERENCE_WORKSPACE: c_int = 1;
/// Smallest alignment of the four matrices, attributes 5 to 8.
const PREFERENCE_ALIGNMENT: [c_int; 4] = [5, 6, 7, 8];
/// Addresses of matrices are multiples of this many bytes.
pub(crate) const ALIGNMENT: u32 = 16;
/// Candidates of the heuristic at most.
const CANDIDATES_MAX: usize = 8;

type Create = unsafe extern "C" fn(*mut Raw) -> c_int;
type Destroy = unsafe extern "C" fn(Raw) -> c_int;
type SetAttribute = unsafe extern "C" fn(Raw, c_int, *const c_void, usize) -> c_int;
type Heuristic =
    unsafe extern "C" fn(Raw, Raw, Raw, Raw, Raw, Raw, Raw, c_int, *mut Found, *mut c_int) -> c_int;
type Matmul = unsafe extern "C" fn(
    Raw,
    Raw,
    *const f32,
    u64,
    Raw,
    u64,
    Raw,
    *const f32,
    u64,
    Raw,
    u64,
    Raw,
    *const Algorithm,
    u64,
    usize,
    Raw,
) -> c_int;

/// The functions of cuBLASLt.
pub(crate) struct Lt {
    create: Create,
    destroy: Destroy,
    layout_create: unsafe extern "C" fn(*mut Raw, c_int, u64, u64, i64) -> c_int,
    layout_destroy: Destroy,
    product_create: unsafe extern "C" fn(*mut Raw, c_int, c_int) -> c_int,
    product_destroy: Destroy,
    product_set: SetAttribute,
    preference_create: Create,
    preference_destroy: Destroy,
    preference_set: SetAttribute,
    heuristic: Heuristic,
    matmul: Matmul,
    version: unsafe extern "C" fn() -> usize,
}

/// The library's own state on one device; destroying it uses it up.
#[derive(Debug)]
pub(crate) struct Handle(Raw);

/// One matrix product's descriptors; destroying uses it up.
///
/// Row-major `y[rows, outputs] = x[rows, inputs] · w[outputs, inputs]^T` is, column by column, the
/// library's `D[outputs, rows] = A^T · B` with `A = w[inputs, outputs]` and `B = x[inputs, rows]`.
#[derive(Debug)]
pub(crate) struct Product {
    product: Raw,
    weights: Raw,
    input: Raw,
    output: Raw,
}

/// Sizes and types of a product.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) rows: u64,
    pub(crate) outputs: u64,
    pub(crate) inputs: u64,
    pub(crate) data: Data,
    pub(crate) output: Data,
}

/// Where the matrices of a product and the workspace lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    pub(crate) input: DevicePointer,
    pub(crate) weights: DevicePointer,
    pub(crate) output: DevicePointer,
    pub(crate) workspace: DevicePointer,
}

impl Lt {
    /// Opens the library, once in a process, and finds every symbol.
    pub(crate) fn load() -> Result<&'static Self, MissingLibrary> {
        static LOADED: OnceLock<Result<Lt, MissingLibrary>> = OnceLock::new();
        LOADED.get_or_init(Self::open).as_ref().map_err(Clone::clone)
    }

    fn open() -> Result<Self, MissingLibrary> {
        let library = Box::leak(Box::new(WANTED.open()?));
        Ok(Self {
            create: WANTED.symbol(library, "cublasLtCreate")?,
            destroy: WANTED.symbol(library, "cublasLtDestroy")?,
            layout_create: WANTED.symbol(library, "cublasLtMatrixLayoutCreate")?,
            layout_destroy: WANTED.symbol(library, "cublasLtMatrixLayoutDestroy")?,
            product_create: WANTED.symbol(library, "cublasLtMatmulDescCreate")?,
            product_destroy: WANTED.symbol(library, "cublasLtMatmulDescDestroy")?,
            product_set: WANTED.symbol(library, "cublasLtMatmulDescSetAttribute")?,
            preference_create: WANTED.symbol(library, "cublasLtMatmulPreferenceCreate")?,
            preference_destroy: WANTED.symbol(library, "cublasLtMatmulPreferenceDestroy")?,
            preference_set: WANTED.symbol(library, "cublasLtMatmulPreferenceSetAttribute")?,
            heuristic: WANTED.symbol(library, "cublasLtMatmulAlgoGetHeuristic")?,
            matmul: WANTED.symbol(library, "cublasLtMatmul")?,
            version: WANTED.symbol(library, "cublasLtGetVersion")?,
        })
    }

    /// Release of the library: 10000 × major + 100 × minor + patch.
    pub(crate) fn version(&self) -> usize {
        // SAFETY: takes nothing.
        unsafe { (self.version)() }
    }

    /// Creates the library's state on the device whose context is current.
    pub(crate) fn create(&self) -> Result<Handle, Status> {
        let mut handle: Raw = std::ptr::null_mut();
        // SAFETY: the pointer is valid for the call.
        check(unsafe { (self.create)(&raw mut handle) })?;
        Ok(Handle(handle))
    }

    /// Destroys the library's state.
    pub(crate) fn destroy(&self, handle: Handle) -> Result<(), Status> {
        // SAFETY: it came from `create` and is used up here.
        check(unsafe { (self.destroy)(handle.0) })
    }

    fn layout(&self, data: Data, rows: u64, columns: u64) -> Result<Raw, Status> {
        let mut layout: Raw = std::ptr::null_mut();
        let leading = rows.cast_signed();
        // SAFETY: the pointer is valid for the call.
        check(unsafe {
            (self.layout_create)(&raw mut layout, data as c_int, rows, columns, leading)
        })?;
        Ok(layout)
    }

    /// Describes a product. When anything fails, nothing stays.
    pub(crate) fn describe(&self, sizes: &Sizes) -> Result<Product, Status> {
        let nothing: Raw = std::ptr::null_mut();
        let mut made =
            Product { product: nothing, weights: nothing, input: nothing, output: nothing };
        match self.fill(&mut made, sizes) {
            Ok(()) => Ok(made),
            Err(status) => {
                self.forget(made);
                Err(status)
            }
        }
    }

    fn fill(&self, made: &mut Product, sizes: &Sizes) -> Result<(), Status> {
        let scale = Data::F32 as c_int;
        // SAFETY: the pointer is valid for the call.
        check(unsafe { (self.product_create)(&raw mut made.product, COMPUTE_32F, scale) })?;
        let transpose = OPERATION_TRANSPOSE;
        // SAFETY: the attribute is an `int`, which is valid for the call.
        check(unsafe {
            (self.product_set)(
                made.product,
                ATTRIBUTE_TRANSPOSE_A,
                (&raw const transpose).cast(),
                size_of::<c_int>(),
            )
        })?;
        made.weights = self.layout(sizes.data, sizes.inputs, sizes.outputs)?;
        made.input = self.layout(sizes.data, sizes.inputs, sizes.rows)?;
        made.output = self.layout(sizes.output, sizes.outputs, sizes.rows)?;
        Ok(())
    }

    /// Destroys the descriptors of a product, those that were made.
    pub(crate) fn forget(&self, product: Product) {
        for layout in [product.weights, product.input, product.output] {
            if !layout.is_null() {
                // SAFETY: it came from `layout` and is used up here.
                let _ = unsafe { (self.layout_destroy)(layout) };
            }
        }
        if !product.product.is_null() {
            // SAFETY: it came from `fill` and is used up here.
            let _ = unsafe { (self.product_destroy)(product.product) };
        }
    }

    /// Up to eight ways to compute a product within a workspace, the most promising first.
    pub(crate) fn candidates(
        &self,
        handle: &Handle,
        product: &Product,
        workspace: u64,
    ) -> Result<Vec<Algorithm>, Status> {
        let mut preference: Raw = std::ptr::null_mut();
        // SAFETY: the pointer is valid for the call.
        check(unsafe { (self.preference_create)(&raw mut preference) })?;
        let found = self.ask(handle, product, preference, workspace);
        // SAFETY: it was made above and is used up here.
        let _ = unsafe { (self.preference_destroy)(preference) };
        found
    }

    fn ask(
        &self,
        handle: &Handle,
        product: &Product,
        preference: Raw,
        workspace: u64,
    ) -> Result<Vec<Algorithm>, Status> {
        let size = size_of::<u64>();
        let at = (&raw const workspace).cast();
        // SAFETY: the attribute is 64 bits wide.
        check(unsafe { (self.preference_set)(preference, PREFERENCE_WORKSPACE, at, size) })?;
        let alignment = ALIGNMENT;
        for attribute in PREFERENCE_ALIGNMENT {
            let at = (&raw const alignment).cast();
            // SAFETY: the attribute is 32 bits wide.
            check(unsafe { (self.preference_set)(preference, attribute, at, size_of::<u32>()) })?;
        }
        let Product { product, weights, input, output } = *product;
        let mut found = [Found::default(); CANDIDATES_MAX];
        let mut count = 0;
        // SAFETY: all descriptors are alive; there is room for as many answers as are asked for.
        check(unsafe {
            (self.heuristic)(
                handle.0,
                product,
                weights,
                input,
                output,
                output,
                preference,
                CANDIDATES_MAX as c_int,
                found.as_mut_ptr(),
                &raw mut count,
            )
        })?;
        let usable = |one: &&Found| one.state == 0 && one.workspace as u64 <= workspace;
        let count = usize::try_from(count).unwrap_or(0);
        Ok(found.iter().take(count).filter(usable).map(|one| one.algorithm).collect())
    }

    /// Puts a product on a stream: `output = input · weights^T`, plus what `output` held when
    /// `add`.
    pub(crate) fn multiply(
        &self,
        handle: &Handle,
        (product, algorithm): (&Product, &Algorithm),
        places: &Places,
        add: bool,
        stream: &RawStream,
    ) -> Result<(), Status> {
        let (alpha, beta) = (1_f32, f32::from(u8::from(add)));
        let Places { input, weights, output, workspace } = *places;
        // SAFETY: all descriptors are alive and the two factors valid for the call; device memory
        // of the wrong size is the device's error, and the caller has compared the sizes.
        check(unsafe {
            (self.matmul)(
                handle.0,
                product.product,
                &raw const alpha,
                weights.address,
                product.weights,
                input.address,
                product.input,
                &raw const beta,
                output.address,
                product.output,
                output.address,
                product.output,
                &raw const *algorithm,
                workspace.address,
                workspace.size as usize,
                stream.0,
            )
        })
    }
}
