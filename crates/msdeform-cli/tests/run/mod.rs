//! `msdeform run` on the real binary: tensors in files, results in files, messages and exit codes.

mod computes;
mod from_offsets;
mod refuses;

use std::path::{Path, PathBuf};
use std::process::Command;

use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors};
use tempfile::TempDir;

use crate::shared::{
    Tensor, expect, folder, msdeform, printed, printed_json, strings, write_npy, write_safetensors,
};

pub fn decode(dtype: Dtype, bytes: &[u8]) -> Vec<f64> {
    match dtype {
        Dtype::F64 => bytes.as_chunks().0.iter().map(|&x| f64::from_le_bytes(x)).collect(),
        Dtype::F32 => bytes.as_chunks().0.iter().map(|&x| f32::from_le_bytes(x).into()).collect(),
        Dtype::F16 => bytes.as_chunks().0.iter().map(|&x| f16::from_le_bytes(x).into()).collect(),
        Dtype::BF16 => bytes.as_chunks().0.iter().map(|&x| bf16::from_le_bytes(x).into()).collect(),
        other => panic!("no floats of {other:?}"),
    }
}

/// A level of 2 x 2 pixels with two channels, 1 2 / 3 4 and ten times that; one query with two
/// points: on the first pixel with weight 1/4, in the middle of all four with weight 3/4.
///
/// Output: 1/4 * 1 + 3/4 * 2.5 = 2.125, and 21.25. All of it is exact in every format.
pub fn by_hand(value: Dtype, sampling: Dtype) -> Vec<Tensor> {
    let locations = [0.25, 0.25, 0.5, 0.5];
    vec![
        Tensor::floats("value", value, &[1, 4, 1, 2], &[1., 10., 2., 20., 3., 30., 4., 40.]),
        Tensor::integers("spatial_shapes", &[1, 2], &[2, 2]),
        Tensor::integers("level_start_index", &[1], &[0]),
        Tensor::floats("sampling_locations", sampling, &[1, 1, 1, 1, 2, 2], &locations),
        Tensor::floats("attention_weights", sampling, &[1, 1, 1, 1, 2], &[0.25, 0.75]),
        Tensor::floats("grad_output", value, &[1, 1, 2], &[2.0, 1.0]),
    ]
}

pub const OUTPUT: [f64; 2] = [2.125, 21.25];

/// Replaces the tensor of the same name.
pub fn with(mut tensors: Vec<Tensor>, tensor: Tensor) -> Vec<Tensor> {
    let at = tensors.iter().position(|other| other.name == tensor.name).unwrap();
    tensors[at] = tensor;
    tensors
}

pub fn without(mut tensors: Vec<Tensor>, name: &str) -> Vec<Tensor> {
    tensors.retain(|tensor| tensor.name != name);
    tensors
}

/// Sizes of [`by_hand`] that raw files do not state.
pub const SIZES: &str = "--heads 1 --channels 2 --points 2";

/// A folder of its own for every test, with the input of `run`.
pub struct Place {
    folder: TempDir,
    pub input: PathBuf,
}

impl Place {
    /// An empty folder, and a name in it for the input.
    pub fn new(input: &str) -> Self {
        let folder = folder();
        Self { input: folder.path().join(input), folder }
    }

    /// The tensors in one file.
    pub fn with_safetensors(tensors: &[Tensor]) -> Self {
        let place = Self::new("call.safetensors");
        write_safetensors(&place.input, tensors);
        place
    }

    pub fn with_npy(tensors: &[Tensor]) -> Self {
        let place = Self::new("");
        write_npy(&place.input, tensors);
        place
    }

    pub fn with_bin(tensors: &[Tensor]) -> Self {
        let place = Self::new("");
        place.write_bin(tensors);
        place
    }

    pub fn write_bin(&self, tensors: &[Tensor]) {
        for tensor in tensors {
            std::fs::write(self.path(tensor.name).with_extension("bin"), &tensor.bytes).unwrap();
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `msdeform run INPUT OPTIONS...`
    pub fn run(&self, options: &str) -> Command {
        let mut command = msdeform(&self.folder, "run");
        command.arg(&self.input).args(options.split_whitespace());
        command
    }

    /// What `run` prints if it succeeds, with all of these words.
    #[track_caller]
    pub fn ran(&self, options: &str, words: &[&str]) -> String {
        printed(self.run(options), words)
    }

    /// Runs, expects a refusal with this code and all of these words, and that no file appeared.
    #[track_caller]
    pub fn refused(&self, code: i32, options: &str, words: &[&str]) {
        let before = self.names();
        expect(self.run(options), code, words);
        assert_eq!(self.names(), before);
    }

    /// Names of all files, sorted.
    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.folder.path()).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// The elements of `output.bin`.
    pub fn bin_output(&self, dtype: Dtype) -> Vec<f64> {
        decode(dtype, &std::fs::read(self.path("output.bin")).unwrap())
    }

    /// A result next to `call.safetensors`: shape, type and values.
    pub fn result(&self, name: &str) -> (Vec<usize>, Dtype, Vec<f64>) {
        read_safetensors(&self.path("call.output.safetensors"), name)
    }
}

/// A tensor of a safetensors file: shape, type and values.
pub fn read_safetensors(path: &Path, name: &str) -> (Vec<usize>, Dtype, Vec<f64>) {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let tensor = file.tensor(name).unwrap();
    (tensor.shape().to_vec(), tensor.dtype(), decode(tensor.dtype(), tensor.data()))
}

/// A tensor of a `.npy` file by another reader than the one under test: shape, type, bytes.
pub fn read_npy(path: &Path) -> (Vec<u64>, String, Vec<u8>) {
    let bytes = std::fs::read(path).unwrap();
    let mut rest = bytes.as_slice();
    let header = npyz::NpyHeader::from_reader(&mut rest).unwrap();
    (header.shape().to_vec(), header.dtype().descr(), rest.to_vec())
}
