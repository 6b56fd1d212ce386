//! The operators called from Rust: linked, and as a library. `bindings/python/tests/test_onnx_runtime.py` has every form.

use std::path::PathBuf;

use libtest_mimic::Trial;
use msdeform::{Direction, Offsets, Problem, reference};
use ort::AsPointer;
use ort::session::Session;
use ort::session::builder::SessionBuilder;
use ort::value::Tensor;

use crate::model::data_type::{FLOAT, INT64};
use crate::model::{model, node, port};
use crate::{Outcome, environment};

pub fn trials() -> Vec<Trial> {
    vec![
        Trial::test("linked_operators_compute_the_reference_for_any_shapes", any_shapes),
        Trial::test("the_shared_library_registers_the_same_operators", shared_library),
        Trial::test("wrong_inputs_are_errors_in_words", wrong_inputs),
    ]
}

fn one_node() -> Vec<u8> {
    let inputs = [
        port("value", FLOAT, 4),
        port("shapes", INT64, 2),
        port("starts", INT64, 1),
        port("references", FLOAT, 4),
        port("offsets", FLOAT, 6),
        port("logits", FLOAT, 5),
    ];
    let names = ["value", "shapes", "starts", "references", "offsets", "logits"];
    let node = node("msdeform", "MSDeformAttnFromOffsets", &names, "output");
    model(&[node], &inputs, &[port("output", FLOAT, 3)])
}

pub fn linked() -> Result<SessionBuilder, ort::Error> {
    let mut builder = Session::builder(environment())?;
    // SAFETY: options and functions are of the same runtime.
    let status = unsafe { msdeform_onnxruntime::register(builder.ptr_mut(), ort::api()) };
    // SAFETY: these functions made the status, for us to take.
    unsafe { ort::Error::result_from_status(status)? };
    Ok(builder)
}

/// Numbers between 0 and 1.
pub fn numbers(len: usize, seed: usize) -> Vec<f32> {
    (0..len).map(|index| ((index * 7919 + seed * 104_729) % 1009) as f32 / 1009.0).collect()
}

/// Runs a call of boxes, two levels and three points, with these starts of the levels.
fn run(
    session: &mut Session,
    batch: usize,
    queries: usize,
    side: usize,
    starts: [i64; 2],
) -> Result<(Problem, Vec<f32>, Vec<f32>), ort::Error> {
    let levels = [(side, side), (side / 2, side / 2)];
    let builder = Problem::builder().batch(batch).heads(4).channels(8).queries(queries);
    let rule = Offsets::from_boxes();
    let problem = builder.levels(levels.map(|(h, w)| (h as i64, w as i64))).points(3).offsets(rule);
    let problem = problem.build().unwrap();
    let value = numbers(problem.value_len(), 1);
    let references = numbers(problem.references_len(), 2);
    let offsets = numbers(problem.locations_len(), 3);
    let logits = numbers(problem.weights_len(), 4);
    let wide = |numbers: &[f32]| numbers.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
    let inputs = [&value, &references, &offsets, &logits].map(|numbers| wide(numbers));
    let roles = problem.operator().inputs;
    let (_, wanted) = reference::compute(&problem, Direction::Forward, |role| {
        &inputs[roles.iter().position(|&input| input == role).unwrap()]
    })
    .remove(0);
    let shapes: Vec<i64> = levels.iter().flat_map(|&(h, w)| [h as i64, w as i64]).collect();
    let outputs = session.run(ort::inputs![
        Tensor::from_array((problem.value_shape(), value))?,
        Tensor::from_array(([2, 2], shapes))?,
        Tensor::from_array(([2], starts.to_vec()))?,
        Tensor::from_array((problem.references_shape(), references))?,
        Tensor::from_array(([batch, queries, 4, 2, 3, 2], offsets))?,
        Tensor::from_array(([batch, queries, 4, 2, 3], logits))?,
    ])?;
    let (shape, found) = outputs["output"].try_extract_tensor::<f32>()?;
    assert_eq!(&shape[..], problem.output_shape().map(|size| size as i64));
    Ok((problem, found.to_vec(), wanted.iter().map(|&x| x as f32).collect()))
}

fn check(session: &mut Session, batch: usize, queries: usize, side: usize) -> Outcome {
    let starts = [0, (side * side) as i64];
    let (problem, found, wanted) = run(session, batch, queries, side, starts)?;
    let norm = |numbers: &mut dyn Iterator<Item = f32>| numbers.map(|x| x * x).sum::<f32>().sqrt();
    let error = norm(&mut found.iter().zip(&wanted).map(|(a, b)| a - b));
    let relative = error / norm(&mut wanted.iter().copied());
    // Written so that NaN fails.
    if relative <= 1e-5 { Ok(()) } else { Err(format!("{problem}: {relative} off").into()) }
}

fn any_shapes() -> Outcome {
    let mut session = linked()?.commit_from_memory(&one_node())?;
    for (batch, queries, side) in [(1, 5, 4), (2, 400, 16), (1, 7, 6), (2, 400, 16)] {
        check(&mut session, batch, queries, side)?;
    }
    Ok(())
}

fn shared_library() -> Outcome {
    let folder = std::env::current_exe()?;
    let file = format!(
        "{}msdeform_onnxruntime{}",
        std::env::consts::DLL_PREFIX,
        std::env::consts::DLL_SUFFIX
    );
    // The library lies next to the tests, or one folder up, where cargo puts libraries for users.
    let places = folder.ancestors().skip(1).take(2).map(|folder| folder.join(&file));
    let library: Option<PathBuf> = places.into_iter().find(|path| path.is_file());
    let library = library.ok_or("the shared library was not built; build the whole package")?;
    let builder = Session::builder(environment())?
        .with_operator_library(library)
        .map_err(|error| error.to_string())?;
    let mut session = { builder }.commit_from_memory(&one_node())?;
    check(&mut session, 1, 5, 4)
}

fn wrong_inputs() -> Outcome {
    let mut session = linked()?.commit_from_memory(&one_node())?;
    for (starts, words) in
        [([0, 15], "levels 0 and 1 overlap"), ([0, 17], "level 1 ends at pixel 21")]
    {
        let error = run(&mut session, 1, 5, 4, starts).unwrap_err().to_string();
        assert!(error.contains(words) && error.contains("level_start_index"), "{error}");
    }
    check(&mut session, 1, 5, 4)
}
