//! Ordinary calls on PyTorch's tensors, from the objects to the launch.
//!
//! A small kernel takes less time than Python and PyTorch's dispatcher take to call it. A call is ordinary if
//! its tensors are plain ones and nothing in PyTorch wants to see it: no mode, trace, profiler, transform. Then
//! everything happens here, on what PyTorch's exchange table (`DLPack` 1.2, PyTorch 2.10) says about the tensors.
//! Whatever is not ordinary, or not right, is answered by `None`: the Python half then goes the long way,
//! which has the words for most errors.

use msdeform::{DType, Direction, Role};
use msdeform_cuda::Pointers;
use msdeform_torch::call::{Described, Head, with_key};
use msdeform_torch::{cpu, cuda};
use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyCapsule, PyCapsuleMethods, PyDict, PyInt, PyList, PyTuple, PyType};

use crate::error::exception;
use crate::exchange::{DlTensor, Exchange, Place};
use crate::{on_threads, with_gradients};

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

/// What each gradient of the plain operator is in [`Head::gradients`].
pub const BITS: [i64; 3] = [1, 2, 4];

/// What that is in a [`Head`], with the bits that it has for each.
pub fn expecting<const TENSORS: usize>(
    expected: Option<Expected<TENSORS>>,
    bits: [i64; TENSORS],
) -> Head {
    let (wanted, deterministic) = expected.unwrap_or(([false; TENSORS], false));
    let expected = bits.into_iter().zip(wanted).map(|(bit, is_wanted)| bit * i64::from(is_wanted));
    Head { expected: expected.sum(), deterministic, ..Head::default() }
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
    let Some(torch) = TORCH.get(py) else { return Ok(None) };
    if !torch.is_ordinary(py, &[value, locations, weights])? {
        return Ok(None);
    }
    let Some(inputs) = torch.inputs(value, locations, weights) else { return Ok(None) };
    let Some(levels) = read_levels(levels) else { return Ok(None) };
    torch.forward(value, &inputs, &levels, expecting(expected, BITS))
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
    let Some(torch) = TORCH.get(py) else { return Ok(None) };
    if !torch.is_ordinary(py, &[grad_output, value, locations, weights])? {
        return Ok(None);
    }
    let Some(inputs) = torch.inputs(value, locations, weights) else { return Ok(None) };
    let Some(levels) = read_levels(levels) else { return Ok(None) };
    let wanted = [wanted.0, wanted.1, wanted.2];
    torch.backward(
        grad_output,
        [value, locations, weights],
        &inputs,
        &levels,
        wanted,
        deterministic,
    )
}

impl Torch {
    /// The output of tensors that are known to be ordinary; `head` has what will be asked of their gradients.
    pub fn forward<'py>(
        &self,
        value: &Bound<'py, PyAny>,
        inputs: &Inputs,
        levels: &[i64],
        head: Head,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = value.py();
        let output = self.new_tensor(value, &inputs.value, &inputs.output_shape())?;
        let Some(to) = self.describe(&output) else { return Ok(None) };
        let pointers = inputs.pointers().with(Role::Output, to.address());
        match inputs.place {
            Place::Cpu => {
                let head = on_threads(self.threads(py)?);
                with_key(head, &inputs.described(), levels, |key| {
                    // SAFETY: addresses and shapes come from the same live tensors, which `inputs` found to be
                    // contiguous; the output was made for this call.
                    py.detach(|| unsafe { cpu::run(Direction::Forward, key, &pointers) })
                })
                .map_err(exception)?;
            }
            Place::Gpu(ordinal) => {
                let stream = self.stream(py, ordinal)?;
                let (place, value_strides) = (i64::from(ordinal), inputs.value_strides());
                let head = Head { place, value_strides, ..head };
                with_key(head, &inputs.described(), levels, |key| {
                    // SAFETY: as above; PyTorch's allocator frees memory in the order of the stream, which is its
                    // current one on the tensors' GPU.
                    py.detach(|| unsafe { cuda::plan(key)?.launch(stream, &pointers) })
                })
                .map_err(exception)?;
            }
        }
        Ok(Some(output))
    }

    /// The gradients, likewise.
    pub fn backward<'py>(
        &self,
        grad_output: &Bound<'py, PyAny>,
        tensors: [&Bound<'py, PyAny>; 3],
        inputs: &Inputs,
        levels: &[i64],
        wanted: [bool; 3],
        deterministic: bool,
    ) -> PyResult<Option<[Option<Bound<'py, PyAny>>; 3]>> {
        let py = grad_output.py();
        let Some(from) = self.describe(grad_output) else { return Ok(None) };
        if !inputs.takes_gradient(&from) {
            return Ok(None);
        }
        let like = [&inputs.value, &inputs.locations, &inputs.weights];
        let Some((gradients, to)) = self.new_gradients(tensors, like, wanted)? else {
            return Ok(None);
        };
        let pointers = with_gradients(inputs.pointers(), from.address(), (to[0], to[1], to[2]));
        match inputs.place {
            Place::Cpu => {
                let head = on_threads(self.threads(py)?);
                with_key(head, &inputs.described(), levels, |key| {
                    // SAFETY: as in `forward`; `takes_gradient` found the gradient contiguous.
                    py.detach(|| unsafe { cpu::run(Direction::Backward, key, &pointers) })
                })
                .map_err(exception)?;
            }
            Place::Gpu(ordinal) => {
                let head = Head {
                    place: i64::from(ordinal),
                    gradients: expecting(Some((wanted, deterministic)), BITS).expected,
                    deterministic,
                    value_strides: inputs.value_strides(),
                    grad_strides: (from.strides()[0], from.strides()[1], from.strides()[2]),
                    ..Head::default()
                };
                let described = inputs.described();
                // SAFETY: as in `forward`; the gradients were made for this call.
                let launched = unsafe {
                    self.launch_backward(tensors[0], ordinal, head, &described, levels, pointers)?
                };
                if launched.is_none() {
                    return Ok(None);
                }
            }
        }
        Ok(Some(gradients))
    }

    /// New tensors for the gradients that are `wanted`, each like the tensor that it is of, and their addresses; 0 for the
    /// others.
    pub fn new_gradients<'py, const TENSORS: usize>(
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

    /// Queues gradients on PyTorch's current stream, with workspace beside `value` if they need any.
    ///
    /// # Safety
    /// Pointers, head and operands are of the same tensors, which are alive, on this GPU; PyTorch's allocator frees them in the order
    /// of the stream.
    pub unsafe fn launch_backward(
        &self,
        value: &Bound<'_, PyAny>,
        ordinal: i32,
        head: Head,
        operands: &[&dyn Described],
        levels: &[i64],
        pointers: Pointers,
    ) -> PyResult<Option<()>> {
        let py = value.py();
        let plan = with_key(head, operands, levels, |key| py.detach(|| cuda::plan(key)))
            .map_err(exception)?;
        let bytes = plan.workspace_bytes();
        // From PyTorch's allocator: freed in stream order, and part of a graph that is being captured.
        let workspace = (bytes > 0).then(|| self.new_bytes(value, bytes)).transpose()?;
        let described = workspace.as_ref().map(|tensor| self.describe(tensor));
        let Some(at) = described.map_or(Some(0), |found| Some(found?.address())) else {
            return Ok(None);
        };
        let stream = self.stream(py, ordinal)?;
        let pointers = pointers.with_workspace(at);
        // SAFETY: as the caller promises; the workspace was made for this call.
        py.detach(|| unsafe { plan.launch(stream, &pointers) }).map_err(exception)?;
        Ok(Some(()))
    }

    /// Whether the dispatcher would go straight to the kernel of the processor or the GPU.
    pub fn is_ordinary(&self, py: Python<'_>, tensors: &[&Bound<'_, PyAny>]) -> PyResult<bool> {
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

    pub fn describe(&self, tensor: &Bound<'_, PyAny>) -> Option<DlTensor> {
        // SAFETY: every caller has checked that it is PyTorch's tensor, or PyTorch has just made it.
        let described = unsafe { self.exchange.describe(tensor.as_ptr()) };
        if described.is_none() {
            // SAFETY: the interpreter is ours. What is wrong is said again, in words, on the long way.
            unsafe { ffi::PyErr_Clear() };
        }
        described
    }

    pub fn inputs(
        &self,
        value: &Bound<'_, PyAny>,
        locations: &Bound<'_, PyAny>,
        weights: &Bound<'_, PyAny>,
    ) -> Option<Inputs> {
        let (value, locations) = (self.describe(value)?, self.describe(locations)?);
        Inputs::new(value, locations, self.describe(weights)?)
    }

    /// A contiguous tensor beside one that exists, described by `like`.
    pub fn new_tensor<'py>(
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

    pub fn new_bytes<'py>(
        &self,
        like: &Bound<'py, PyAny>,
        bytes: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = like.py();
        self.new_empty.bind(py).call((like, (bytes,)), Some(self.of_bytes.bind(py)))
    }

    /// How many PyTorch computes with.
    pub fn threads(&self, py: Python<'_>) -> PyResult<i64> {
        self.threads.bind(py).call0()?.extract()
    }

    pub fn stream(&self, py: Python<'_>, ordinal: i32) -> PyResult<usize> {
        self.exchange.current_stream(ordinal).ok_or_else(|| {
            PyErr::take(py)
                .unwrap_or_else(|| PyRuntimeError::new_err(format!("GPU {ordinal} has no stream")))
        })
    }
}

/// The tensors that both directions read, known to be as the kernels take them.
pub struct Inputs {
    place: Place,
    value: DlTensor,
    locations: DlTensor,
    weights: DlTensor,
}

impl Inputs {
    fn pointers(&self) -> Pointers {
        Pointers::from([
            (Role::Value, self.value.address()),
            (Role::Locations, self.locations.address()),
            (Role::Weights, self.weights.address()),
        ])
    }

    fn new(value: DlTensor, locations: DlTensor, weights: DlTensor) -> Option<Self> {
        let place = value.place()?;
        let (format, sampling) = (value.dtype()?, locations.dtype()?);
        let one_place = locations.place() == Some(place) && weights.place() == Some(place);
        let formats_fit = weights.dtype() == Some(sampling)
            && (sampling == format || sampling == DType::F32)
            && (format == DType::F64) == (sampling == DType::F64);
        let ranks = [&value, &locations, &weights].map(|tensor| tensor.shape().len());
        let are_full = [&value, &locations, &weights].iter().all(|tensor| tensor.is_full());
        let is_readable = match place {
            Place::Cpu => value.is_contiguous(),
            // float64 is computed on the processor.
            Place::Gpu(_) => value.has_unit_last_stride() && format != DType::F64,
        };
        let fits = one_place
            && formats_fit
            && matches!(ranks, [4, 5 | 6, 4 | 5])
            && are_full
            && is_readable
            && locations.is_contiguous()
            && weights.is_contiguous();
        fits.then_some(Self { place, value, locations, weights })
    }

    fn described(&self) -> [&dyn Described; 3] {
        [&self.value, &self.locations, &self.weights]
    }

    fn output_shape(&self) -> [i64; 3] {
        let (value, locations) = (self.value.shape(), self.locations.shape());
        [value[0], locations[1], value[2] * value[3]]
    }

    /// Pairs (height, width) of levels that follow each other, as [`read_shapes`] does.
    pub fn read_shapes(&self, shapes: &Bound<'_, PyAny>) -> Option<Vec<i64>> {
        read_shapes(shapes, &self.value, &self.locations)
    }

    /// Of images, heads and pixels.
    fn value_strides(&self) -> (i64, i64, i64) {
        let strides = self.value.strides();
        (strides[0], strides[2], strides[1])
    }

    /// Whether this is the gradient of the output, readable where it is.
    fn takes_gradient(&self, gradient: &DlTensor) -> bool {
        gradient.is_gradient_of(&self.output_shape(), &self.value)
            && (matches!(self.place, Place::Gpu(_)) || gradient.is_contiguous())
    }
}

/// Four numbers for each level, one after the other: height, width, start, points. `None` for anything but exact integers in a
/// list or a tuple.
fn read_levels(levels: &Bound<'_, PyAny>) -> Option<Vec<i64>> {
    items_of(levels)?.iter().map(exact_integer).collect()
}

/// The same of pairs (height, width) of levels that follow each other; `None` as well where those are not all of the value's
/// pixels.
pub fn read_shapes(
    shapes: &Bound<'_, PyAny>,
    value: &DlTensor,
    samples: &DlTensor,
) -> Option<Vec<i64>> {
    let items = items_of(shapes)?;
    let mut numbers = Vec::with_capacity(4 * items.len());
    let points = points_of_each(samples, items.len())?;
    let mut start = 0_i64;
    for item in &items {
        let [height, width] = items_of(item)?.try_into().ok()?;
        let (height, width) = (exact_integer(&height)?, exact_integer(&width)?);
        numbers.extend([height, width, start, points]);
        start = start.checked_add(height.checked_mul(width)?)?;
    }
    (start == value.shape()[1]).then_some(numbers)
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
