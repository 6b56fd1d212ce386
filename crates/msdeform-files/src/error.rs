//! Errors of files.

use std::path::{Path, PathBuf};

/// A file that could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The system refused.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// Something is there already, and was not to be replaced.
    #[error("{}: exists already", path.display())]
    Exists {
        /// What is there.
        path: PathBuf,
    },
    /// A folder where a file should be.
    #[error("{}: is a folder; name a file", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
    },
    /// Something that is neither a file nor a stream.
    #[error("{}: is {what}, which is neither written to nor replaced; name a file", path.display())]
    Special {
        /// Where it is.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// More than a file of its kind may hold.
    #[error("{}: is larger than {limit_bytes} bytes, the most that is read of such a file", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The most that is read.
        limit_bytes: u64,
    },
    /// There is no memory for it.
    #[error("{}: there is no memory for its {bytes} bytes", path.display())]
    NoMemory {
        /// The file.
        path: PathBuf,
        /// What it would take.
        bytes: u64,
    },
    /// A file that is not UTF-8.
    #[error("{}: is not text (UTF-8)", path.display())]
    NotText {
        /// The file.
        path: PathBuf,
    },
    /// One of several files could not be put in place, and others that already were could not be taken back.
    #[error(
        "{}: cannot be put in place: {source}; these were replaced before it and are new: {}",
        path.display(),
        replaced.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
    )]
    Torn {
        /// The file that failed.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
        /// Files that hold the new contents.
        replaced: Vec<PathBuf>,
    },
}

impl FileError {
    /// The path that the error is about.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            Self::Io { path, .. }
            | Self::Exists { path }
            | Self::Folder { path }
            | Self::Special { path, .. }
            | Self::TooLarge { path, .. }
            | Self::NoMemory { path, .. }
            | Self::NotText { path }
            | Self::Torn { path, .. } => path,
        }
    }

    /// Whether there is nothing at the path.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound)
    }
}

/// Turns an error of the system into one about a path.
pub(crate) fn failed<'a>(
    action: &'static str,
    path: &'a Path,
) -> impl Fn(std::io::Error) -> FileError + use<'a> {
    move |source| FileError::Io { action, path: path.to_owned(), source }
}
