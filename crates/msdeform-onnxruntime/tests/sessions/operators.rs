//! The operators called from Rust: linked, and as a library. `bindings/python/tests/test_onnx_runtime.py` has every form.

use std::path::PathBuf;

use libtest_mimic::Trial;
use msdeform::{Offsets, Problem, Role};
use msdeform_lab::{Case, oracle};
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

fn linked() -> Result<SessionBuilder, ort::Error> {
    let mut builder = Session::builder(environment())?;
    // SAFETY: options and functions are of the same runtime.
    let status = unsafe { msdeform_onnxruntime::register(builder.ptr_mut(), ort::api()) };
    // SAFETY: these functions made the status, for us to take.
    unsafe { ort::Error::result_from_status(status)? };
    Ok(builder)
}

/// Runs a call of boxes, two levels with a gap between them and three points, and compares it with the reference.
fn check(
    session: &mut Session,
    [batch, queries, side]: [usize; 3],
    gap: i64,
) -> Result<(), ort::Error> {
    let sizes = [side, side / 2].map(|side| (side as i64, side as i64));
    let builder = Problem::builder().batch(batch).heads(4).channels(8).queries(queries);
    let problem = builder.levels(sizes).points(3).offsets(Offsets::from_boxes()).build().unwrap();
    let case = Case::plain(problem, None);
    let (problem, inputs) = (&case.problem, case.inputs());
    let numbers = |role| inputs[role].elements::<f32>().to_vec();
    let shapes: Vec<i64> = sizes.into_iter().flat_map(|(height, width)| [height, width]).collect();
    let starts = vec![0, (side * side) as i64 + gap];
    let outputs = session.run(ort::inputs![
        Tensor::from_array((problem.value_shape(), numbers(Role::Value)))?,
        Tensor::from_array(([2, 2], shapes))?,
        Tensor::from_array(([2], starts))?,
        Tensor::from_array((problem.references_shape(), numbers(Role::References)))?,
        Tensor::from_array(([batch, queries, 4, 2, 3, 2], numbers(Role::Offsets)))?,
        Tensor::from_array(([batch, queries, 4, 2, 3], numbers(Role::Logits)))?,
    ])?;
    let (shape, found) = outputs["output"].try_extract_tensor::<f32>()?;
    assert_eq!(&shape[..], problem.output_shape().map(|size| size as i64));
    let found: Vec<f64> = found.iter().map(|&number| number.into()).collect();
    let expected = &oracle::expect(&case, &inputs)[0];
    let verdict = expected.compare_numbers(&found, expected.dtype.rel_l2_bound());
    assert_eq!(verdict.fault, None, "{problem}");
    Ok(())
}

fn any_shapes() -> Outcome {
    let mut session = linked()?.commit_from_memory(&one_node())?;
    for sizes in [[1, 5, 4], [2, 400, 16], [1, 7, 6], [2, 400, 16]] {
        check(&mut session, sizes, 0)?;
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
    Ok(check(&mut session, [1, 5, 4], 0)?)
}

fn wrong_inputs() -> Outcome {
    let mut session = linked()?.commit_from_memory(&one_node())?;
    for (gap, words) in [(-1, "levels 0 and 1 overlap"), (1, "level 1 ends at pixel 21")] {
        let error = check(&mut session, [1, 5, 4], gap).unwrap_err().to_string();
        assert!(error.contains(words) && error.contains("level_start_index"), "{error}");
    }
    Ok(check(&mut session, [1, 5, 4], 0)?)
}
