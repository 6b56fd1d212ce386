//! Reading with a limit.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::FileError;
use crate::error::failed;

/// Everything that a file or a stream holds, if that is at most `limit_bytes`. Neither an endless stream (`/dev/zero`)
/// nor a sparse file of any size takes more memory than that.
///
/// # Errors
/// [`FileError::TooLarge`] past the limit, [`FileError::NoMemory`] where the system gives none, [`FileError::Io`].
pub fn read(path: &Path, limit_bytes: u64) -> Result<Vec<u8>, FileError> {
    let too_large = || FileError::TooLarge { path: path.to_owned(), limit_bytes };
    let folder = || FileError::Folder { path: path.to_owned() };
    // Windows opens no folders.
    let refused = |error| if path.is_dir() { folder() } else { failed("open", path)(error) };
    let mut file = File::open(path).map_err(refused)?;
    let metadata = file.metadata().map_err(failed("look", path))?;
    if metadata.is_dir() {
        return Err(folder());
    }
    // The length of a file is a hint: `/proc` reports 0, and another process may write.
    let stated = if metadata.is_file() { metadata.len() } else { 0 };
    if stated > limit_bytes {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    usize::try_from(stated)
        .ok()
        .and_then(|length| bytes.try_reserve_exact(length).ok())
        .ok_or_else(|| FileError::NoMemory { path: path.to_owned(), bytes: stated })?;
    let most = limit_bytes.saturating_add(1);
    file.by_ref().take(most).read_to_end(&mut bytes).map_err(|source| match source.kind() {
        std::io::ErrorKind::OutOfMemory => {
            FileError::NoMemory { path: path.to_owned(), bytes: stated.max(bytes.len() as u64) }
        }
        _ => failed("read", path)(source),
    })?;
    if bytes.len() as u64 > limit_bytes { Err(too_large()) } else { Ok(bytes) }
}

/// A text of at most `limit_bytes`.
///
/// # Errors
/// As [`read`], and [`FileError::NotText`].
pub fn read_text(path: &Path, limit_bytes: u64) -> Result<String, FileError> {
    String::from_utf8(read(path, limit_bytes)?)
        .map_err(|_| FileError::NotText { path: path.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_up_to_its_limit_and_not_past_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        std::fs::write(&path, "twelve bytes").unwrap();
        assert_eq!(read_text(&path, 12).unwrap(), "twelve bytes");
        let error = read_text(&path, 11).unwrap_err();
        assert!(matches!(error, FileError::TooLarge { limit_bytes: 11, .. }), "{error}");
        std::fs::write(&path, [0xff]).unwrap();
        assert!(matches!(read_text(&path, 12), Err(FileError::NotText { .. })));
        assert!(read(&folder.path().join("absent"), 1).unwrap_err().is_not_found());
        assert!(matches!(read(folder.path(), 1), Err(FileError::Folder { .. })));
    }

    #[cfg(unix)]
    #[test]
    fn endless_streams_and_sparse_files_end_at_the_limit() {
        let error = read(Path::new("/dev/zero"), 1 << 20).unwrap_err();
        assert!(matches!(error, FileError::TooLarge { .. }), "{error}");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sparse");
        File::create(&path).unwrap().set_len(1 << 40).unwrap();
        let error = read(&path, 1 << 20).unwrap_err();
        assert!(error.to_string().contains("larger than 1048576 bytes"), "{error}");
        // A file that does not know its length is read to its end all the same.
        assert!(!read(Path::new("/proc/self/status"), 1 << 20).unwrap().is_empty());
    }
}
