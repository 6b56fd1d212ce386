//! Safetensors files.

use anyhow::{Context, Result, bail};
use safetensors::{Dtype, SafeTensors};

use super::{Stored, names};

/// Name, type, shape and bytes.
type Entry<'a> = (&'static str, Stored, Vec<usize>, &'a [u8]);

/// The tensors of a call that the file holds.
pub fn parse(file: &[u8]) -> Result<Vec<Entry<'_>>> {
    let file = SafeTensors::deserialize(file).context("not a readable safetensors file")?;
    let mut found = Vec::new();
    for name in names::ALL {
        let Ok(tensor) = file.tensor(name) else { continue };
        let stored = match tensor.dtype() {
            Dtype::F64 => Stored::F64,
            Dtype::F32 => Stored::F32,
            Dtype::F16 => Stored::F16,
            Dtype::BF16 => Stored::Bf16,
            Dtype::I64 => Stored::I64,
            Dtype::I32 => Stored::I32,
            other => bail!(
                "`{name}` is {other:?}; expected F32, F16, BF16 or F64, and I64 or I32 for \
                 spatial_shapes and level_start_index"
            ),
        };
        found.push((name, stored, tensor.shape().to_vec(), tensor.data()));
    }
    Ok(found)
}

/// A file with the given tensors: name, type, shape and little-endian elements.
pub fn serialize(tensors: &[(&str, Stored, &[usize], Vec<u8>)]) -> Result<Vec<u8>> {
    let views = tensors
        .iter()
        .map(|(name, stored, shape, bytes)| {
            let dtype = match stored {
                Stored::F64 => Dtype::F64,
                Stored::F32 => Dtype::F32,
                Stored::F16 => Dtype::F16,
                Stored::Bf16 => Dtype::BF16,
                Stored::I64 => Dtype::I64,
                Stored::I32 => Dtype::I32,
                Stored::Bits16 => bail!("`{name}`: two raw bytes are no type of safetensors"),
            };
            let view = safetensors::tensor::TensorView::new(dtype, shape.to_vec(), bytes)
                .with_context(|| format!("`{name}` of shape {shape:?}"))?;
            Ok((*name, view))
        })
        .collect::<Result<Vec<_>>>()?;
    safetensors::serialize(views, None).context("the tensors do not make a safetensors file")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> Vec<u8> {
        let value: Vec<u8> = [1f32, 2.0, 3.0].into_iter().flat_map(f32::to_le_bytes).collect();
        serialize(&[
            ("value", Stored::F32, &[3, 1], value),
            ("spatial_shapes", Stored::I64, &[1, 2], vec![0; 16]),
        ])
        .unwrap()
    }

    #[test]
    fn what_is_written_is_read_back_and_other_tensors_are_left_alone() {
        let bytes = sample();
        let found = parse(&bytes).unwrap();
        assert_eq!(found.len(), 2);
        let (name, stored, shape, data) = &found[0];
        assert_eq!((*name, *stored, shape.as_slice()), ("value", Stored::F32, &[3, 1][..]));
        assert_eq!(data[4..8], 2f32.to_le_bytes());
        let other = serialize(&[("query_embed", Stored::F16, &[1], vec![0; 2])]).unwrap();
        assert!(parse(&other).unwrap().is_empty());
    }

    #[test]
    fn types_the_operator_does_not_know_are_named() {
        let view = safetensors::tensor::TensorView::new(Dtype::U8, vec![2], &[0, 0]).unwrap();
        let bytes = safetensors::serialize([("value", view)], None).unwrap();
        let error = parse(&bytes).unwrap_err().to_string();
        assert!(error.contains("`value` is U8"), "{error}");
    }

    proptest! {
        #[test]
        fn mutated_files_are_read_or_refused(
            changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..6),
            cut in any::<proptest::sample::Index>(),
            whole in any::<bool>(),
        ) {
            let mut bytes = sample();
            for (place, byte) in changes {
                let place = place.index(bytes.len());
                bytes[place] = byte;
            }
            if !whole {
                bytes.truncate(cut.index(bytes.len()));
            }
            if let Ok(tensors) = parse(&bytes) {
                for (_, stored, shape, data) in tensors {
                    prop_assert_eq!(stored.size_bytes() * shape.iter().product::<usize>(), data.len());
                }
            }
        }
    }
}
