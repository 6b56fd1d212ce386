//! What is at a path, before anything is written there.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::error::{Fault, FileError, failed};

/// Symbolic links that are followed one after the other, as many as Linux follows.
const LONGEST_CHAIN: usize = 40;

/// Where a file goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Nothing is there: a file appears at this path, behind all symbolic links.
    Free(PathBuf),
    /// A file at this path, behind all symbolic links.
    File(PathBuf),
    /// A FIFO or a character device (`/dev/null`, `NUL` on Windows): it is written to, never replaced.
    Stream(PathBuf),
}

impl Place {
    /// Finds out what is at `path`.
    ///
    /// # Errors
    /// [`Fault::Folder`] and [`Fault::Special`] for what is neither a file nor a stream, [`Fault::Refused`] if the system
    /// does not tell.
    pub fn of(path: &Path) -> Result<Self, FileError> {
        // Windows has these names in every folder, without metadata.
        if cfg!(windows) && is_windows_device(path) {
            return Ok(Self::Stream(path.to_owned()));
        }
        let (end, is_descriptor) = follow(path)?;
        let kind = match fs::metadata(&end) {
            Ok(metadata) => metadata.file_type(),
            Err(error) if error.kind() == ErrorKind::NotFound && !is_descriptor => {
                return Ok(Self::Free(end));
            }
            Err(error) => return Err(failed("look", path)(error)),
        };
        if kind.is_dir() {
            return Err(Fault::Folder.at(path));
        }
        // Of a descriptor of this process only the descriptor is known for sure, not a name that could be replaced.
        if is_descriptor || is_stream(kind) {
            return Ok(Self::Stream(end));
        }
        match special(kind) {
            Some(what) => Err(Fault::Special(what).at(path)),
            None => Ok(Self::File(end)),
        }
    }

    /// Whether writing here loses contents that are there now.
    #[must_use]
    pub const fn is_taken(&self) -> bool {
        matches!(self, Self::File(_))
    }
}

/// The path behind all symbolic links, and whether it is an open descriptor such as `/proc/self/fd/1`, whose link
/// leads to no name that could be trusted.
fn follow(path: &Path) -> Result<(PathBuf, bool), FileError> {
    let mut end = path.to_owned();
    for _ in 0..LONGEST_CHAIN {
        if is_descriptor(&end) {
            return Ok((end, true));
        }
        match fs::symlink_metadata(&end) {
            Ok(metadata) if metadata.file_type().is_symlink() => {
                let target = fs::read_link(&end).map_err(failed("follow the link", &end))?;
                end = folder_of(&end).join(target);
            }
            // A path without metadata is free, or writing to it fails later.
            _ => return Ok((end, false)),
        }
    }
    let error = std::io::Error::other("too many symbolic links");
    Err(FileError::refused("follow the link", path, error))
}

/// `/proc/<process>/fd/<number>`, also as `/dev/fd/<number>`.
fn is_descriptor(path: &Path) -> bool {
    let Some(folder) = path.parent() else { return false };
    let is_number = path.file_name().is_some_and(|name| {
        let name = name.as_encoded_bytes();
        !name.is_empty() && name.iter().all(u8::is_ascii_digit)
    });
    let of_process = folder.starts_with("/proc") && folder.ends_with("fd");
    is_number && (of_process || folder == Path::new("/dev/fd"))
}

/// `NUL` and the console, in any case and any folder, as Windows understands them; and what is in the name space of
/// devices (`\\\\.\\pipe\\x`). Ports are left out: results do not go there.
fn is_windows_device(path: &Path) -> bool {
    let text = path.to_string_lossy();
    let name = text.rsplit(['\\', '/']).next().unwrap_or_default();
    let reserved = ["NUL", "CON", "CONOUT$"];
    text.starts_with(r"\\.\") || reserved.iter().any(|device| name.eq_ignore_ascii_case(device))
}

/// The folder that a path names something in.
pub(crate) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

#[cfg(unix)]
fn is_stream(kind: fs::FileType) -> bool {
    use std::os::unix::fs::FileTypeExt;
    kind.is_fifo() || kind.is_char_device()
}

#[cfg(unix)]
fn special(kind: fs::FileType) -> Option<&'static str> {
    use std::os::unix::fs::FileTypeExt;
    if kind.is_block_device() {
        Some("a block device")
    } else if kind.is_socket() {
        Some("a socket")
    } else {
        (!kind.is_file()).then_some("no file")
    }
}

#[cfg(not(unix))]
fn is_stream(_: fs::FileType) -> bool {
    false
}

#[cfg(not(unix))]
fn special(kind: fs::FileType) -> Option<&'static str> {
    (!kind.is_file()).then_some("no file")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_devices_are_known_by_name_alone() {
        for device in ["NUL", "nul", r"out\Nul", "out/con", "CONOUT$", r"\\.\pipe\results"] {
            assert!(is_windows_device(Path::new(device)), "{device}");
        }
        for file in ["nul.npy", "annul", r"NUL\output.npy", "con_1", "output.safetensors"] {
            assert!(!is_windows_device(Path::new(file)), "{file}");
        }
    }

    #[cfg(windows)]
    #[test]
    fn what_is_written_to_nul_is_gone() {
        assert_eq!(Place::of(Path::new("NUL")).unwrap(), Place::Stream(PathBuf::from("NUL")));
        crate::write(Path::new("NUL"), b"nothing", crate::Existing::Keep).unwrap();
    }
}

#[cfg(all(test, unix))]
mod unix_tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_are_followed_to_files_and_to_free_names() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("file"), b"x").unwrap();
        fs::create_dir(at("deep")).unwrap();
        symlink("../file", at("deep/link")).unwrap();
        symlink("deep/link", at("twice")).unwrap();
        symlink("absent", at("dangling")).unwrap();
        symlink("round", at("round")).unwrap();
        assert_eq!(Place::of(&at("file")).unwrap(), Place::File(at("file")));
        let Place::File(end) = Place::of(&at("twice")).unwrap() else { panic!("no file") };
        assert_eq!(end.canonicalize().unwrap(), at("file").canonicalize().unwrap());
        assert_eq!(Place::of(&at("dangling")).unwrap(), Place::Free(at("absent")));
        assert_eq!(Place::of(&at("absent")).unwrap(), Place::Free(at("absent")));
        assert!(
            Place::of(&at("round")).unwrap_err().to_string().contains("too many symbolic links")
        );
        assert!(matches!(Place::of(folder.path()).unwrap_err().fault, Fault::Folder));
    }

    #[test]
    fn devices_and_descriptors_are_streams_and_sockets_are_refused() {
        assert_eq!(
            Place::of(Path::new("/dev/null")).unwrap(),
            Place::Stream(PathBuf::from("/dev/null"))
        );
        for name in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
            assert!(matches!(Place::of(Path::new(name)).unwrap(), Place::Stream(_)), "{name}");
        }
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let error = Place::of(&socket).unwrap_err().to_string();
        assert!(error.contains("is a socket") && error.contains("name a file"), "{error}");
    }
}
