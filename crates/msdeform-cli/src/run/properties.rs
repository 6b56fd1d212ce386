//! Random files and options: a call is loaded with tensors of the right sizes, or refused.

use msdeform::{DType, ValueLayout};
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use safetensors::tensor::TensorView;

use super::files::{Input, Kind, NAMES, SPATIAL_SHAPES, Stored};
use super::from_bytes::load_call;
use super::npy;
use super::sizes::{OffsetArgs, SizeArgs};

const STORED: [Stored; 7] =
    [Stored::F64, Stored::F32, Stored::F16, Stored::BF16, Stored::I64, Stored::I32, Stored::U16];

/// Mostly small, sometimes past all memory.
fn size() -> impl Strategy<Value = usize> {
    prop_oneof![8 => 0usize..4, 1 => select(vec![usize::MAX, usize::MAX / 2, 1 << 33])]
}

fn options() -> impl Strategy<Value = SizeArgs> {
    let level = (prop_oneof![9 => 1i64..4, 1 => any::<i64>()], 1i64..4);
    let sizes = (of(size()), of(size()), of(size()), of(size()), vec(size(), 0..3));
    let dtype = || of(select(DType::ALL.to_vec()));
    let types = ((dtype(), dtype(), dtype()), of(select(ValueLayout::ALL.to_vec())));
    (sizes, vec(level, 0..3), types).prop_map(
        |((batch, heads, channels, queries, points), levels, (dtypes, layout))| {
            let (dtype, output_dtype, sampling_dtype) = dtypes;
            SizeArgs {
                batch,
                heads,
                channels,
                queries,
                points,
                levels,
                dtype,
                output_dtype,
                sampling_dtype,
                layout,
                offsets: OffsetArgs::default(),
            }
        },
    )
}

/// A `.npy` file of some type and a small shape, with as many bytes as that takes.
fn array() -> impl Strategy<Value = Vec<u8>> {
    (select(STORED.to_vec()), vec(0usize..4, 0..7), any::<u8>()).prop_map(
        |(stored, shape, byte)| {
            let bytes = stored.bitsize() / 8 * shape.iter().product::<usize>();
            [npy::header(stored, &shape), vec![byte; bytes]].concat()
        },
    )
}

fn integers() -> impl Strategy<Value = Vec<u8>> {
    vec(prop_oneof![9 => 0i64..5, 1 => any::<i64>()], 0..5)
        .prop_map(|numbers| numbers.into_iter().flat_map(i64::to_le_bytes).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn mutated_files_are_read_or_refused(
        kind in select(vec![Kind::Npy, Kind::Safetensors]),
        changes in vec((any::<Index>(), any::<u8>()), 0..6),
        cut in of(any::<Index>()),
    ) {
        let mut bytes = match kind {
            Kind::Npy => [npy::header(Stored::F32, &[2, 3]), vec![7; 24]].concat(),
            _ => {
                let view = |stored, shape: &[usize], data| TensorView::new(stored, shape.to_vec(), data);
                let value = view(Stored::F32, &[3, 1], &[7; 12]).unwrap();
                let sizes = view(Stored::I64, &[1, 2], &[0; 16]).unwrap();
                safetensors::serialize([("value", value), (SPATIAL_SHAPES, sizes)], None).unwrap()
            }
        };
        for (place, byte) in changes {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let input = Input::in_memory(kind, vec![(NAMES[0], bytes)]);
        let Ok(tensors) = input.tensors() else { return Ok(()) };
        for tensor in NAMES.iter().filter_map(|name| tensors.find(name)) {
            let (stored, shape) = tensor.stated.as_ref().unwrap();
            let bits = stored.bitsize() * shape.iter().product::<usize>();
            prop_assert_eq!(bits, 8 * tensor.bytes.len());
        }
    }

    #[test]
    fn any_text_as_a_header_is_read_or_refused(text in "\\PC{0,80}", data in 0usize..64) {
        let length = u16::try_from(text.len()).unwrap().to_le_bytes();
        let file = [b"\x93NUMPY\x01\x00", &length[..], text.as_bytes(), &vec![0; data]].concat();
        let _ = npy::parse(&file);
    }

    #[test]
    fn raw_files_of_any_length_are_loaded_or_refused(
        lengths in vec(0usize..200, 6),
        shapes in integers(),
        starts in integers(),
        args in options(),
        backward in any::<bool>(),
    ) {
        let mut files: Vec<Vec<u8>> = lengths.into_iter().map(|length| vec![1; length]).collect();
        files[1] = shapes;
        files[2] = starts;
        load_call(Kind::Bin, NAMES.into_iter().zip(files).collect(), &args, backward);
    }

    #[test]
    fn arrays_of_any_type_and_shape_are_loaded_or_refused(
        files in vec(array(), 6),
        args in options(),
        backward in any::<bool>(),
    ) {
        load_call(Kind::Npy, NAMES.into_iter().zip(files).collect(), &args, backward);
    }

    #[test]
    fn fused_calls_of_any_shape_are_loaded_or_refused(
        [n, q, m, d, l, p] in [0usize..3, 0usize..4, 0usize..3, 0usize..3, 0usize..3, 0usize..3],
        references in [0usize..3, 0usize..4, 0usize..4, 1usize..5],
        stored in vec(select(STORED.to_vec()), 4),
        (scale, anchors, raw_weights, nearest) in (of(any::<f32>()), any::<bool>(), any::<bool>(), any::<bool>()),
        backward in any::<bool>(),
    ) {
        let file = |stored: Stored, shape: &[usize]| {
            let bytes = stored.bitsize() / 8 * shape.iter().product::<usize>();
            [npy::header(stored, shape), vec![1; bytes]].concat()
        };
        let sizes: Vec<u8> = (0..2 * l).flat_map(|_| 2i64.to_le_bytes()).collect();
        let files = vec![
            ("value", file(stored[0], &[n, 4 * l, m, d])),
            (SPATIAL_SHAPES, [npy::header(Stored::I64, &[l, 2]), sizes].concat()),
            ("sampling_offsets", file(stored[1], &[n, q, m, l, p, 2])),
            ("attention_logits", file(stored[2], &[n, q, m, l, p])),
            ("reference_points", file(stored[3], &references)),
            ("grad_output", file(stored[0], &[n, q, m * d])),
        ];
        let offsets = OffsetArgs { offset_scale: scale, anchors, raw_weights, nearest };
        let args = SizeArgs { offsets, ..SizeArgs::default() };
        load_call(Kind::Npy, files, &args, backward);
    }
}
