//! Where the libraries, the header and the pkg-config file go. `cargo xtask c` and the tests of this crate share it.

use std::io;
use std::path::{Path, PathBuf};

use msdeform_files::Existing;

/// Goes up with `MSDEFORM_ABI_VERSION`.
pub const SHARED_NAME: &str = "libmsdeform.so.1";

/// What the Rust standard library needs of the system (`rustc --print native-static-libs`).
const LIBS_PRIVATE: &str = "-lgcc_s -lutil -lrt -lpthread -lm -ldl -lc";

/// No library has more bytes.
const LIMIT_BYTES: u64 = 1 << 30;

/// Installs what was built in `built` under `prefix`, and returns what is there now. `package` is the folder of this crate.
pub fn install(
    package: &Path,
    version: &str,
    built: &Path,
    prefix: &Path,
) -> io::Result<Vec<PathBuf>> {
    let read = |path: PathBuf| msdeform_files::read(&path, LIMIT_BYTES).map_err(io::Error::other);
    let libraries = prefix.join("lib");
    let template = String::from_utf8_lossy(&read(package.join("packaging/msdeform.pc.in"))?)
        .replace("@VERSION@", version)
        .replace("@LIBS_PRIVATE@", LIBS_PRIVATE);
    let mut installed = Vec::new();
    for (path, bytes) in [
        (prefix.join("include/msdeform.h"), read(package.join("include/msdeform.h"))?),
        (libraries.join("pkgconfig/msdeform.pc"), template.into_bytes()),
        (libraries.join("libmsdeform.a"), read(built.join("libmsdeform_c.a"))?),
        (libraries.join(SHARED_NAME), read(built.join("libmsdeform_c.so"))?),
    ] {
        msdeform_files::write(&path, &bytes, Existing::Replace).map_err(io::Error::other)?;
        installed.push(path);
    }
    let for_linkers = libraries.join("libmsdeform.so");
    if for_linkers.is_symlink() {
        std::fs::remove_file(&for_linkers)?;
    }
    #[cfg(unix)]
    std::os::unix::fs::symlink(SHARED_NAME, &for_linkers)?;
    installed.push(for_linkers);
    Ok(installed)
}
