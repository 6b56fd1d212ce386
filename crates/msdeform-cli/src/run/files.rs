//! Where tensors come from: a safetensors file, a folder of `.npy`, a folder of raw `.bin`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use msdeform::DType;
use msdeform_lab::memory;
/// The dtype that a file states. `U16` are two bytes of unknown dtype: NumPy has no bf16.
pub use safetensors::Dtype as Stored;
use safetensors::SafeTensors;

use super::npy;
use crate::exit::Usage;

pub const SPATIAL_SHAPES: &str = "spatial_shapes";
pub const LEVEL_START_INDEX: &str = "level_start_index";

/// The tensors of a call, by the names that the ecosystem gives them. Others in a file or folder are left alone.
pub const NAMES: [&str; 9] = [
    "value",
    SPATIAL_SHAPES,
    LEVEL_START_INDEX,
    "sampling_locations",
    "attention_weights",
    "grad_output",
    "reference_points",
    "sampling_offsets",
    "attention_logits",
];

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
    pub(crate) const fn extension(self) -> &'static str {
        match self {
            Self::Safetensors => "safetensors",
            Self::Npy => "npy",
            Self::Bin => "bin",
        }
    }

    /// The file that keeps a tensor in a folder.
    pub fn file_in(self, folder: &Path, name: &str) -> PathBuf {
        folder.join(name).with_extension(self.extension())
    }
}

pub const fn stored_as(dtype: DType) -> Stored {
    match dtype {
        DType::F64 => Stored::F64,
        DType::F32 => Stored::F32,
        DType::F16 => Stored::F16,
        DType::Bf16 => Stored::BF16,
    }
}

/// How messages name a stored dtype.
pub fn name_of(stored: Stored) -> String {
    match stored {
        Stored::U16 => "two raw bytes".to_owned(),
        stored => stored.to_string().to_lowercase(),
    }
}

#[derive(Clone, Debug)]
pub struct Tensor<'a> {
    /// One of [`NAMES`].
    pub name: &'static str,
    pub file: &'a Path,
    /// Its type and shape; raw files state neither.
    pub stated: Option<(Stored, Vec<usize>)>,
    /// Its elements, little-endian, in C order.
    pub bytes: &'a [u8],
}

impl Tensor<'_> {
    /// How messages name the tensor.
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
        let shown = path.display();
        if !path.exists() {
            bail!(Usage(format!("{shown}: no such file or folder")));
        }
        if !path.is_dir() {
            // The name of a stream does not tell its contents: `/dev/fd/63`, a FIFO.
            let is_named = path.extension().is_some_and(|extension| extension == "safetensors");
            if path.is_file() && !is_named {
                bail!(Usage(format!(
                    "{shown}: expected a .safetensors file, or a folder with value.npy or value.bin"
                )));
            }
            let files = vec![("", path.clone(), read_file(&path)?)];
            return Ok(Self { kind: Kind::Safetensors, path, files });
        }
        let holds = |kind: Kind| kind.file_in(&path, NAMES[0]).is_file();
        let kind = match (holds(Kind::Npy), holds(Kind::Bin)) {
            (true, false) => Kind::Npy,
            (false, true) => Kind::Bin,
            (true, true) => bail!(Usage(format!(
                "{shown}: holds both value.npy and value.bin; keep one kind of file in a folder"
            ))),
            (false, false) => bail!(Usage(format!(
                "{shown}: holds neither value.npy nor value.bin; a folder keeps one file per tensor: {}",
                NAMES.join(", ")
            ))),
        };
        let mut files = Vec::new();
        for name in NAMES {
            let file = kind.file_in(&path, name);
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
        let files = files.into_iter().map(|(name, bytes)| (name, kind.file_in(&path, name), bytes));
        Self { kind, files: files.collect(), path }
    }

    pub fn tensors(&self) -> Result<Tensors<'_>> {
        let mut tensors = Vec::new();
        for (name, file, bytes) in &self.files {
            let context = || file.display().to_string();
            match self.kind {
                Kind::Safetensors => {
                    let parsed = SafeTensors::deserialize(bytes)
                        .context("not a readable safetensors file")
                        .with_context(context)?;
                    let known = NAMES.map(|name| Some((name, parsed.tensor(name).ok()?)));
                    tensors.extend(known.into_iter().flatten().map(|(name, view)| Tensor {
                        name,
                        file,
                        stated: Some((view.dtype(), view.shape().to_vec())),
                        bytes: view.data(),
                    }));
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
    pub fn find(&self, name: &str) -> Option<&Tensor<'a>> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }

    /// A tensor that must be there.
    pub fn get(&self, name: &str) -> Result<&Tensor<'a>> {
        self.find(name).with_context(|| match self.kind {
            Kind::Safetensors => format!("{}: no tensor `{name}`", self.source.display()),
            kind => format!("{}: no file {name}.{}", self.source.display(), kind.extension()),
        })
    }
}

/// Reads at most half of the free memory: decoding needs room too, and a sparse file can claim any length.
fn read_file(path: &Path) -> Result<Vec<u8>> {
    let limit = memory::available_bytes() / 2;
    let limit = if path.is_file() { limit } else { limit.min(LIMIT_STREAM_BYTES) };
    Ok(msdeform_files::read(path, limit)?)
}
