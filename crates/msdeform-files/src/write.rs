//! Files that are whole under their names.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::error::{Fault, FileError, failed};
use crate::place::{Place, folder_of};
use crate::temporary::{Backup, create_file, sweep};

/// What becomes of a file that is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// It stays, and writing fails. There is no moment between looking and writing in which one could appear unseen.
    Keep,
    /// The new one takes its name and its permissions.
    Replace,
}

/// A file to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// Where it goes.
    pub path: PathBuf,
    /// What it holds, one part after the other.
    pub parts: Vec<Vec<u8>>,
}

/// Writes one file, whole or not at all; its folder is made where it is missing.
///
/// # Errors
/// [`FileError`], and then what was at `path` is still there.
pub fn write(path: &Path, bytes: &[u8], existing: Existing) -> Result<(), FileError> {
    commit(vec![stage(path, &[bytes])?], existing)
}

/// Writes several files: all of them under temporary names before the first one gets its own. If one cannot get its
/// name, those that have theirs are taken back.
///
/// # Errors
/// [`FileError`], and then every path holds what it held before, except after [`Fault::Torn`], which lists the new files.
pub fn write_all(files: &[Content], existing: Existing) -> Result<(), FileError> {
    let staged = files.iter().map(|Content { path, parts }| stage(path, parts));
    commit(staged.collect::<Result<_, _>>()?, existing)
}

/// Everything about a file but its name, and then how to take that back.
#[derive(Debug)]
struct Staged<'a, P> {
    /// What the caller calls it.
    path: &'a Path,
    /// Where it goes, behind symbolic links.
    end: PathBuf,
    replaces: bool,
    /// `None` for a stream: what is written to it is gone, so nothing can be prepared.
    temporary: Option<NamedTempFile>,
    parts: &'a [P],
    /// The file that was replaced.
    backup: Option<Backup>,
}

fn stage<'a, P: AsRef<[u8]>>(path: &'a Path, parts: &'a [P]) -> Result<Staged<'a, P>, FileError> {
    let place = Place::of(path)?;
    let (replaces, is_stream) = (place.is_taken(), matches!(place, Place::Stream(_)));
    let (Place::Stream(end) | Place::Free(end) | Place::File(end)) = place;
    let mut staged = Staged { path, end, replaces, temporary: None, parts, backup: None };
    if is_stream {
        return Ok(staged);
    }
    let folder = folder_of(&staged.end);
    fs::create_dir_all(folder).map_err(failed("create the folder", folder))?;
    sweep(folder);
    let mut temporary = create_file(folder).map_err(failed("write", path))?;
    let mut write = || {
        parts.iter().try_for_each(|part| temporary.write_all(part.as_ref()))?;
        if replaces {
            temporary.as_file().set_permissions(fs::metadata(&staged.end)?.permissions())?;
        }
        temporary.as_file().sync_all()
    };
    write().map_err(failed("write", path))?;
    staged.temporary = Some(temporary);
    Ok(staged)
}

fn commit<P: AsRef<[u8]>>(staged: Vec<Staged<'_, P>>, existing: Existing) -> Result<(), FileError> {
    let is_kept = |file: &&Staged<'_, P>| file.replaces && existing == Existing::Keep;
    if let Some(kept) = staged.iter().find(is_kept) {
        return Err(Fault::Exists.at(kept.path));
    }
    for stream in staged.iter().filter(|file| file.temporary.is_none()) {
        write_through(&stream.end, stream.parts).map_err(failed("write", stream.path))?;
    }
    let mut placed = Vec::new();
    let last = staged.len().saturating_sub(1);
    for (index, mut file) in staged.into_iter().enumerate() {
        let Some(temporary) = file.temporary.take() else { continue };
        // Of the last one nothing needs to be taken back.
        file.backup = if index < last { Backup::of(&file.end) } else { None };
        file.replaces = existing == Existing::Replace && file.end.exists();
        let renamed = match existing {
            Existing::Replace => temporary.persist(&file.end),
            Existing::Keep => temporary.persist_noclobber(&file.end),
        };
        if let Err(error) = renamed {
            return Err(take_back(&placed, file.path, error.error));
        }
        placed.push(file);
    }
    Ok(())
}

/// Gives the names back, and returns the error.
fn take_back<P>(placed: &[Staged<'_, P>], path: &Path, source: std::io::Error) -> FileError {
    let mut kept = Vec::new();
    for file in placed.iter().rev() {
        let done = match &file.backup {
            Some(backup) => backup.restore(&file.end),
            None if file.replaces => Err(ErrorKind::Unsupported.into()),
            // It was not there before: no other file is removed.
            None => fs::remove_file(&file.end),
        };
        if done.is_err() {
            kept.push(file.path.to_owned());
        }
    }
    if !kept.is_empty() {
        return Fault::Torn(source, kept).at(path);
    }
    match source.kind() {
        ErrorKind::AlreadyExists => Fault::Exists.at(path),
        _ => FileError::refused("write", path, source),
    }
}

fn write_through(end: &Path, parts: &[impl AsRef<[u8]>]) -> std::io::Result<()> {
    // Not created: what is no longer there must not become a file. Cut, as a shell's `>` does, which concerns
    // descriptors of files alone, and which devices of Windows refuse.
    let mut stream = fs::OpenOptions::new().write(true).truncate(cfg!(unix)).open(end)?;
    parts.iter().try_for_each(|part| stream.write_all(part.as_ref()))?;
    stream.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::is_temporary;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn content(path: &Path, bytes: &[u8]) -> Content {
        Content { path: path.to_owned(), parts: vec![bytes.to_vec()] }
    }

    #[test]
    fn files_appear_whole_and_are_not_replaced_unasked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/output.bin");
        write(&path, b"first", Existing::Keep).unwrap();
        let error = write(&path, b"second", Existing::Keep).unwrap_err();
        assert!(matches!(error.fault, Fault::Exists), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"first");
        write(&path, b"second", Existing::Replace).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"second");
        assert_eq!(names(&folder.path().join("deep")), ["output.bin"], "no temporary is left");
    }

    #[test]
    fn one_file_in_the_way_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("grad_value.npy"), b"mine").unwrap();
        let files = [content(&at("output.npy"), b"1"), content(&at("grad_value.npy"), b"2")];
        write_all(&files, Existing::Keep).unwrap_err();
        assert_eq!(names(folder.path()), ["grad_value.npy"]);
        assert_eq!(fs::read(at("grad_value.npy")).unwrap(), b"mine");
        fs::create_dir(at("grad_weights.npy")).unwrap();
        let files = [content(&at("grad_value.npy"), b"1"), content(&at("grad_weights.npy"), b"2")];
        let error = write_all(&files, Existing::Replace).unwrap_err();
        assert!(matches!(error.fault, Fault::Folder), "{error}");
        assert_eq!(fs::read(at("grad_value.npy")).unwrap(), b"mine");
        assert_eq!(names(folder.path()), ["grad_value.npy", "grad_weights.npy"]);
    }

    #[test]
    fn a_rename_that_fails_takes_the_earlier_ones_back() {
        for existing in [Existing::Replace, Existing::Keep] {
            let folder = tempfile::tempdir().unwrap();
            let at = |name: &str| folder.path().join(name);
            if existing == Existing::Replace {
                fs::write(at("a"), b"old a").unwrap();
            }
            let paths = ["a", "b", "c"].map(at);
            let staged: Vec<_> = paths.iter().map(|path| stage(path, &[b"new"]).unwrap()).collect();
            fs::create_dir(at("c")).unwrap();
            let before = names(folder.path());
            let error = commit(staged, existing).unwrap_err();
            let is_there = matches!(error.fault, Fault::Exists);
            assert_eq!(is_there, existing == Existing::Keep, "{error}");
            assert!(is_there || error.to_string().contains("cannot write"), "{error}");
            let is_final = |name: &&String| !is_temporary(name);
            assert!(names(folder.path()).iter().eq(before.iter().filter(is_final)));
            if existing == Existing::Replace {
                assert_eq!(fs::read(at("a")).unwrap(), b"old a");
            }
        }
    }

    #[cfg(unix)]
    #[test]
    fn streams_are_written_to_and_never_replaced() {
        use std::os::unix::fs::{FileTypeExt, symlink};
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
        assert!(made.success());
        let link = folder.path().join("link");
        symlink("fifo", &link).unwrap();
        for (name, existing) in [(&fifo, Existing::Keep), (&link, Existing::Replace)] {
            let read = std::thread::spawn({
                let fifo = fifo.clone();
                move || fs::read(fifo).unwrap()
            });
            write(name, b"through", existing).unwrap();
            assert_eq!(read.join().unwrap(), b"through");
        }
        write(Path::new("/dev/null"), b"nothing", Existing::Replace).unwrap();
        assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
        let error = write(Path::new("/dev/full"), b"too much", Existing::Replace).unwrap_err();
        assert!(error.to_string().contains("/dev/full: cannot write: No space left"), "{error}");
        assert_eq!(names(folder.path()), ["fifo", "link"]);
    }

    #[cfg(unix)]
    #[test]
    fn a_link_stays_a_link_and_its_file_is_replaced() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("real")).unwrap();
        fs::write(at("real/file"), b"old").unwrap();
        fs::set_permissions(at("real/file"), fs::Permissions::from_mode(0o600)).unwrap();
        symlink("real/file", at("link")).unwrap();
        let error = write(&at("link"), b"new", Existing::Keep).unwrap_err();
        assert!(matches!(error.fault, Fault::Exists), "{error}");
        write(&at("link"), b"new", Existing::Replace).unwrap();
        assert!(at("link").symlink_metadata().unwrap().file_type().is_symlink());
        assert_eq!(fs::read(at("real/file")).unwrap(), b"new");
        let mode = fs::metadata(at("real/file")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "who could not read the old one cannot read the new one");
        assert_eq!(names(&at("real")), ["file"]);
    }
}
