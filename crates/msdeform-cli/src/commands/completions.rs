//! `msdeform completions`

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::args::Cli;
use crate::output::print;

/// Print what a shell needs to complete commands and options
///
/// bash: msdeform completions bash > ~/.local/share/bash-completion/completions/msdeform
/// zsh: msdeform completions zsh > DIR/_msdeform, where DIR is in $fpath
/// fish: msdeform completions fish > ~/.config/fish/completions/msdeform.fish
/// PowerShell: msdeform completions powershell >> $PROFILE
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// Prints the script.
pub fn run(args: &CompletionsArgs) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "msdeform", &mut script);
    print(String::from_utf8_lossy(&script).trim_end())
}
