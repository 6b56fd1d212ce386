//! `msdeform probe`

use clap::Args;
use msdeform_bench::Ceilings;
use msdeform_bench::ceilings::Capability;
use msdeform_bench::overview::three_digits;

use crate::args::{DeviceArgs, RecordDirArgs, heading};
use crate::output::{Align, Columns, print, print_json, progress};

/// Measure what a device can do at best
///
/// Memory, caches, arithmetic and launches, each by a probe that does nothing else; a few seconds. With --record the result becomes the device's ceilings,
/// which floors are computed from.
#[derive(Debug, Args)]
pub struct ProbeCommandArgs {
    #[command(flatten)]
    device: DeviceArgs,
    /// Write it as the device's ceilings, in place of an older one
    #[arg(long)]
    record: bool,
    #[command(flatten)]
    record_dir: RecordDirArgs,
    /// Print the ceilings as JSON
    #[arg(long)]
    json: bool,
}

/// Measures and prints.
pub fn run(args: &ProbeCommandArgs) -> anyhow::Result<()> {
    let device = args.device.open()?;
    // How many there are is known when they are done: a spinner, not a share.
    let bar = progress(0, "probing");
    let ceilings =
        Ceilings::measure(device.as_ref(), &mut |name| bar.set_message(name.to_owned()))?;
    bar.finish_and_clear();
    if args.json {
        print_json(&ceilings)?;
    } else {
        print(&heading(device.as_ref(), None))?;
        let headings = [
            ("ceiling", Align::Left),
            ("best", Align::Right),
            ("unit", Align::Left),
            ("what", Align::Left),
        ];
        let mut columns = Columns::new(&headings).wrapping();
        for ceiling in &ceilings.ceilings {
            columns.row(&[
                ceiling.name.clone(),
                three_digits(ceiling.value),
                ceiling.unit.clone(),
                ceiling.what.clone(),
            ]);
        }
        print(&columns.to_string())?;
        for Capability { name, works, outcome } in &ceilings.capabilities {
            let verdict = if *works { "works" } else { "does not work" };
            print(&format!("\n{name} {verdict}: {outcome}"))?;
        }
    }
    if args.record || args.record_dir.record_dir.is_some() {
        let path = ceilings.write(&args.record_dir.folder())?;
        eprintln!("ceilings: {}", path.display());
    }
    Ok(())
}
