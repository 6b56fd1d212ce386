//! Child processes: shown while they run, and read by us at the same time.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// Cargo as it was called, in the root of the tree.
pub fn cargo<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(crate::tree::root());
    command
}

/// Builds a binary or an example of the workspace and returns a command that runs it.
///
/// The selection makes cargo share all crates with the tests. For one package alone, or without an example, whose features
/// include those of development dependencies, it would compile them once more.
pub fn built(kind: &str, name: &str) -> Result<Command> {
    let mut build =
        cargo(["build", "--quiet", "--workspace", "--locked", "--example", "write_cases"]);
    run_ok(build.args([kind, name]))?;
    let folder = if kind == "--example" { "debug/examples" } else { "debug" };
    let program = format!("{name}{}", std::env::consts::EXE_SUFFIX);
    Ok(Command::new(crate::tree::target().join(folder).join(program)))
}

/// The first of these programs that the search path has.
pub fn on_path(names: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    names
        .iter()
        .flat_map(|name| folders.iter().map(move |dir| dir.join(name)))
        .find(|p| p.is_file())
}

/// How a command ended, and everything it said.
pub struct Finished {
    pub success: bool,
    pub output: String,
}

/// Runs a command, passing on every line as it comes.
pub fn run(command: &mut Command) -> Result<Finished> {
    let name = describe(command);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start `{name}`"))?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let output = std::thread::scope(|scope| {
        let errors = scope.spawn(|| pass_on(stderr, &mut std::io::stderr()));
        let mut output = pass_on(stdout, &mut std::io::stdout());
        output.push_str(&errors.join().unwrap_or_default());
        output
    });
    let status = child.wait().with_context(|| format!("lost `{name}`"))?;
    Ok(Finished { success: status.success(), output })
}

/// Runs a command that must succeed.
pub fn run_ok(command: &mut Command) -> Result<String> {
    let finished = run(command)?;
    ensure!(finished.success, "`{}` failed", describe(command));
    Ok(finished.output)
}

/// Runs a command silently; its standard output, if it succeeds.
pub fn capture(command: &mut Command) -> Result<String> {
    let name = describe(command);
    let output = command.output().with_context(|| format!("cannot start `{name}`"))?;
    ensure!(
        output.status.success(),
        "`{name}` failed:\n{}",
        String::from_utf8_lossy(&output.stderr).trim_end()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A command as one would type it, without the end of long ones.
pub fn describe(command: &Command) -> String {
    const SHOWN: usize = 12;
    let program = PathBuf::from(command.get_program());
    let program = program.file_name().unwrap_or(command.get_program());
    let mut words: Vec<_> =
        std::iter::once(program).chain(command.get_args().take(SHOWN)).collect();
    words.extend((command.get_args().count() > SHOWN).then_some(OsStr::new("...")));
    words.join(OsStr::new(" ")).to_string_lossy().into_owned()
}

fn pass_on(from: Option<impl Read>, to: &mut impl Write) -> String {
    let mut seen = String::new();
    let Some(from) = from else { return seen };
    let mut lines = BufReader::new(from);
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        // Nobody listening is no reason to stop the tests.
        let _ = to.write_all(&line).and_then(|()| to.flush());
        seen.push_str(&String::from_utf8_lossy(&line));
        line.clear();
    }
    seen
}
