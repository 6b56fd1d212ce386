//! Reading with a limit.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use crate::error::{Fault, FileError, failed};

/// Everything that a file or a stream holds, if that is at most `limit_bytes`. Neither an endless stream (`/dev/zero`)
/// nor a sparse file of any size takes more memory than that.
///
/// # Errors
/// [`Fault::TooLarge`] past the limit, [`Fault::NoMemory`] where the system gives none, [`Fault::Folder`],
/// [`Fault::Refused`].
pub fn read(path: &Path, limit_bytes: u64) -> Result<Vec<u8>, FileError> {
    // Windows opens no folders.
    if path.is_dir() {
        return Err(Fault::Folder.at(path));
    }
    let file = File::open(path).map_err(failed("open", path))?;
    let metadata = file.metadata().map_err(failed("look", path))?;
    // The length of a file is a hint: `/proc` reports 0, and another process may write.
    let stated = if metadata.is_file() { metadata.len() } else { 0 };
    if stated > limit_bytes {
        return Err(Fault::TooLarge(limit_bytes).at(path));
    }
    let mut bytes = Vec::new();
    let length = usize::try_from(stated).unwrap_or(usize::MAX);
    if bytes.try_reserve_exact(length).is_err() {
        return Err(Fault::NoMemory(stated).at(path));
    }
    file.take(limit_bytes.saturating_add(1)).read_to_end(&mut bytes).map_err(
        |error| match error.kind() {
            ErrorKind::OutOfMemory => Fault::NoMemory(stated.max(bytes.len() as u64)).at(path),
            _ => FileError::refused("read", path, error),
        },
    )?;
    if bytes.len() as u64 > limit_bytes {
        return Err(Fault::TooLarge(limit_bytes).at(path));
    }
    Ok(bytes)
}

/// A text of at most `limit_bytes`.
///
/// # Errors
/// As [`read`], and [`Fault::NotText`].
pub fn read_text(path: &Path, limit_bytes: u64) -> Result<String, FileError> {
    String::from_utf8(read(path, limit_bytes)?).map_err(|_| Fault::NotText.at(path))
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
        assert!(matches!(error.fault, Fault::TooLarge(11)), "{error}");
        std::fs::write(&path, [0xff]).unwrap();
        assert!(matches!(read_text(&path, 12).unwrap_err().fault, Fault::NotText));
        assert!(read(&folder.path().join("absent"), 1).unwrap_err().is_not_found());
        assert!(matches!(read(folder.path(), 1).unwrap_err().fault, Fault::Folder));
    }

    #[cfg(unix)]
    #[test]
    fn endless_streams_and_sparse_files_end_at_the_limit() {
        let error = read(Path::new("/dev/zero"), 1 << 20).unwrap_err();
        assert!(matches!(error.fault, Fault::TooLarge(_)), "{error}");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sparse");
        File::create(&path).unwrap().set_len(1 << 40).unwrap();
        let error = read(&path, 1 << 20).unwrap_err();
        assert!(error.to_string().contains("larger than 1048576 bytes"), "{error}");
        // A file that does not know its length is read to its end all the same.
        assert!(!read(Path::new("/proc/self/status"), 1 << 20).unwrap().is_empty());
    }
}
