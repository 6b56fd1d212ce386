//! `msdeform workloads`

use clap::Args;
use msdeform_devices::workload;

use crate::output::{Columns, show};

/// List the built-in workloads and why they are there
///
/// A file like those in crates/msdeform-devices/workloads/ works wherever a name
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
        let columns = Columns::new(headings).wrapping().rows(workload::all(), |workload| {
            vec![
                workload.name.clone(),
                workload.batch.to_string(),
                workload.standard_queries().to_string(),
                workload.heads.to_string(),
                workload.channels.to_string(),
                workload.levels.len().to_string(),
                workload.why.clone(),
            ]
        });
        columns.to_string()
    };
    show(args.json, &workload::all(), table)
}
