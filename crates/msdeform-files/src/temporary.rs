//! Unfinished files and folders, and how abandoned ones are removed.
//!
//! A writer holds a lock on its temporary for as long as it lives; the system takes it back however the writer ends.
//! So a temporary that can be locked is abandoned. A process number in the name would be found alive again after
//! a restart, and an age alone would either let temporaries pile up or take one from a slow writer.

use std::fs::{self, File, TryLockError};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, SystemTime};

use tempfile::{NamedTempFile, TempDir};

use crate::error::{FileError, failed};
use crate::place::folder_of;

const PREFIX: &str = ".msdeform-";
const SUFFIX: &str = ".tmp";

/// Where locks do not work (some network file systems), a file that is older than this is abandoned.
const OLD: Duration = Duration::from_secs(24 * 60 * 60);

/// A folder can be opened and locked on Unix; elsewhere sweeps go by its age.
const FOLDERS_LOCK: bool = cfg!(unix);

/// A sweep of another process can take a temporary in the moment before it is locked. More than once in a row is
/// unlikely, this often impossible.
const TRIES: usize = 100;

/// Whether a file or folder of this name is one of ours and unfinished.
#[must_use]
pub fn is_temporary(name: &str) -> bool {
    name.starts_with(PREFIX) && name.ends_with(SUFFIX)
}

/// Removes the temporaries in a folder whose writers are gone. What cannot be removed stays: this is no reason to fail.
pub fn sweep(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let (path, Ok(kind)) = (entry.path(), entry.file_type()) else { continue };
        // Links and streams are never ours, and opening a FIFO would wait for its writer.
        let is_ours = is_temporary(&entry.file_name().to_string_lossy());
        if !is_ours || !(kind.is_dir() || kind.is_file()) {
            continue;
        }
        if kind.is_dir() && !FOLDERS_LOCK {
            if is_old(&path) {
                drop(fs::remove_dir_all(&path));
            }
        } else if let Some(_lock) = abandoned(&path) {
            // The lock is held until the temporary is gone: who creates one of this name afterwards has another file.
            drop(if kind.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) });
        }
    }
}

/// The lock of a temporary that no writer holds.
fn abandoned(path: &Path) -> Option<File> {
    let file = File::open(path).ok()?;
    match file.try_lock() {
        Ok(()) => Some(file),
        Err(TryLockError::WouldBlock) => None,
        Err(TryLockError::Error(_)) => is_old(path).then_some(file),
    }
}

/// Whether its writer is gone.
fn is_old(path: &Path) -> bool {
    let modified = path.symlink_metadata().and_then(|metadata| metadata.modified());
    let age = modified.ok().and_then(|modified| SystemTime::now().duration_since(modified).ok());
    age.is_some_and(|age| age > OLD)
}

/// What creates temporaries. Results are ordinary files and folders (umask applies), not private ones like other temporaries.
fn builder(mode: u32) -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(PREFIX).suffix(SUFFIX);
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(mode));
    #[cfg(not(unix))]
    let _ = mode;
    builder
}

/// A temporary file in a folder, locked; removed when dropped.
pub(crate) fn create_file(folder: &Path) -> std::io::Result<NamedTempFile> {
    let made = locked(|| {
        let file = builder(0o666).tempfile_in(folder)?;
        let lock = file.as_file().try_clone()?;
        Ok((file, lock))
    });
    made.map(|(file, _same_lock)| file)
}

/// Creates until what was created is locked and still there.
fn locked<T: AsRef<Path>>(
    create: impl Fn() -> std::io::Result<(T, File)>,
) -> std::io::Result<(T, File)> {
    for _ in 0..TRIES {
        let (made, lock) = create()?;
        match lock.try_lock() {
            Ok(()) if is_linked(&lock, made.as_ref()) => return Ok((made, lock)),
            // A sweep has it, or had it.
            Ok(()) | Err(TryLockError::WouldBlock) => {}
            // No locks here: others go by its age.
            Err(TryLockError::Error(_)) => return Ok((made, lock)),
        }
    }
    Err(std::io::Error::other("temporary files disappear while they are made"))
}

#[cfg(unix)]
fn is_linked(file: &File, _: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    file.metadata().is_ok_and(|metadata| metadata.nlink() > 0)
}

/// By its name, which is random and used once.
#[cfg(not(unix))]
fn is_linked(_: &File, path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// A second name for a file that is about to be replaced, so that it can be put back; removed when dropped.
#[derive(Debug)]
pub(crate) struct Backup {
    name: NamedTempFile<()>,
    /// Keeps sweeps away; without it one of them may take the backup, never the file.
    _lock: Option<File>,
}

impl Backup {
    /// `None` where the file system knows no second names.
    pub(crate) fn of(file: &Path) -> Option<Self> {
        let name =
            builder(0o666).make_in(folder_of(file), |path| fs::hard_link(file, path)).ok()?;
        // Only where a lock is advice: on Windows no other process could read the file under its own name, nor replace it.
        let lock =
            File::open(name.path()).ok().filter(|lock| cfg!(unix) && lock.try_lock().is_ok());
        Some(Self { name, _lock: lock })
    }

    /// Puts the file back under its name.
    pub(crate) fn restore(&self, file: &Path) -> std::io::Result<()> {
        fs::rename(self.name.path(), file)
    }
}

/// A folder that appears under its name with everything in it, or not at all.
#[derive(Debug)]
pub struct FolderInTheMaking {
    folder: TempDir,
    _lock: Option<File>,
}

impl FolderInTheMaking {
    /// An empty one, to become a folder in `parent`, which is made where it is missing. Sweeps `parent`.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn new(parent: &Path) -> Result<Self, FileError> {
        fs::create_dir_all(parent).map_err(failed("create", parent))?;
        sweep(parent);
        let create = || builder(0o777).tempdir_in(parent);
        let made = if FOLDERS_LOCK {
            let with_lock =
                || create().and_then(|made| File::open(made.path()).map(|lock| (made, lock)));
            locked(with_lock).map(|(folder, lock)| (folder, Some(lock)))
        } else {
            create().map(|folder| (folder, None))
        };
        let (folder, lock) = made.map_err(failed("create a folder in", parent))?;
        Ok(Self { folder, _lock: lock })
    }

    /// Where its files go meanwhile.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Writes and syncs one of its files.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn add(&self, name: &str, bytes: &[u8]) -> Result<(), FileError> {
        let path = self.path().join(name);
        let mut file = File::create(&path).map_err(failed("create", &path))?;
        file.write_all(bytes).and_then(|()| file.sync_all()).map_err(failed("write", &path))
    }

    /// Gives it its name; returned unnamed if something has that name.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn place(self, target: &Path) -> Result<Option<Self>, FileError> {
        use std::io::ErrorKind::{AlreadyExists, DirectoryNotEmpty, NotADirectory};
        // Renaming onto an empty folder succeeds on Unix: look first.
        if target.symlink_metadata().is_ok() {
            return Ok(Some(self));
        }
        match fs::rename(self.folder.path(), target) {
            Ok(()) => {
                // It is no longer where the guard would remove it.
                let _gone = self.folder.keep();
                Ok(None)
            }
            Err(error)
                if matches!(error.kind(), AlreadyExists | DirectoryNotEmpty | NotADirectory) =>
            {
                Ok(Some(self))
            }
            Err(error) => Err(failed("create", target)(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn abandoned_temporaries_are_swept_and_locked_ones_stay() {
        let folder = tempfile::tempdir().unwrap();
        let held = create_file(folder.path()).unwrap();
        let making = FolderInTheMaking::new(folder.path()).unwrap();
        fs::write(folder.path().join(".msdeform-dead.tmp"), b"half").unwrap();
        let dead = folder.path().join(".msdeform-dead-folder.tmp");
        fs::create_dir(&dead).unwrap();
        fs::write(dead.join("record.json"), b"half").unwrap();
        for other in [".msdeform-notes", "x.tmp", "output.npy"] {
            fs::write(folder.path().join(other), b"somebody's").unwrap();
        }
        sweep(folder.path());
        if !FOLDERS_LOCK {
            assert!(dead.exists(), "young, and perhaps somebody's");
            fs::remove_dir_all(&dead).unwrap();
        }
        let mut left = names(folder.path());
        left.retain(|name| is_temporary(name));
        left.sort();
        let mut expected = [held.path(), making.path()]
            .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned());
        expected.sort();
        assert_eq!(left, expected);
        assert_eq!(names(folder.path()).len(), 5);
        drop((held, making));
        assert_eq!(names(folder.path()).len(), 3);
    }

    #[test]
    fn concurrent_writers_and_sweeps_do_not_disturb_each_other() {
        let folder = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let folder = folder.path();
                scope.spawn(move || {
                    for round in 0..100 {
                        let mut file = create_file(folder).unwrap();
                        file.write_all(b"x").unwrap();
                        file.persist(folder.join(format!("{thread}-{round}"))).unwrap();
                        sweep(folder);
                    }
                });
            }
        });
        assert_eq!(names(folder.path()).len(), 300);
    }

    #[test]
    fn a_folder_appears_with_everything_in_it_and_replaces_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("record");
        fs::create_dir(&target).unwrap();
        let making = FolderInTheMaking::new(folder.path()).unwrap();
        making.add("a", b"1").unwrap();
        let making = making.place(&target).unwrap().expect("an empty folder is in the way");
        assert!(making.place(&folder.path().join("record-2")).unwrap().is_none());
        assert_eq!(fs::read(folder.path().join("record-2/a")).unwrap(), b"1");
        let mut found = names(folder.path());
        found.sort();
        assert_eq!(found, ["record", "record-2"]);
    }
}
