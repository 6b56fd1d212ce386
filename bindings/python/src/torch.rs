//! Calls on PyTorch's tensors, from the objects to the launch.
//!
//! A small kernel takes less time than Python and PyTorch's dispatcher take to call it. A call is ordinary if its tensors
//! are plain ones and nothing in PyTorch watches: no mode, trace, profiler or transform. Then everything happens here, with
//! PyTorch's exchange table (`DLPack` 1.2, PyTorch 2.10) describing the tensors, or with their attributes in older versions.
//! For every other call, and for every mistake, [`torch_forward`] and [`torch_backward`] return `None`. The Python half then
//! takes its slow path, which reports mistakes. At the end of that path the dispatcher calls a native kernel or, in PyTorch
//! before 2.10, [`kernel_forward`] and [`kernel_backward`].

use std::borrow::Cow;

use msdeform::{
    ATTENTION, DType, FROM_OFFSETS, Gradients, LevelLists, OffsetOptions, Operator, Role,
    ValueLayout,
};
use msdeform_torch::call::{Described, Framework, Inputs, Place};
use msdeform_torch::error::CallError;
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyCapsule, PyCapsuleMethods, PyDict, PyInt, PyList, PyTuple, PyType};
use pyo3::{ffi, intern};

use crate::exchange::{DlTensor, Exchange};
use crate::operand::{Options, exception, level_numbers};

static TORCH: PyOnceLock<Torch> = PyOnceLock::new();

/// What calls need of PyTorch, by the names of the attributes in which the Python half hands it over.
#[derive(FromPyObject)]
pub struct Torch {
    #[pyo3(attribute("tensor"), from_py_with = exchange_of)]
    exchange: Option<&'static Exchange>,
    /// `torch.Tensor`; subclasses may mean anything.
    tensor: Py<PyType>,
    /// Functions without arguments; a call is ordinary if none of them returns something true.
    watchers: Vec<Py<PyAny>>,
    threads: Py<PyAny>,
    /// The current stream of a GPU, for versions without a table.
    stream: Py<PyAny>,
    /// Whether all of PyTorch must be bitwise reproducible.
    is_deterministic: Py<PyAny>,
    is_neg: Py<PyAny>,
    new_empty: Py<PyAny>,
    /// `{"dtype": torch.uint8}`.
    of_bytes: Py<PyDict>,
    quick: Option<QuickEmpty>,
    /// In the order of [`DType::ALL`].
    dtypes: Vec<Py<PyAny>>,
}

/// The allocation that PyTorch's own generated code uses: sizes, strides and dtype in order, nothing to parse.
#[derive(FromPyObject)]
struct QuickEmpty(Py<PyAny>, Py<PyAny>, Py<PyAny>);

/// Hands PyTorch over. An interpreter that imports the package again keeps what it had.
#[pyfunction]
pub fn use_torch(py: Python<'_>, torch: Torch) {
    let _ = TORCH.set(py, torch);
}

fn exchange_of(tensor: &Bound<'_, PyAny>) -> PyResult<Option<&'static Exchange>> {
    let table = tensor.getattr("__dlpack_c_exchange_api__").ok();
    let Some(table) = table.and_then(|table| table.cast_into::<PyCapsule>().ok()) else {
        return Ok(None);
    };
    let table = table.pointer_checked(Some(c"dlpack_exchange_api"))?;
    // SAFETY: a capsule of this name holds such a table, which lives as long as the process.
    Ok(unsafe { Exchange::find(table.as_ptr()) })
}

/// The levels of an ordinary call whose gradient is recorded: read once, for both directions.
#[pyclass(frozen, module = "msdeform._native")]
pub struct Levels {
    /// Height, width, start and points of each.
    #[pyo3(get)]
    numbers: Vec<i64>,
}

/// The output of an ordinary call. If `is_recorded` and a tensor requires a gradient: the output and the [`Levels`].
///
/// `levels` are four numbers for each; or, if they `are_shapes`, pairs (height, width) of levels that follow each other.
#[pyfunction]
pub fn torch_forward<'py>(
    tensors: &Bound<'py, PyTuple>,
    levels: &Bound<'py, PyAny>,
    are_shapes: bool,
    options: Option<&Bound<'py, PyAny>>,
    deterministic: bool,
    is_recorded: bool,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = tensors.py();
    let Some(torch) = TORCH.get(py) else { return Ok(None) };
    let Some(given) = torch.ordinary(tensors, options)? else { return Ok(None) };
    let levels = if are_shapes { read_shapes(&given, levels) } else { read_levels(levels) };
    let Some(levels) = levels else { return Ok(None) };
    let none = Gradients::NONE;
    let expected = if is_recorded { gradients_required(&given, tensors)? } else { none };
    let deterministic = expected != none && torch.is_deterministic(py, deterministic)?;
    let output = torch.forward(tensors, &given, &levels, (expected, deterministic))?;
    if expected == none {
        return Ok(Some(output));
    }
    let levels = Levels { numbers: levels.into_owned() };
    Ok(Some((output, levels).into_pyobject(py)?.into_any()))
}

/// The gradients of an ordinary call, one for each entry of `wanted`: `None` where it is not wanted, and behind those of the
/// tensors. `levels` are [`Levels`] or four numbers for each.
#[pyfunction]
pub fn torch_backward<'py>(
    grad_output: &Bound<'py, PyAny>,
    tensors: &Bound<'py, PyTuple>,
    levels: &Bound<'py, PyAny>,
    options: Option<&Bound<'py, PyAny>>,
    wanted: &Bound<'py, PyTuple>,
    deterministic: bool,
) -> PyResult<Option<Bound<'py, PyTuple>>> {
    let py = tensors.py();
    let Some(torch) = TORCH.get(py) else { return Ok(None) };
    let Some(given) = torch.ordinary(tensors, options)? else { return Ok(None) };
    let Some(levels) = read_levels(levels) else { return Ok(None) };
    let deterministic = torch.is_deterministic(py, deterministic)?;
    if !torch.is_plain(py, grad_output)? {
        return Ok(None);
    }
    let Some(upstream) = torch.describe(grad_output) else { return Ok(None) };
    if !takes_gradient(&given, &upstream) {
        return Ok(None);
    }
    torch.backward(&upstream, tensors, &given, &levels, wanted, deterministic).map(Some)
}

/// The output of a call from the dispatcher of PyTorch before 2.10. The Python half has checked the numbers of axes.
#[pyfunction]
pub fn kernel_forward<'py>(
    tensors: &Bound<'py, PyTuple>,
    levels: &Bound<'py, PyAny>,
    options: Option<Options>,
) -> PyResult<Bound<'py, PyAny>> {
    let torch = torch(tensors.py())?;
    let (tensors, given) = torch.checked(tensors, options)?;
    torch.forward(&tensors, &given, &level_numbers(levels)?, (Gradients::NONE, false))
}

/// The gradients of such a call, as of [`torch_backward`].
#[pyfunction]
pub fn kernel_backward<'py>(
    grad_output: &Bound<'py, PyAny>,
    tensors: &Bound<'py, PyTuple>,
    levels: &Bound<'py, PyAny>,
    options: Option<Options>,
    wanted: &Bound<'py, PyTuple>,
    deterministic: bool,
) -> PyResult<Bound<'py, PyTuple>> {
    let torch = torch(tensors.py())?;
    let value = tensors.get_item(0)?;
    check_dense(&[("grad_output", grad_output.clone()), ("value", value.clone())])?;
    let (tensors, given) = torch.checked(tensors, options)?;
    // On a GPU it may have any strides.
    let (gradient, upstream) = torch.readable("grad_output", grad_output, [0, 3])?;
    let (expected, dtype) = (given.output_shape().unwrap_or_default(), given.tensors[0].dtype);
    if *upstream.shape != expected || upstream.dtype != dtype {
        return Err(exception(CallError::GradOutput {
            found: upstream.shape.into_owned(),
            format: text_of(&gradient, "dtype")?,
            expected: expected.to_vec(),
            expected_format: text_of(&value, "dtype")?,
        }));
    }
    let deterministic = torch.is_deterministic(tensors.py(), deterministic)?;
    torch.backward(&upstream, &tensors, &given, &level_numbers(levels)?, wanted, deterministic)
}

fn torch(py: Python<'_>) -> PyResult<&Torch> {
    TORCH.get(py).ok_or_else(|| PyRuntimeError::new_err("`use_torch` was not called"))
}

/// An attribute as PyTorch prints it, such as `torch.float32`.
fn text_of(tensor: &Bound<'_, PyAny>, attribute: &str) -> PyResult<String> {
    Ok(tensor.getattr(attribute)?.str()?.to_string())
}

/// Refuses what no kernel of the dispatcher takes, by name.
#[pyfunction]
pub fn check_tensors(tensors: &Bound<'_, PyTuple>, is_fused: bool) -> PyResult<()> {
    let operator = if is_fused { &FROM_OFFSETS } else { &ATTENTION };
    check_dense(&named(operator, tensors))
}

fn named<'py>(
    operator: &Operator,
    tensors: &Bound<'py, PyTuple>,
) -> Vec<(&'static str, Bound<'py, PyAny>)> {
    operator.inputs.iter().map(|role| role.name()).zip(tensors.iter()).collect()
}

/// Refuses tensors of more than one device and sparse ones: an address of one device means nothing on another.
fn check_dense(tensors: &[(&'static str, Bound<'_, PyAny>)]) -> PyResult<()> {
    let places = tensors.iter().map(|(_, tensor)| text_of(tensor, "device"));
    let places = places.collect::<PyResult<Vec<_>>>()?;
    if places.iter().any(|place| Some(place) != places.first()) {
        let found = tensors.iter().zip(&places).map(|((name, _), at)| format!("`{name}` on {at}"));
        return Err(exception(CallError::Devices(found.collect::<Vec<_>>().join(", "))));
    }
    for (tensor, given) in tensors {
        let found = text_of(given, "layout")?;
        if found != "torch.strided" {
            return Err(exception(CallError::Layout { tensor, found }));
        }
    }
    Ok(())
}

impl Torch {
    fn forward<'py>(
        &self,
        tensors: &Bound<'py, PyTuple>,
        given: &Inputs<'_>,
        levels: &[i64],
        request: (Gradients, bool),
    ) -> PyResult<Bound<'py, PyAny>> {
        let value = tensors.get_borrowed_item(0)?;
        let shape = given.output_shape();
        let shape = shape.ok_or_else(|| PyValueError::new_err("a tensor has too few axes"))?;
        let output = self.new_tensor(&value, &given.tensors[0], &shape)?;
        let (at, caller) = (self.address(&output)?, Caller { torch: self, value: &value });
        // SAFETY: the descriptions are those of live tensors, which are contiguous but for their free axes; the output was made for
        // this call. PyTorch's allocator frees memory in the order of the stream, which is its current one on the tensors' GPU.
        unsafe { given.forward(&caller, levels, request, at)? };
        Ok(output)
    }

    fn backward<'py>(
        &self,
        upstream: &Described<'_>,
        tensors: &Bound<'py, PyTuple>,
        given: &Inputs<'_>,
        levels: &[i64],
        wanted: &Bound<'py, PyTuple>,
        deterministic: bool,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let mut gradients = vec![None; wanted.len()];
        let mut addresses = vec![None; given.tensors.len()];
        for (at, like) in given.tensors.iter().enumerate() {
            if wanted.get_borrowed_item(at)?.is_truthy()? {
                let neighbour = tensors.get_borrowed_item(at)?;
                let gradient = self.new_tensor(&neighbour, like, &like.shape)?;
                addresses[at] = Some(self.address(&gradient)?);
                gradients[at] = Some(gradient);
            }
        }
        let value = tensors.get_borrowed_item(0)?;
        let caller = Caller { torch: self, value: &value };
        // SAFETY: as in `forward`; the gradients were made for this call, and `upstream` is contiguous on the CPU.
        unsafe {
            given.backward(&caller, levels, upstream, &addresses, deterministic)?;
        }
        PyTuple::new(tensors.py(), gradients)
    }

    /// The tensors and options of an ordinary call: one that the dispatcher would take straight to the kernel of the CPU or
    /// the GPU, which would read the tensors where they are.
    fn ordinary<'a>(
        &self,
        tensors: &'a Bound<'_, PyTuple>,
        options: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<Inputs<'a>>> {
        let rule = match options.map(PyAnyMethods::extract::<Options>).transpose() {
            Ok(rule) => rule.map(OffsetOptions::from),
            Err(_) => return Ok(None),
        };
        let py = tensors.py();
        for watcher in &self.watchers {
            if watcher.bind(py).call0()?.is_truthy()? {
                return Ok(None);
            }
        }
        for tensor in tensors.iter_borrowed() {
            if !self.is_plain(py, &tensor)? {
                return Ok(None);
            }
        }
        let described = tensors.iter_borrowed().map(|tensor| self.describe(&tensor));
        let Some(tensors) = described.collect::<Option<Vec<_>>>() else { return Ok(None) };
        let given = Inputs { tensors, rule };
        Ok(are_readable(&given).unwrap_or(false).then_some(given))
    }

    fn is_deterministic(&self, py: Python<'_>, deterministic: bool) -> PyResult<bool> {
        Ok(deterministic || self.is_deterministic.bind(py).call0()?.is_truthy()?)
    }

    /// Whether it is a tensor, of no subclass, without a negation that PyTorch has put off.
    fn is_plain(&self, py: Python<'_>, tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
        Ok(tensor.get_type().is(&self.tensor)
            && !self.is_neg.bind(py).call1((tensor,))?.is_truthy()?)
    }

    fn table_entry(&self, tensor: &Bound<'_, PyAny>) -> Option<DlTensor> {
        // SAFETY: every caller has checked that it is PyTorch's tensor, or PyTorch has just made it.
        let described = unsafe { self.exchange?.describe(tensor.as_ptr()) };
        if described.is_none() {
            // SAFETY: the interpreter is ours. The slow path reports the error again.
            unsafe { ffi::PyErr_Clear() };
        }
        described
    }

    /// A plain tensor as the table describes it, or as its attributes do where there is no table.
    fn describe<'a>(&self, tensor: &Bound<'_, PyAny>) -> Option<Described<'a>> {
        if self.exchange.is_none() {
            return self.read_attributes("", tensor).ok();
        }
        // SAFETY: all callers hold the tensor until the call is done, and nothing here resizes it.
        unsafe { self.table_entry(tensor)?.described() }
    }

    /// The tensors of a call from the dispatcher, contiguous but for their free axes.
    fn checked<'py>(
        &self,
        tensors: &Bound<'py, PyTuple>,
        options: Option<Options>,
    ) -> PyResult<(Bound<'py, PyTuple>, Inputs<'static>)> {
        let mut given = Inputs { tensors: Vec::new(), rule: options.map(Into::into) };
        let roles = given.operator().inputs;
        check_dense(&named(given.operator(), tensors))?;
        let mut kept = Vec::with_capacity(roles.len());
        for (role, tensor) in roles.iter().zip(tensors.iter()) {
            let free = [true, false].map(|is_on_cpu| role.free_axes(is_on_cpu));
            let (tensor, described) = self.readable(role.name(), &tensor, free)?;
            kept.push(tensor);
            given.tensors.push(described);
        }
        Ok((PyTuple::new(tensors.py(), kept)?, given))
    }

    /// A tensor, or a contiguous copy of it, whose first axes alone have strides of their own: so many on the CPU, and on a GPU.
    fn readable<'py>(
        &self,
        name: &'static str,
        tensor: &Bound<'py, PyAny>,
        [on_cpu, on_gpu]: [usize; 2],
    ) -> PyResult<(Bound<'py, PyAny>, Described<'static>)> {
        let found = self.read_attributes(name, tensor)?;
        let free = if found.place == Place::Cpu { on_cpu } else { on_gpu };
        if found.has_contiguous_rows(free) {
            return Ok((tensor.clone(), found));
        }
        let copy = tensor.call_method0(intern!(tensor.py(), "contiguous"))?;
        let found = self.read_attributes(name, &copy)?;
        Ok((copy, found))
    }

    /// A tensor of any version of PyTorch.
    fn read_attributes(
        &self,
        name: &'static str,
        tensor: &Bound<'_, PyAny>,
    ) -> PyResult<Described<'static>> {
        let py = tensor.py();
        let dtype = tensor.getattr(intern!(py, "dtype"))?;
        let at = self.dtypes.iter().position(|known| dtype.is(known));
        let Some(&dtype) = at.and_then(|at| DType::ALL.get(at)) else {
            let found = text_of(tensor, "dtype")?;
            return Err(exception(CallError::Dtype { tensor: name, found }));
        };
        let place = if tensor.getattr(intern!(py, "is_cuda"))?.is_truthy()? {
            Place::Gpu(tensor.call_method0(intern!(py, "get_device"))?.extract()?)
        } else if tensor.getattr(intern!(py, "is_cpu"))?.is_truthy()? {
            Place::Cpu
        } else {
            return Err(PyTypeError::new_err("a tensor of an unknown device"));
        };
        Ok(Described {
            address: tensor.call_method0(intern!(py, "data_ptr"))?.extract()?,
            dtype,
            place,
            shape: Cow::Owned(tensor.getattr(intern!(py, "shape"))?.extract()?),
            strides: Cow::Owned(tensor.call_method0(intern!(py, "stride"))?.extract()?),
        })
    }

    /// The address of a tensor that PyTorch has just made.
    fn address(&self, tensor: &Bound<'_, PyAny>) -> PyResult<u64> {
        match self.table_entry(tensor) {
            Some(entry) => Ok(entry.address()),
            None => tensor.call_method0(intern!(tensor.py(), "data_ptr"))?.extract(),
        }
    }

    /// A contiguous tensor on the device of `neighbour`, which `like` describes.
    fn new_tensor<'py>(
        &self,
        neighbour: &Bound<'py, PyAny>,
        like: &Described<'_>,
        shape: &[i64],
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = neighbour.py();
        let sizes = PyTuple::new(py, shape)?;
        let empty = match (&self.quick, like.place) {
            (Some(QuickEmpty(cpu, _, _)), Place::Cpu) => cpu,
            (Some(QuickEmpty(_, cuda, current_gpu)), Place::Gpu(ordinal))
                if current_gpu.bind(py).call0()?.extract::<i32>()? == ordinal =>
            {
                cuda
            }
            _ => return self.new_empty.bind(py).call1((neighbour, sizes)),
        };
        let Some(dtype) = self.dtypes.get(like.dtype as usize) else {
            return self.new_empty.bind(py).call1((neighbour, sizes));
        };
        let mut strides = [1_i64; 6];
        for axis in (1..shape.len().min(6)).rev() {
            strides[axis - 1] = strides[axis] * shape[axis];
        }
        let strides = PyTuple::new(py, &strides[..shape.len().min(6)])?;
        empty.bind(py).call1((sizes, strides, dtype))
    }
}

/// PyTorch, for one call.
struct Caller<'a, 'py> {
    torch: &'a Torch,
    value: &'a Bound<'py, PyAny>,
}

impl<'py> Framework for Caller<'_, 'py> {
    type Error = PyErr;
    type Memory = Bound<'py, PyAny>;

    fn error(error: CallError) -> PyErr {
        exception(error)
    }

    fn threads(&self) -> PyResult<i64> {
        self.torch.threads.bind(self.value.py()).call0()?.extract()
    }

    fn stream(&self, ordinal: i32) -> PyResult<usize> {
        let py = self.value.py();
        let Some(table) = self.torch.exchange else {
            return self.torch.stream.bind(py).call1((ordinal,))?.extract();
        };
        table.current_stream(ordinal).ok_or_else(|| {
            PyErr::take(py)
                .unwrap_or_else(|| PyRuntimeError::new_err(format!("GPU {ordinal} has no stream")))
        })
    }

    /// From PyTorch's allocator: freed in stream order, and part of a graph that is being captured.
    fn workspace(&self, _: i32, bytes: usize) -> PyResult<(Self::Memory, u64)> {
        let Torch { new_empty, of_bytes, .. } = self.torch;
        let py = self.value.py();
        let memory = new_empty.bind(py).call((self.value, (bytes,)), Some(of_bytes.bind(py)))?;
        let at = self.torch.address(&memory)?;
        Ok((memory, at))
    }

    fn detached<T: Send>(&self, run: impl FnOnce() -> T + Send) -> T {
        self.value.py().detach(run)
    }
}

/// Whether the kernels read the tensors where they are. False for what the slow path must look at: dtypes that differ,
/// references for several images or queries, rows that are not contiguous, and every mistake.
fn are_readable(given: &Inputs<'_>) -> Option<bool> {
    let roles = given.operator().inputs;
    if given.tensors.len() != roles.len() {
        return None;
    }
    let (value, (_, positions)) = (&given.tensors[0], given.positions()?);
    let is_double = value.dtype == DType::F64;
    let is_on_cpu = value.place == Place::Cpu;
    let fits = |(&role, tensor): (&Role, &Described<'_>)| {
        let (found, shape) = (tensor.dtype, &*tensor.shape);
        let rank = shape.len();
        // Each dtype is read together with the dtype in front of it, or is f32.
        let (is_read, has_axes) = match role {
            Role::Value => (true, rank == 4),
            Role::References => {
                let is_for_each = rank == 4
                    && matches!(shape[3], 2 | 4)
                    && positions.shape.get(..2) == Some(&shape[..2]);
                (found == positions.dtype || found == DType::F32, is_for_each)
            }
            Role::Locations | Role::Offsets => {
                (found == value.dtype || found == DType::F32, matches!(rank, 5 | 6))
            }
            _ => (found == positions.dtype, matches!(rank, 4 | 5)),
        };
        is_read
            && has_axes
            && (found == DType::F64) == is_double
            && tensor.place == value.place
            && tensor.address != 0
            && shape.iter().all(|&size| size > 0)
            && tensor.has_contiguous_rows(role.free_axes(is_on_cpu))
    };
    // The CPU computes f64.
    Some((is_on_cpu || !is_double) && roles.iter().zip(&given.tensors).all(fits))
}

/// The gradients of the inputs that require one.
fn gradients_required(given: &Inputs<'_>, tensors: &Bound<'_, PyTuple>) -> PyResult<Gradients> {
    let mut required = [false; 4];
    for (to, tensor) in required.iter_mut().zip(tensors.iter_borrowed()) {
        *to = tensor.getattr(intern!(tensor.py(), "requires_grad"))?.is_truthy()?;
    }
    Ok(given.gradients(required))
}

/// Four numbers for each level, from pairs (height, width) of levels that follow each other. `None` for anything but exact
/// integers in a list or a tuple, and for pairs that do not cover the value's pixels.
fn read_shapes<'a>(given: &Inputs<'_>, shapes: &Bound<'_, PyAny>) -> Option<Cow<'a, [i64]>> {
    let pair = |item: &Bound<'_, PyAny>| {
        let (mut sizes, mut count) = ([0; 2], 0);
        each_item(item, |size| {
            *sizes.get_mut(count)? = exact_integer(size).filter(|&size| size > 0)?;
            count += 1;
            Some(())
        })?;
        (count == 2).then_some(sizes)
    };
    let mut sizes = Vec::with_capacity(4);
    each_item(shapes, |item| {
        sizes.push(pair(item)?);
        Some(())
    })?;
    let lists = LevelLists { sizes: &sizes, starts: None, points: None };
    let pixels = (given.tensors[0].shape[1], ValueLayout::Interleaved);
    let (role, positions) = given.positions()?;
    let levels = lists.complete(pixels, (role, &positions.shape)).ok()?;
    Some(Cow::Owned(levels.into_flattened()))
}

/// Whether this is the gradient of the output, readable where it is.
fn takes_gradient(given: &Inputs<'_>, gradient: &Described<'_>) -> bool {
    let value = &given.tensors[0];
    let first = if value.place == Place::Cpu { 0 } else { 3 };
    given.output_shape().is_some_and(|output| output == *gradient.shape)
        && (gradient.dtype, gradient.place) == (value.dtype, value.place)
        && gradient.has_contiguous_rows(first)
}

/// Four numbers for each level, of [`Levels`] or a list. `None` for anything but exact integers.
fn read_levels<'a>(levels: &'a Bound<'_, PyAny>) -> Option<Cow<'a, [i64]>> {
    if let Ok(levels) = levels.cast::<Levels>() {
        return Some(Cow::Borrowed(&levels.get().numbers));
    }
    let mut numbers = Vec::with_capacity(16);
    each_item(levels, |item| {
        numbers.push(exact_integer(item)?);
        Some(())
    })?;
    Some(Cow::Owned(numbers))
}

/// Calls a function with the items of a list or a tuple, until it returns `None`. Every call reads a list for each level, so
/// nothing is allocated here.
fn each_item<'py>(
    sequence: &Bound<'py, PyAny>,
    mut read: impl FnMut(&Bound<'py, PyAny>) -> Option<()>,
) -> Option<()> {
    if let Ok(tuple) = sequence.cast::<PyTuple>() {
        return tuple.iter_borrowed().try_for_each(|item| read(&item));
    }
    sequence.cast_exact::<PyList>().ok()?.iter().try_for_each(|item| read(&item))
}

fn exact_integer(item: &Bound<'_, PyAny>) -> Option<i64> {
    item.is_exact_instance_of::<PyInt>().then(|| item.extract().ok()).flatten()
}
