//! Which sources and which command a record comes from.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

use super::folder::find_checkout;

/// Where the numbers come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provenance {
    /// Commit of the sources; `unknown` outside of a checkout.
    pub commit: String,
    /// Whether the sources differed from that commit.
    pub dirty: bool,
    /// The command line.
    pub command: String,
}

/// What the installed command is called, as a program and as a script.
const COMMAND_NAME: &str = "msdeform";

/// Names the commit where there is no repository: on a machine that got only the sources.
const COMMIT_VARIABLE: &str = "MSDEFORM_COMMIT";

impl Provenance {
    /// Of this process: `MSDEFORM_COMMIT` (a hash, with `-dirty` appended if so), or else the
    /// repository around the current folder.
    #[must_use]
    pub fn now() -> Self {
        let command = command_line(std::env::args());
        let (commit, dirty) = std::env::var(COMMIT_VARIABLE)
            .ok()
            .filter(|commit| !commit.is_empty())
            .map(|commit| parse_commit(&commit))
            .or_else(|| find_checkout(&std::env::current_dir().ok()?).and_then(|d| ask_git(&d)))
            .unwrap_or_else(|| ("unknown".to_owned(), false));
        Self { commit, dirty, command }
    }

    /// Short name of the commit for folders and tables.
    #[must_use]
    pub fn revision(&self) -> String {
        let short: String = self.commit.chars().take(9).collect();
        if self.dirty { format!("{short}-dirty") } else { short }
    }
}

/// Whether the command was started as a script of the Python package: its first argument is then the interpreter, and
/// the command only the second.
#[must_use]
pub fn is_python_script<S: AsRef<OsStr>>(arguments: &[S]) -> bool {
    let is_ours = |argument: &S| {
        Path::new(argument.as_ref()).file_stem().is_some_and(|stem| stem == COMMAND_NAME)
    };
    matches!(arguments, [first, second, ..] if !is_ours(first) && is_ours(second))
}

/// The command as a user would type it: without the folders of the machine it ran on.
fn command_line(arguments: impl Iterator<Item = String>) -> String {
    let arguments: Vec<String> = arguments.collect();
    let mut arguments = arguments[usize::from(is_python_script(&arguments))..].iter().cloned();
    let program = arguments.next().unwrap_or_default();
    let name = Path::new(&program)
        .file_name()
        .map_or(program.clone(), |name| name.to_string_lossy().trim_end_matches(".exe").to_owned());
    std::iter::once(name).chain(arguments).collect::<Vec<_>>().join(" ")
}

fn parse_commit(text: &str) -> (String, bool) {
    let safe = |text: &str| text.chars().filter(char::is_ascii_alphanumeric).collect();
    match text.strip_suffix("-dirty") {
        Some(commit) => (safe(commit), true),
        None => (safe(text), false),
    }
}

fn ask_git(checkout: &Path) -> Option<(String, bool)> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").arg("-C").arg(checkout).args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = git(&["rev-parse", "HEAD"])?;
    // A new record does not make the sources it was measured from dirty.
    let changes = git(&["status", "--porcelain", "--", ".", ":!records"])?;
    Some((commit, !changes.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_given_commit_may_say_that_it_is_dirty_and_cannot_be_a_path() {
        assert_eq!(parse_commit("0d206a3"), ("0d206a3".to_owned(), false));
        assert_eq!(parse_commit("0d206a3-dirty"), ("0d206a3".to_owned(), true));
        assert_eq!(parse_commit("../../x"), ("x".to_owned(), false));
    }

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
