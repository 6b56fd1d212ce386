//! What the shared library exports: what the header declares, and nothing else.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use msdeform_files::Existing;

use crate::header;

/// The folder of the built libraries. Cargo builds them together with the tests, in the same folder.
pub fn built() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().unwrap().to_path_buf();
    assert!(folder.join("libmsdeform_c.so").is_file(), "no library next to {}", test.display());
    folder
}

pub fn output_of(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?} failed:\n{out}{err}");
    out.into_owned()
}

#[test]
fn the_shared_library_exports_the_committed_list_and_nothing_else() {
    let library = built().join("libmsdeform_c.so");
    let listed = output_of(Command::new("nm").args(["-D", "--defined-only"]).arg(library));
    let exported: BTreeSet<&str> =
        listed.lines().filter_map(|line| line.split_whitespace().last()).collect();
    let list = header::folder().join("tests/interface/symbols.txt");
    let text = exported.iter().fold(String::new(), |text, symbol| text + symbol + "\n");
    if std::env::var_os("BLESS").is_some() {
        msdeform_files::write(&list, text.as_bytes(), Existing::Replace).unwrap();
    }
    let committed = std::fs::read_to_string(list).unwrap();
    assert_eq!(text, committed, "a symbol that goes or comes changes what programs link with");
    let header = std::fs::read_to_string(header::path()).unwrap();
    for symbol in exported {
        assert!(header.contains(&format!("{symbol}(")), "the header does not declare {symbol}");
    }
}

#[test]
fn the_shared_library_is_looked_for_under_the_number_of_its_interface() {
    let library = built().join("libmsdeform_c.so");
    let sections = output_of(Command::new("readelf").arg("-d").arg(library));
    let name = format!("[libmsdeform.so.{}]", msdeform_c::MSDEFORM_ABI_VERSION);
    let found = sections.lines().find(|line| line.contains("SONAME")).unwrap_or_default();
    assert!(found.contains(&name), "{found}");
}
