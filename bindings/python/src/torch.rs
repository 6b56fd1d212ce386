//! Ordinary calls on PyTorch's tensors, from the objects to the launch.
//!
//! A small kernel takes less time than Python and PyTorch's dispatcher take to call it. A call is ordinary if its tensors
//! are plain ones and nothing in PyTorch watches: no mode, trace, profiler or transform. Then everything happens here, with
//! PyTorch's exchange table (`DLPack` 1.2, PyTorch 2.10) describing the tensors. For every other call, and for every
//! mistake, the functions return `None`. The Python half then takes its slow path, which reports mistakes.

use std::borrow::Cow;

use msdeform::{DType, Direction, OffsetOptions, Operator, Role};
use msdeform_torch::call::{self, Described, Head, gradient_bits};
use pyo3::Borrowed;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyCapsule, PyCapsuleMethods, PyDict, PyInt, PyList, PyTuple, PyType};
use pyo3::{ffi, intern};

use crate::error::exception;
use crate::exchange::{DlTensor, Exchange, Place};
use crate::operand::Options;
use crate::{launch, run_on_cpu, with_gradients};

static TORCH: PyOnceLock<Torch> = PyOnceLock::new();

/// What ordinary calls need of PyTorch.
struct Torch {
    exchange: &'static Exchange,
    /// `torch.Tensor`; subclasses may mean anything.
    tensor: Py<PyType>,
    /// Functions without arguments; a call is ordinary if none of them returns something true.
    watchers: Vec<Py<PyAny>>,
    threads: Py<PyAny>,
    /// Whether all of PyTorch must be bitwise reproducible.
    is_deterministic: Py<PyAny>,
    is_neg: Py<PyAny>,
    new_empty: Py<PyAny>,
    /// `{"dtype": torch.uint8}`.
    of_bytes: Py<PyDict>,
    quick: Option<QuickEmpty>,
}

/// The allocation that PyTorch's own generated code uses: sizes, strides and dtype in order, nothing to parse.
struct QuickEmpty {
    cpu: Py<PyAny>,
    /// On the current GPU.
    cuda: Py<PyAny>,
    current_gpu: Py<PyAny>,
    /// PyTorch's dtypes, in the order of `msdeform_torch::call::DTYPES`.
    dtypes: Vec<Py<PyAny>>,
}

/// Hands PyTorch over; false if this version has no exchange table that is known here.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "one call, when the package is imported")]
pub fn use_torch(
    py: Python<'_>,
    tensor: &Bound<'_, PyType>,
    watchers: Vec<Py<PyAny>>,
    threads: Py<PyAny>,
    is_deterministic: Py<PyAny>,
    byte: Py<PyAny>,
    quick: Option<(Py<PyAny>, Py<PyAny>, Py<PyAny>)>,
    dtypes: Vec<Py<PyAny>>,
) -> PyResult<bool> {
    let Ok(table) = tensor.getattr("__dlpack_c_exchange_api__") else { return Ok(false) };
    let Ok(table) = table.cast_into::<PyCapsule>() else { return Ok(false) };
    let table = table.pointer_checked(Some(c"dlpack_exchange_api"))?;
    // SAFETY: a capsule of this name holds such a table, which lives as long as the process.
    let Some(exchange) = (unsafe { Exchange::find(table.as_ptr()) }) else { return Ok(false) };
    let of_bytes = PyDict::new(py);
    of_bytes.set_item("dtype", byte)?;
    let torch = Torch {
        exchange,
        tensor: tensor.clone().unbind(),
        watchers,
        threads,
        is_deterministic,
        is_neg: tensor.getattr("is_neg")?.unbind(),
        new_empty: tensor.getattr("new_empty")?.unbind(),
        of_bytes: of_bytes.unbind(),
        quick: quick.map(|(cpu, cuda, current_gpu)| QuickEmpty { cpu, cuda, current_gpu, dtypes }),
    };
    // An interpreter that imports the package again keeps what it had.
    let _ = TORCH.set(py, torch);
    Ok(true)
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
    let Some(inputs) = torch.inputs(tensors, options)? else { return Ok(None) };
    let levels = if are_shapes { inputs.read_shapes(levels) } else { read_levels(levels) };
    let Some(levels) = levels else { return Ok(None) };
    let expected = if is_recorded { inputs.gradients_required(tensors)? } else { 0 };
    let mut head = Head { expected, ..Head::default() };
    if expected != 0 {
        head.deterministic = torch.is_deterministic(py, deterministic)?;
    }
    let value = tensors.get_borrowed_item(0)?;
    let Some(output) = torch.forward(&value, &inputs, &levels, head)? else { return Ok(None) };
    if expected == 0 {
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
    let Some(inputs) = torch.inputs(tensors, options)? else { return Ok(None) };
    let Some(levels) = read_levels(levels) else { return Ok(None) };
    let deterministic = torch.is_deterministic(py, deterministic)?;
    torch.backward(grad_output, tensors, &inputs, &levels, wanted, deterministic)
}

impl Torch {
    /// The output. `head` describes the gradients that will be wanted.
    fn forward<'py>(
        &self,
        value: &Bound<'py, PyAny>,
        inputs: &Inputs,
        levels: &[i64],
        head: Head,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = value.py();
        let output = self.new_tensor(value, &inputs.tensors[0], &inputs.output_shape())?;
        let Some(to) = self.describe(&output) else { return Ok(None) };
        let call = inputs.call();
        let pointers = call.pointers().map_err(exception)?.with(Role::Output, to.address());
        match inputs.place {
            Place::Cpu => {
                let threads = self.threads(py)?;
                // SAFETY: addresses, shapes and strides come from the same live tensors, which `Inputs::of` found to be contiguous
                // but for their free axes; the output was made for this call.
                unsafe { run_on_cpu(py, Direction::Forward, threads, &call, levels, &pointers)? };
            }
            Place::Gpu(ordinal) => {
                let stream = self.stream(py, ordinal)?;
                // SAFETY: as above. PyTorch's allocator frees memory in the order of the stream, which is its current one
                // on the tensors' GPU; a forward call has no workspace.
                unsafe {
                    launch(py, (ordinal.into(), stream), head, &call, levels, pointers, |_| {
                        Ok(Some(0))
                    })?;
                }
            }
        }
        Ok(Some(output))
    }

    /// The gradients, if `grad_output` is ordinary too.
    fn backward<'py>(
        &self,
        grad_output: &Bound<'py, PyAny>,
        tensors: &Bound<'py, PyTuple>,
        inputs: &Inputs,
        levels: &[i64],
        wanted: &Bound<'py, PyTuple>,
        deterministic: bool,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let py = grad_output.py();
        if !self.is_plain(py, grad_output)? {
            return Ok(None);
        }
        let Some(from) = self.describe(grad_output) else { return Ok(None) };
        if !inputs.takes_gradient(&from) {
            return Ok(None);
        }
        let made = self.new_gradients(tensors, &inputs.tensors, wanted)?;
        let Some((gradients, to)) = made else { return Ok(None) };
        let call = inputs.call();
        let pointers = call.pointers().map_err(exception)?;
        let pointers = with_gradients(call.operator(), pointers, from.address(), &to);
        match inputs.place {
            Place::Cpu => {
                let threads = self.threads(py)?;
                // SAFETY: as in `forward`; `takes_gradient` found the gradient to be contiguous.
                unsafe { run_on_cpu(py, Direction::Backward, threads, &call, levels, &pointers)? };
            }
            Place::Gpu(ordinal) => {
                let strides = from.strides();
                let head = Head {
                    gradients: gradient_bits(call.operator(), to.iter().map(|&at| at != 0)),
                    deterministic,
                    grad_strides: (strides[0], strides[1], strides[2]),
                    ..Head::default()
                };
                let mut workspace = None;
                // From PyTorch's allocator: freed in stream order, and part of a graph that is being captured.
                let allocate = |bytes: usize| {
                    let tensor = self.new_bytes(&tensors.get_item(0)?, bytes)?;
                    let at = self.describe(&tensor).map(|found| found.address());
                    workspace = Some(tensor);
                    Ok(at)
                };
                let stream = self.stream(py, ordinal)?;
                // SAFETY: as in `forward`; gradients and workspace were made for this call, and are held until it is queued.
                let launched = unsafe {
                    launch(py, (ordinal.into(), stream), head, &call, levels, pointers, allocate)?
                };
                drop(workspace);
                if launched.is_none() {
                    return Ok(None);
                }
            }
        }
        Ok(Some(PyTuple::new(py, gradients)?))
    }

    /// New tensors for the gradients that are `wanted`, each like its input, and the addresses; 0 for the others.
    fn new_gradients<'py>(
        &self,
        tensors: &Bound<'py, PyTuple>,
        like: &[DlTensor],
        wanted: &Bound<'py, PyTuple>,
    ) -> PyResult<Option<Gradients<'py>>> {
        let mut gradients = vec![None; wanted.len()];
        let mut addresses = vec![0; like.len()];
        for (at, like) in like.iter().enumerate() {
            if wanted.get_borrowed_item(at)?.is_truthy()? {
                let beside = tensors.get_borrowed_item(at)?;
                let gradient = self.new_tensor(&beside, like, like.shape())?;
                let Some(described) = self.describe(&gradient) else { return Ok(None) };
                addresses[at] = described.address();
                gradients[at] = Some(gradient);
            }
        }
        Ok(Some((gradients, addresses)))
    }

    /// Whether the dispatcher would go straight to the kernel of the CPU or the GPU.
    fn is_ordinary(&self, tensors: &Bound<'_, PyTuple>) -> PyResult<bool> {
        let py = tensors.py();
        for watcher in &self.watchers {
            if watcher.bind(py).call0()?.is_truthy()? {
                return Ok(false);
            }
        }
        for tensor in tensors.iter_borrowed() {
            if !self.is_plain(py, &tensor)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn is_deterministic(&self, py: Python<'_>, deterministic: bool) -> PyResult<bool> {
        Ok(deterministic || self.is_deterministic.bind(py).call0()?.is_truthy()?)
    }

    /// Whether it is a tensor, of no subclass, without a negation that PyTorch has put off.
    fn is_plain(&self, py: Python<'_>, tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
        Ok(tensor.get_type().is(&self.tensor)
            && !self.is_neg.bind(py).call1((tensor,))?.is_truthy()?)
    }

    fn describe(&self, tensor: &Bound<'_, PyAny>) -> Option<DlTensor> {
        // SAFETY: every caller has checked that it is PyTorch's tensor, or PyTorch has just made it.
        let described = unsafe { self.exchange.describe(tensor.as_ptr()) };
        if described.is_none() {
            // SAFETY: the interpreter is ours. The slow path reports the error again.
            unsafe { ffi::PyErr_Clear() };
        }
        described
    }

    /// The tensors and options of an ordinary call.
    fn inputs(
        &self,
        tensors: &Bound<'_, PyTuple>,
        options: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<Inputs>> {
        let rule = match options.map(PyAnyMethods::extract::<Options>).transpose() {
            Ok(rule) => rule.map(OffsetOptions::from),
            Err(_) => return Ok(None),
        };
        Ok(if self.is_ordinary(tensors)? { Inputs::of(self, tensors, rule) } else { None })
    }

    /// A contiguous tensor on the device of `beside`, which `like` describes.
    fn new_tensor<'py>(
        &self,
        beside: &Bound<'py, PyAny>,
        like: &DlTensor,
        shape: &[i64],
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = beside.py();
        let sizes = PyTuple::new(py, shape)?;
        let Some(quick) = &self.quick else {
            return self.new_empty.bind(py).call1((beside, sizes));
        };
        let empty = match like.place() {
            Some(Place::Cpu) => &quick.cpu,
            Some(Place::Gpu(ordinal))
                if quick.current_gpu.bind(py).call0()?.extract::<i32>()? == ordinal =>
            {
                &quick.cuda
            }
            _ => return self.new_empty.bind(py).call1((beside, sizes)),
        };
        let Some(dtype) = usize::try_from(like.code()).ok().and_then(|code| quick.dtypes.get(code))
        else {
            return self.new_empty.bind(py).call1((beside, sizes));
        };
        let mut strides = [1_i64; 6];
        for axis in (1..shape.len().min(6)).rev() {
            strides[axis - 1] = strides[axis] * shape[axis];
        }
        let strides = PyTuple::new(py, &strides[..shape.len().min(6)])?;
        empty.bind(py).call1((sizes, strides, dtype))
    }

    fn new_bytes<'py>(
        &self,
        like: &Bound<'py, PyAny>,
        bytes: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = like.py();
        self.new_empty.bind(py).call((like, (bytes,)), Some(self.of_bytes.bind(py)))
    }

    /// The number of threads that PyTorch computes with.
    fn threads(&self, py: Python<'_>) -> PyResult<i64> {
        self.threads.bind(py).call0()?.extract()
    }

    fn stream(&self, py: Python<'_>, ordinal: i32) -> PyResult<usize> {
        self.exchange.current_stream(ordinal).ok_or_else(|| {
            PyErr::take(py)
                .unwrap_or_else(|| PyRuntimeError::new_err(format!("GPU {ordinal} has no stream")))
        })
    }
}

/// Gradients, where they are wanted, and their addresses.
type Gradients<'py> = (Vec<Option<Bound<'py, PyAny>>>, Vec<u64>);

/// The inputs of an operator, on one device and as the kernels take them.
struct Inputs {
    place: Place,
    tensors: Vec<DlTensor>,
    rule: Option<OffsetOptions>,
}

impl Inputs {
    /// `None` for what the slow path must look at: dtypes that differ, references for several images or queries, rows that are
    /// not contiguous, and every mistake.
    fn of(
        torch: &Torch,
        objects: &Bound<'_, PyTuple>,
        rule: Option<OffsetOptions>,
    ) -> Option<Self> {
        let tensors = objects.iter_borrowed().map(|object| torch.describe(&object));
        let tensors: Vec<DlTensor> = tensors.collect::<Option<_>>()?;
        let place = tensors.first()?.place()?;
        let inputs = Self { place, tensors, rule };
        inputs.are_readable()?.then_some(inputs)
    }

    fn are_readable(&self) -> Option<bool> {
        let roles = self.operator().inputs;
        if self.tensors.len() != roles.len() {
            return None;
        }
        let (value, positions) = (&self.tensors[0], self.positions());
        let (dtype, sampling) = (value.dtype()?, positions.dtype()?);
        let is_double = dtype == DType::F64;
        let is_on_cpu = self.place == Place::Cpu;
        let fits = |(&role, tensor): (&Role, &DlTensor)| {
            let Some(found) = tensor.dtype() else { return false };
            let rank = tensor.shape().len();
            // Each dtype is read together with the dtype in front of it, or is f32.
            let (is_read, has_axes) = match role {
                Role::Value => (true, rank == 4),
                Role::References => {
                    let is_for_each = rank == 4
                        && matches!(tensor.shape()[3], 2 | 4)
                        && positions.shape().get(..2) == Some(&tensor.shape()[..2]);
                    (found == sampling || found == DType::F32, is_for_each)
                }
                Role::Locations | Role::Offsets => {
                    (found == dtype || found == DType::F32, matches!(rank, 5 | 6))
                }
                _ => (found == sampling, matches!(rank, 4 | 5)),
            };
            is_read
                && has_axes
                && (found == DType::F64) == is_double
                && tensor.place() == Some(self.place)
                && tensor.is_full()
                && tensor.has_contiguous_rows(role.free_axes(is_on_cpu))
        };
        // The CPU computes f64.
        Some((is_on_cpu || !is_double) && roles.iter().zip(&self.tensors).all(fits))
    }

    const fn operator(&self) -> &'static Operator {
        call::operator_with(self.rule.as_ref())
    }

    fn call(&self) -> call::Inputs<'_, DlTensor> {
        call::Inputs { tensors: &self.tensors, rule: self.rule }
    }

    /// The input that has a position for every sample.
    fn positions(&self) -> &DlTensor {
        &self.tensors[self.tensors.len() - 2]
    }

    /// The inputs that require a gradient, as [`Head::expected`] has them.
    fn gradients_required(&self, tensors: &Bound<'_, PyTuple>) -> PyResult<i64> {
        let requires = |tensor: Borrowed<'_, '_, PyAny>| {
            tensor.getattr(intern!(tensor.py(), "requires_grad"))?.is_truthy()
        };
        let required: PyResult<Vec<bool>> = tensors.iter_borrowed().map(requires).collect();
        Ok(gradient_bits(self.operator(), required?))
    }

    fn output_shape(&self) -> [i64; 3] {
        let value = self.tensors[0].shape();
        [value[0], self.positions().shape()[1], value[2] * value[3]]
    }

    /// Four numbers for each level, from pairs (height, width) of levels that follow each other. `None` for anything but exact
    /// integers in a list or a tuple, and for pairs that do not cover the value's pixels.
    fn read_shapes<'a>(&self, shapes: &Bound<'_, PyAny>) -> Option<Cow<'a, [i64]>> {
        let items = items_of(shapes)?;
        let mut numbers = Vec::with_capacity(4 * items.len());
        let points = points_of_each(self.positions(), items.len())?;
        let mut start = 0_i64;
        for item in &items {
            let [height, width] = items_of(item)?.try_into().ok()?;
            let (height, width) = (exact_integer(&height)?, exact_integer(&width)?);
            numbers.extend([height, width, start, points]);
            start = start.checked_add(height.checked_mul(width)?)?;
        }
        (start == self.tensors[0].shape()[1]).then_some(Cow::Owned(numbers))
    }

    /// Whether this is the gradient of the output, readable where it is.
    fn takes_gradient(&self, gradient: &DlTensor) -> bool {
        gradient.is_gradient_of(&self.output_shape(), &self.tensors[0])
            && (matches!(self.place, Place::Gpu(_)) || gradient.is_contiguous())
    }
}

/// Four numbers for each level, of [`Levels`] or a list. `None` for anything but exact integers.
fn read_levels<'a>(levels: &'a Bound<'_, PyAny>) -> Option<Cow<'a, [i64]>> {
    if let Ok(levels) = levels.cast::<Levels>() {
        return Some(Cow::Borrowed(&levels.get().numbers));
    }
    items_of(levels)?.iter().map(exact_integer).collect()
}

/// The number of points that every level has, if all have the same, from the shape of the positions.
fn points_of_each(positions: &DlTensor, levels: usize) -> Option<i64> {
    match *positions.shape() {
        [_, _, _, _, points, 2] => Some(points),
        [_, _, _, samples, 2] => {
            let levels = i64::try_from(levels).ok().filter(|&levels| levels > 0)?;
            (samples % levels == 0).then_some(samples / levels)
        }
        _ => None,
    }
}

fn items_of<'py>(sequence: &Bound<'py, PyAny>) -> Option<Vec<Bound<'py, PyAny>>> {
    if let Ok(list) = sequence.cast_exact::<PyList>() {
        return Some(list.iter().collect());
    }
    Some(sequence.cast::<PyTuple>().ok()?.iter().collect())
}

fn exact_integer(item: &Bound<'_, PyAny>) -> Option<i64> {
    item.is_exact_instance_of::<PyInt>().then(|| item.extract().ok()).flatten()
}
