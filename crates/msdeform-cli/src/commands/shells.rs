//! `msdeform completions` and `msdeform man`

use std::path::PathBuf;

use clap::{Args, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use msdeform_files::{Content, Existing};

use crate::args::Cli;
use crate::exit::Usage;
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

pub fn completions(args: &CompletionsArgs) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "msdeform", &mut script);
    print(String::from_utf8_lossy(&script).trim_end())
}

/// Print the manual page, of the tool or of one of its commands
///
/// msdeform man bench | man -l -
/// msdeform man --dir ~/.local/share/man/man1
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct ManArgs {
    /// The command whose page is meant
    command: Option<String>,
    /// Write all pages into a folder instead, in the place of those that are there
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    dir: Option<PathBuf>,
}

pub fn man(args: &ManArgs) -> anyhow::Result<()> {
    let pages = pages()?;
    if let Some(folder) = &args.dir {
        let content = |(name, page)| Content { path: folder.join(name + ".1"), parts: vec![page] };
        let files: Vec<Content> = pages.into_iter().map(content).collect();
        msdeform_files::write_all(&files, Existing::Replace)?;
        return print(&format!("{} pages in {}", files.len(), folder.display()));
    }
    let suffix = args.command.as_ref().map_or_else(String::new, |command| format!("-{command}"));
    let page = pages.iter().find(|(page, _)| *page == format!("msdeform{suffix}"));
    let why = || format!("there is no page msdeform{suffix}; `msdeform --help` lists the commands");
    let (_, page) = page.ok_or_else(|| Usage(why()))?;
    print(String::from_utf8_lossy(page).trim_end())
}

/// Every page by its name: `msdeform`, and `msdeform-bench` and so on.
fn pages() -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let mut tool = Cli::command();
    tool.build();
    let mut commands: Vec<_> = tool.get_subcommands().cloned().collect();
    // `help` explains itself.
    commands.retain(|command| command.get_name() != "help");
    let named = commands.into_iter().map(|command| {
        let name = format!("msdeform-{}", command.get_name());
        command.display_name(name)
    });
    let all = std::iter::once(tool.disable_help_subcommand(true)).chain(named);
    all.map(|command| {
        let name = command.get_display_name().unwrap_or("msdeform").to_owned();
        let mut page = Vec::new();
        Man::new(command).render(&mut page)?;
        Ok((name, page))
    })
    .collect()
}
