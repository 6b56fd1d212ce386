//! The header of a NumPy `.npy` file.
//!
//! Written here rather than taken from a crate because the header decides how many bytes are
//! believed: a corrupt or hostile one must end in a message. The crates at hand multiply the sizes
//! unchecked, reserve any header length that a file claims and recurse into structured types. What
//! the operator needs is a small part of the format: one plain element type, C order.

use anyhow::{Context, Result, bail, ensure};

use super::Stored;

const MAGIC: &[u8] = b"\x93NUMPY";

/// NumPy itself refuses longer headers, for the same reason.
const LONGEST_HEADER: usize = 10_000;

/// The element type, the shape and the elements' bytes, after checking that there are as many as
/// the header says.
pub fn parse(file: &[u8]) -> Result<(Stored, Vec<usize>, &[u8])> {
    let (text, data) = split_header(file)?;
    let header =
        Header::parse(text).with_context(|| format!("bad .npy header `{}`", text.trim()))?;
    ensure!(
        !header.fortran_order,
        "the array is in Fortran order; save it with `numpy.ascontiguousarray(array)`"
    );
    let stored = stored_type(header.descr)?;
    let expected = header
        .shape
        .iter()
        .try_fold(stored.size_bytes(), |product, &size| product.checked_mul(size))
        .with_context(|| format!("shape {:?} is larger than any file", header.shape))?;
    ensure!(
        data.len() == expected,
        "shape {:?} of {stored} takes {expected} bytes, the file has {} after its header",
        header.shape,
        data.len()
    );
    Ok((stored, header.shape, data))
}

/// The header, padded so that the data behind it is aligned to 64 bytes, as NumPy does.
pub fn header(stored: Stored, shape: &[usize]) -> Vec<u8> {
    let sizes: String = shape.iter().map(|size| format!("{size}, ")).collect();
    let descr = match stored {
        Stored::F64 => "<f8",
        Stored::F32 => "<f4",
        Stored::F16 => "<f2",
        // NumPy has no bfloat16: two opaque bytes, which `ml_dtypes` and we read back.
        Stored::Bf16 | Stored::Bits16 => "<V2",
        Stored::I64 => "<i8",
        Stored::I32 => "<i4",
    };
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({sizes}), }}");
    let before_text = MAGIC.len() + 4;
    let padded = (before_text + text.len() + 1).next_multiple_of(64) - before_text;
    text.extend(std::iter::repeat_n(' ', padded - text.len() - 1));
    text.push('\n');
    let length = u16::try_from(text.len()).unwrap_or(u16::MAX);
    [MAGIC, &[1, 0], &length.to_le_bytes(), text.as_bytes()].concat()
}

fn split_header(file: &[u8]) -> Result<(&str, &[u8])> {
    let rest = file.strip_prefix(MAGIC).context("this is not a .npy file (no \\x93NUMPY magic)")?;
    let (version, rest) = rest.split_first_chunk::<2>().context("the file ends in its header")?;
    let (length, rest) = match version[0] {
        1 => rest.split_first_chunk().map(|(n, rest)| (u16::from_le_bytes(*n) as usize, rest)),
        2 | 3 => rest.split_first_chunk().map(|(n, rest)| (u32::from_le_bytes(*n) as usize, rest)),
        _ => bail!(".npy format {}.{} is unknown; 1.0 to 3.0 are", version[0], version[1]),
    }
    .context("the file ends in its header")?;
    ensure!(length <= LONGEST_HEADER, "the header claims {length} bytes; the file is corrupt");
    let (text, data) = rest.split_at_checked(length).context("the file ends in its header")?;
    Ok((std::str::from_utf8(text).context("the header is not text")?, data))
}

fn stored_type(descr: &str) -> Result<Stored> {
    Ok(match descr {
        "<f8" => Stored::F64,
        "<f4" => Stored::F32,
        "<f2" => Stored::F16,
        "<i8" => Stored::I64,
        "<i4" => Stored::I32,
        "<V2" | "|V2" | "<u2" => Stored::Bits16,
        _ if descr.starts_with('>') => bail!(
            "the array is big-endian (`{descr}`); save it with \
             `array.astype(array.dtype.newbyteorder('<'))`"
        ),
        _ => bail!(
            "element type `{descr}` is not supported; use <f4, <f2, <f8, two raw bytes (<V2 or <u2) \
             for bf16, and <i8 or <i4 for spatial_shapes and level_start_index"
        ),
    })
}

#[derive(Debug, PartialEq, Eq)]
struct Header<'a> {
    descr: &'a str,
    fortran_order: bool,
    shape: Vec<usize>,
}

impl<'a> Header<'a> {
    /// A Python dictionary with exactly these keys, in any order, and nothing nested but the shape.
    fn parse(text: &'a str) -> Result<Self> {
        let mut rest = Cursor(text);
        let (mut descr, mut fortran_order, mut shape) = (None, None, None);
        rest.expect("{")?;
        while !rest.take("}") {
            let key = rest.string()?;
            rest.expect(":")?;
            let again = match key {
                "descr" => descr.replace(rest.string()?).is_some(),
                "fortran_order" => fortran_order.replace(rest.boolean()?).is_some(),
                "shape" => shape.replace(rest.sizes()?).is_some(),
                _ => bail!("unknown key `{key}`"),
            };
            ensure!(!again, "key `{key}` twice");
            if !rest.take(",") {
                rest.expect("}")?;
                break;
            }
        }
        ensure!(rest.0.trim().is_empty(), "text after the dictionary");
        Ok(Self {
            descr: descr.context("no `descr`")?,
            fortran_order: fortran_order.context("no `fortran_order`")?,
            shape: shape.context("no `shape`")?,
        })
    }
}

/// What is left of the header.
struct Cursor<'a>(&'a str);

impl<'a> Cursor<'a> {
    fn take(&mut self, token: &str) -> bool {
        let rest = self.0.trim_start().strip_prefix(token);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    fn expect(&mut self, token: &str) -> Result<()> {
        ensure!(self.take(token), "expected `{token}` at `{}`", self.0.trim_start());
        Ok(())
    }

    fn string(&mut self) -> Result<&'a str> {
        let quote = if self.take("'") { '\'' } else { '"' };
        ensure!(quote == '\'' || self.take("\""), "expected a plain type or key at `{}`", self.0);
        let (string, rest) = self.0.split_once(quote).context("a string without an end")?;
        self.0 = rest;
        Ok(string)
    }

    fn boolean(&mut self) -> Result<bool> {
        let found = self.take("True");
        ensure!(found || self.take("False"), "expected True or False at `{}`", self.0);
        Ok(found)
    }

    fn sizes(&mut self) -> Result<Vec<usize>> {
        let mut sizes = Vec::new();
        self.expect("(")?;
        while !self.take(")") {
            let text = self.0.trim_start();
            let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            let (number, rest) = text.split_at(digits);
            sizes.push(number.parse().with_context(|| format!("expected a size at `{text}`"))?);
            self.0 = rest;
            // Python 2 wrote sizes as `3L`.
            self.take("L");
            if !self.take(",") {
                self.expect(")")?;
                break;
            }
        }
        Ok(sizes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn file(header: &str, data: usize) -> Vec<u8> {
        let length = u16::try_from(header.len()).unwrap();
        [MAGIC, &[1, 0], &length.to_le_bytes(), header.as_bytes(), &vec![0; data]].concat()
    }

    fn error(file: &[u8]) -> String {
        format!("{:#}", parse(file).unwrap_err())
    }

    #[test]
    fn headers_as_numpy_writes_them_are_read() {
        for (text, stored, shape, bytes) in [
            (
                "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }  \n",
                Stored::F32,
                vec![2, 3],
                24,
            ),
            (
                "{'descr': '<i8', 'fortran_order': False, 'shape': (4,), }\n",
                Stored::I64,
                vec![4],
                32,
            ),
            ("{'descr': '<f8', 'fortran_order': False, 'shape': (), }", Stored::F64, vec![], 8),
            (
                "{'shape': (0, 7), 'fortran_order': False, 'descr': '<f2'}",
                Stored::F16,
                vec![0, 7],
                0,
            ),
            (
                "{\"descr\": \"|V2\", 'fortran_order':False, 'shape':(3L,5L)}",
                Stored::Bits16,
                vec![3, 5],
                30,
            ),
        ] {
            let bytes = file(text, bytes);
            let (found, sizes, _) = parse(&bytes).unwrap();
            assert_eq!((found, sizes), (stored, shape), "{text}");
        }
    }

    #[test]
    fn what_is_written_is_read_back_here_and_by_another_reader() {
        for stored in Stored::ALL {
            for shape in [vec![], vec![5], vec![2, 0, 3], vec![1, 22_223, 8, 32]] {
                let header = header(stored, &shape);
                assert_eq!(header.len() % 64, 0);
                let npyz = npyz::NpyHeader::from_reader(header.as_slice()).unwrap();
                let sizes: Vec<u64> = shape.iter().map(|&size| size as u64).collect();
                assert_eq!((npyz.shape(), npyz.order()), (sizes.as_slice(), npyz::Order::C));
                if shape.iter().product::<usize>() < 10 {
                    let data = vec![0; shape.iter().product::<usize>() * stored.size_bytes()];
                    let file = [header, data].concat();
                    let (found, sizes, _) = parse(&file).unwrap();
                    assert_eq!(sizes, shape);
                    assert_eq!(found.size_bytes(), stored.size_bytes());
                }
            }
        }
    }

    #[test]
    fn every_unusable_file_is_refused_with_the_reason() {
        let dict = |descr: &str, fortran: &str, shape: &str| {
            format!("{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}\n")
        };
        for (bytes, reason) in [
            (b"PK\x03\x04".to_vec(), "not a .npy file"),
            (b"\x93NUMPY".to_vec(), "ends in its header"),
            (b"\x93NUMPY\x07\x00".to_vec(), "format 7.0 is unknown"),
            (b"\x93NUMPY\x02\x00\xff\xff\xff\xff".to_vec(), "claims 4294967295 bytes"),
            (file(&dict("'<f4'", "False", "(2,)"), 0)[..40].to_vec(), "ends in its header"),
            (file(&dict("'<f4'", "False", "(2,)"), 7), "takes 8 bytes, the file has 7"),
            (file(&dict("'<f4'", "False", "(2,)"), 9), "takes 8 bytes, the file has 9"),
            (file(&dict("'<f4'", "True", "(2, 3)"), 24), "Fortran order"),
            (file(&dict("'>f4'", "False", "(2,)"), 8), "big-endian"),
            (file(&dict("'<c8'", "False", "(1,)"), 8), "`<c8` is not supported"),
            (file(&dict("[('a', '<f4')]", "False", "(1,)"), 4), "expected a plain type"),
            (file(&dict("'<f8'", "False", "(4294967296, 4294967296)"), 0), "larger than any file"),
            (file(&dict("'<f8'", "False", "(99999999999999999999,)"), 0), "expected a size"),
            (file(&dict("'<f8'", "False", "(-1,)"), 0), "expected a size"),
            (file("{'descr': '<f4', 'shape': (1,)}", 4), "no `fortran_order`"),
            (file("{'descr': '<f4', 'descr': '<f4'}", 4), "twice"),
            (file("{} x", 4), "text after"),
        ] {
            let error = error(&bytes);
            assert!(error.contains(reason), "wanted `{reason}`, got: {error}");
        }
    }

    proptest! {
        #[test]
        fn mutated_files_are_read_or_refused(
            changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..6),
            cut in any::<proptest::sample::Index>(),
            whole in any::<bool>(),
        ) {
            let mut bytes = [header(Stored::F32, &[2, 3]), vec![7; 24]].concat();
            for (place, byte) in changes {
                let place = place.index(bytes.len());
                bytes[place] = byte;
            }
            if !whole {
                bytes.truncate(cut.index(bytes.len()));
            }
            if let Ok((stored, shape, data)) = parse(&bytes) {
                prop_assert_eq!(stored.size_bytes() * shape.iter().product::<usize>(), data.len());
            }
        }

        #[test]
        fn any_text_as_a_header_is_read_or_refused(text in "\\PC{0,80}", data in 0usize..64) {
            let _ = parse(&file(&text, data));
        }
    }
}
