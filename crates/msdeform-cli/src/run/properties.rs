//! Random files and options: a call is loaded with tensors of the right sizes, or refused.

use msdeform::{DType, ValueLayout};
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use proptest::sample::select;

use super::formats::{Kind, Stored, names, npy};
use super::from_bytes::load_call;
use super::offsets::OffsetArgs;
use super::sizes::SizeArgs;

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
    (select(Stored::ALL.to_vec()), vec(0usize..4, 0..7), any::<u8>()).prop_map(
        |(stored, shape, byte)| {
            let bytes = stored.size_bytes() * shape.iter().product::<usize>();
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
        load_call(Kind::Bin, names::ALL.into_iter().zip(files).collect(), &args, backward);
    }

    #[test]
    fn arrays_of_any_type_and_shape_are_loaded_or_refused(
        files in vec(array(), 6),
        args in options(),
        backward in any::<bool>(),
    ) {
        load_call(Kind::Npy, names::ALL.into_iter().zip(files).collect(), &args, backward);
    }

    #[test]
    fn fused_calls_of_any_shape_are_loaded_or_refused(
        [n, q, m, d, l, p] in [0usize..3, 0usize..4, 0usize..3, 0usize..3, 0usize..3, 0usize..3],
        references in [0usize..3, 0usize..4, 0usize..4, 1usize..5],
        stored in vec(select(Stored::ALL.to_vec()), 4),
        (scale, anchors, raw_weights, nearest) in (of(any::<f32>()), any::<bool>(), any::<bool>(), any::<bool>()),
        backward in any::<bool>(),
    ) {
        let file = |stored: Stored, shape: &[usize]| {
            let bytes = stored.size_bytes() * shape.iter().product::<usize>();
            [npy::header(stored, shape), vec![1; bytes]].concat()
        };
        let sizes: Vec<u8> = (0..2 * l).flat_map(|_| 2i64.to_le_bytes()).collect();
        let files = vec![
            (names::VALUE, file(stored[0], &[n, 4 * l, m, d])),
            (names::SPATIAL_SHAPES, [npy::header(Stored::I64, &[l, 2]), sizes].concat()),
            (names::SAMPLING_OFFSETS, file(stored[1], &[n, q, m, l, p, 2])),
            (names::ATTENTION_LOGITS, file(stored[2], &[n, q, m, l, p])),
            (names::REFERENCE_POINTS, file(stored[3], &references)),
            (names::GRAD_OUTPUT, file(stored[0], &[n, q, m * d])),
        ];
        let offsets = OffsetArgs { offset_scale: scale, anchors, raw_weights, nearest };
        let args = SizeArgs { offsets, ..SizeArgs::default() };
        load_call(Kind::Npy, files, &args, backward);
    }
}
