//! `msdeform workloads`

use clap::Args;
use msdeform_lab::{Workload, workload};

use crate::output::{Table, cells, show, wrapped};

/// List the built-in workloads and why they are there
///
/// A file like those in crates/msdeform-lab/workloads/ works wherever a name
/// does.
#[derive(Debug, Args)]
pub struct WorkloadsArgs {
    /// Print a JSON list with the contents of their files
    #[arg(long)]
    json: bool,
}

pub fn run(args: &WorkloadsArgs) -> anyhow::Result<()> {
    let table = || {
        let headings = "workload | >N | >Lq | >M | >D | >levels | why";
        wrapped(&Table::new(headings).with(workload::all().iter().map(|workload| {
            let Workload { name, batch, heads, channels, levels, why, .. } = workload;
            cells![name, batch, workload.standard_queries(), heads, channels, levels.len(), why]
        })))
    };
    show(args.json, &workload::all(), table)
}
