//! Completions and manual pages, given to the programs that they are for. A shell that this machine lacks is listed as
//! ignored.

use std::path::{Path, PathBuf};
use std::process::Command;

use libtest_mimic::Trial;

use crate::setting::{commands, expect, files, folder, msdeform, printed, trial, trial_if};

pub fn trials() -> Vec<Trial> {
    let has = |program: &str| Command::new(program).arg("--version").output().is_ok();
    vec![
        trial_if(has("bash"), "shells::bash_completes_commands_options_and_files", bash),
        trial_if(has("zsh"), "shells::zsh_takes_its_completions", || parses("zsh", &["-n"])),
        trial_if(has("fish"), "shells::fish_takes_its_completions", || {
            parses("fish", &["--no-execute"]);
        }),
        trial_if(has("pwsh"), "shells::powershell_takes_its_completions", || {
            parses("pwsh", &POWERSHELL);
        }),
        trial("shells::every_shell_gets_every_command", every_command),
        trial_if(has("man"), "shells::man_renders_every_page_without_a_warning", man),
        trial("shells::all_pages_go_into_a_folder_and_an_unknown_one_is_refused", pages),
    ]
}

/// The script for a shell, in a folder.
fn script(at: &Path, shell: &str) -> String {
    let script = printed(msdeform(at, &format!("completions {shell}")), &[]);
    std::fs::write(at.join("script"), &script).unwrap();
    script
}

fn bash() {
    let folder = folder();
    script(folder.path(), "bash");
    std::fs::write(folder.path().join("layer3.safetensors"), "").unwrap();
    // What a TAB does: the words, the one under the cursor, and the function that `complete` was told.
    let completed = |words: &str| {
        let tab = format!(
            "source ./script; compopt() {{ :; }}; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             last=${{COMP_WORDS[COMP_CWORD]}}; before=${{COMP_WORDS[COMP_CWORD - 1]}}; \
             function=$(complete -p msdeform | sed 's/.*-F \\([^ ]*\\).*/\\1/'); \
             $function msdeform \"$last\" \"$before\"; echo \"${{COMPREPLY[@]}}\""
        );
        let mut bash = Command::new("bash");
        bash.args(["--norc", "-c", &tab]).current_dir(folder.path());
        printed(bash, &[]).trim().to_owned()
    };
    assert_eq!(completed("msdeform ben"), "bench");
    assert_eq!(completed("msdeform bench --work"), "--workload");
    assert_eq!(completed("msdeform completions po"), "powershell");
    assert_eq!(completed("msdeform run --output layer"), "layer3.safetensors");
}

const POWERSHELL: [&str; 3] = [
    "-NoProfile",
    "-Command",
    "$e = $null; [void][System.Management.Automation.Language.Parser]::ParseFile(\"$PWD/script\", \
     [ref]$null, [ref]$e); exit $e.Count",
];

/// The shell reads the script with these options, which do not run it.
fn parses(shell: &str, without_running: &[&str]) {
    let folder = folder();
    script(folder.path(), if shell == "pwsh" { "powershell" } else { shell });
    let mut command = Command::new(shell);
    command.args(without_running).current_dir(folder.path());
    if shell != "pwsh" {
        command.arg("script");
    }
    let output = expect(command, 0, &[]);
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn every_command() {
    let folder = folder();
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = script(folder.path(), shell);
        for word in commands().chain(["workload", "record", "threads"]) {
            assert!(script.contains(word), "{shell} does not know `{word}`");
        }
    }
    expect(msdeform(&folder, "completions tcsh"), 2, &["tcsh", "zsh"]);
}

fn man() {
    let folder = folder();
    expect(msdeform(&folder, "man --dir pages"), 0, &[]);
    for page in files(&folder.path().join("pages")) {
        let mut man = Command::new("man");
        man.args(["--warnings", "--local-file"])
            .arg(&page)
            .env("MANWIDTH", "100")
            .env("MANPAGER", "cat");
        let output = expect(man.current_dir(folder.path().join("pages")), 0, &[]);
        assert!(output.stderr.is_empty(), "{page:?}: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8_lossy(&output.stdout);
        let name = page.with_extension("");
        for word in [&*name.to_string_lossy(), "NAME", "SYNOPSIS", "OPTIONS"] {
            assert!(text.contains(word), "{page:?} has no {word}:\n{text}");
        }
    }
}

fn pages() {
    let folder = folder();
    for _ in 0..2 {
        // Again over what is there: a package manager does.
        expect(msdeform(&folder, "man --dir man1"), 0, &[]);
    }
    let pages = commands().map(|command| format!("msdeform-{command}.1"));
    let mut expected: Vec<PathBuf> =
        pages.chain(["msdeform.1".into()]).map(PathBuf::from).collect();
    expected.sort();
    assert_eq!(files(&folder.path().join("man1")), expected);
    let page = std::fs::read_to_string(folder.path().join("man1/msdeform.1")).unwrap();
    for command in commands() {
        assert!(page.contains(&format!("msdeform\\-{command}(1)")), "no reference to {command}");
    }
    let one = printed(msdeform(&folder, "man bench"), &[]);
    let written = std::fs::read_to_string(folder.path().join("man1/msdeform-bench.1")).unwrap();
    assert_eq!(one.trim_end(), written.trim_end());
    expect(msdeform(&folder, "man nothing"), 2, &["msdeform-nothing", "--help"]);
}
