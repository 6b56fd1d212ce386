//! Errors of files.

use std::io;
use std::path::{Path, PathBuf};

/// A file that could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{}: {fault}", path.display())]
pub struct FileError {
    /// The file, or the folder that it would be in.
    pub path: PathBuf,
    /// What is wrong with it.
    pub fault: Fault,
}

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The system refused an action.
    #[error("cannot {0}: {1}")]
    Refused(&'static str, io::Error),
    /// Something is there already, and was not to be replaced.
    #[error("exists already")]
    Exists,
    /// It is a folder.
    #[error("is a folder; name a file")]
    Folder,
    /// It is neither a file nor a stream.
    #[error("is {0}, which is neither written to nor replaced; name a file")]
    Special(&'static str),
    /// It has more bytes than a file of its kind may hold.
    #[error("is larger than {0} bytes, the most that is read of such a file")]
    TooLarge(u64),
    /// There is no memory for its bytes.
    #[error("there is no memory for its {0} bytes")]
    NoMemory(u64),
    /// It is not UTF-8.
    #[error("is not text (UTF-8)")]
    NotText,
    /// One of several files could not be put in place, and those that already were could not be taken back.
    #[error(
        "cannot be put in place: {0}; these were replaced before it and are new: {list}",
        list = .1.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
    )]
    Torn(io::Error, Vec<PathBuf>),
}

impl FileError {
    /// A refusal of the system, such as `cannot read`.
    #[must_use]
    pub fn refused(action: &'static str, path: &Path, error: io::Error) -> Self {
        Fault::Refused(action, error).at(path)
    }

    /// Whether there is nothing at the path.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(&self.fault, Fault::Refused(_, error) if error.kind() == io::ErrorKind::NotFound)
    }
}

impl Fault {
    pub(crate) fn at(self, path: &Path) -> FileError {
        FileError { path: path.to_owned(), fault: self }
    }
}

/// Turns an error of the system into one about a path.
pub(crate) fn failed<'a>(
    action: &'static str,
    path: &'a Path,
) -> impl Fn(io::Error) -> FileError + use<'a> {
    move |error| FileError::refused(action, path, error)
}
