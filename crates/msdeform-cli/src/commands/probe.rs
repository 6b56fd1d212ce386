//! `msdeform probe`

use clap::Args;
use msdeform_cuda_lab::probe;
use msdeform_lab::ceilings::Capability;
use msdeform_lab::device::CudaDevice;
use msdeform_lab::digits::three_digits;
use msdeform_lab::{Ceiling, Ceilings, Device, DeviceError};

use crate::args::{DeviceArgs, RecordArgs, heading};
use crate::output::{Table, cells, progress, show, wrapped};

/// Measure what a device can do at best
///
/// Memory, caches, arithmetic and launches, each by a probe that does nothing else; a few seconds. With --record the result becomes the device's ceilings,
/// which floors are computed from.
#[derive(Debug, Args)]
pub struct ProbeCommandArgs {
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    record: RecordArgs,
    /// Print the ceilings as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &ProbeCommandArgs) -> anyhow::Result<()> {
    let device = args.device.open()?;
    // How many there are is known when they are done: a spinner, not a share.
    let bar = progress(0, "probing");
    let ceilings = measure(device.as_ref(), &mut |name| bar.set_message(name.to_owned()))?;
    drop(bar);
    show(args.json, &ceilings, || text(device.as_ref(), &ceilings))?;
    if let Some(folder) = args.record.folder() {
        let path = ceilings.write(&folder)?;
        eprintln!("ceilings: {}", path.display());
    }
    Ok(())
}

fn text(device: &dyn Device, Ceilings { ceilings, capabilities, .. }: &Ceilings) -> String {
    let cells = |Ceiling { name, value, unit, what }: &Ceiling| {
        cells![name, three_digits(*value), unit, what]
    };
    let table = Table::new("ceiling | >best | unit | what").with(ceilings.iter().map(cells));
    let mut text = format!("{}\n{}", heading(device, None), wrapped(&table));
    for Capability { name, works, outcome } in capabilities {
        let verdict = if *works { "works" } else { "does not work" };
        text.push_str(&format!("\n\n{name} {verdict}: {outcome}"));
    }
    text
}

/// Probes a device; `before` is told each ceiling's name as its probe starts.
fn measure(device: &dyn Device, before: &mut dyn FnMut(&str)) -> Result<Ceilings, DeviceError> {
    let (mut ceilings, mut capabilities) = (device.ceilings(before)?, Vec::new());
    if let Some(engine) = CudaDevice::of(device).map(CudaDevice::engine) {
        let failed = |source| DeviceError::Probe { device: device.id(), source: Box::new(source) };
        ceilings.extend(probe::ceilings(engine, before).map_err(failed)?.into_iter().map(owned));
        before("capabilities");
        let checks = probe::checks(engine).map_err(failed)?.into_iter();
        capabilities.extend(checks.map(|probe::Check { name, passed, outcome }| Capability {
            name: name.to_owned(),
            works: passed,
            outcome,
        }));
    }
    Ok(Ceilings::new(device, ceilings, capabilities))
}

fn owned(found: probe::Ceiling) -> Ceiling {
    Ceiling {
        name: found.name.to_owned(),
        value: found.value,
        unit: found.unit.to_owned(),
        what: found.what.to_owned(),
    }
}
