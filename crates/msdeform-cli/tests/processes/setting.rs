//! Inputs, the binary, and what is looked at afterwards.

use std::path::{Path, PathBuf};
use std::process::Command;

use libtest_mimic::Trial;
use safetensors::Dtype;
use tempfile::TempDir;

use crate::shared::clean;
pub use crate::shared::{
    HUGE, Tensor, commands, expect, folder, msdeform, printed, read_json, write_npy,
    write_safetensors,
};

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

/// The binary behind a shell that limits it first: `ulimit -v 500000`.
pub fn msdeform_after(limits: &str, folder: &TempDir, arguments: &str) -> Command {
    let mut command = Command::new("sh");
    let script = format!("{limits}; exec '{}' {arguments}", env!("CARGO_BIN_EXE_msdeform"));
    command.arg("-c").arg(script);
    clean(command, folder)
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

/// One level of 2 x 2 pixels with two channels, and queries with two points.
pub fn call(queries: usize) -> Vec<Tensor> {
    let floats = |name, shape: &[usize]| {
        let numbers = 0..shape.iter().product::<usize>();
        let values: Vec<f64> = numbers.map(|x| (x % 8) as f64 * 0.125).collect();
        Tensor::floats(name, Dtype::F32, shape, &values)
    };
    vec![
        floats("value", &[1, 4, 1, 2]),
        Tensor::integers("spatial_shapes", &[1, 2], &[2, 2]),
        Tensor::integers("level_start_index", &[1], &[0]),
        floats("sampling_locations", &[1, queries, 1, 1, 2, 2]),
        floats("attention_weights", &[1, queries, 1, 1, 2]),
        floats("grad_output", &[1, queries, 2]),
    ]
}

/// Queries without points: files of a few bytes for any number of them.
pub fn declared(queries: usize) -> Vec<Tensor> {
    let mut tensors = call(0);
    tensors[3].shape = vec![1, queries, 1, 1, 0, 2];
    tensors[4].shape = vec![1, queries, 1, 1, 0];
    tensors.truncate(5);
    tensors
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
