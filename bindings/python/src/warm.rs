//! Compiling ahead.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use msdeform::{ATTENTION, DType, Direction, FROM_OFFSETS, Mode, Offsets, Problem};
use msdeform_cuda::{DiskCache, Error};
use msdeform_lab::models::{ModelShape, Scope, USUAL, in_every_size, specialisations_of};
use msdeform_lab::warm::{Target, WarmError, warm};
use msdeform_lab::workload::References;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use serde_json::json;

use crate::operand::Unavailable;

/// How often progress is told and signals are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Heads, channels, points of every level; what offsets start from in encoder and decoder, as workloads
/// say it, in JSON. Neither: locations are given.
type OfModel = (usize, usize, Vec<usize>, Vec<String>, Vec<String>);

/// Which GPU, or which architecture instead.
type Place = (usize, Option<String>);

/// Compiles everything that calls of these shapes may need. `say` is called on this thread with how many are done and
/// how many there are.
#[pyfunction]
pub fn warm_up_json(
    py: Python<'_>,
    shapes: Vec<OfModel>,
    dtypes: Vec<String>,
    modes: Vec<String>,
    place: Place,
    threads: Option<usize>,
    say: &Bound<'_, PyAny>,
) -> PyResult<String> {
    let scope = scope(&dtypes, &modes)?;
    let problems = shapes.into_iter().map(problems).collect::<PyResult<Vec<_>>>()?;
    let target = py.detach(|| match place {
        (_, Some(arch)) => Target::of_architecture(&arch, DiskCache::of_user()),
        (ordinal, None) => Target::of_gpu(ordinal),
    });
    let target = target.map_err(exception)?;
    let problems = in_every_size(problems.into_iter().flatten());
    let wanted = specialisations_of(&target.gpus, problems, &scope);
    if wanted.is_empty() {
        return Err(PyValueError::new_err("no kernel is compiled for calls of these shapes"));
    }
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let threads = threads.unwrap_or_else(cores);
    let (done, is_stopped) = (AtomicUsize::new(0), AtomicBool::new(false));
    // Relaxed, both: a number to show, and a wish that may be heard one kernel later.
    let hear = |count: usize| {
        done.fetch_max(count, Ordering::Relaxed);
        !is_stopped.load(Ordering::Relaxed)
    };
    let warmed = std::thread::scope(|scope| {
        let worker = scope.spawn(|| warm(&target, &wanted, threads, &hear));
        while !worker.is_finished() {
            let told = say.call1((done.load(Ordering::Relaxed), wanted.len()));
            if let Err(stop) = told.and_then(|_| py.check_signals()) {
                is_stopped.store(true, Ordering::Relaxed);
                // What is being compiled is finished first.
                drop(py.detach(|| worker.join()));
                return Err(stop);
            }
            py.detach(|| std::thread::sleep(LOOK_EVERY));
        }
        let ended = worker.join();
        ended.map_err(|_| PyRuntimeError::new_err("compiling panicked; please report this"))
    })?;
    let warmed = warmed.map_err(exception)?;
    let code = target.code();
    let nvrtc = code.nvrtc().map_err(|error| exception(error.into()))?;
    let mut summary = serde_json::to_value(&warmed)
        .map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
    summary["arch"] = target.arch.clone().into();
    summary["gpu"] = json!(target.name);
    summary["nvrtc"] = nvrtc.version().to_string().into();
    summary["cache"] = json!(code.cache().folder().map(|path| path.display().to_string()));
    Ok(summary.to_string())
}

fn problems((heads, channels, points, encoder, decoder): OfModel) -> PyResult<Vec<Problem>> {
    let (encoder, decoder) = (rules(&encoder)?, rules(&decoder)?);
    let is_given = encoder.is_empty() && decoder.is_empty();
    let (points, encoder, decoder) = (&points[..], &encoder[..], &decoder[..]);
    // Of a decoder, in any number.
    let queries = &[1];
    let shape = ModelShape { heads, channels, points, queries, encoder, decoder, ..USUAL };
    Ok(shape.problems(if is_given { &ATTENTION } else { &FROM_OFFSETS }))
}

fn rules(references: &[String]) -> PyResult<Vec<Offsets>> {
    let rule = |text: &String| {
        let known: Option<References> = serde_json::from_str(text).ok();
        known.filter(|references| *references != References::Anchors(0)).map(References::rule).ok_or_else(|| {
            PyValueError::new_err(format!(
                "{text} are no references; known: \"point_per_level\", \"box_per_level\", \"box\", {{\"anchors\": 4}}"
            ))
        })
    };
    references.iter().map(rule).collect()
}

fn scope(dtypes: &[String], modes: &[String]) -> PyResult<Scope> {
    let invalid = |message: String| PyValueError::new_err(message);
    let mut scope = Scope {
        dtypes: Vec::new(),
        directions: vec![Direction::Forward],
        modes: vec![],
        ..Scope::default()
    };
    for dtype in dtypes {
        let known = dtype.parse().ok().filter(|dtype| DType::FAST.contains(dtype));
        let unknown = || invalid(format!("no kernel computes `{dtype}`; known: f32, f16, bf16"));
        scope.dtypes.push(known.ok_or_else(unknown)?);
    }
    for mode in modes {
        scope.modes.push(mode.parse::<Mode>().map_err(|error| invalid(error.to_string()))?);
        if !scope.directions.contains(&Direction::Backward) {
            scope.directions.push(Direction::Backward);
        }
    }
    Ok(scope)
}

fn exception(error: WarmError) -> PyErr {
    let message = error.to_string();
    match error {
        WarmError::UnknownArchitecture { .. } => PyValueError::new_err(message),
        WarmError::Gpu(_) => Unavailable::new_err(message),
        WarmError::Compiler(error)
            if matches!(*error, Error::MissingNvrtc { .. } | Error::BadNvrtc { .. }) =>
        {
            Unavailable::new_err(message)
        }
        _ => PyRuntimeError::new_err(message),
    }
}
