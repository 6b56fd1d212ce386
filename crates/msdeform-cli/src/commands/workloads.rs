//! `msdeform workloads`

use clap::Args;
use msdeform_devices::workload;

use crate::output::{Columns, print, print_json};

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

/// Prints the list.
pub fn run(args: &WorkloadsArgs) -> anyhow::Result<()> {
    if args.json {
        return print_json(&workload::all());
    }
    let mut columns = Columns::new("workload | >N | >Lq | >M | >D | >levels | why").wrapping();
    for workload in workload::all() {
        columns.row(&[
            workload.name.clone(),
            workload.batch.to_string(),
            workload.standard_queries().to_string(),
            workload.heads.to_string(),
            workload.channels.to_string(),
            workload.levels.len().to_string(),
            workload.why.clone(),
        ]);
    }
    print(&columns.to_string())
}
