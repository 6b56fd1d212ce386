//! Inputs, the binary, and what is looked at afterwards.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use libtest_mimic::Trial;
use safetensors::Dtype;
use tempfile::TempDir;

/// A test; it fails by panicking.
pub fn trial(name: &str, test: fn()) -> Trial {
    Trial::test(name, move || {
        test();
        Ok(())
    })
}

/// A test that not every machine or user can run.
pub fn trial_if(possible: bool, name: &str, test: fn()) -> Trial {
    trial(name, test).with_ignored_flag(!possible)
}

pub fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// The binary in a folder, with nothing of this environment that would change what it does.
pub fn msdeform(folder: &Path) -> Command {
    clean(Command::new(env!("CARGO_BIN_EXE_msdeform")), folder)
}

/// The same behind a shell that limits it first: `ulimit -v 500000`.
pub fn msdeform_after(limits: &str, folder: &Path) -> Command {
    let mut command = Command::new("sh");
    let script = format!("{limits}; exec \"$0\" \"$@\"");
    command.arg("-c").arg(script).arg(env!("CARGO_BIN_EXE_msdeform"));
    clean(command, folder)
}

fn clean(mut command: Command, folder: &Path) -> Command {
    command.current_dir(folder).env_remove("COLUMNS");
    command.env("MSDEFORM_TUNING", "off").env("RUST_BACKTRACE", "0");
    command
}

/// Runs it and expects this code and, on standard error, all of these words.
#[track_caller]
pub fn expect(command: &mut Command, code: i32, words: &[&str]) -> Output {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{:?}: {said}", output.status);
    for word in words {
        assert!(said.contains(word), "`{word}` is not in: {said}");
    }
    assert!(!said.contains("panicked"), "{said}");
    output
}

/// Every file below a folder, with its path from there, sorted.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut ahead = vec![folder.to_owned()];
    while let Some(next) = ahead.pop() {
        for entry in std::fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                ahead.push(path.clone());
            }
            found.push(path.strip_prefix(folder).unwrap().to_owned());
        }
    }
    found.sort();
    found
}

/// Names below a folder that a writer has not finished with.
pub fn temporaries(folder: &Path) -> Vec<PathBuf> {
    let is_temporary = |path: &PathBuf| {
        path.file_name().is_some_and(|name| msdeform_files::is_temporary(&name.to_string_lossy()))
    };
    files(folder).into_iter().filter(is_temporary).collect()
}

/// A tensor: name, type, shape, bytes.
pub type Tensor = (&'static str, Dtype, Vec<usize>, Vec<u8>);

/// One level of 2 x 2 pixels with two channels, and queries with two points.
pub fn call(queries: usize) -> Vec<Tensor> {
    let floats = |count: usize| (0..count).flat_map(|x| ((x % 8) as f32 * 0.125).to_le_bytes());
    let integers = |list: &[i64]| list.iter().flat_map(|x| x.to_le_bytes()).collect();
    vec![
        ("value", Dtype::F32, vec![1, 4, 1, 2], floats(8).collect()),
        ("spatial_shapes", Dtype::I64, vec![1, 2], integers(&[2, 2])),
        ("level_start_index", Dtype::I64, vec![1], integers(&[0])),
        (
            "sampling_locations",
            Dtype::F32,
            vec![1, queries, 1, 1, 2, 2],
            floats(4 * queries).collect(),
        ),
        ("attention_weights", Dtype::F32, vec![1, queries, 1, 1, 2], floats(2 * queries).collect()),
        ("grad_output", Dtype::F32, vec![1, queries, 2], floats(2 * queries).collect()),
    ]
}

/// Queries without points: files of a few bytes for any number of them.
pub fn declared(queries: usize) -> Vec<Tensor> {
    let mut tensors = call(0);
    tensors[3].2 = vec![1, queries, 1, 1, 0, 2];
    tensors[4].2 = vec![1, queries, 1, 1, 0];
    tensors.truncate(5);
    tensors
}

pub fn write_safetensors(path: &Path, tensors: &[Tensor]) {
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        (*name, safetensors::tensor::TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

pub fn write_npy(folder: &Path, tensors: &[Tensor]) {
    for (name, dtype, shape, bytes) in tensors {
        let descr = if *dtype == Dtype::I64 { "<i8" } else { "<f4" };
        let sizes: String = shape.iter().map(|size| format!("{size}, ")).collect();
        let header =
            format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({sizes}), }}\n");
        let length = u16::try_from(header.len()).unwrap().to_le_bytes();
        let file = [b"\x93NUMPY\x01\x00", &length[..], header.as_bytes(), bytes].concat();
        std::fs::write(folder.join(name).with_extension("npy"), file).unwrap();
    }
}

/// A file of this length that takes no place on the disk.
pub fn write_sparse(path: &Path, bytes: u64) {
    std::fs::File::create(path).unwrap().set_len(bytes).unwrap();
}

/// What a safetensors file holds, if it is whole.
pub fn read_output(bytes: &[u8]) -> Option<Vec<usize>> {
    let file = safetensors::SafeTensors::deserialize(bytes).ok()?;
    Some(file.tensor("output").ok()?.shape().to_vec())
}

pub fn mkfifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

pub fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|found| {
        use std::os::unix::fs::MetadataExt;
        found.uid() == 0
    })
}
