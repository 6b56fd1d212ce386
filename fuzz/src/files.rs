//! Tensor files. What is loaded has the sizes of its description; [`from_bytes::load`] holds that.

use msdeform::{DType, ValueLayout};
use msdeform_cli::from_bytes::{self, Files};

use crate::Reader;

/// Tensors of a folder.
const TENSORS: usize = 6;

pub(crate) fn safetensors(bytes: &[u8]) {
    for backward in [false, true] {
        let _ = from_bytes::load(Files::Safetensors, vec![bytes.to_vec()], backward);
    }
}

pub(crate) fn npy(bytes: &[u8]) {
    let files = || Reader(bytes).pieces(TENSORS).into_iter().map(<[u8]>::to_vec).collect();
    for backward in [false, true] {
        let _ = from_bytes::load(Files::Npy, files(), backward);
    }
    // Its header alone, which lengths of pieces would hide from a mutation.
    let _ = from_bytes::load(Files::Npy, vec![bytes.to_vec()], false);
}

pub(crate) fn bin(bytes: &[u8]) {
    let mut reader = Reader(bytes);
    let files = Files::Bin {
        heads: reader.size(),
        channels: reader.size(),
        points: reader.size(),
        dtype: reader.pick(&DType::ALL),
        layout: reader.pick(&ValueLayout::ALL),
    };
    let backward = reader.chance();
    let pieces = reader.pieces(TENSORS).into_iter().map(<[u8]>::to_vec).collect();
    let _ = from_bytes::load(files, pieces, backward);
}
