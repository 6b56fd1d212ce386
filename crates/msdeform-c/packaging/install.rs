//! Where the libraries, the header and the files for pkg-config and `CMake` go. `cargo xtask c` and the tests of this crate share it.

use std::io;
use std::path::{Path, PathBuf};

/// Goes up with `MSDEFORM_ABI_VERSION`.
pub const SHARED_NAME: &str = "libmsdeform.so.1";

/// What the Rust standard library needs of the system (`rustc --print native-static-libs`).
const LIBS_PRIVATE: &str = "-lgcc_s -lutil -lrt -lpthread -lm -ldl -lc";

/// Installs what was built in `built` under `prefix`, and returns what is there now. `package` is the folder of this crate.
pub fn install(
    package: &Path,
    version: &str,
    built: &Path,
    prefix: &Path,
) -> io::Result<Vec<PathBuf>> {
    let libraries = prefix.join("lib");
    let filled = |template: &str| -> io::Result<Vec<u8>> {
        let text = std::fs::read_to_string(package.join("packaging").join(template))?;
        let text = text.replace("@VERSION@", version).replace("@LIBS_PRIVATE@", LIBS_PRIVATE);
        Ok(text.replace("@SHARED_NAME@", SHARED_NAME).into_bytes())
    };
    let for_cmake = libraries.join("cmake/msdeform");
    let mut installed = Vec::new();
    for (path, bytes) in [
        (prefix.join("include/msdeform.h"), std::fs::read(package.join("include/msdeform.h"))?),
        (libraries.join("pkgconfig/msdeform.pc"), filled("msdeform.pc.in")?),
        (for_cmake.join("msdeform-config.cmake"), filled("msdeform-config.cmake.in")?),
        (
            for_cmake.join("msdeform-config-version.cmake"),
            filled("msdeform-config-version.cmake.in")?,
        ),
        (libraries.join("libmsdeform.a"), std::fs::read(built.join("libmsdeform_c.a"))?),
        (libraries.join(SHARED_NAME), std::fs::read(built.join("libmsdeform_c.so"))?),
    ] {
        std::fs::create_dir_all(path.parent().unwrap_or(prefix))?;
        // Removed first: a program that runs keeps the library that it has mapped.
        if path.exists() {
            std::fs::remove_file(&path)?;
        }
        std::fs::write(&path, bytes)?;
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
