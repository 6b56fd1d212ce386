//! `msdeform variants`

use clap::Args;
use msdeform::{DType, Direction, Numerics, Problem, ValueLayout, VariantSpec};
use msdeform_cuda_lab::REGISTRY;
use msdeform_lab::device::{DeviceOptions, open, registry};
use msdeform_lab::{Device, DeviceId};
use serde::Serialize;

use crate::output::{Table, cells, show, wrapped};

/// List every registered variant
///
/// Lists the registry: everything that computes the operator, what it takes and why it exists.
#[derive(Debug, Args)]
pub struct VariantsArgs {
    /// Only those of one kind of device: cpu or cuda
    #[arg(long, value_name = "KIND", value_parser = ["cpu", "cuda"])]
    device: Option<String>,
    /// Only forward or only backward
    #[arg(long, value_name = "DIRECTION")]
    direction: Option<Direction>,
    /// Only those that take this format
    #[arg(long, value_name = "DTYPE")]
    dtype: Option<DType>,
    /// Print a JSON list of objects
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Row {
    id: &'static str,
    direction: &'static str,
    device: &'static str,
    dtypes: Vec<&'static str>,
    layouts: Vec<&'static str>,
    origin: &'static str,
    idea: &'static str,
    why: &'static str,
    /// The looser bound of a variant outside of the accuracy contract.
    loose_rel_l2: Option<f64>,
    /// Whether this machine can run it.
    available: bool,
}

pub fn run(args: &VariantsArgs) -> anyhow::Result<()> {
    let ids = [DeviceId::Cpu, DeviceId::Cuda(0)];
    let devices: Vec<Box<dyn Device>> = ids
        .into_iter()
        .filter_map(|id| open(id, DeviceOptions::default(), REGISTRY).ok())
        .collect();
    let rows: Vec<Row> = registry(REGISTRY)
        .into_iter()
        .filter(|spec| args.device.as_ref().is_none_or(|kind| spec.device.name() == kind))
        .filter(|spec| args.direction.is_none_or(|direction| spec.direction == direction))
        .filter(|spec| args.dtype.is_none_or(|dtype| spec.dtypes.contains(&dtype)))
        .map(|spec| row(spec, &devices))
        .collect();
    show(args.json, &rows, || table(&rows))
}

fn table(rows: &[Row]) -> String {
    let headings = "id | device | here | dtypes | layouts | origin | idea";
    let table = Table::new(headings).with(rows.iter().map(|row| {
        let all_layouts = row.layouts.len() == ValueLayout::ALL.len();
        let layouts = if all_layouts { "all".to_owned() } else { row.layouts.join(" ") };
        let here = if row.available { "yes" } else { "no" };
        cells![row.id, row.device, here, row.dtypes.join(" "), layouts, row.origin, row.idea]
    }));
    let (table, here) = (wrapped(&table), rows.iter().filter(|row| row.available).count());
    format!("{table}\n\n{} variants, {here} of them run on this machine", rows.len())
}

fn row(spec: &'static VariantSpec, devices: &[Box<dyn Device>]) -> Row {
    Row {
        id: spec.id,
        direction: spec.direction.name(),
        device: spec.device.name(),
        dtypes: spec.dtypes.iter().map(|dtype| dtype.name()).collect(),
        layouts: spec.layouts.iter().map(|layout| layout.name()).collect(),
        origin: spec.origin,
        idea: spec.idea,
        why: spec.why,
        loose_rel_l2: match spec.numerics {
            Numerics::Contract => None,
            Numerics::Loose { rel_l2 } => Some(rel_l2),
        },
        available: devices
            .iter()
            .any(|device| device.id().kind() == spec.device && runs_on(device.as_ref(), spec)),
    }
}

/// Whether a device takes the smallest problem the variant's lists allow.
fn runs_on(device: &dyn Device, spec: &VariantSpec) -> bool {
    let (Some(&dtype), Some(&layout)) = (spec.dtypes.first(), spec.layouts.first()) else {
        return false;
    };
    Problem::builder()
        .heads(8)
        .channels(32)
        .queries(1)
        .levels([(8, 8)])
        .dtype(dtype)
        .layout(layout)
        .build()
        .is_ok_and(|problem| device.supports(spec, &problem).is_ok())
}
