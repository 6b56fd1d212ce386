//! Where tensors come from: a safetensors file, a folder of `.npy`, a folder of raw `.bin`.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use msdeform::DType;
use msdeform_devices::memory;

use crate::exit::Usage;

pub mod npy;
pub mod safetensors;

/// The tensors of a call, by the names the ecosystem and the seed documents give them.
pub mod names {
    pub const VALUE: &str = "value";
    pub const SPATIAL_SHAPES: &str = "spatial_shapes";
    pub const LEVEL_START_INDEX: &str = "level_start_index";
    pub const SAMPLING_LOCATIONS: &str = "sampling_locations";
    pub const ATTENTION_WEIGHTS: &str = "attention_weights";
    pub const GRAD_OUTPUT: &str = "grad_output";
    pub const REFERENCE_POINTS: &str = "reference_points";
    pub const SAMPLING_OFFSETS: &str = "sampling_offsets";
    pub const ATTENTION_LOGITS: &str = "attention_logits";

    /// What is looked for; the rest of a file or folder is left alone.
    pub const ALL: [&str; 9] = [
        VALUE,
        SPATIAL_SHAPES,
        LEVEL_START_INDEX,
        SAMPLING_LOCATIONS,
        ATTENTION_WEIGHTS,
        GRAD_OUTPUT,
        REFERENCE_POINTS,
        SAMPLING_OFFSETS,
        ATTENTION_LOGITS,
    ];
}

/// The most that is read of a stream, whose length is unknown: `/dev/zero` has no end.
const LIMIT_STREAM_BYTES: u64 = 1 << 30;

/// How tensors are kept on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One file with all tensors.
    Safetensors,
    /// A folder with one NumPy file per tensor.
    Npy,
    /// A folder with the bare little-endian elements of each tensor.
    Bin,
}

impl Kind {
    /// The end of a file's name.
    pub const fn extension(self) -> &'static str {
        match self {
            Self::Safetensors => "safetensors",
            Self::Npy => "npy",
            Self::Bin => "bin",
        }
    }
}

/// Element type as a file states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    F64,
    F32,
    F16,
    Bf16,
    I64,
    I32,
    /// Two bytes of unknown dtype: NumPy has no bf16.
    Bits16,
}

impl Stored {
    #[cfg(test)]
    pub const ALL: [Self; 7] =
        [Self::F64, Self::F32, Self::F16, Self::Bf16, Self::I64, Self::I32, Self::Bits16];

    pub const fn size_bytes(self) -> usize {
        match self {
            Self::F64 | Self::I64 => 8,
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::Bf16 | Self::Bits16 => 2,
        }
    }

    /// The format the operator knows it by, if it is one for real numbers.
    pub const fn dtype(self) -> Option<DType> {
        match self {
            Self::F64 => Some(DType::F64),
            Self::F32 => Some(DType::F32),
            Self::F16 => Some(DType::F16),
            Self::Bf16 => Some(DType::Bf16),
            Self::I64 | Self::I32 | Self::Bits16 => None,
        }
    }
}

impl From<DType> for Stored {
    fn from(dtype: DType) -> Self {
        match dtype {
            DType::F64 => Self::F64,
            DType::F32 => Self::F32,
            DType::F16 => Self::F16,
            DType::Bf16 => Self::Bf16,
        }
    }
}

impl fmt::Display for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::F64 => "f64",
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::I64 => "i64",
            Self::I32 => "i32",
            Self::Bits16 => "two raw bytes",
        })
    }
}

/// One tensor as found.
#[derive(Clone, Debug)]
pub struct Tensor<'a> {
    /// One of [`names`].
    pub name: &'static str,
    /// The file it lies in.
    pub file: &'a Path,
    /// Its type and shape; raw files state neither.
    pub stated: Option<(Stored, Vec<usize>)>,
    /// Its elements, little-endian, in C order.
    pub bytes: &'a [u8],
}

impl Tensor<'_> {
    /// How messages name it.
    pub fn label(&self) -> String {
        format!("{}: `{}`", self.file.display(), self.name)
    }
}

/// The files of a call, read into memory.
#[derive(Debug)]
pub struct Input {
    pub kind: Kind,
    pub path: PathBuf,
    files: Vec<(&'static str, PathBuf, Vec<u8>)>,
}

impl Input {
    /// Finds out what `path` holds and reads it.
    pub fn read(path: &Path) -> Result<Self> {
        let path = path.to_path_buf();
        if !path.exists() {
            bail!(Usage(format!("{}: no such file or folder", path.display())));
        }
        if !path.is_dir() {
            // The name of a stream does not tell its contents: `/dev/fd/63`, a FIFO.
            let is_named = path.extension().is_some_and(|extension| extension == "safetensors");
            if path.is_file() && !is_named {
                bail!(Usage(format!(
                    "{}: expected a .safetensors file, or a folder with value.npy or value.bin",
                    path.display()
                )));
            }
            let files = vec![("", path.clone(), read_file(&path)?)];
            return Ok(Self { kind: Kind::Safetensors, path, files });
        }
        let holds = |kind: Kind| file_in(&path, names::VALUE, kind).is_file();
        let kind = match (holds(Kind::Npy), holds(Kind::Bin)) {
            (true, false) => Kind::Npy,
            (false, true) => Kind::Bin,
            (true, true) => bail!(Usage(format!(
                "{}: holds both value.npy and value.bin; keep one kind of file in a folder",
                path.display()
            ))),
            (false, false) => bail!(Usage(format!(
                "{}: holds neither value.npy nor value.bin; a folder keeps one file per tensor: {}",
                path.display(),
                names::ALL.join(", ")
            ))),
        };
        let mut files = Vec::new();
        for name in names::ALL {
            let file = file_in(&path, name, kind);
            if file.is_file() {
                let bytes = read_file(&file)?;
                files.push((name, file, bytes));
            }
        }
        Ok(Self { kind, path, files })
    }

    /// Files that are nowhere on disk.
    pub fn in_memory(kind: Kind, files: Vec<(&'static str, Vec<u8>)>) -> Self {
        let path = PathBuf::from("memory");
        let files =
            files.into_iter().map(|(name, bytes)| (name, file_in(&path, name, kind), bytes));
        Self { kind, files: files.collect(), path }
    }

    /// The tensors in the files.
    pub fn tensors(&self) -> Result<Tensors<'_>> {
        let mut tensors = Vec::new();
        for (name, file, bytes) in &self.files {
            let context = || file.display().to_string();
            match self.kind {
                Kind::Safetensors => {
                    for (name, stored, shape, bytes) in
                        safetensors::parse(bytes).with_context(context)?
                    {
                        tensors.push(Tensor { name, file, stated: Some((stored, shape)), bytes });
                    }
                }
                Kind::Npy => {
                    let (stored, shape, bytes) = npy::parse(bytes).with_context(context)?;
                    tensors.push(Tensor { name, file, stated: Some((stored, shape)), bytes });
                }
                Kind::Bin => tensors.push(Tensor { name, file, stated: None, bytes }),
            }
        }
        Ok(Tensors { source: &self.path, kind: self.kind, tensors })
    }
}

/// The tensors of one input.
#[derive(Debug)]
pub struct Tensors<'a> {
    source: &'a Path,
    kind: Kind,
    tensors: Vec<Tensor<'a>>,
}

impl<'a> Tensors<'a> {
    /// A tensor that may be missing.
    pub fn find(&self, name: &str) -> Option<&Tensor<'a>> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }

    /// A tensor that may not.
    pub fn get(&self, name: &str) -> Result<&Tensor<'a>> {
        self.find(name).with_context(|| match self.kind {
            Kind::Safetensors => format!("{}: no tensor `{name}`", self.source.display()),
            kind => format!("{}: no file {name}.{}", self.source.display(), kind.extension()),
        })
    }
}

/// The file that keeps a tensor in a folder.
pub fn file_in(folder: &Path, name: &str, kind: Kind) -> PathBuf {
    folder.join(name).with_extension(kind.extension())
}

/// Reads at most half of the free memory: decoding needs room too, and a sparse file can claim any length.
fn read_file(path: &Path) -> Result<Vec<u8>> {
    let limit = memory::available_bytes() / 2;
    let limit = if path.is_file() { limit } else { limit.min(LIMIT_STREAM_BYTES) };
    Ok(msdeform_files::read(path, limit)?)
}
