//! `bindings/openvino`: the library of operators, compiled against the OpenVINO of a Python environment.

use std::path::PathBuf;

use anyhow::Result;

use crate::process::{capture, run_ok, sh};
use crate::uv::Environment;
use crate::{c, setup, tree};

/// Builds the library as the tests of the workspace are built, with the C library inside, and returns its path.
pub fn build(environment: &Environment<'_>) -> Result<PathBuf> {
    setup::programs(c::PROGRAMS)?;
    // With the tests of that crate, which were built before: cargo puts the C library next to them.
    run_ok(&mut sh("cargo test --quiet --workspace --locked --no-run --test interface"))?;
    let folder = tree::cache().join("openvino");
    let installed = folder.join("c");
    c::install_from(&tree::target().join("debug/deps"), env!("CARGO_PKG_VERSION"), &installed)?;
    let program =
        "import openvino, pathlib; print(pathlib.Path(openvino.__file__).parent / 'cmake')";
    let openvino = capture(environment.sh("python -c")?.arg(program))?;
    let built = folder.join("built");
    let mut configure = sh("cmake -S bindings/openvino -DCMAKE_BUILD_TYPE=Release");
    configure.arg(format!("-DOpenVINO_DIR={}", openvino.trim()));
    configure.arg(format!("-Dmsdeform_DIR={}", installed.join("lib/cmake/msdeform").display()));
    run_ok(configure.arg("-B").arg(&built))?;
    run_ok(sh("cmake --build").arg(&built))?;
    Ok(built.join("libmsdeform_openvino.so"))
}
