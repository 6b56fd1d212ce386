//! The functions of the runtime that are used, each with the types that it deserves. All of its raw pointers stay here
//! and in `custom_op.rs`.

use std::ffi::{CStr, CString, c_char, c_void};
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use half::f16;
use msdeform::{DType, LentThreads, TensorView, TensorViewMut};
use ort_sys::{
    OrtApi, OrtCustomOp, OrtCustomOpDomain, OrtKernelContext, OrtKernelInfo, OrtSessionOptions,
    OrtShapeInferContext, OrtStatusPtr, OrtTensorTypeAndShapeInfo, OrtValue,
};

use crate::call::Shape;
use crate::error::Error;
use crate::operators::{element_type, format_of, type_name};

/// The table of functions.
///
/// Its fields are read through the pointer, one at a time: another crate may have requested a longer table than the
/// runtime has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Api(NonNull<OrtApi>);

// SAFETY: the table is constant and its functions may be called from any thread.
unsafe impl Send for Api {}
// SAFETY: as above.
unsafe impl Sync for Api {}

/// Calls a function of the table and turns its status into a result. Unsafe like the function.
macro_rules! call {
    ($api:expr, $function:ident($($argument:expr),* $(,)?)) => {
        $api.check(((*$api.0.as_ptr()).$function)($($argument),*))
    };
}

impl Api {
    /// # Safety
    /// It is the table of version 17 or newer and stays where it is.
    pub(crate) unsafe fn new(table: NonNull<OrtApi>) -> Self {
        Self(table)
    }

    /// What a function said, if it is bad.
    fn check(self, status: OrtStatusPtr) -> Result<(), Error> {
        if status.0.is_null() {
            return Ok(());
        }
        // SAFETY: a status that is not null is whole, and ours to release.
        let text = unsafe {
            let text = CStr::from_ptr(((*self.0.as_ptr()).GetErrorMessage)(status.0));
            let text = text.to_string_lossy().into_owned();
            ((*self.0.as_ptr()).ReleaseStatus)(status.0);
            text
        };
        Err(Error::Runtime(text))
    }

    /// An error as the runtime takes it.
    pub(crate) fn status_of(self, error: &Error) -> OrtStatusPtr {
        let text = error.to_string().replace('\0', " ");
        let text = CString::new(text).unwrap_or_default();
        // SAFETY: the text is copied.
        unsafe { ((*self.0.as_ptr()).CreateStatus)(error.code(), text.as_ptr()) }
    }

    pub(crate) fn make_domain(
        self,
        name: &'static CStr,
    ) -> Result<NonNull<OrtCustomOpDomain>, Error> {
        let mut domain = ptr::null_mut();
        // SAFETY: the name lives for ever, the domain is written to.
        unsafe { call!(self, CreateCustomOpDomain(name.as_ptr(), &raw mut domain))? };
        NonNull::new(domain).ok_or_else(|| Error::Runtime("no domain was made".to_owned()))
    }

    /// # Safety
    /// The operator lives for as long as the domain, with all that its functions need.
    pub(crate) unsafe fn add_operator(
        self,
        domain: NonNull<OrtCustomOpDomain>,
        operator: *const OrtCustomOp,
    ) -> Result<(), Error> {
        // SAFETY: passed on from the caller.
        unsafe { call!(self, CustomOpDomain_Add(domain.as_ptr(), operator)) }
    }

    /// # Safety
    /// The options are alive, the domain stays alive for as long as their sessions.
    pub(crate) unsafe fn add_domain(
        self,
        options: *mut OrtSessionOptions,
        domain: NonNull<OrtCustomOpDomain>,
    ) -> Result<(), Error> {
        // SAFETY: passed on from the caller.
        unsafe { call!(self, AddCustomOpDomain(options, domain.as_ptr())) }
    }
}

/// Type and shape of a tensor, or of one to come.
struct TypeAndShape {
    api: Api,
    info: *mut OrtTensorTypeAndShapeInfo,
}

impl Drop for TypeAndShape {
    fn drop(&mut self) {
        // SAFETY: it is whole or null, and ours.
        unsafe { ((*self.api.0.as_ptr()).ReleaseTensorTypeAndShapeInfo)(self.info) };
    }
}

impl TypeAndShape {
    fn of(api: Api, value: *const OrtValue) -> Result<Self, Error> {
        let mut found = Self { api, info: ptr::null_mut() };
        // SAFETY: the caller has the value from the runtime; the information is written to.
        unsafe { call!(api, GetTensorTypeAndShape(value, &raw mut found.info))? };
        Ok(found)
    }

    fn new(api: Api) -> Result<Self, Error> {
        let mut made = Self { api, info: ptr::null_mut() };
        // SAFETY: it is written to.
        unsafe { call!(api, CreateTensorTypeAndShapeInfo(&raw mut made.info))? };
        Ok(made)
    }

    /// The code of the element type: a newer runtime may have some that our enumeration lacks.
    fn element_type(&self) -> Result<i32, Error> {
        let mut code = 0i32;
        // SAFETY: the enumeration is written as the integer that it is.
        unsafe { call!(self.api, GetTensorElementType(self.info, (&raw mut code).cast()))? };
        Ok(code)
    }

    fn shape(&self, tensor: &'static str) -> Result<Shape, Error> {
        let mut rank = 0;
        // SAFETY: the rank is written to.
        unsafe { call!(self.api, GetDimensionsCount(self.info, &raw mut rank))? };
        Shape::read(tensor, rank, |sizes| {
            // SAFETY: as many sizes are written as there is room for.
            unsafe { call!(self.api, GetDimensions(self.info, sizes.as_mut_ptr(), sizes.len())) }
        })
    }
}

/// What a node says about itself when its kernel is made.
pub(crate) struct KernelInfo<'a> {
    api: Api,
    info: *const OrtKernelInfo,
    life: PhantomData<&'a ()>,
}

impl KernelInfo<'_> {
    /// # Safety
    /// The information is the runtime's and lives for `'a`.
    pub(crate) const unsafe fn new(api: Api, info: *const OrtKernelInfo) -> Self {
        Self { api, info, life: PhantomData }
    }

    pub(crate) fn int(&self, name: &CStr) -> Option<i64> {
        let mut found = 0;
        // SAFETY: the number is written to.
        let result = unsafe {
            call!(self.api, KernelInfoGetAttribute_int64(self.info, name.as_ptr(), &raw mut found))
        };
        result.is_ok().then_some(found)
    }

    pub(crate) fn float(&self, name: &CStr) -> Option<f32> {
        let mut found = 0.0;
        // SAFETY: the number is written to.
        let result = unsafe {
            call!(self.api, KernelInfoGetAttribute_float(self.info, name.as_ptr(), &raw mut found))
        };
        result.is_ok().then_some(found)
    }

    pub(crate) fn ints(&self, name: &CStr) -> Option<Vec<i64>> {
        let mut count = 0;
        let read = |to: *mut i64, count: &mut usize| {
            // SAFETY: no more numbers are written than are counted.
            unsafe {
                call!(
                    self.api,
                    KernelInfoGetAttributeArray_int64(self.info, name.as_ptr(), to, count)
                )
            }
        };
        read(ptr::null_mut(), &mut count).ok()?;
        let mut found = vec![0; count];
        if count > 0 {
            read(found.as_mut_ptr(), &mut count).ok()?;
        }
        Some(found)
    }

    /// The code of an input's element type.
    pub(crate) fn input_type(&self, index: usize) -> Result<i32, Error> {
        let (mut info, mut tensor) = (ptr::null_mut(), ptr::null());
        // SAFETY: the index is that of a declared input; the type lives until it is released, its part as long.
        unsafe {
            call!(self.api, KernelInfo_GetInputTypeInfo(self.info, index, &raw mut info))?;
            let mut code = 0i32;
            let found = call!(self.api, CastTypeInfoToTensorInfo(info, &raw mut tensor));
            let found = found.and_then(|()| match tensor.is_null() {
                true => Err(Error::Runtime("an input is no tensor".to_owned())),
                false => call!(self.api, GetTensorElementType(tensor, (&raw mut code).cast())),
            });
            ((*self.api.0.as_ptr()).ReleaseTypeInfo)(info);
            found.map(|()| code)
        }
    }
}

/// A run of a node: its tensors, and the threads of its session.
pub(crate) struct Context<'a> {
    api: Api,
    context: *mut OrtKernelContext,
    life: PhantomData<&'a ()>,
}

/// A tensor to read, in the memory of the node's provider, or in host memory if the operator declared that.
pub(crate) struct Input<'a> {
    api: Api,
    value: *const OrtValue,
    name: &'static str,
    element_type: i32,
    pub shape: Shape,
    data: *const c_void,
    life: PhantomData<&'a ()>,
}

/// The tensor to write, in the memory of the node's provider.
pub(crate) struct Output<'a> {
    format: DType,
    len: usize,
    data: *mut c_void,
    life: PhantomData<&'a mut ()>,
}

impl<'a> Context<'a> {
    /// # Safety
    /// The context is the runtime's, for a run that lasts for `'a`.
    pub(crate) const unsafe fn new(api: Api, context: *mut OrtKernelContext) -> Self {
        Self { api, context, life: PhantomData }
    }

    pub(crate) fn input(&self, index: usize, name: &'static str) -> Result<Input<'a>, Error> {
        let mut value = ptr::null();
        // SAFETY: the value is written to.
        unsafe { call!(self.api, KernelContext_GetInput(self.context, index, &raw mut value))? };
        let info = TypeAndShape::of(self.api, value)?;
        let (element_type, shape) = (info.element_type()?, info.shape(name)?);
        let mut data = ptr::null_mut();
        // SAFETY: the pointer is written to. Nothing is written to what it leads to.
        unsafe { call!(self.api, GetTensorMutableData(value.cast_mut(), &raw mut data))? };
        let api = self.api;
        Ok(Input { api, value, name, element_type, shape, data, life: PhantomData })
    }

    /// The only output, as a tensor of this shape.
    pub(crate) fn output(&self, shape: &[usize], format: DType) -> Result<Output<'a>, Error> {
        let mut sizes = [0i64; Shape::MAX_RANK];
        for (to, &size) in sizes.iter_mut().zip(shape) {
            *to =
                i64::try_from(size).map_err(|_| msdeform::Error::TooLarge { tensor: "output" })?;
        }
        let (mut value, mut data) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the sizes are as many as are said, value and data are written to. The runtime allocates the elements.
        unsafe {
            let sizes = sizes.as_ptr();
            call!(
                self.api,
                KernelContext_GetOutput(self.context, 0, sizes, shape.len(), &raw mut value)
            )?;
            call!(self.api, GetTensorMutableData(value, &raw mut data))?;
        }
        let found = TypeAndShape::of(self.api, value)?.element_type()?;
        if found != element_type(format) as i32 {
            let (found, expected) = (type_name(found), format.to_string());
            return Err(Error::Type { tensor: "output", found, expected });
        }
        Ok(Output { format, len: shape.iter().product(), data, life: PhantomData })
    }

    /// The stream that the run queues its work on; null is the default one.
    pub(crate) fn gpu_stream(&self) -> Result<*mut c_void, Error> {
        let mut stream = ptr::null_mut();
        // SAFETY: the stream is written to.
        unsafe {
            call!(self.api, KernelContext_GetGPUComputeStream(self.context, &raw mut stream))?;
        }
        Ok(stream)
    }
}

impl<'a> Output<'a> {
    /// Its elements, which are in host memory.
    pub(crate) fn numbers(self) -> Result<TensorViewMut<'a>, Error> {
        let Self { format, len, data, .. } = self;
        if len > 0 && data.is_null() {
            return Err(Error::NoData { tensor: "output" });
        }
        // SAFETY: the runtime made `len` aligned elements of this format for this run, which nothing else touches before it ends.
        Ok(unsafe { TensorViewMut::from_raw_parts(format, data, len) })
    }

    /// Where it is, in a GPU's memory.
    pub(crate) fn address(&self) -> u64 {
        self.data.addr() as u64
    }
}

impl<'a> Input<'a> {
    /// Where it is, in a GPU's memory.
    pub(crate) fn address(&self) -> u64 {
        self.data.addr() as u64
    }

    /// The GPU whose memory it is in.
    pub(crate) fn device(&self) -> Result<usize, Error> {
        let (mut memory, mut id) = (ptr::null(), 0);
        // SAFETY: the value is the runtime's, for this run; memory and id are written to. The memory's description is the
        // value's own.
        unsafe {
            call!(self.api, GetTensorMemoryInfo(self.value, &raw mut memory))?;
            call!(self.api, MemoryInfoGetId(memory, &raw mut id))?;
        }
        usize::try_from(id)
            .map_err(|_| Error::Runtime(format!("`{}` is on device {id}", self.name)))
    }

    /// How many elements of so many bytes there are, in host memory.
    fn len(&self, element_bytes: usize) -> Result<usize, Error> {
        let len = self.shape.elements(self.name)?;
        let is_there = !self.data.is_null() && self.data.addr().is_multiple_of(element_bytes);
        if len == 0 || is_there { Ok(len) } else { Err(Error::NoData { tensor: self.name }) }
    }

    /// # Safety
    /// `T` has the tensor's element type.
    unsafe fn list<T>(&self) -> Result<&'a [T], Error> {
        match self.len(size_of::<T>())? {
            0 => Ok(&[]),
            // SAFETY: as of `numbers`; the caller answers for the type.
            len => Ok(unsafe { std::slice::from_raw_parts(self.data.cast(), len) }),
        }
    }

    /// The format of a tensor of numbers.
    pub(crate) fn format(&self) -> Result<DType, Error> {
        format_of(self.element_type).ok_or_else(|| Error::Type {
            tensor: self.name,
            found: type_name(self.element_type),
            expected: "float or float16".to_owned(),
        })
    }

    /// Its numbers, widened to `f32` in `room` if there is one.
    pub(crate) fn numbers(&self, room: Option<&'a mut Vec<f32>>) -> Result<TensorView<'a>, Error> {
        let dtype = self.format()?;
        if let (DType::F16, Some(room)) = (dtype, room) {
            // SAFETY: of the type that is matched.
            let halves = unsafe { self.list::<f16>()? };
            room.clear();
            room.extend(halves.iter().map(|half| half.to_f32()));
            return Ok(TensorView::from(&*room));
        }
        let len = self.len(dtype.size_bytes())?;
        // SAFETY: a tensor of the runtime has as many elements as its shape says, which nothing writes to while the node
        // runs. `format` read their dtype.
        Ok(unsafe { TensorView::from_raw_parts(dtype, self.data, len) })
    }

    /// Its integers, of either width.
    pub(crate) fn integers(&self) -> Result<Vec<i64>, Error> {
        match self.element_type {
            6 => {
                // SAFETY: of the type that is matched.
                let narrow = unsafe { self.list::<i32>()? };
                Ok(narrow.iter().map(|&number| number.into()).collect())
            }
            // SAFETY: as above.
            7 => Ok(unsafe { self.list::<i64>()? }.to_vec()),
            other => Err(Error::Type {
                tensor: self.name,
                found: type_name(other),
                expected: "int64 or int32".to_owned(),
            }),
        }
    }
}

/// The threads of the session that a node runs in.
pub(crate) struct SessionThreads<'a> {
    pub context: &'a Context<'a>,
    /// Workers to ask for. The runtime does not say how many threads it has: those beyond find nothing left to do.
    pub workers: usize,
}

unsafe extern "C" fn run_job(job: *mut c_void, _index: usize) {
    // SAFETY: `SessionThreads::run` passes the work, which lives until all workers are done. It does not panic.
    (unsafe { *job.cast::<&(dyn Fn() + Sync)>() })();
}

impl LentThreads for SessionThreads<'_> {
    fn workers(&self) -> usize {
        self.workers
    }

    fn run(&self, mut work: &(dyn Fn() + Sync)) {
        let Context { api, context, .. } = *self.context;
        if self.workers > 1 {
            let job = (&raw mut work).cast();
            // SAFETY: it returns when all calls have; the work may be shared between threads.
            let shared = unsafe {
                call!(api, KernelContext_ParallelFor(context, run_job, self.workers, 0, job))
            };
            if shared.is_ok() {
                return;
            }
        }
        // Alone; also where the runtime refused to share.
        work();
    }
}

/// What the runtime knows of a node's shapes before it runs.
pub(crate) struct ShapeContext<'a> {
    api: Api,
    context: *mut OrtShapeInferContext,
    life: PhantomData<&'a ()>,
}

/// One axis of a shape that may be symbolic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Axis<'a> {
    Size(i64),
    Named(&'a CStr),
    Unknown,
}

impl<'a> ShapeContext<'a> {
    /// # Safety
    /// The context is the runtime's and lives for `'a`.
    pub(crate) const unsafe fn new(api: Api, context: *mut OrtShapeInferContext) -> Self {
        Self { api, context, life: PhantomData }
    }

    /// The axes of an input; none where nothing is known.
    pub(crate) fn input(&self, index: usize) -> Result<Vec<Axis<'a>>, Error> {
        let (mut info, mut rank) = (ptr::null_mut(), 0);
        // SAFETY: information and rank are written to. The information stays the context's: its names live for `'a`.
        unsafe {
            call!(
                self.api,
                ShapeInferContext_GetInputTypeShape(self.context, index, &raw mut info)
            )?;
            call!(self.api, GetDimensionsCount(info, &raw mut rank))?;
        }
        let (mut sizes, mut names) = (vec![0i64; rank], vec![ptr::null::<c_char>(); rank]);
        // SAFETY: as many are written as there is room for.
        unsafe {
            call!(self.api, GetDimensions(info, sizes.as_mut_ptr(), rank))?;
            call!(self.api, GetSymbolicDimensions(info, names.as_mut_ptr(), rank))?;
        }
        let axis = |(size, name): (i64, *const c_char)| {
            // SAFETY: a name that is not null ends with a zero.
            let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) });
            match name.filter(|name| !name.is_empty()) {
                Some(name) => Axis::Named(name),
                None if size >= 0 => Axis::Size(size),
                None => Axis::Unknown,
            }
        };
        Ok(sizes.into_iter().zip(names).map(axis).collect())
    }

    /// Says what the output will be: of the first input's type, which newer runtimes take from here and older ones from
    /// the operators' tables. Every axis has a size or a name.
    pub(crate) fn set_output(&self, axes: &[Axis<'_>]) -> Result<(), Error> {
        let (mut first, mut code) = (ptr::null_mut(), 0i32);
        // SAFETY: information and code are written to; the enumeration is written as the integer that it is.
        unsafe {
            call!(self.api, ShapeInferContext_GetInputTypeShape(self.context, 0, &raw mut first))?;
            call!(self.api, GetTensorElementType(first, (&raw mut code).cast()))?;
        }
        // Another type has no node of this name, which the runtime says by itself.
        let Some(format) = format_of(code) else { return Ok(()) };
        let info = TypeAndShape::new(self.api)?;
        let sizes: Vec<i64> =
            axes.iter().map(|axis| if let Axis::Size(size) = axis { *size } else { -1 }).collect();
        let mut names: Vec<*const c_char> = axes
            .iter()
            .map(|axis| if let Axis::Named(name) = axis { name.as_ptr() } else { c"".as_ptr() })
            .collect();
        // SAFETY: as many are read as there are, and copied.
        unsafe {
            call!(self.api, SetTensorElementType(info.info, element_type(format)))?;
            call!(self.api, SetDimensions(info.info, sizes.as_ptr(), sizes.len()))?;
            call!(self.api, SetSymbolicDimensions(info.info, names.as_mut_ptr(), names.len()))?;
            call!(self.api, ShapeInferContext_SetOutputTypeShape(self.context, 0, info.info))
        }
    }
}
