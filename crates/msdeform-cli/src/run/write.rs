//! Results to disk: all of them whole, or none of them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use msdeform::Role;
use msdeform_files::{Content, Existing, Fault, Place};
use msdeform_lab::Buffer;
use safetensors::tensor::TensorView;

use super::files::{Input, Kind, stored_as};
use super::npy;
use crate::exit::Usage;

/// A tensor to be written, and its shape.
pub type Product = (Role, Vec<usize>, Buffer);

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
            (None, Kind::Safetensors) => {
                let shown = input.path.display();
                let why =
                    format!("{shown}: is a stream; name a file for the results with --output");
                ensure!(input.path.is_file(), Usage(why));
                input.path.with_extension("output.safetensors")
            }
            (None, Kind::Npy | Kind::Bin) => input.path.clone(),
        };
        let refused = match kind {
            Kind::Safetensors if path.is_dir() => {
                "is a folder; a safetensors input gives a safetensors file".to_owned()
            }
            Kind::Safetensors if same_file(&path, &input.path) => {
                "is the input; results go to another file".to_owned()
            }
            Kind::Npy | Kind::Bin if path.exists() && !path.is_dir() => {
                let kind = kind.extension();
                format!("is not a folder; a folder of .{kind} files needs a folder for the results")
            }
            _ => return Ok(Self { kind, path, force }),
        };
        bail!(Usage(format!("{}: {refused}", path.display())))
    }

    /// The file that a tensor goes to.
    pub fn file(&self, name: &str) -> PathBuf {
        match self.kind {
            Kind::Safetensors => self.path.clone(),
            kind => kind.file_in(&self.path, name),
        }
    }

    /// Refuses files that exist before minutes of work, not after.
    pub fn ensure_free(&self, roles: &[Role]) -> Result<()> {
        for file in roles.iter().map(|role| self.file(role.name())) {
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
        let files = if self.kind == Kind::Safetensors {
            let views = products.iter().map(|(role, shape, data)| {
                let view = TensorView::new(stored_as(data.dtype()), shape.clone(), data.bytes());
                Ok((role.name(), view.with_context(|| format!("`{role}` of shape {shape:?}"))?))
            });
            let file = safetensors::serialize(views.collect::<Result<Vec<_>>>()?, None)
                .context("the tensors do not make a safetensors file")?;
            vec![Content { path: self.path.clone(), parts: vec![file] }]
        } else {
            let file = |(role, shape, data): &Product| {
                let is_npy = self.kind == Kind::Npy;
                let header = is_npy.then(|| npy::header(stored_as(data.dtype()), shape));
                let parts = vec![header.unwrap_or_default(), data.bytes().to_vec()];
                Content { path: self.file(role.name()), parts }
            };
            products.iter().map(file).collect()
        };
        let existing = if self.force { Existing::Replace } else { Existing::Keep };
        msdeform_files::write_all(&files, existing).map_err(|error| match error.fault {
            Fault::Exists => exists(&error.path).into(),
            _ => error.into(),
        })
    }
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
