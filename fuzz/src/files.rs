//! Tensor files. What is loaded has the sizes of its description; [`load`] holds that.

use msdeform::{DType, ValueLayout};
use msdeform_cli::from_bytes::{Kind, NAMES, OffsetArgs, SizeArgs, Stored, header, load};

use crate::Reader;

/// Tensors of a folder.
const TENSORS: usize = 6;

const STORED: [Stored; 7] =
    [Stored::F64, Stored::F32, Stored::F16, Stored::BF16, Stored::I64, Stored::I32, Stored::U16];

pub(crate) fn safetensors(bytes: &[u8]) {
    for backward in [false, true] {
        let file = vec![(NAMES[0], bytes.to_vec())];
        let _ = load(Kind::Safetensors, file, &SizeArgs::default(), backward);
    }
}

fn pieces(reader: Reader<'_>) -> Vec<(&'static str, Vec<u8>)> {
    NAMES.into_iter().zip(reader.pieces(TENSORS).into_iter().map(<[u8]>::to_vec)).collect()
}

pub(crate) fn npy(bytes: &[u8]) {
    for backward in [false, true] {
        let _ = load(Kind::Npy, pieces(Reader(bytes)), &SizeArgs::default(), backward);
    }
    // Its header alone, which lengths of pieces would hide from a mutation.
    let _ = load(Kind::Npy, vec![(NAMES[0], bytes.to_vec())], &SizeArgs::default(), false);
}

pub(crate) fn bin(bytes: &[u8]) {
    let mut reader = Reader(bytes);
    let sizes = [reader.size(), reader.size(), reader.size()];
    let dtype = reader.pick(&DType::ALL);
    let layout = Some(reader.pick(&ValueLayout::ALL));
    let args = SizeArgs { sampling_dtype: Some(dtype), layout, ..stated(sizes, dtype) };
    let backward = reader.chance();
    let _ = load(Kind::Bin, pieces(reader), &args, backward);
}

/// The options without which raw files make no call.
fn stated([heads, channels, points]: [usize; 3], dtype: DType) -> SizeArgs {
    let (heads, channels) = (Some(heads), Some(channels));
    SizeArgs { heads, channels, points: vec![points], dtype: Some(dtype), ..SizeArgs::default() }
}

/// Files whose tensors mostly fit each other, with options that mostly fit them.
pub(crate) fn call(bytes: &[u8]) {
    let _ = makes_call(bytes);
}

/// Whether the files that the bytes describe make a call.
#[must_use]
pub fn makes_call(bytes: &[u8]) -> bool {
    let reader = &mut Reader(bytes);
    let kind = reader.pick(&[Kind::Npy, Kind::Bin]);
    let is_fused = kind == Kind::Npy && reader.chance();
    let (dtype, stored) = reader.pick(&[
        (DType::F32, Stored::F32),
        (DType::F16, Stored::F16),
        (DType::Bf16, Stored::BF16),
        (DType::F64, Stored::F64),
    ]);
    let [n, q, m, d, l, p] = [(); 6].map(|()| usize::from(reader.byte() % 3));
    let shared = [n, q, 2].map(|usual| if reader.chance() { 1 } else { usual });
    let references = reader.instead(Some(l), |reader| reader.size() % 5).unwrap_or(l);
    let shapes = [
        vec![n, 4 * l, m, d],
        vec![l, 2],
        vec![l],
        vec![n, q, m, l, p, 2],
        vec![n, q, m, l, p],
        vec![n, q, m * d],
        vec![shared[0], shared[1], references, 2 * shared[2]],
        vec![n, q, m, l, p, 2],
        vec![n, q, m, l, p],
    ];
    let left_out = if is_fused { [2, 3, 4] } else { [6, 7, 8] };
    let mut files = Vec::new();
    for (place, (name, shape)) in NAMES.into_iter().zip(shapes).enumerate() {
        if left_out.contains(&place) == reader.rarely() {
            let stored = if [1, 2].contains(&place) { Stored::I64 } else { stored };
            files.push((name, file(reader, kind, stored, shape)));
        }
    }
    let usual = if kind == Kind::Bin { stated([m, d, p], dtype) } else { SizeArgs::default() };
    load(kind, files, &options(reader, usual), reader.chance())
}

/// A tensor of this type and shape, or rarely of another. Numbers of a list are 2: each level has 2 x 2 pixels.
fn file(reader: &mut Reader<'_>, kind: Kind, stored: Stored, shape: Vec<usize>) -> Vec<u8> {
    let stored = if reader.rarely() { reader.pick(&STORED) } else { stored };
    let any = |reader: &mut Reader<'_>| (0..reader.size() % 7).map(|_| reader.size() % 4).collect();
    let shape: Vec<usize> = if reader.rarely() { any(reader) } else { shape };
    let count = shape.iter().product();
    let mut bytes = match stored {
        Stored::I64 => 2i64.to_le_bytes().repeat(count),
        _ => vec![1; count * stored.bitsize() / 8],
    };
    if kind == Kind::Npy {
        bytes.splice(0..0, header(stored, &shape));
    } else if reader.rarely() {
        bytes.resize(reader.size() % 200, 2);
    }
    bytes
}

/// The usual options, some of them replaced by any others.
fn options(reader: &mut Reader<'_>, usual: SizeArgs) -> SizeArgs {
    let dtype = |reader: &mut Reader<'_>| reader.pick(&DType::ALL);
    let points = reader.instead(Some(usual.points), |reader| vec![reader.size(), reader.size()]);
    let levels = reader.instead(None, |reader| vec![(reader.number(), reader.number())]);
    SizeArgs {
        batch: reader.instead(usual.batch, Reader::size),
        heads: reader.instead(usual.heads, Reader::size),
        channels: reader.instead(usual.channels, Reader::size),
        queries: reader.instead(usual.queries, Reader::size),
        points: points.unwrap_or_default(),
        levels: levels.unwrap_or_default(),
        dtype: reader.instead(usual.dtype, dtype),
        output_dtype: reader.instead(None, dtype),
        sampling_dtype: reader.instead(None, dtype),
        layout: reader.instead(None, |reader| reader.pick(&ValueLayout::ALL)),
        offsets: OffsetArgs {
            offset_scale: reader.instead(None, |reader| f32::from_bits(reader.number() as u32)),
            anchors: reader.rarely(),
            raw_weights: reader.rarely(),
            nearest: reader.rarely(),
        },
    }
}
