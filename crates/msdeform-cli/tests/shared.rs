//! The binary and its inputs, for both test programs.

#![allow(dead_code, reason = "each test program uses a part")]

use std::borrow::BorrowMut;
use std::path::Path;
use std::process::{Command, Output};

use half::{bf16, f16};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::Value;
use tempfile::TempDir;

/// Every command that has a help text and a page, and is completed.
pub fn commands() -> impl Iterator<Item = &'static str> {
    let names = "variants verify bench ledger onnx probe analyze counters records report run soak tune \
                 warm workloads completions man";
    names.split(' ')
}

/// A workload that declares terabytes.
pub const HUGE: &str = "name = \"huge\"\nwhy = \"declares terabytes\"\nbatch = 1\nheads = 1\n\
                        channels = 2\nlevels = [[2, 2]]\npoints = 0\nqueries = 1099511627776\n\
                        reference_points = \"uniform\"\nlocations = [\"uniform\"]\n\
                        layouts = [\"interleaved\"]\ntags = []\n";

pub fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// The binary in a folder outside of any checkout, with nothing of this environment that would change what it does.
pub fn msdeform(folder: &(impl AsRef<Path> + ?Sized), arguments: &str) -> Command {
    let mut command = clean(Command::new(env!("CARGO_BIN_EXE_msdeform")), folder);
    command.args(arguments.split_whitespace());
    command
}

pub fn clean(mut command: Command, folder: &(impl AsRef<Path> + ?Sized)) -> Command {
    command.current_dir(folder).env_remove("COLUMNS");
    command.env("MSDEFORM_TUNING", "off").env("RUST_BACKTRACE", "0");
    command
}

/// Runs the command and expects this code and, on standard error, all of these words.
#[track_caller]
pub fn expect(mut command: impl BorrowMut<Command>, code: i32, words: &[&str]) -> Output {
    let command = command.borrow_mut();
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{command:?}, {:?}: {errors}", output.status);
    for word in words {
        assert!(errors.contains(word), "{command:?}: `{word}` is not in: {errors}");
    }
    assert!(!errors.contains("panicked"), "{command:?}: {errors}");
    output
}

/// What the command prints, with all of these words.
#[track_caller]
pub fn printed(mut command: impl BorrowMut<Command>, words: &[&str]) -> String {
    let command = command.borrow_mut();
    let text = String::from_utf8(expect(&mut *command, 0, &[]).stdout).unwrap();
    for word in words {
        assert!(text.contains(word), "{command:?}: `{word}` is not in: {text}");
    }
    text
}

#[track_caller]
pub fn printed_json(command: impl BorrowMut<Command>) -> Value {
    serde_json::from_str(&printed(command, &[])).unwrap()
}

pub fn read_json(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The strings of a field in a list of objects.
pub fn strings<'a>(list: &'a Value, field: &str) -> Vec<&'a str> {
    list.as_array().unwrap().iter().map(|item| item[field].as_str().unwrap()).collect()
}

/// One tensor: name, type, shape and little-endian elements.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub name: &'static str,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

impl Tensor {
    pub fn floats(name: &'static str, dtype: Dtype, shape: &[usize], values: &[f64]) -> Self {
        assert_eq!(shape.iter().product::<usize>(), values.len(), "{name}");
        let bytes = values.iter().flat_map(|&x| encode(dtype, x)).collect();
        Self { name, dtype, shape: shape.to_vec(), bytes }
    }

    pub fn integers(name: &'static str, shape: &[usize], values: &[i64]) -> Self {
        let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        Self { name, dtype: Dtype::I64, shape: shape.to_vec(), bytes }
    }
}

fn encode(dtype: Dtype, x: f64) -> Vec<u8> {
    match dtype {
        Dtype::F64 => x.to_le_bytes().to_vec(),
        Dtype::F32 => (x as f32).to_le_bytes().to_vec(),
        Dtype::F16 => f16::from_f64(x).to_le_bytes().to_vec(),
        Dtype::BF16 => bf16::from_f64(x).to_le_bytes().to_vec(),
        other => panic!("no floats of {other:?}"),
    }
}

pub fn write_safetensors(path: &Path, tensors: &[Tensor]) {
    let views = tensors.iter().map(|Tensor { name, dtype, shape, bytes }| {
        (*name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

/// One `.npy` file per tensor, its header written as NumPy writes it.
pub fn write_npy(folder: &Path, tensors: &[Tensor]) {
    for tensor in tensors {
        let descr = match tensor.dtype {
            Dtype::F64 => "<f8",
            Dtype::F32 => "<f4",
            Dtype::F16 => "<f2",
            Dtype::BF16 => "|V2",
            Dtype::I64 => "<i8",
            Dtype::I32 => "<i4",
            other => panic!("no .npy of {other:?}"),
        };
        let sizes: String = tensor.shape.iter().map(|size| format!("{size}, ")).collect();
        let header =
            format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({sizes}), }}\n");
        let length = u16::try_from(header.len()).unwrap().to_le_bytes();
        let file = [b"\x93NUMPY\x01\x00", &length[..], header.as_bytes(), &tensor.bytes].concat();
        std::fs::write(folder.join(tensor.name).with_extension("npy"), file).unwrap();
    }
}
