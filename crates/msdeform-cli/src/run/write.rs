//! Results to disk: whole or not at all.
//!
//! Every file is written under a temporary name in its own folder, synced and renamed. Without
//! `--force` the rename refuses to replace a file, so there is no moment between looking and
//! writing in which one could appear unseen.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use msdeform_bench::Buffer;
use tempfile::NamedTempFile;

use super::formats::{Input, Kind, Stored, file_in, npy, safetensors};

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
    /// `output` or, without it, beside the input, in the input's kind of file.
    pub fn new(input: &Input, output: Option<&Path>, force: bool) -> Result<Self> {
        let kind = input.kind;
        let path = match (output, kind) {
            (Some(path), _) => path.to_path_buf(),
            (None, Kind::Safetensors) => input.path.with_extension("output.safetensors"),
            (None, Kind::Npy | Kind::Bin) => input.path.clone(),
        };
        if kind == Kind::Safetensors {
            ensure!(
                !path.is_dir(),
                "{}: is a folder; a safetensors input gives a safetensors file",
                path.display()
            );
            ensure!(
                !same_file(&path, &input.path),
                "{}: is the input; results go to another file",
                path.display()
            );
        } else {
            ensure!(
                !path.is_file(),
                "{}: is a file; a folder of .{1} gives .{1} files in a folder",
                path.display(),
                kind.extension()
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

    /// Refuses early what the rename would refuse after minutes of work.
    pub fn ensure_free(&self, names: &[&str]) -> Result<()> {
        for file in names.iter().map(|name| self.file(name)) {
            ensure!(
                self.force || !file.exists(),
                "{}: exists; --force replaces it, --output writes elsewhere",
                file.display()
            );
        }
        Ok(())
    }

    /// Writes all tensors, and leaves none behind if one fails.
    pub fn write(&self, products: &[Product]) -> Result<()> {
        let files = match self.kind {
            Kind::Safetensors => {
                let tensors: Vec<_> = products.iter().map(encoded).collect();
                vec![(self.path.clone(), safetensors::serialize(&tensors)?)]
            }
            kind => products
                .iter()
                .map(|product| {
                    let (name, stored, shape, data) = encoded(product);
                    let header =
                        if kind == Kind::Npy { npy::header(stored, shape) } else { Vec::new() };
                    (self.file(name), [header, data].concat())
                })
                .collect(),
        };
        write_all(&files, self.force)
    }
}

fn encoded(product: &Product) -> (&str, Stored, &[usize], Vec<u8>) {
    let Product { name, shape, data } = product;
    (name, data.dtype().into(), shape, data.to_le_bytes())
}

fn same_file(a: &Path, b: &Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

fn write_all(files: &[(PathBuf, Vec<u8>)], force: bool) -> Result<()> {
    let mut written = Vec::new();
    for (path, bytes) in files {
        let file = write_temporary(path, bytes)
            .with_context(|| format!("{}: cannot be written", path.display()))?;
        written.push((file, path));
    }
    let mut placed: Vec<&PathBuf> = Vec::new();
    for (file, path) in written {
        let renamed = if force { file.persist(path) } else { file.persist_noclobber(path) };
        if let Err(error) = renamed {
            if !force {
                // These were not there before: nobody else's file is removed.
                for path in placed {
                    let _ = std::fs::remove_file(path);
                }
            }
            if error.error.kind() == std::io::ErrorKind::AlreadyExists {
                bail!("{}: exists; --force replaces it, --output writes elsewhere", path.display());
            }
            return Err(error.error)
                .with_context(|| format!("{}: cannot be written", path.display()));
        }
        placed.push(path);
    }
    Ok(())
}

/// The bytes under a temporary name beside `path`; removed on drop unless renamed.
fn write_temporary(path: &Path, bytes: &[u8]) -> Result<NamedTempFile> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    std::fs::create_dir_all(folder)?;
    let mut builder = tempfile::Builder::new();
    builder.prefix(".msdeform-");
    #[cfg(unix)]
    {
        // Results are ordinary files (umask applies), not private ones like other temporaries.
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    let mut file = builder.tempfile_in(folder)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn files_appear_whole_and_are_not_replaced_unasked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/output.bin");
        write_all(&[(path.clone(), b"first".to_vec())], false).unwrap();
        let error = write_all(&[(path.clone(), b"second".to_vec())], false).unwrap_err();
        assert!(error.to_string().contains("--force"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"first");
        write_all(&[(path.clone(), b"second".to_vec())], true).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"second");
        assert_eq!(names(&folder.path().join("deep")), ["output.bin"], "no temporary is left");
    }

    #[test]
    fn one_file_in_the_way_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("grad_value.npy"), b"mine").unwrap();
        let files = [(at("output.npy"), vec![1]), (at("grad_value.npy"), vec![2])];
        write_all(&files, false).unwrap_err();
        assert_eq!(names(folder.path()), ["grad_value.npy"]);
        assert_eq!(std::fs::read(at("grad_value.npy")).unwrap(), b"mine");
    }
}
