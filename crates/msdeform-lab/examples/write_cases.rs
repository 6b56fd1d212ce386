//! Writes random problems with their inputs and what must come out of them, for tests in other languages:
//! `cargo run --package msdeform-lab --example write_cases -- FOLDER SEED MODELS`.
//!
//! `cases.json` describes every tensor by format, shape, strides and place in `cases.bin`.

use std::io::Write;
use std::path::Path;

use msdeform::{Role, ValueLayout};
use msdeform_cuda::{DeviceProps, REGISTRY};
use msdeform_lab::Case;
use msdeform_lab::case::VariantChoice;
use msdeform_lab::oracle::{Class, Expected, expect_with_allowances};
use msdeform_lab::runner::CudaRules;
use msdeform_lab::soak::{Bounds, Generator};
use serde_json::{Value, json};

/// Problems of one model.
const SIZES: usize = 6;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(folder), Some(seed), Some(models)) =
        (arguments.next(), arguments.next(), arguments.next())
    else {
        return Err("usage: write_cases FOLDER SEED MODELS".into());
    };
    std::fs::create_dir_all(&folder)?;
    let rules = CudaRules::new(DeviceProps::h200(), REGISTRY);
    let bounds = Bounds {
        layouts: vec![ValueLayout::Interleaved],
        work: 40_000,
        queries: 1000,
        // PyTorch's operator gives an output like the values.
        other_outputs: false,
        ..Bounds::default()
    };
    let generator = Generator::new(&rules, bounds, seed.parse()?);
    let mut file =
        Bytes { file: std::fs::File::create(Path::new(&folder).join("cases.bin"))?, at: 0 };
    let mut cases = Vec::new();
    for number in 0..models.parse()? {
        for case in generator.cases(number, SIZES) {
            let case = Case { choice: VariantChoice::Own, ..case };
            cases.push(describe(&case, &mut file)?);
        }
    }
    let document = json!({ "seed": seed, "cases": cases });
    std::fs::write(Path::new(&folder).join("cases.json"), document.to_string())?;
    Ok(())
}

/// The file of all tensors.
struct Bytes {
    file: std::fs::File,
    at: usize,
}

impl Bytes {
    /// Appends; returns where.
    fn add(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let at = self.at;
        self.file.write_all(bytes)?;
        self.at += bytes.len();
        Ok(at)
    }
}

fn describe(case: &Case, file: &mut Bytes) -> std::io::Result<Value> {
    let inputs = case.inputs();
    let problem = &case.problem;
    let mut read = serde_json::Map::new();
    for (role, _) in inputs.iter() {
        let (shape, strides): (Vec<_>, Vec<_>) = match role {
            Role::Value | Role::GradOutput => case.axes(role).into_iter().unzip(),
            _ => packed(&problem.shape_of(role)),
        };
        let dtype = problem.format_of(role);
        let memory = case.laid_out(role, &inputs);
        let bytes = memory.bytes();
        let described = json!({
            "dtype": dtype.name(),
            "shape": shape,
            "strides": strides,
            "offset": case.offset_bytes(role) / dtype.size_bytes(),
            "at": file.add(bytes)?,
            "bytes": bytes.len(),
        });
        read.insert(role.field().to_owned(), described);
    }
    let mut written = serde_json::Map::new();
    for expected in expect_with_allowances(case, &inputs) {
        written.insert(expected.tensor.field().to_owned(), describe_expected(&expected, file)?);
    }
    Ok(json!({
        "line": case.to_string(),
        "levels": problem.levels().iter().map(|l| (l.height, l.width)).collect::<Vec<_>>(),
        "starts": problem.levels().iter().map(|l| l.start).collect::<Vec<_>>(),
        "points": problem.points(),
        "gradients": case.wants.map(|gradients| gradients.to_string()),
        "mode": case.wants.map(|_| case.mode.name()),
        "inputs": read,
        "expected": written,
    }))
}

fn describe_expected(expected: &Expected, file: &mut Bytes) -> std::io::Result<Value> {
    let (norm, allowed) = expected.norm_and_allowed(expected.dtype.rel_l2_bound());
    let numbers: Vec<u8> = expected.numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
    let class = |index| match expected.class(index) {
        Class::Any | Class::NumberOrInfinite => 0,
        Class::Number => 1,
        Class::Nan => 2,
        Class::Infinite => 3,
    };
    let classes: Vec<u8> = (0..expected.numbers.len()).map(class).collect();
    Ok(json!({
        "elements": expected.numbers.len(),
        "norm": norm,
        "allowed": allowed,
        "at": file.add(&numbers)?,
        "classes": file.add(&classes)?,
    }))
}

fn packed(shape: &[usize]) -> (Vec<usize>, Vec<i64>) {
    let mut strides = vec![1i64; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis] as i64;
    }
    (shape.to_vec(), strides)
}
