//! The newest figure for every measured combination.

use std::collections::BTreeMap;

use crate::device::Timing;
use crate::{Measurement, number, workload};
use msdeform::{DType, Direction};
use serde::{Deserialize, Serialize};

use super::{Record, Run};

/// One line of `msdeform records`. The field names are an interface: scripts read them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    pub device: String,
    pub workload: String,
    pub locations: String,
    pub layout: String,
    pub dtype: String,
    pub direction: String,
    pub mode: String,
    pub variant: String,
    pub timing: Timing,
    pub threads: Option<usize>,
    pub median_us: f64,
    pub mad_us: f64,
    #[serde(with = "number::or_null")]
    pub rel_l2: f64,
    pub commit: String,
    pub dirty: bool,
    pub batch: usize,
    pub queries: usize,
    /// Time of the baseline variant over this one's, where both were timed.
    pub speedup: Option<f64>,
    /// Whether this is what a user gets without naming a variant.
    pub dispatched: bool,
    pub date: String,
}

impl Figure {
    /// Everything that makes two figures comparable; a newer one with the same key replaces. Sorts
    /// as tables do: workloads and formats as they are listed, forward before backward.
    pub fn key(&self) -> impl Ord + use<> {
        let order = (
            self.device.clone(),
            self.threads,
            workload::table_position(&self.workload),
            self.direction != Direction::Forward.name(),
            DType::ALL.iter().position(|dtype| dtype.name() == self.dtype),
        );
        let rest = [
            &self.workload,
            &self.locations,
            &self.layout,
            &self.direction,
            &self.dtype,
            &self.mode,
            &self.variant,
        ]
        .map(Clone::clone);
        (order, rest, self.timing, self.batch, self.queries)
    }
}

impl Figure {
    pub fn of(record: &Record, measurement: &Measurement) -> Self {
        let label = &measurement.label;
        let Run { date, provenance } = record.run_of(measurement);
        Self {
            device: record.device.slug.clone(),
            workload: label.workload.clone(),
            locations: label.locations.clone(),
            layout: label.layout.clone(),
            dtype: label.dtype.clone(),
            direction: label.direction.clone(),
            mode: measurement.mode.clone(),
            variant: label.variant.clone(),
            timing: measurement.timing,
            threads: measurement.threads,
            median_us: measurement.statistics.median_us,
            mad_us: measurement.statistics.mad_us,
            rel_l2: measurement.rel_l2,
            commit: provenance.commit,
            dirty: provenance.dirty,
            batch: label.batch,
            queries: label.queries,
            speedup: measurement.speedup_among(&record.measurements),
            dispatched: measurement.dispatched,
            date,
        }
    }
}

/// The figures of records that come oldest first, newest per combination, sorted by combination.
pub fn newest(records: &[Record]) -> Vec<Figure> {
    let mut figures = BTreeMap::new();
    for record in records {
        for measurement in &record.measurements {
            let figure = Figure::of(record, measurement);
            figures.insert(figure.key(), figure);
        }
    }
    figures.into_values().collect()
}
