//! What is registered, what this machine has, and how long things take, as Python's plain data.

use msdeform::{DType, Direction, Isa, Numerics, ValueLayout, VariantSpec};
use msdeform_cuda::nvrtc::Nvrtc;
use msdeform_cuda::tuning::Tuning;
use msdeform_cuda::{CodeStore, DiskCache, KernelPack, REGISTRY, device_count, driver_version};
use msdeform_lab::device::{DeviceOptions, open, registry};
use msdeform_lab::record::Build;
use msdeform_lab::verify::Limits;
use msdeform_lab::workload::Sizes;
use msdeform_lab::{Budget, DeviceId, Planned, STANDARD_SEED, Workload, WorkloadCase, bench_cases};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use rayon::ThreadPoolBuilder;
use serde_json::{Value, json};

use msdeform_torch::cuda;

/// JSON as Python's plain data.
fn plain<'py>(py: Python<'py>, json: &str) -> PyResult<Bound<'py, PyAny>> {
    py.import("json")?.call_method1("loads", (json,))
}

/// Every implementation in the package: id, direction, device, dtypes, layouts, idea, why, source.
#[pyfunction]
pub fn variants(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    // The laboratory has more.
    let rows: Vec<Value> = registry(REGISTRY).into_iter().map(variant).collect();
    plain(py, &Value::from(rows).to_string())
}

fn variant(spec: &VariantSpec) -> Value {
    let loose = match spec.numerics {
        Numerics::Contract => None,
        Numerics::Loose { rel_l2 } => Some(rel_l2),
    };
    json!({
        "id": spec.id,
        "direction": spec.direction.name(),
        "device": spec.device.name(),
        "dtypes": spec.dtypes.iter().map(|dtype| dtype.name()).collect::<Vec<_>>(),
        "layouts": spec.layouts.iter().map(|layout| layout.name()).collect::<Vec<_>>(),
        "origin": spec.origin,
        "idea": spec.idea,
        "why": spec.why,
        "loose_rel_l2": loose,
    })
}

/// The package's build, the CPU, the CUDA driver, NVRTC and every GPU. A missing part has the reason.
#[pyfunction]
pub fn device_info(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let found = py.detach(|| {
        let cpu = json!({
            "instructions": Isa::best().to_string(),
            "cores": std::thread::available_parallelism().map_or(1, usize::from),
        });
        let driver = driver_version();
        let nvrtc = match Nvrtc::find(driver.as_ref().ok().copied()) {
            Ok(found) => json!({
                "version": found.version().to_string(),
                "path": found.path().display().to_string(),
                "missing": null,
            }),
            Err(error) => json!({"version": null, "path": null, "missing": error.to_string()}),
        };
        let code = CodeStore::new(DiskCache::of_user(), driver.as_ref().ok().copied());
        let (driver, missing) = match driver {
            Ok(version) => (Some(version.to_string()), None),
            Err(error) => (None, Some(error.to_string())),
        };
        let gpus: Vec<Value> = (0..device_count().unwrap_or(0)).map(gpu).collect();
        let Build { commit, dirty } = msdeform_cli::BUILD;
        json!({
            "build": {"version": env!("CARGO_PKG_VERSION"), "commit": commit, "dirty": dirty},
            "cpu": cpu,
            "cuda": {
                "driver": driver,
                "missing": missing,
                "nvrtc": nvrtc,
                "kernel_pack": kernel_pack(&code),
                "gpus": gpus,
            },
        })
        .to_string()
    });
    plain(py, &found)
}

/// Kernels that need no compiler, or why those that are there are not used.
fn kernel_pack(code: &CodeStore) -> Value {
    let path = code.cache().pack().map(|path| path.display().to_string());
    match code.pack() {
        Ok(pack) => {
            json!({"path": path, "summary": pack.map(KernelPack::summary), "ignored": null})
        }
        Err(reason) => json!({"path": path, "summary": null, "ignored": reason}),
    }
}

fn gpu(ordinal: usize) -> Value {
    match cuda::engine(ordinal) {
        Ok(engine) => {
            let props = engine.context().props();
            let (major, minor) = props.compute_capability;
            json!({
                "ordinal": ordinal,
                "name": props.name,
                "compute_capability": format!("{major}.{minor}"),
                "multiprocessors": props.multiprocessors,
                "memory_bytes": props.memory_bytes,
                "tuning": tuning(engine.tuning()),
                "usable": true,
                "missing": null,
            })
        }
        Err(error) => json!({"ordinal": ordinal, "usable": false, "missing": error.to_string()}),
    }
}

/// Which tuning file is used, or why it is not.
fn tuning(tuning: &Tuning) -> Value {
    json!({
        "path": tuning.path().map(|path| path.display().to_string()),
        "used": tuning.summary(),
        "ignored": tuning.ignored(),
    })
}

/// Verifies and times one built-in workload, without Python or PyTorch in the timing.
///
/// Args:
///     workload: a name of `workloads()`.
///     device: `"cpu"`, `"cuda:0"`, ...; by default the first GPU, or the CPU if there is no GPU.
///     dtype: `"f32"`, `"f16"` or `"bf16"`.
///     direction: `"forward"` or `"backward"`.
///     variant: an id of `variants()`; by default the one that a call would use.
///     seconds: how long to take samples.
///     threads: number of CPU threads; by default one per core.
///     batch: images, instead of the workload's own.
///
/// Returns:
///     The measurement as in a record: `median_us`, `mad_us`, `samples_us`, `rel_l2`, `variant`, `device`, `passed`
///     and more.
#[pyfunction]
#[pyo3(signature = (
    workload="ddetr_dec", *, device=None, dtype="f32", direction="forward", variant=None, seconds=1.0, threads=None, batch=None
))]
#[allow(clippy::too_many_arguments, reason = "the arguments of a Python function")]
pub fn bench<'py>(
    py: Python<'py>,
    workload: &str,
    device: Option<&str>,
    dtype: &str,
    direction: &str,
    variant: Option<&str>,
    seconds: f64,
    threads: Option<usize>,
    batch: Option<usize>,
) -> PyResult<Bound<'py, PyAny>> {
    let invalid = |message: String| PyValueError::new_err(message);
    if !(seconds.is_finite() && seconds >= 0.0) {
        return Err(invalid(format!("`seconds` is {seconds}; give a duration")));
    }
    let workload = Workload::named(workload).map_err(|error| invalid(error.to_string()))?;
    let dtype: DType =
        dtype.parse().map_err(|error: msdeform::Error| invalid(error.to_string()))?;
    let direction: Direction = direction.parse().map_err(invalid)?;
    let id = device.map_or_else(|| Ok(DeviceId::preferred()), str::parse::<DeviceId>);
    let id = id.map_err(|error| invalid(error.to_string()))?;
    let failed = |error: &dyn std::fmt::Display| PyRuntimeError::new_err(error.to_string());
    let measure = || -> PyResult<String> {
        let options = DeviceOptions { threads, ..DeviceOptions::default() };
        let device = open(id, options, REGISTRY).map_err(|error| failed(&error))?;
        let case = WorkloadCase {
            locations: *workload.locations.first().ok_or_else(|| invalid("no locations".into()))?,
            layout: ValueLayout::Interleaved,
            dtype,
            operator: &msdeform::ATTENTION,
            sizes: Sizes { batch, ..Sizes::default() },
            seed: STANDARD_SEED,
            workload: &workload,
        };
        let problem = case.problem().map_err(|error| invalid(error.to_string()))?;
        let chosen = match variant {
            None => device.dispatch(&problem, direction).map_err(|error| failed(&error))?,
            Some(name) => device
                .variants()
                .into_iter()
                .find(|spec| spec.id == name && spec.direction == direction)
                .ok_or_else(|| invalid(format!("{id} has no {direction} variant `{name}`")))?,
        };
        device.supports(chosen, &problem).map_err(|error| invalid(error.to_string()))?;
        let budget = Budget { seconds, ..Budget::default() };
        let planned = [Planned { case, variants: vec![chosen] }];
        let limits = Some(Limits::default());
        let (measured, report) = bench_cases(device.as_ref(), &planned, budget, limits, &|_| ())
            .map_err(|error| failed(&error))?;
        let row = measured.first().ok_or_else(|| invalid("nothing was timed".into()))?;
        let mut row = serde_json::to_value(row).map_err(|error| failed(&error))?;
        row["device"] = device.name().into();
        row["passed"] = report.passed().into();
        Ok(row.to_string())
    };
    let measured = py.detach(|| {
        // Threads of its own: those of the global pool, once started, would be missing in a forked process, and
        // waited for forever.
        let pool = ThreadPoolBuilder::new().build().map_err(|error| failed(&error))?;
        pool.install(measure)
    })?;
    plain(py, &measured)
}

/// The built-in workloads of `bench`: shapes of known models, each with the reason why it is included.
#[pyfunction]
pub fn workloads(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let workloads = serde_json::to_string(msdeform_lab::workload::all());
    plain(py, &workloads.map_err(|error| PyRuntimeError::new_err(error.to_string()))?)
}
