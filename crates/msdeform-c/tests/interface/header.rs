//! The committed header is what the sources say, and describes the structs as they are.

use std::path::{Path, PathBuf};

use msdeform_files::Existing;

pub fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub fn path() -> PathBuf {
    folder().join("include/msdeform.h")
}

fn generated() -> String {
    let mut config = cbindgen::Config::from_file(folder().join("cbindgen.toml")).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    let what = "/** The version of this header. */";
    config.after_includes = Some(format!("\n{what}\n#define MSDEFORM_VERSION \"{version}\""));
    let builder = cbindgen::Builder::new().with_config(config);
    let builder = builder.with_src(folder().join("src/lib.rs"));
    let mut header = Vec::new();
    builder.generate().unwrap().write(&mut header);
    String::from_utf8(header).unwrap()
}

#[test]
fn the_committed_header_is_what_the_sources_say() {
    let generated = generated();
    if std::env::var_os("BLESS").is_some() {
        msdeform_files::write(&path(), generated.as_bytes(), Existing::Replace).unwrap();
    }
    let committed = std::fs::read_to_string(path()).unwrap();
    let differs = generated.lines().zip(committed.lines()).find(|(new, old)| new != old);
    assert!(
        generated == committed,
        "write it again with `BLESS=1 cargo test -p msdeform-c`; first difference: {differs:?}"
    );
}
