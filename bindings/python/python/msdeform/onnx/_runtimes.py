"""The runtimes that `msdeform.onnx.check` runs models in: how each one loads a model and computes."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Inputs = dict[str, NDArray[Any]]
    Compute = Callable[[Inputs], NDArray[Any]]

_SECONDS = 300


@dataclass(frozen=True)
class Runtime:
    """A runtime.

    Attributes:
        name: its name on the command line and in tables.
        package: the distribution that has its version.
        install: the command that installs it.
        load: makes a function of a model's bytes; files that it needs live as long as the stack.
        spelling: the argument of `rewrite` for a form, if the runtime needs another spelling of the form.
    """

    name: str
    package: str
    install: str
    load: Callable[[bytes, ExitStack], Compute]
    spelling: dict[str, str] = field(default_factory=dict)

    def version(self) -> str | None:
        """The installed version; `None` if the runtime is missing."""
        if self.package == "onnxruntime-web":
            return _node_version()
        try:
            return metadata.version(self.package)
        except metadata.PackageNotFoundError:
            return None


def _module(name: str) -> Any:
    return importlib.import_module(name)


def _folder(stack: ExitStack) -> Path:
    return Path(stack.enter_context(tempfile.TemporaryDirectory()))


def _tool(words: list[str], folder: Path) -> None:
    """Runs a converter; its messages become the error."""
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=_SECONDS)
    if done.returncode != 0:
        raise RuntimeError((done.stdout + done.stderr).strip()[-300:])


def _onnxruntime(model: bytes, stack: ExitStack) -> Compute:
    runtime = _module("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    if b"MSDeformAttn" in model:
        from . import library_path

        options.register_custom_ops_library(library_path())
    session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return lambda inputs: np.asarray(session.run(["output"], inputs)[0])


def _openvino(hints: dict[str, str]) -> Callable[[bytes, ExitStack], Compute]:
    def load(model: bytes, stack: ExitStack) -> Compute:
        core = _module("openvino").Core()
        compiled = core.compile_model(core.read_model(model), "CPU", hints)
        request = compiled.create_infer_request()
        return lambda inputs: np.array(request.infer(inputs)[compiled.output(0)])

    return load


def _tract(model: bytes, stack: ExitStack) -> Compute:
    path = _folder(stack) / "model.onnx"
    path.write_bytes(model)
    runnable = _module("tract").onnx().load(path).into_model().into_runnable()
    return lambda inputs: np.asarray(runnable.run(list(inputs.values()))[0].to_numpy())


def _mnn(model: bytes, stack: ExitStack) -> Compute:
    folder = _folder(stack)
    (folder / "model.onnx").write_bytes(model)
    convert = _beside_python("mnnconvert")
    _tool([convert, "-f", "ONNX", "--modelFile", "model.onnx", "--MNNModel", "model.mnn", "--bizCode", "x"], folder)
    nn, expr = _module("MNN.nn"), _module("MNN.expr")
    module = nn.load_module_from_file(str(folder / "model.mnn"), ["value", "locations", "weights"], ["output"])

    def compute(inputs: Inputs) -> NDArray[Any]:
        if any(array.dtype != np.float32 for array in inputs.values()):
            raise TypeError("its Python interface takes no f16")
        given = [expr.const(np.ascontiguousarray(array), list(array.shape), expr.NCHW) for array in inputs.values()]
        return np.array(module.forward(given)[0].read())

    return compute


def _ncnn(model: bytes, stack: ExitStack) -> Compute:
    onnx, ncnn = _module("onnx"), _module("ncnn")
    folder = _folder(stack)
    # ncnn has no tensors of five axes. The first node of both forms folds the last two axes of the locations.
    graph = onnx.load_from_string(model)
    for item in graph.graph.input:
        sizes = [dim.dim_value for dim in item.type.tensor_type.shape.dim]
        if len(sizes) == 5:
            folded = [*sizes[:3], sizes[3] * sizes[4]]
            item.CopyFrom(onnx.helper.make_tensor_value_info(item.name, item.type.tensor_type.elem_type, folded))
    onnx.save(graph, folder / "model.onnx")
    _tool([_beside_python("pnnx"), "model.onnx", "fp16=0"], folder)
    text = (folder / "model.ncnn.param").read_text()
    known = {line.split()[0] for line in text.splitlines()[2:]}
    unknown = sorted(name for name in known if "." in name)
    if unknown:
        raise RuntimeError(f"ncnn has no {', '.join(unknown)}")
    net = stack.enter_context(ncnn.Net())
    net.opt.use_fp16_packed = net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = False
    net.load_param(str(folder / "model.ncnn.param"))
    net.load_model(str(folder / "model.ncnn.bin"))

    def compute(inputs: Inputs) -> NDArray[Any]:
        if any(array.dtype != np.float32 or array.shape[0] != 1 for array in inputs.values()):
            raise TypeError("its Python interface takes f32 and a single image")
        with net.create_extractor() as extractor:
            for number, array in enumerate(inputs.values()):
                extractor.input(f"in{number}", ncnn.Mat(array.reshape(*array.shape[1:3], -1)).clone())
            status, output = extractor.extract("out0")
        if status != 0:
            raise RuntimeError(f"ncnn stopped with {status}")
        return np.array(output)

    return compute


def _beside_python(name: str) -> str:
    """A program of a package, of this interpreter's environment first."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        raise RuntimeError(f"the program `{name}` is missing: pip install {name}")
    return found


_WEB = """
const fs = require('fs');
const ort = require(require.resolve('onnxruntime-web', { paths: [process.argv[1]] }));
ort.env.wasm.numThreads = 1;
(async () => {
  const told = JSON.parse(fs.readFileSync('told.json'));
  const session = await ort.InferenceSession.create(fs.readFileSync('model.onnx'), { executionProviders: ['wasm'] });
  const feeds = {};
  for (const { name, type, dims } of told.inputs) {
    const bytes = fs.readFileSync(name + '.bin');
    const Data = type === 'float16' ? Uint16Array : Float32Array;
    const data = new Data(bytes.buffer, bytes.byteOffset, bytes.byteLength / Data.BYTES_PER_ELEMENT);
    feeds[name] = new ort.Tensor(type, data, dims);
  }
  let best = Infinity, output;
  for (let run = 0; run < 3; run++) {
    const start = performance.now();
    output = (await session.run(feeds)).output;
    best = Math.min(best, performance.now() - start);
  }
  const { data, dims, type } = output;
  fs.writeFileSync('output.bin', Buffer.from(data.buffer, data.byteOffset, data.byteLength));
  fs.writeFileSync('output.json', JSON.stringify({ dims, type, ms: best }));
})().catch(error => { console.error(String(error)); process.exit(1); });
"""


def _node_version() -> str | None:
    node = shutil.which("node")
    if node is None:
        return None
    # The package does not export its package.json.
    program = "console.log(require(require.resolve('onnxruntime-web', { paths: [process.argv[1]] })).env.versions.web)"
    done = subprocess.run([node, "-e", program, str(Path.cwd())], capture_output=True, text=True, timeout=_SECONDS)
    return done.stdout.strip() if done.returncode == 0 else None


class Web:
    """A model in Node. Each call is a process, which measures itself.

    Attributes:
        ms: the shortest time of a call, in milliseconds.
    """

    def __init__(self, model: bytes, stack: ExitStack) -> None:
        self.home, self.folder, self.ms = str(Path.cwd()), _folder(stack), float("nan")
        (self.folder / "model.onnx").write_bytes(model)

    def __call__(self, inputs: Inputs) -> NDArray[Any]:
        told = []
        for name, array in inputs.items():
            (self.folder / f"{name}.bin").write_bytes(np.ascontiguousarray(array).tobytes())
            told.append({"name": name, "type": _WEB_TYPES[array.dtype.name], "dims": array.shape})
        (self.folder / "told.json").write_text(json.dumps({"inputs": told}))
        _tool([shutil.which("node") or "node", "-e", _WEB, self.home], self.folder)
        output = json.loads((self.folder / "output.json").read_text())
        self.ms = float(output["ms"])
        dtype = next(name for name, type_ in _WEB_TYPES.items() if type_ == output["type"])
        found: NDArray[Any] = np.frombuffer((self.folder / "output.bin").read_bytes(), dtype)
        return found.reshape([int(size) for size in output["dims"]])


_WEB_TYPES = {"float32": "float32", "float16": "float16"}

RUNTIMES = [
    Runtime("onnxruntime", "onnxruntime", "pip install onnxruntime", _onnxruntime),
    Runtime("openvino", "openvino", "pip install openvino", _openvino({})),
    Runtime("openvino-f32", "openvino", "pip install openvino", _openvino({"INFERENCE_PRECISION_HINT": "f32"})),
    Runtime("onnxruntime-web", "onnxruntime-web", "npm install onnxruntime-web", Web),
    Runtime("mnn", "MNN", "pip install MNN", _mnn),
    Runtime("ncnn", "ncnn", "pip install ncnn pnnx onnx", _ncnn, {"gridsample": "ncnn"}),
    Runtime("tract", "tract", "pip install tract", _tract),
]
