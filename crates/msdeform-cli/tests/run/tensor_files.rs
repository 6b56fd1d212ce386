//! Tensors written in files, for all tests of the command.

use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::TensorView;

/// One tensor: name, type, shape and little-endian elements.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub name: &'static str,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

impl Tensor {
    pub fn integers(name: &'static str, shape: &[usize], values: &[i64]) -> Self {
        let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        Self { name, dtype: Dtype::I64, shape: shape.to_vec(), bytes }
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
