//! Ordinary calls on PyTorch's tensors, from the objects to the launch.
//!
//! A small kernel takes less time than Python and PyTorch's dispatcher take to call it. A call is ordinary if
//! its tensors are plain ones and nothing in PyTorch wants to see it: no mode, trace, profiler, transform. Then
//! everything happens here, on what PyTorch's exchange table (`DLPack` 1.2, PyTorch 2.10) says about the tensors.
//! Whatever is not ordinary, or not right, is answered by `None`: the Python half then goes the long way,
//! which has the words for most errors.

use msdeform::{DType, Direction, OffsetOptions, Role};
use msdeform_torch::call::{self, Described, Head, gradient_bits};
use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyCapsule, PyCapsuleMethods, PyDict, PyInt, PyList, PyTuple, PyType};

use crate::error::exception;
use crate::exchange::{DlTensor, Exchange, Place};
use crate::operand::RuleGiven;
use crate::{launch, operator, run_on_cpu, with_gradients};

static TORCH: PyOnceLock<Torch> = PyOnceLock::new();

/// What ordinary calls need of PyTorch.
pub struct Torch {
    exchange: &'static Exchange,
    /// `torch.Tensor`; subclasses may mean anything.
    tensor: Py<PyType>,
    /// Functions without arguments; a call is ordinary if none of them returns something true.
    watchers: Vec<Py<PyAny>>,
    threads: Py<PyAny>,
    is_neg: Py<PyAny>,
    new_empty: Py<PyAny>,
    /// `{"dtype": torch.uint8}`.
    of_bytes: Py<PyDict>,
    quick: Option<QuickEmpty>,
}

/// The allocation that PyTorch's own generated code uses: sizes, strides and format in order, nothing to parse.
struct QuickEmpty {
    cpu: Py<PyAny>,
    /// On the current GPU, whichever that is.
    cuda: Py<PyAny>,
    current_gpu: Py<PyAny>,
    /// PyTorch's formats, in the order of `msdeform_torch::call::DTYPES`.
    dtypes: Vec<Py<PyAny>>,
}

/// PyTorch, if it was handed over and has such a table.
pub fn of(py: Python<'_>) -> Option<&Torch> {
    TORCH.get(py)
}

/// Hands PyTorch over; false if this version has no exchange table that is known here.
#[pyfunction]
pub fn use_torch(
    py: Python<'_>,
    tensor: &Bound<'_, PyType>,
    watchers: Vec<Py<PyAny>>,
    threads: Py<PyAny>,
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
        is_neg: tensor.getattr("is_neg")?.unbind(),
        new_empty: tensor.getattr("new_empty")?.unbind(),
        of_bytes: of_bytes.unbind(),
        quick: quick.map(|(cpu, cuda, current_gpu)| QuickEmpty { cpu, cuda, current_gpu, dtypes }),
    };
    // An interpreter that imports the package again keeps what it had.
    let _ = TORCH.set(py, torch);
    Ok(true)
}

/// Which gradients a forward call will be asked for, and whether with the same bits in every run.
pub type Expected<const TENSORS: usize> = ([bool; TENSORS], bool);

/// Gradients, where they are wanted, and their addresses.
pub type Gradients<'py, const TENSORS: usize> =
    ([Option<Bound<'py, PyAny>>; TENSORS], [u64; TENSORS]);

/// What that is in a [`Head`].
pub fn expecting<const TENSORS: usize>(expected: Option<Expected<TENSORS>>) -> Head {
    let (wanted, deterministic) = expected.unwrap_or(([false; TENSORS], false));
    Head { expected: gradient_bits(operator(TENSORS), wanted), deterministic, ..Head::default() }
}

/// The output of an ordinary call, whose gradient somebody else records. `levels` are four numbers for each: height, width, start,
/// points.
#[pyfunction]
#[pyo3(signature = (value, locations, weights, levels, expected=None))]
pub fn torch_forward<'py>(
    py: Python<'py>,
    value: &Bound<'py, PyAny>,
    locations: &Bound<'py, PyAny>,
    weights: &Bound<'py, PyAny>,
    levels: &Bound<'py, PyAny>,
    expected: Option<Expected<3>>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    forward(py, [value, locations, weights], levels, None, expected)
}

/// The same from value, references, offsets and logits.
#[pyfunction]
#[pyo3(signature = (tensors, levels, rule, expected=None))]
pub fn torch_forward_from_offsets<'py>(
    py: Python<'py>,
    tensors: [Bound<'py, PyAny>; 4],
    levels: &Bound<'py, PyAny>,
    rule: RuleGiven,
    expected: Option<Expected<4>>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    forward(py, tensors.each_ref(), levels, Some(rule), expected)
}

fn forward<'py, const TENSORS: usize>(
    py: Python<'py>,
    tensors: [&Bound<'py, PyAny>; TENSORS],
    levels: &Bound<'py, PyAny>,
    rule: Option<RuleGiven>,
    expected: Option<Expected<TENSORS>>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let Some(torch) = TORCH.get(py) else { return Ok(None) };
    let Some(inputs) = torch.inputs(py, tensors, rule)? else { return Ok(None) };
    let Some(levels) = read_levels(levels) else { return Ok(None) };
    torch.forward(tensors[0], &inputs, &levels, expecting(expected))
}

/// The gradients of an ordinary call, `None` in place of those that are not wanted.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "the tensors of a call; Python passes them in order")]
pub fn torch_backward<'py>(
    py: Python<'py>,
    grad_output: &Bound<'py, PyAny>,
    value: &Bound<'py, PyAny>,
    locations: &Bound<'py, PyAny>,
    weights: &Bound<'py, PyAny>,
    levels: &Bound<'py, PyAny>,
    wanted: (bool, bool, bool),
    deterministic: bool,
) -> PyResult<Option<[Option<Bound<'py, PyAny>>; 3]>> {
    let expected = ([wanted.0, wanted.1, wanted.2], deterministic);
    backward(py, grad_output, [value, locations, weights], levels, None, expected)
}

/// The same of value, references, offsets and logits.
#[pyfunction]
pub fn torch_backward_from_offsets<'py>(
    py: Python<'py>,
    grad_output: &Bound<'py, PyAny>,
    tensors: [Bound<'py, PyAny>; 4],
    levels: &Bound<'py, PyAny>,
    rule: RuleGiven,
    wanted: [bool; 4],
    deterministic: bool,
) -> PyResult<Option<[Option<Bound<'py, PyAny>>; 4]>> {
    backward(py, grad_output, tensors.each_ref(), levels, Some(rule), (wanted, deterministic))
}

fn backward<'py, const TENSORS: usize>(
    py: Python<'py>,
    grad_output: &Bound<'py, PyAny>,
    tensors: [&Bound<'py, PyAny>; TENSORS],
    levels: &Bound<'py, PyAny>,
    rule: Option<RuleGiven>,
    expected: Expected<TENSORS>,
) -> PyResult<Option<[Option<Bound<'py, PyAny>>; TENSORS]>> {
    let Some(torch) = TORCH.get(py) else { return Ok(None) };
    let Some(levels) = read_levels(levels) else { return Ok(None) };
    torch.backward(grad_output, tensors, &levels, rule, expected)
}

impl Torch {
    /// The output of tensors that are known to be ordinary; `head` has what will be asked of their gradients.
    pub fn forward<'py, const TENSORS: usize>(
        &self,
        value: &Bound<'py, PyAny>,
        inputs: &Inputs<TENSORS>,
        levels: &[i64],
        head: Head,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = value.py();
        let output = self.new_tensor(value, &inputs.tensors[0], &inputs.output_shape())?;
        let Some(to) = self.describe(&output) else { return Ok(None) };
        let described = inputs.described();
        let call = inputs.call(&described);
        let pointers = call.pointers().map_err(exception)?.with(Role::Output, to.address());
        match inputs.place {
            Place::Cpu => {
                let threads = self.threads(py)?;
                // SAFETY: addresses, shapes and strides come from the same live tensors, which `of` found to be contiguous
                // but for their free strides; the output was made for this call.
                unsafe { run_on_cpu(py, Direction::Forward, threads, call, levels, &pointers)? };
            }
            Place::Gpu(ordinal) => {
                let stream = self.stream(py, ordinal)?;
                // SAFETY: as above. PyTorch's allocator frees memory in the order of the stream, which is its current one
                // on the tensors' GPU; a forward call has no workspace.
                unsafe {
                    launch(py, (ordinal.into(), stream), head, call, levels, pointers, |_| {
                        Ok(Some(0))
                    })?;
                }
            }
        }
        Ok(Some(output))
    }

    /// The gradients, likewise, if the call is ordinary: which of them, and whether with the same bits in every run.
    pub fn backward<'py, const TENSORS: usize>(
        &self,
        grad_output: &Bound<'py, PyAny>,
        tensors: [&Bound<'py, PyAny>; TENSORS],
        levels: &[i64],
        rule: Option<RuleGiven>,
        (wanted, deterministic): Expected<TENSORS>,
    ) -> PyResult<Option<[Option<Bound<'py, PyAny>>; TENSORS]>> {
        let py = grad_output.py();
        let Some(inputs) = self.inputs(py, tensors, rule)? else { return Ok(None) };
        if !self.is_plain(py, grad_output)? {
            return Ok(None);
        }
        let Some(from) = self.describe(grad_output) else { return Ok(None) };
        if !inputs.takes_gradient(&from) {
            return Ok(None);
        }
        let made = self.new_gradients(tensors, inputs.tensors.each_ref(), wanted)?;
        let Some((gradients, to)) = made else { return Ok(None) };
        let described = inputs.described();
        let call = inputs.call(&described);
        let pointers = call.pointers().map_err(exception)?;
        let pointers = with_gradients(call.operator(), pointers, from.address(), &to);
        match inputs.place {
            Place::Cpu => {
                let threads = self.threads(py)?;
                // SAFETY: as in `forward`; `takes_gradient` found the gradient to be contiguous.
                unsafe { run_on_cpu(py, Direction::Backward, threads, call, levels, &pointers)? };
            }
            Place::Gpu(ordinal) => {
                let strides = from.strides();
                let head = Head {
                    gradients: gradient_bits(call.operator(), wanted),
                    deterministic,
                    grad_strides: (strides[0], strides[1], strides[2]),
                    ..Head::default()
                };
                let mut workspace = None;
                // From PyTorch's allocator: freed in stream order, and part of a graph that is being captured.
                let allocate = |bytes: usize| {
                    let tensor = self.new_bytes(tensors[0], bytes)?;
                    let at = self.describe(&tensor).map(|found| found.address());
                    workspace = Some(tensor);
                    Ok(at)
                };
                let stream = self.stream(py, ordinal)?;
                // SAFETY: as in `forward`; gradients and workspace were made for this call, and are held until it is queued.
                let launched = unsafe {
                    launch(py, (ordinal.into(), stream), head, call, levels, pointers, allocate)?
                };
                drop(workspace);
                if launched.is_none() {
                    return Ok(None);
                }
            }
        }
        Ok(Some(gradients))
    }

    /// New tensors for the gradients that are `wanted`, each like the tensor that it is of, and their addresses; 0 for the
    /// others.
    fn new_gradients<'py, const TENSORS: usize>(
        &self,
        tensors: [&Bound<'py, PyAny>; TENSORS],
        like: [&DlTensor; TENSORS],
        wanted: [bool; TENSORS],
    ) -> PyResult<Option<Gradients<'py, TENSORS>>> {
        let mut gradients = [const { None }; TENSORS];
        let mut addresses = [0; TENSORS];
        for at in (0..TENSORS).filter(|&at| wanted[at]) {
            let gradient = self.new_tensor(tensors[at], like[at], like[at].shape())?;
            let Some(described) = self.describe(&gradient) else { return Ok(None) };
            addresses[at] = described.address();
            gradients[at] = Some(gradient);
        }
        Ok(Some((gradients, addresses)))
    }

    /// Whether the dispatcher would go straight to the kernel of the processor or the GPU.
    fn is_ordinary(&self, py: Python<'_>, tensors: &[&Bound<'_, PyAny>]) -> PyResult<bool> {
        for watcher in &self.watchers {
            if watcher.bind(py).call0()?.is_truthy()? {
                return Ok(false);
            }
        }
        for tensor in tensors {
            if !self.is_plain(py, tensor)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether it is a tensor, of no subclass, whose memory holds what it says: PyTorch may have put a negation
    /// off.
    fn is_plain(&self, py: Python<'_>, tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
        Ok(tensor.get_type().is(&self.tensor)
            && !self.is_neg.bind(py).call1((tensor,))?.is_truthy()?)
    }

    fn describe(&self, tensor: &Bound<'_, PyAny>) -> Option<DlTensor> {
        // SAFETY: every caller has checked that it is PyTorch's tensor, or PyTorch has just made it.
        let described = unsafe { self.exchange.describe(tensor.as_ptr()) };
        if described.is_none() {
            // SAFETY: the interpreter is ours. What is wrong is said again, in words, on the long way.
            unsafe { ffi::PyErr_Clear() };
        }
        described
    }

    /// The tensors of an ordinary call.
    pub fn inputs<const TENSORS: usize>(
        &self,
        py: Python<'_>,
        tensors: [&Bound<'_, PyAny>; TENSORS],
        rule: Option<RuleGiven>,
    ) -> PyResult<Option<Inputs<TENSORS>>> {
        Ok(if self.is_ordinary(py, &tensors)? { Inputs::of(self, tensors, rule) } else { None })
    }

    /// A contiguous tensor beside one that exists, described by `like`.
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

    /// How many PyTorch computes with.
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

/// The tensors that both directions read, in one place and as the kernels take them.
pub struct Inputs<const TENSORS: usize> {
    place: Place,
    tensors: [DlTensor; TENSORS],
    /// How samples follow from offsets, if they do.
    rule: Option<RuleGiven>,
}

impl<const TENSORS: usize> Inputs<TENSORS> {
    /// `None` for what the long way must look at: formats that differ, references for several images or queries, rows that are not
    /// contiguous, and everything that is wrong.
    fn of(
        torch: &Torch,
        objects: [&Bound<'_, PyAny>; TENSORS],
        rule: Option<RuleGiven>,
    ) -> Option<Self> {
        let mut tensors = [torch.describe(objects[0])?; TENSORS];
        for at in 1..TENSORS {
            tensors[at] = torch.describe(objects[at])?;
        }
        let [value, references @ .., positions, shares] = &tensors[..] else { return None };
        let place = value.place()?;
        let (format, sampling) = (value.dtype()?, positions.dtype()?);
        let is_double = format == DType::F64;
        let is_alike = |tensor: &DlTensor| {
            tensor.place() == Some(place)
                && tensor.is_full()
                && (tensor.dtype() == Some(DType::F64)) == is_double
        };
        let is_read_beside =
            |format: DType, beside: DType| format == beside || format == DType::F32;
        let ranks = [value, positions, shares].map(|tensor| tensor.shape().len());
        let fits = tensors.iter().all(is_alike)
            && shares.dtype() == Some(sampling)
            && is_read_beside(sampling, format)
            && matches!(ranks, [4, 5 | 6, 4 | 5]);
        // float64 is computed on the processor.
        let (value_is_readable, free_axes_of_references) = match place {
            Place::Cpu => (value.is_contiguous(), 3),
            Place::Gpu(_) => (value.has_unit_last_stride() && !is_double, 2),
        };
        let samples_are_readable = match references {
            [references] => {
                references.shape().len() == 4
                    && is_read_beside(references.dtype()?, sampling)
                    && references.shape()[..2] == positions.shape()[..2]
                    && matches!(references.shape()[3], 2 | 4)
                    && references.has_contiguous_rows(free_axes_of_references)
                    && [positions, shares].iter().all(|tensor| tensor.has_contiguous_rows(2))
            }
            _ => positions.is_contiguous() && shares.is_contiguous(),
        };
        let is_readable = fits && value_is_readable && samples_are_readable;
        is_readable.then_some(Self { place, tensors, rule })
    }

    fn described(&self) -> [&dyn Described; TENSORS] {
        self.tensors.each_ref().map(|tensor| tensor as &dyn Described)
    }

    fn call<'a>(&self, tensors: &'a [&'a dyn Described]) -> call::Inputs<'a> {
        call::Inputs { tensors, rule: self.rule.map(OffsetOptions::from) }
    }

    /// Locations or offsets.
    const fn positions(&self) -> &DlTensor {
        &self.tensors[TENSORS - 2]
    }

    fn output_shape(&self) -> [i64; 3] {
        let value = self.tensors[0].shape();
        [value[0], self.positions().shape()[1], value[2] * value[3]]
    }

    /// Four numbers for each level, as [`read_levels`] has them, of pairs (height, width) of levels that follow each other;
    /// `None` as well where those are not all of the value's pixels.
    pub fn read_shapes(&self, shapes: &Bound<'_, PyAny>) -> Option<Vec<i64>> {
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
        (start == self.tensors[0].shape()[1]).then_some(numbers)
    }

    /// Whether this is the gradient of the output, readable where it is.
    fn takes_gradient(&self, gradient: &DlTensor) -> bool {
        gradient.is_gradient_of(&self.output_shape(), &self.tensors[0])
            && (matches!(self.place, Place::Gpu(_)) || gradient.is_contiguous())
    }
}

/// Four numbers for each level, one after the other: height, width, start, points. `None` for anything but exact integers in a
/// list or a tuple.
fn read_levels(levels: &Bound<'_, PyAny>) -> Option<Vec<i64>> {
    items_of(levels)?.iter().map(exact_integer).collect()
}

/// How many points each level has if all have the same number: pairs (height, width) say nothing about it. `samples` are locations
/// or offsets.
fn points_of_each(samples: &DlTensor, levels: usize) -> Option<i64> {
    match *samples.shape() {
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
