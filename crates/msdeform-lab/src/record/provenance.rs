//! Which sources and which command a record comes from, and the software around them.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use sysinfo::System;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Build {
    /// Commit of the sources; `unknown` if they were in no repository.
    pub commit: &'static str,
    pub dirty: bool,
}

static BUILD: OnceLock<Build> = OnceLock::new();

impl Build {
    /// Names the sources of this program. The first call counts; records that are made before it have an unknown commit.
    pub fn announce(self) {
        BUILD.get_or_init(|| self);
    }

    pub(crate) fn of_this_program() -> Self {
        BUILD.get().copied().unwrap_or(Self { commit: "unknown", dirty: false })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provenance {
    pub commit: String,
    pub dirty: bool,
    pub command: String,
}

/// What the installed command is called, as a program and as a script.
const COMMAND_NAME: &str = "msdeform";

impl Provenance {
    /// Of this process. The commit is the one that was embedded at build time: a checkout around the current folder may
    /// be another one.
    pub fn now() -> Self {
        let Build { commit, dirty } = Build::of_this_program();
        Self { commit: commit.to_owned(), dirty, command: command_line(std::env::args()) }
    }

    /// Short name of the commit for folders and tables.
    pub fn revision(&self) -> String {
        let short: String = self.commit.chars().take(9).collect();
        if self.dirty { format!("{short}-dirty") } else { short }
    }
}

/// Whether the command was started as a script of the Python package: its first argument is then the interpreter, and
/// the command only the second.
pub fn is_python_script<S: AsRef<OsStr>>(arguments: &[S]) -> bool {
    let is_ours = |argument: &S| {
        Path::new(argument.as_ref()).file_stem().is_some_and(|stem| stem == COMMAND_NAME)
    };
    matches!(arguments, [first, second, ..] if !is_ours(first) && is_ours(second))
}

/// The command as a user would type it: without the folders of the machine it ran on, where records go included.
fn command_line(arguments: impl Iterator<Item = String>) -> String {
    let arguments: Vec<String> = arguments.collect();
    let mut arguments = arguments[usize::from(is_python_script(&arguments))..].iter().cloned();
    let program = arguments.next().unwrap_or_default();
    let name = Path::new(&program)
        .file_name()
        .map_or(program.clone(), |name| name.to_string_lossy().trim_end_matches(".exe").to_owned());
    let arguments = arguments.map(|argument| match argument.split_once('=') {
        Some((option @ ("--record" | "--ledger"), _)) => option.to_owned(),
        _ => argument,
    });
    std::iter::once(name).chain(arguments).collect::<Vec<_>>().join(" ")
}

/// Versions that may explain a difference between two records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Environment {
    pub msdeform: String,
    pub rustc: String,
    /// Target and whether it was optimised.
    pub build: String,
    pub os: String,
    pub kernel: String,
}

impl Environment {
    pub fn now() -> Self {
        let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
        Self {
            msdeform: env!("CARGO_PKG_VERSION").to_owned(),
            rustc: env!("MSDEFORM_RUSTC").to_owned(),
            build: format!("{} {profile}", env!("MSDEFORM_TARGET")),
            os: System::long_os_version().unwrap_or_else(|_| std::env::consts::OS.to_owned()),
            kernel: System::kernel_version().unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revisions_are_short_and_say_dirty() {
        let mut provenance =
            Provenance { commit: "0123456789abcdef".into(), dirty: false, command: String::new() };
        assert_eq!(provenance.revision(), "012345678");
        provenance.dirty = true;
        assert_eq!(provenance.revision(), "012345678-dirty");
    }

    #[test]
    fn commands_do_not_tell_where_the_program_lies() {
        let arguments = ["/a/b/msdeform", "bench", "--json"].map(str::to_owned);
        assert_eq!(command_line(arguments.into_iter()), "msdeform bench --json");
        let script = ["/env/bin/python3", "/env/bin/msdeform", "bench"].map(str::to_owned);
        assert_eq!(command_line(script.into_iter()), "msdeform bench");
        let test = ["target/msdeform_bench-0a", "msdeform_bench"].map(str::to_owned);
        assert_eq!(command_line(test.into_iter()), "msdeform_bench-0a msdeform_bench");
    }
}
