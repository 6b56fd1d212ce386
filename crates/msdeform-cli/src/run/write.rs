//! Results to disk: all of them whole, or none of them.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};
use msdeform_devices::Buffer;
use msdeform_files::{Content, Existing, FileError, Place};

use super::formats::{Input, Kind, Stored, file_in, npy, safetensors};
use crate::exit::Usage;

/// A tensor to be written.
#[derive(Debug)]
pub struct Product {
    pub name: &'static str,
    pub shape: Vec<usize>,
    pub data: Buffer,
}

/// Where results go, checked before anything is computed.
#[derive(Debug)]
pub struct Target {
    kind: Kind,
    /// The file, or the folder for one file per tensor.
    path: PathBuf,
    force: bool,
}

impl Target {
    /// `output` or, without it, a place next to the input, in the input's kind of file.
    pub fn new(input: &Input, output: Option<&Path>, force: bool) -> Result<Self> {
        let kind = input.kind;
        let path = match (output, kind) {
            (Some(path), _) => path.to_path_buf(),
            (None, Kind::Safetensors) if !input.path.is_file() => bail!(Usage(format!(
                "{}: is a stream; name a file for the results with --output",
                input.path.display()
            ))),
            (None, Kind::Safetensors) => input.path.with_extension("output.safetensors"),
            (None, Kind::Npy | Kind::Bin) => input.path.clone(),
        };
        if kind == Kind::Safetensors {
            ensure!(
                !path.is_dir(),
                Usage(format!(
                    "{}: is a folder; a safetensors input gives a safetensors file",
                    path.display()
                ))
            );
            ensure!(
                !same_file(&path, &input.path),
                Usage(format!("{}: is the input; results go to another file", path.display()))
            );
        } else {
            ensure!(
                path.is_dir() || !path.exists(),
                Usage(format!(
                    "{}: is not a folder; a folder of .{1} files needs a folder for the results",
                    path.display(),
                    kind.extension()
                ))
            );
        }
        Ok(Self { kind, path, force })
    }

    /// The file that a tensor goes to.
    pub fn file(&self, name: &str) -> PathBuf {
        match self.kind {
            Kind::Safetensors => self.path.clone(),
            kind => file_in(&self.path, name, kind),
        }
    }

    /// Refuses files that exist before minutes of work, not after.
    pub fn ensure_free(&self, names: &[&str]) -> Result<()> {
        for file in names.iter().map(|name| self.file(name)) {
            ensure!(self.force || !Place::of(&file)?.is_taken(), exists(&file));
        }
        Ok(())
    }

    /// Whether results go where the report would go, which then has to go elsewhere.
    pub fn is_standard_output(&self) -> bool {
        self.kind == Kind::Safetensors
            && matches!(Place::of(&self.path), Ok(Place::Stream(_)))
            && same_object(&self.path, Path::new("/dev/stdout"))
    }

    /// Writes all tensors, or none if one fails.
    pub fn write(&self, products: &[Product]) -> Result<()> {
        let files = match self.kind {
            Kind::Safetensors => {
                let tensors: Vec<_> = products.iter().map(encoded).collect();
                let parts = vec![safetensors::serialize(&tensors)?];
                vec![Content { path: self.path.clone(), parts }]
            }
            kind => products
                .iter()
                .map(|product| {
                    let (name, stored, shape, data) = encoded(product);
                    let header =
                        if kind == Kind::Npy { npy::header(stored, shape) } else { Vec::new() };
                    Content { path: self.file(name), parts: vec![header, data] }
                })
                .collect(),
        };
        let existing = if self.force { Existing::Replace } else { Existing::Keep };
        msdeform_files::write_all(&files, existing).map_err(|error| match error {
            FileError::Exists { path } => exists(&path).into(),
            error => error.into(),
        })
    }
}

fn encoded(product: &Product) -> (&str, Stored, &[usize], Vec<u8>) {
    let Product { name, shape, data } = product;
    (name, data.dtype().into(), shape, data.to_le_bytes())
}

fn exists(file: &Path) -> Usage {
    Usage(format!("{}: exists; --force replaces it, --output writes elsewhere", file.display()))
}

fn same_file(a: &Path, b: &Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

/// Whether two names lead to one file, device or pipe.
#[cfg(unix)]
fn same_object(a: &Path, b: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let of = |path: &Path| path.metadata().map(|found| (found.dev(), found.ino()));
    matches!((of(a), of(b)), (Ok(a), Ok(b)) if a == b)
}

#[cfg(not(unix))]
fn same_object(a: &Path, b: &Path) -> bool {
    same_file(a, b)
}
