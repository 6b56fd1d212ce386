//! `cargo xtask readme`: the tables of README.md, and of the Python package's, from the committed records.

use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Args;
use msdeform_bench::{Profile, readme, record};

use crate::python_record;
use crate::steps::Report;
use crate::tree;

/// Options of `readme`.
#[derive(Args)]
pub struct ReadmeArgs {
    /// Change nothing; fail if the tables are not what the records say
    #[arg(long)]
    check: bool,
}

/// The Python package's own README.
const PACKAGE: &str = "bindings/python/README.md";

/// Writes or checks the tables.
pub fn run(args: &ReadmeArgs) -> Result<ExitCode> {
    if args.check {
        println!("the tables agree with {}", check()?.note);
        return Ok(ExitCode::SUCCESS);
    }
    for Document { name, found, spliced } in documents()?.0 {
        if found == spliced {
            println!("{name} already agrees with the records");
        } else {
            std::fs::write(tree::root().join(name), spliced)?;
            println!("{name}: tables written from the records");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Fails when a document and the records disagree.
pub fn check() -> Result<Report> {
    let (documents, records) = documents()?;
    for Document { name, found, spliced } in documents {
        ensure!(found == spliced, "{name} is not what the records say; run `cargo xtask readme`");
    }
    Ok(Report::check(format!("{records} records")))
}

/// A document as it is, and as the records say it should be.
struct Document {
    name: &'static str,
    found: String,
    spliced: String,
}

/// All documents with tables, and the number of `bench` records.
fn documents() -> Result<(Vec<Document>, usize)> {
    let root = tree::root();
    let folder = root.join("records");
    let read = |name| std::fs::read_to_string(root.join(name)).context(name);
    let records = record::load_committed(&folder)?;
    let profiles = Profile::load_all(&folder)?;
    let found = read("README.md")?;
    let spliced = readme::splice(&found, &records, &profiles)?;
    let main = Document { name: "README.md", found, spliced };
    let found = read(PACKAGE)?;
    let spliced = python_record::splice(&found, &folder).context(PACKAGE)?;
    Ok((vec![main, Document { name: PACKAGE, found, spliced }], records.len()))
}
