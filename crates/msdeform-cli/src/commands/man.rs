//! `msdeform man`

use std::path::PathBuf;

use clap::{Args, CommandFactory};
use clap_mangen::Man;
use msdeform_files::{Content, Existing};

use crate::args::Cli;
use crate::exit::Usage;
use crate::output::print;

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

/// Prints a page, or writes all of them.
pub fn run(args: &ManArgs) -> anyhow::Result<()> {
    let pages = pages()?;
    if let Some(folder) = &args.dir {
        let files: Vec<Content> = pages
            .into_iter()
            .map(|(name, page)| Content {
                path: folder.join(name + ".1"),
                parts: vec![page.into_bytes()],
            })
            .collect();
        msdeform_files::write_all(&files, Existing::Replace)?;
        return print(&format!("{} pages in {}", files.len(), folder.display()));
    }
    let name =
        args.command.as_ref().map_or_else(|| "msdeform".to_owned(), |c| format!("msdeform-{c}"));
    match pages.iter().find(|(page, _)| *page == name) {
        Some((_, page)) => print(page.trim_end()),
        None => {
            Err(Usage(format!("there is no page {name}; `msdeform --help` lists the commands"))
                .into())
        }
    }
}

/// Every page by its name: `msdeform`, and `msdeform-bench` and so on.
fn pages() -> anyhow::Result<Vec<(String, String)>> {
    let mut tool = Cli::command();
    tool.build();
    // `help` explains itself.
    let commands: Vec<_> =
        tool.get_subcommands().filter(|c| c.get_name() != "help").cloned().collect();
    let mut pages = vec![("msdeform".to_owned(), text(tool.disable_help_subcommand(true))?)];
    for command in commands {
        let name = format!("msdeform-{}", command.get_name());
        pages.push((name.clone(), text(command.display_name(name))?));
    }
    Ok(pages)
}

fn text(command: clap::Command) -> anyhow::Result<String> {
    let mut page = Vec::new();
    Man::new(command).render(&mut page)?;
    Ok(String::from_utf8(page)?)
}
