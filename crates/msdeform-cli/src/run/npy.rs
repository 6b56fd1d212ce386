//! The header of a NumPy `.npy` file.
//!
//! Written here rather than taken from a crate because the header decides how many bytes are
//! believed: a corrupt or hostile one must end in a message. The crates at hand multiply the sizes
//! unchecked, reserve any header length that a file claims and recurse into structured types. What
//! the operator needs is a small part of the format: one plain element type, C order.

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use super::files::{Stored, name_of};

const MAGIC: &[u8] = b"\x93NUMPY";

/// NumPy itself refuses longer headers, for the same reason.
const LONGEST_HEADER: usize = 10_000;

/// Element types by their names in headers. A type is written by its first name. NumPy has no bfloat16: bf16 are two opaque
/// bytes, which `ml_dtypes` reads back, and so does `msdeform run --dtype bf16`.
const TYPES: [(&str, Stored); 8] = [
    ("<f8", Stored::F64),
    ("<f4", Stored::F32),
    ("<f2", Stored::F16),
    ("<i8", Stored::I64),
    ("<i4", Stored::I32),
    ("<V2", Stored::U16),
    ("|V2", Stored::U16),
    ("<u2", Stored::U16),
];

/// The dictionary of a header: exactly these keys, and nothing nested but the shape.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    descr: String,
    fortran_order: bool,
    shape: Vec<usize>,
}

/// The element type, the shape and the elements' bytes, after checking that there are as many as
/// the header says.
pub fn parse(file: &[u8]) -> Result<(Stored, Vec<usize>, &[u8])> {
    let (text, data) = split_header(file)?;
    let Header { descr, fortran_order, shape } = serde_json::from_str(&as_json(text))
        .with_context(|| format!("bad .npy header `{}`", text.trim()))?;
    ensure!(
        !fortran_order,
        "the array is in Fortran order; save it with `numpy.ascontiguousarray(array)`"
    );
    let stored = stored_type(&descr)?;
    let expected = shape
        .iter()
        .try_fold(stored.bitsize() / 8, |product, &size| product.checked_mul(size))
        .with_context(|| format!("shape {shape:?} is larger than any file"))?;
    ensure!(
        data.len() == expected,
        "shape {shape:?} of {} takes {expected} bytes, the file has {} after its header",
        name_of(stored),
        data.len()
    );
    Ok((stored, shape, data))
}

/// The header, padded so that the data behind it is aligned to 64 bytes, as NumPy does.
pub fn header(stored: Stored, shape: &[usize]) -> Vec<u8> {
    let sizes: String = shape.iter().map(|size| format!("{size}, ")).collect();
    let stored = if stored == Stored::BF16 { Stored::U16 } else { stored };
    let descr = TYPES.iter().find(|(_, known)| *known == stored).map_or("", |(descr, _)| descr);
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

/// Python's literals as JSON, whose reader has a limit for nesting. Python allows a comma before a closing bracket, and
/// Python 2 wrote sizes as `3L`.
fn as_json(text: &str) -> String {
    let mut json = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\'' => json.push('"'),
            '(' => json.push('['),
            ')' | '}' => {
                let kept = json.trim_end();
                json.truncate(kept.strip_suffix(',').unwrap_or(kept).len());
                json.push(if c == ')' { ']' } else { c });
            }
            'L' if json.ends_with(|last: char| last.is_ascii_digit()) => {}
            _ => json.push(c),
        }
    }
    json.replace("False", "false").replace("True", "true")
}

fn stored_type(descr: &str) -> Result<Stored> {
    if let Some((_, stored)) = TYPES.iter().find(|(known, _)| *known == descr) {
        return Ok(*stored);
    }
    ensure!(
        !descr.starts_with('>'),
        "the array is big-endian (`{descr}`); save it with \
         `array.astype(array.dtype.newbyteorder('<'))`"
    );
    bail!(
        "element type `{descr}` is not supported; use <f4, <f2, <f8, two raw bytes (<V2 or <u2) \
         for bf16, and <i8 or <i4 for spatial_shapes and level_start_index"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data: usize) -> Vec<u8> {
        let length = u16::try_from(header.len()).unwrap();
        [MAGIC, &[1, 0], &length.to_le_bytes(), header.as_bytes(), &vec![0; data]].concat()
    }

    #[test]
    fn headers_as_numpy_writes_them_are_read() {
        for (text, bytes, stored, shape) in [
            (
                "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }  \n",
                24,
                "F32",
                "[2, 3]",
            ),
            ("{'descr': '<i8', 'fortran_order': False, 'shape': (4,), }\n", 32, "I64", "[4]"),
            ("{'descr': '<f8', 'fortran_order': False, 'shape': (), }", 8, "F64", "[]"),
            ("{'shape': (0, 7), 'fortran_order': False, 'descr': '<f2'}", 0, "F16", "[0, 7]"),
            ("{\"descr\": \"|V2\", 'fortran_order':False, 'shape':(3L,5L)}", 30, "U16", "[3, 5]"),
        ] {
            let bytes = file(text, bytes);
            let (found, sizes, _) = parse(&bytes).unwrap();
            assert_eq!((found.to_string(), format!("{sizes:?}")), (stored.into(), shape.into()));
        }
    }

    #[test]
    fn what_is_written_is_read_back_here_and_by_another_reader() {
        for stored in TYPES.map(|(_, stored)| stored).into_iter().chain([Stored::BF16]) {
            for shape in [vec![], vec![5], vec![2, 0, 3], vec![1, 22_223, 8, 32]] {
                let header = header(stored, &shape);
                assert_eq!(header.len() % 64, 0);
                let npyz = npyz::NpyHeader::from_reader(header.as_slice()).unwrap();
                let sizes: Vec<u64> = shape.iter().map(|&size| size as u64).collect();
                assert_eq!((npyz.shape(), npyz.order()), (sizes.as_slice(), npyz::Order::C));
                let elements = shape.iter().product::<usize>();
                if elements < 10 {
                    let file = [header, vec![0; elements * stored.bitsize() / 8]].concat();
                    let (found, sizes, _) = parse(&file).unwrap();
                    assert_eq!((sizes, found.bitsize()), (shape, stored.bitsize()));
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
            (file(&dict("[('a', '<f4')]", "False", "(1,)"), 4), "expected a string"),
            (file(&dict("'<f8'", "False", "(4294967296, 4294967296)"), 0), "larger than any file"),
            (file(&dict("'<f8'", "False", "(99999999999999999999,)"), 0), "expected usize"),
            (file(&dict("'<f8'", "False", "(-1,)"), 0), "`-1`, expected usize"),
            (file(&dict("'<f8'", "False", &"(".repeat(9000)), 0), "expected usize"),
            (file("{'descr': '<f4', 'shape': (1,)}", 4), "missing field `fortran_order`"),
            (file("{'descr': '<f4', 'descr': '<f4'}", 4), "duplicate field `descr`"),
            (file("{'kind': '<f4'}", 4), "unknown field `kind`"),
            (file(&(dict("'<f4'", "False", "(1,)") + " x"), 4), "trailing characters"),
        ] {
            let error = format!("{:#}", parse(&bytes).unwrap_err());
            assert!(error.contains(reason), "wanted `{reason}`, got: {error}");
        }
    }
}
