//! Child processes.

use std::cell::Cell;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::tree;

/// A command as one types it in the root of the tree, such as `NAME=value program argument`. Arguments that may contain spaces are
/// added afterwards.
pub fn sh(line: &str) -> Command {
    let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
    if let Some((name, value)) = first.split_once('=') {
        let mut command = sh(rest);
        command.env(name, value);
        return command;
    }
    let program = match first {
        "cargo" => std::env::var_os("CARGO").map_or_else(|| first.into(), PathBuf::from),
        // A script of the tree. A relative path would mean another file on some systems.
        _ if first.contains('/') => tree::root().join(first),
        _ => first.into(),
    };
    let mut command = Command::new(program);
    command.args(rest.split_whitespace()).current_dir(tree::root());
    command
}

/// Builds a program of the workspace, such as `--bin msdeform`, and returns a command that runs it.
///
/// Cargo shares all crates with the tests because of what is selected here. For one package alone, or without the example, whose
/// features include those of development dependencies, cargo would compile these crates once more.
pub fn built(program: &str) -> Result<Command> {
    let select = "cargo build --quiet --workspace --locked --example write_cases";
    run_ok(&mut sh(&format!("{select} {program}")))?;
    let (kind, name) = program.split_once(' ').unwrap_or_default();
    let folder = if kind == "--example" { "debug/examples" } else { "debug" };
    let name = format!("{name}{}", std::env::consts::EXE_SUFFIX);
    Ok(Command::new(tree::target().join(folder).join(name)))
}

/// The first of these programs that is on the search path.
pub fn on_path(names: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let mut files = names.iter().flat_map(|name| folders.iter().map(move |dir| dir.join(name)));
    files.find(|file| file.is_file())
}

/// How a command ended, and what it printed.
pub struct Finished {
    pub success: bool,
    pub output: String,
}

thread_local! {
    static PREFIX: Cell<&'static str> = const { Cell::new("") };
}

/// Lets the lines that commands of this thread print begin with a name.
pub fn prefix_lines(name: &'static str) {
    PREFIX.set(name);
}

/// Runs a command and prints each line as it comes.
pub fn run(command: &mut Command) -> Result<Finished> {
    let (name, prefix) = (describe(command), PREFIX.get());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("cannot start `{name}`"))?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let output = std::thread::scope(|scope| {
        let errors = scope.spawn(|| pass_on(stderr, &mut std::io::stderr(), prefix));
        pass_on(stdout, &mut std::io::stdout(), prefix) + &errors.join().unwrap_or_default()
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

/// Runs a command that must succeed, and prints nothing; returns its standard output.
pub fn capture(command: &mut Command) -> Result<String> {
    let name = describe(command);
    let output = command.output().with_context(|| format!("cannot start `{name}`"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`{name}` failed:\n{}", errors.trim_end());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The first words of a command.
fn describe(command: &Command) -> String {
    const SHOWN: usize = 12;
    let program = Path::new(command.get_program()).file_name();
    let words = program.into_iter().chain(command.get_args());
    let mut words: Vec<_> = words.map(|word| word.to_string_lossy()).take(SHOWN).collect();
    words.extend((command.get_args().count() >= SHOWN).then(|| "...".into()));
    words.join(" ")
}

fn pass_on(from: Option<impl Read>, to: &mut impl Write, prefix: &str) -> String {
    let mut seen = String::new();
    let Some(from) = from else { return seen };
    let mut lines = BufReader::new(from);
    let mut line = if prefix.is_empty() { Vec::new() } else { format!("{prefix}| ").into_bytes() };
    let start = line.len();
    while lines.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        // A closed pipe of ours does not stop the tests.
        let _ = to.write_all(&line).and_then(|()| to.flush());
        seen.push_str(&String::from_utf8_lossy(&line[start..]));
        line.truncate(start);
    }
    seen
}
