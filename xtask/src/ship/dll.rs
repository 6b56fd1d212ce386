//! What a library of Windows needs and offers, by the words of `objdump`, and whether Wine loads it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::process::{capture, run_ok};

/// A library of Windows.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Library {
    /// The names that it takes, by the library that has them, in small letters.
    pub imports: BTreeMap<String, Vec<String>>,
    /// The names that it offers.
    pub exports: Vec<String>,
}

/// What it takes from Python comes from here, whichever version there is.
pub const PYTHON: &str = "python3.dll";

/// What Python calls when it imports the library.
const ENTRY: &str = "PyInit__native";

impl Library {
    /// Looks into a file.
    pub fn read(path: &Path) -> Result<Self> {
        let listed = capture(Command::new("x86_64-w64-mingw32-objdump").arg("-p").arg(path))?;
        Ok(Self::parse(&listed))
    }

    fn parse(listed: &str) -> Self {
        let mut library = Self::default();
        let (mut from, mut offers) = (None, false);
        for line in listed.lines().map(str::trim) {
            if let Some(name) = line.strip_prefix("DLL Name: ") {
                from = Some(name.to_ascii_lowercase());
                library.imports.entry(name.to_ascii_lowercase()).or_default();
            } else if line.starts_with("[Ordinal/Name Pointer]") {
                (from, offers) = (None, true);
            } else if line.is_empty() {
                (from, offers) = (None, false);
            } else if let Some(from) = &from {
                // Address, hint, name.
                let mut words = line.split_whitespace();
                let is_address =
                    words.next().is_some_and(|word| u64::from_str_radix(word, 16).is_ok());
                if let Some(name) = words.nth(1).filter(|_| is_address) {
                    library.imports.entry(from.clone()).or_default().push(name.to_owned());
                }
            } else if offers {
                library.exports.extend(line.rsplit(' ').next().map(str::to_owned));
            }
        }
        library
    }

    /// Programs that load it: a Python of which there is nothing but the names that it takes, and one that asks for what
    /// Python would call. Returns the latter, in a folder that the library is in too.
    pub fn write_loader(&self, folder: &Path) -> Result<std::path::PathBuf> {
        ensure!(self.exports.iter().any(|name| name == ENTRY), "Python would find no {ENTRY}");
        let taken = self.imports.get(PYTHON).context("it takes nothing from Python")?;
        ensure!(!taken.is_empty(), "it takes nothing from Python");
        let mut python = String::new();
        for name in taken {
            let _ = writeln!(python, "__declspec(dllexport) void {name}(void) {{}}");
        }
        let compile = |name: &str, source: &str, options: &[&str]| {
            let file = folder.join(format!("{name}.c"));
            std::fs::write(&file, source)?;
            let mut compile = Command::new("x86_64-w64-mingw32-gcc");
            run_ok(compile.args(options).arg(file).arg("-o").arg(folder.join(name)))
        };
        compile(PYTHON, &python, &["-shared"])?;
        compile("load.exe", LOADER, &[])?;
        Ok(folder.join("load.exe"))
    }
}

const LOADER: &str = r#"
#include <stdio.h>
#include <windows.h>
int main(void) {
    HMODULE library = LoadLibraryA("_native.pyd");
    if (library == NULL) {
        fprintf(stderr, "error %lu\n", GetLastError());
        return 1;
    }
    return GetProcAddress(library, "PyInit__native") == NULL ? 2 : 0;
}
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_with_the_library_that_has_them() {
        let listed = " 00960000\t00960500 00000000\n\n\tDLL Name: KERNEL32.dll\n\tvma:  Hint/Ord Member-Name Bound-To\n\
                      \t961000\t    7  CloseHandle\n\n 00960014\n\n\tDLL Name: python3.dll\n\tvma:  Hint/Ord Member-Name Bound-To\n\
                      \t96182e\t    7  PyBaseObject_Type\n\t961842\t    9  PyBool_Type\n\n\
                      [Ordinal/Name Pointer] Table\n\t[   0] PyInit__native\n\t[   1] RegisterCustomOps\n\nThe Function Table\nvma: a\n";
        let library = Library::parse(listed);
        assert_eq!(library.imports["kernel32.dll"], ["CloseHandle"]);
        assert_eq!(library.imports[PYTHON], ["PyBaseObject_Type", "PyBool_Type"]);
        assert_eq!(library.exports, [ENTRY, "RegisterCustomOps"]);
    }

    #[test]
    fn a_library_that_python_cannot_import_is_refused() {
        let folder = std::env::temp_dir();
        let nothing = Library::default().write_loader(&folder).unwrap_err().to_string();
        assert!(nothing.contains(ENTRY), "{nothing}");
        let without = Library { exports: vec![ENTRY.to_owned()], ..Library::default() };
        assert!(without.write_loader(&folder).unwrap_err().to_string().contains("from Python"));
    }
}
