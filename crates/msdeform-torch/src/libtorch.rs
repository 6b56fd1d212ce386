//! PyTorch's stable C interface, looked up in the libtorch that the process has.
//!
//! Nothing is linked. What is needed is there from version 2.10 on; an older one is refused by the name of the first function that
//! it lacks, and the caller takes another path. The functions catch the exceptions of C++ and return a code; the one exception
//! is [`Libtorch::check`], whose purpose it is to throw.

use std::ffi::{CStr, CString, c_char, c_void};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::error::CallError;

/// An argument or a result of a kernel: a number or an address. The reader of an address owns the object behind it.
pub type StableIValue = u64;

/// A kernel. The first so many values are arguments; it takes them and leaves its results in their place. It may end by an exception of C++.
pub type BoxedKernel = unsafe extern "C-unwind" fn(*mut StableIValue, u64, u64);

/// A tensor, a list or a library of PyTorch's.
pub type Handle = *mut c_void;

/// Not 0 if it failed.
type Code = i32;

/// The version whose conversions of arguments are understood here: 2.10.
const SPOKEN_VERSION: u64 = (2 << 56) | (10 << 48);

macro_rules! libtorch {
    ($($(#[$about:meta])* $field:ident = $symbol:literal: $signature:ty;)*) => {
        /// The functions that are used here.
        pub struct Libtorch {
            library: Library,
            /// PyTorch's numbers of dtypes, in the order of [`msdeform::DType::ALL`], and of what else is read here.
            pub(crate) dtypes: [i32; 4],
            pub(crate) int64: i32,
            pub(crate) byte: i32,
            pub(crate) cpu: i32,
            pub(crate) cuda: i32,
            pub(crate) strided: i32,
            /// What tells the current stream of a GPU, where this libtorch has GPUs.
            current_stream: OnceLock<Option<CurrentStream>>,
            $($(#[$about])* pub(crate) $field: $signature,)*
        }

        impl Libtorch {
            fn load(library: Library) -> Result<Self, String> {
                // SAFETY: the signatures are those of the headers that PyTorch ships, which it promises to keep.
                unsafe {
                    $(let $field: $signature = *library
                        .get($symbol.as_bytes())
                        .map_err(|_| format!("it has no `{}`", $symbol.trim_end_matches('\0')))?;)*
                    let number = |name: &str| {
                        number_named(&library, name).ok_or_else(|| format!("it has no `aoti_torch_{name}`"))
                    };
                    Ok(Self {
                        dtypes: [
                            number("dtype_float32")?,
                            number("dtype_float16")?,
                            number("dtype_bfloat16")?,
                            number("dtype_float64")?,
                        ],
                        int64: number("dtype_int64")?,
                        byte: number("dtype_uint8")?,
                        cpu: number("device_type_cpu")?,
                        cuda: number("device_type_cuda")?,
                        strided: number("layout_strided")?,
                        library,
                        current_stream: OnceLock::new(),
                        $($field,)*
                    })
                }
            }
        }
    };
}

libtorch! {
    /// Throws the message as PyTorch's error unless the first is true.
    check = "aoti_torch_check\0": unsafe extern "C-unwind" fn(bool, *const c_char, *const c_char, u32, *const c_char);
    library_fragment = "aoti_torch_library_init_fragment\0": unsafe extern "C" fn(*const c_char, *const c_char, u32, *mut Handle) -> Code;
    library_of_key = "aoti_torch_library_init_impl\0": unsafe extern "C" fn(*const c_char, *const c_char, *const c_char, u32, *mut Handle) -> Code;
    library_define = "aoti_torch_library_def\0": unsafe extern "C" fn(Handle, *const c_char) -> Code;
    library_implement = "torch_library_impl\0": unsafe extern "C" fn(Handle, *const c_char, BoxedKernel, u64) -> Code;
    library_delete = "aoti_torch_delete_library_object\0": unsafe extern "C" fn(Handle) -> Code;
    tensor_delete = "aoti_torch_delete_tensor_object\0": unsafe extern "C" fn(Handle) -> Code;
    tensor_rank = "aoti_torch_get_dim\0": unsafe extern "C" fn(Handle, *mut i64) -> Code;
    tensor_sizes = "aoti_torch_get_sizes\0": unsafe extern "C" fn(Handle, *mut *mut i64) -> Code;
    tensor_strides = "aoti_torch_get_strides\0": unsafe extern "C" fn(Handle, *mut *mut i64) -> Code;
    tensor_data = "aoti_torch_get_data_ptr\0": unsafe extern "C" fn(Handle, *mut *mut c_void) -> Code;
    tensor_format = "aoti_torch_get_dtype\0": unsafe extern "C" fn(Handle, *mut i32) -> Code;
    tensor_layout = "aoti_torch_get_layout\0": unsafe extern "C" fn(Handle, *mut i32) -> Code;
    tensor_device = "aoti_torch_get_device_type\0": unsafe extern "C" fn(Handle, *mut i32) -> Code;
    tensor_device_index = "aoti_torch_get_device_index\0": unsafe extern "C" fn(Handle, *mut i32) -> Code;
    tensor_empty = "aoti_torch_empty_strided\0": unsafe extern "C" fn(i64, *const i64, *const i64, i32, i32, i32, *mut Handle) -> Code;
    tensor_copy = "aoti_torch_copy_\0": unsafe extern "C" fn(Handle, Handle, i32) -> Code;
    list_size = "torch_list_size\0": unsafe extern "C" fn(Handle, *mut usize) -> Code;
    list_item = "torch_list_get_item\0": unsafe extern "C" fn(Handle, usize, *mut StableIValue) -> Code;
    list_delete = "torch_delete_list\0": unsafe extern "C" fn(Handle) -> Code;
    threads = "torch_get_num_threads\0": unsafe extern "C" fn(*mut u32) -> Code;
}

/// The current stream of a GPU.
type CurrentStream = unsafe extern "C" fn(i32, *mut *mut c_void) -> Code;

static LIBTORCH: OnceLock<Libtorch> = OnceLock::new();

impl Libtorch {
    /// The one of this process, looked for if that was not done before.
    pub fn find() -> Result<&'static Self, String> {
        if let Some(found) = LIBTORCH.get() {
            return Ok(found);
        }
        let loaded = library().ok_or("the process has loaded no libtorch")?;
        let loaded = Self::load(loaded).map_err(|missing| {
            format!("the libtorch of this process is older than version 2.10: {missing}")
        })?;
        Ok(LIBTORCH.get_or_init(|| loaded))
    }

    /// The one that was found. Kernels are called only after it was.
    pub(crate) fn found() -> Option<&'static Self> {
        LIBTORCH.get()
    }

    /// An error if a function failed, with what PyTorch says about it, which it does from version 2.13 on.
    pub(crate) fn succeeded(&self, code: Code, action: &str) -> Result<(), CallError> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: the signature is that of the headers; the text stays until the next exception of this thread.
        let said = unsafe {
            let what = self.library.get::<unsafe extern "C" fn() -> *const c_char>(
                b"torch_exception_get_what_without_backtrace\0",
            );
            what.ok()
                .map(|what| what())
                .filter(|text| !text.is_null())
                .map(|text| CStr::from_ptr(text).to_string_lossy().into_owned())
        };
        let said = said.filter(|text| !text.is_empty());
        Err(CallError::Torch(said.unwrap_or_else(|| format!("PyTorch could not {action}"))))
    }

    /// PyTorch's word for one of its numbers: the getters are named like what they return.
    pub(crate) fn name_of(&self, kind: &str, number: i32, names: &str) -> String {
        // SAFETY: getters have no arguments and return a number.
        let get = |name: &str| unsafe { number_named(&self.library, &format!("{kind}_{name}")) };
        let is = |name: &&str| get(name) == Some(number);
        names
            .split(' ')
            .find(is)
            .map_or_else(|| format!("{kind} {number}"), |name| (*name).to_owned())
    }

    /// A function that only newer versions have.
    pub(crate) fn delete_value(&self) -> Option<unsafe extern "C" fn(*mut StableIValue) -> Code> {
        // SAFETY: the signature is that of the headers.
        unsafe { self.library.get(b"torch_delete_stable_ivalue\0") }.ok().map(|found| *found)
    }

    /// A warning of PyTorch's; nothing where there is no libtorch, or one that cannot.
    pub(crate) fn warn(message: &str) {
        type Warn = unsafe extern "C" fn(*const c_char, *const c_char, u32, *const c_char);
        let (Some(torch), Ok(message)) = (Self::found(), CString::new(message)) else { return };
        // SAFETY: the signature is that of the headers; C strings, which are copied.
        unsafe {
            if let Ok(warn) = torch.library.get::<Warn>(b"aoti_torch_warn\0") {
                warn(c"msdeform".as_ptr(), c"msdeform-torch".as_ptr(), line!(), message.as_ptr());
            }
        }
    }

    /// Whether this libtorch supports NVIDIA GPUs. The machine may have none.
    pub fn has_cuda(&self) -> bool {
        self.stream_function().is_some()
    }

    /// The current stream of a GPU: what everything that PyTorch does there is queued on, for this thread.
    pub(crate) fn current_stream(&self, ordinal: i32) -> Result<usize, CallError> {
        let current = self
            .stream_function()
            .ok_or_else(|| CallError::Torch("this PyTorch has no GPUs of NVIDIA's".to_owned()))?;
        let mut stream = std::ptr::null_mut();
        // SAFETY: the result is writable.
        let code = unsafe { current(ordinal, &raw mut stream) };
        self.succeeded(code, "tell the current stream of a GPU")?;
        Ok(stream.expose_provenance())
    }

    fn stream_function(&self) -> Option<CurrentStream> {
        const SYMBOL: &[u8] = b"aoti_torch_get_current_cuda_stream\0";
        *self.current_stream.get_or_init(|| {
            // SAFETY: the signature is that of the headers.
            let of = |library: &Library| unsafe { library.get(SYMBOL) }.ok().map(|found| *found);
            // In one piece with the rest, or in the part for GPUs. That is never unloaded: neither is what it is for.
            of(&self.library).or_else(|| {
                let part = already_loaded(CUDA_PART)?;
                let found = of(&part);
                std::mem::forget(part);
                found
            })
        })
    }

    /// Gives an operator a kernel.
    ///
    /// # Safety
    /// `library` is one for a dispatch key, and the kernel takes the arguments that the operator's schema says.
    pub(crate) unsafe fn implement(
        &self,
        library: Handle,
        name: &CStr,
        kernel: BoxedKernel,
    ) -> Result<(), CallError> {
        // SAFETY: passed on from the caller; a name is copied.
        let code =
            unsafe { (self.library_implement)(library, name.as_ptr(), kernel, SPOKEN_VERSION) };
        self.succeeded(code, "register a kernel")
    }
}

/// # Safety
/// The getter of this name, if it is there, is a function without arguments that returns a number.
unsafe fn number_named(library: &Library, name: &str) -> Option<i32> {
    let symbol = format!("aoti_torch_{name}\0");
    // SAFETY: passed on from the caller.
    unsafe {
        let number = library.get::<unsafe extern "C" fn() -> i32>(symbol.as_bytes()).ok()?;
        Some(number())
    }
}

/// The folder of packages that contains libtorch, if libtorch comes from PyTorch's wheel.
///
/// NVRTC is in the same folder. Without an interpreter, the path of libtorch is the only way to find NVRTC there.
pub(crate) fn folder_of_packages() -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let is_torch = |path: &&str| path.ends_with("/torch/lib/libtorch_cpu.so");
    let paths = maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..]));
    paths
        .into_iter()
        .find(is_torch)
        .and_then(|path| Some(Path::new(path).ancestors().nth(3)?.into()))
}

#[cfg(unix)]
use libloading::os::unix::Library;
#[cfg(windows)]
use libloading::os::windows::Library;

const CUDA_PART: &str = if cfg!(windows) { "torch_cuda.dll" } else { "libtorch_cuda.so" };

/// The library that has the C interface, if the process has loaded it. Nothing is loaded that was not.
#[cfg(unix)]
fn library() -> Option<Library> {
    const NAME: &str =
        if cfg!(target_vendor = "apple") { "libtorch_cpu.dylib" } else { "libtorch_cpu.so" };

    // What the program itself links, libtorch in one piece with it included.
    let program = Library::this();
    // SAFETY: only looked for.
    if unsafe { program.get::<*const c_void>(b"torch_library_impl\0") }.is_ok() {
        return Some(program);
    }
    // What was loaded for somebody alone, as Python does.
    already_loaded(NAME)
}

#[cfg(unix)]
fn already_loaded(name: &str) -> Option<Library> {
    use libloading::os::unix::RTLD_LAZY;

    const RTLD_NOLOAD: i32 = if cfg!(target_vendor = "apple") { 0x10 } else { 0x4 };

    // SAFETY: what is loaded already runs no initialisers.
    unsafe { Library::open(Some(name), RTLD_LAZY | RTLD_NOLOAD) }.ok()
}

/// Likewise.
#[cfg(windows)]
fn library() -> Option<Library> {
    already_loaded("torch_cpu.dll")
}

#[cfg(windows)]
fn already_loaded(name: &str) -> Option<Library> {
    Library::open_already_loaded(name).ok()
}
