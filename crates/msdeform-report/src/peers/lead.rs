//! How far ahead ours is, and what memory that costs, in two sentences.

use msdeform::DType;
use msdeform_devices::workload::{self, Tag};

use super::tables::LOCATIONS;
use super::{Against, Quantity};

/// The smallest and the largest lead over the best exact peer, and the memory of a backward in multiples of the leanest
/// exact peer's. Empty if no case was compared.
#[must_use]
pub fn lead(cases: &[Against]) -> String {
    let cases: Vec<&Against> = cases.iter().filter(|case| case.locations == LOCATIONS).collect();
    let leads = cases.iter().flat_map(|case| {
        [Quantity::Forward, Quantity::Backward].into_iter().filter_map(|quantity| {
            let (peer, us) = case.best_exact(quantity)?;
            let what =
                format!("{}, {}, {}, against {peer}", case.workload, case.dtype, quantity.name());
            Some((us / case.ours_us(quantity), what))
        })
    });
    let mut leads: Vec<(f64, String)> = leads.collect();
    leads.sort_by(|a, b| a.0.total_cmp(&b.0));
    let [(least, least_of), .., (most, most_of)] = &leads[..] else { return String::new() };
    let mut out = format!(
        "The lead over the best exact peer is as small as {least:.1}x ({least_of}), and {most:.1}x at most ({most_of})."
    );
    let ranges: Vec<String> = [(Tag::Encoder, "encoders"), (Tag::Decoder, "decoders")]
        .into_iter()
        .flat_map(|(tag, name)| {
            DType::ALL
                .into_iter()
                .filter_map(|dtype| {
                    let (least, most) = memory_range(&cases, tag, dtype)?;
                    Some(format!("{least:.1}x to {most:.1}x for {name} in {dtype}"))
                })
                .collect::<Vec<String>>()
        })
        .collect();
    if !ranges.is_empty() {
        out += " Memory that our backward allocates, as a multiple of what the leanest exact peer allocates: ";
        out += &ranges.join(", ");
        out.push('.');
    }
    out
}

/// The least and the most of what ours allocates over what the leanest exact peer does.
fn memory_range(cases: &[&Against], tag: Tag, dtype: DType) -> Option<(f64, f64)> {
    let is_tagged = |name: &str| workload::find(name).is_some_and(|workload| workload.has(tag));
    let ratios = cases
        .iter()
        .filter(|case| case.dtype == dtype && is_tagged(&case.workload))
        .filter_map(|case| Some(case.ours_memory_mib? / case.least_memory()?.1));
    ratios.fold(None, |range, ratio| {
        let (least, most) = range.unwrap_or((ratio, ratio));
        Some((ratio.min(least), ratio.max(most)))
    })
}
