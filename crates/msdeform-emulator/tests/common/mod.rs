//! Compiles and launches the test kernels.
#![allow(dead_code, reason = "every test file uses a part of it")]

pub mod launch;

use std::path::{Path, PathBuf};

use msdeform_emulator::placeholder_address;
use msdeform_emulator::{
    Buffer, EmulatedKernel, EmulatorError, Fault, Launch, Order, Specialisation,
};

/// The folder of the product's kernels and headers.
pub fn kernels_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../msdeform-cuda/kernels")
}

/// The folders of the product's and the laboratory's kernels and headers.
pub fn kernel_folders() -> Vec<PathBuf> {
    let of_laboratory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../msdeform-cuda-lab/kernels");
    vec![kernels_folder(), of_laboratory]
}

pub fn test_kernel(name: &str, defines: &[&str]) -> EmulatedKernel {
    test_kernels(name, &[name], defines)
}

/// Several entries of one file.
pub fn test_kernels(name: &str, entries: &[&str], defines: &[&str]) -> EmulatedKernel {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("test_kernels");
    let specialisation = Specialisation {
        source: folder.join(name).with_extension("cu"),
        headers: kernel_folders(),
        entries: entries.iter().map(|&entry| entry.to_owned()).collect(),
        defines: defines.iter().map(|&define| define.to_owned()).collect(),
    };
    EmulatedKernel::compile(&specialisation).unwrap_or_else(|error| panic!("{error}"))
}

/// A launch with the parameters of `test_kernels/test_params.inc`.
pub fn test_launch(
    grid: u32,
    block: u32,
    shared_bytes: usize,
    input: Vec<u8>,
    output: Buffer,
    count: usize,
    aux: i32,
) -> Launch {
    let mut params = Vec::new();
    params.extend(placeholder_address(0).to_le_bytes());
    params.extend(placeholder_address(1).to_le_bytes());
    params.extend((count as i32).to_le_bytes());
    params.extend(aux.to_le_bytes());
    let mut launch = Launch::new([grid, 1, 1], [block, 1, 1], shared_bytes, params);
    launch.buffers = vec![Buffer::input(input), output];
    launch
}

/// Runs a launch in every order of turns and requires the same bytes each time.
pub fn launch_in_every_order(kernel: &EmulatedKernel, launch: &Launch) -> Vec<u8> {
    let launches = Order::ALL.map(|order| Launch { order, ..launch.clone() });
    let outputs = kernel.launch_all(&launches).unwrap_or_else(|error| panic!("{error}"));
    for (order, output) in Order::ALL.iter().zip(&outputs) {
        assert_eq!(output, &outputs[0], "{order:?} gives another result");
    }
    outputs.into_iter().next().unwrap().remove(0)
}

pub fn bytes_of_f32(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

pub fn f32_of_bytes(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

pub fn u32_of_bytes(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// What ended the run.
pub fn fault_of(error: &EmulatorError) -> Option<Fault> {
    let EmulatorError::Run { fault, .. } = error else { return None };
    Some(*fault)
}

/// The error of a launch that must fail.
pub fn failure(kernel: &EmulatedKernel, launch: &Launch) -> EmulatorError {
    match kernel.launch(launch) {
        Ok(_) => panic!("the launch succeeded"),
        Err(error) => error,
    }
}
