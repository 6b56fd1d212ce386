//! The workloads compiled into the binary. The order here is the order of every table.

use std::path::Path;
use std::sync::LazyLock;

use super::{Tag, Workload, WorkloadError, split_name};

macro_rules! embedded {
    ($($name:literal),* $(,)?) => {
        &[$((concat!("workloads/", $name, ".toml"),
             include_str!(concat!("../../workloads/", $name, ".toml")))),*]
    };
}

/// Path in the crate and text of every file; a test holds that none is forgotten.
pub(super) static FILES: &[(&str, &str)] = embedded![
    "ddetr_enc",
    "ddetr_dec",
    "dino_dec",
    "rtdetr_dec",
    "m2f_enc",
    "bevformer_sca",
    "bevformer_tsa",
    "seed",
    "seed_6x8",
    "edge_one_pixel",
    "edge_one_point",
    "edge_channels_1",
    "edge_channels_33",
    "edge_channels_64",
    "edge_point_lists",
    "edge_no_queries",
    "edge_long_rows",
    "edge_outside",
    "edge_hostile",
    "edge_one_place",
];

static WORKLOADS: LazyLock<Vec<Workload>> = LazyLock::new(|| {
    // A test parses every embedded file, so a broken one cannot get into a released binary.
    FILES.iter().filter_map(|(path, text)| Workload::parse(text, Path::new(path)).ok()).collect()
});

/// Every built-in workload, in table order.
pub fn all() -> &'static [Workload] {
    &WORKLOADS
}

pub fn find(name: &str) -> Option<&'static Workload> {
    all().iter().find(|workload| workload.name == name)
}

/// Where tables show a workload: built-in ones in their order, others after them.
pub fn table_position(name: &str) -> usize {
    let (name, _) = split_name(name);
    all().iter().position(|workload| workload.name == name).unwrap_or(all().len())
}

pub fn by_tag(tag: Tag) -> impl Iterator<Item = &'static Workload> {
    all().iter().filter(move |workload| workload.has(tag))
}

pub(super) fn unknown(name: &str) -> WorkloadError {
    let known: Vec<&'static str> = all().iter().map(|workload| workload.name.as_str()).collect();
    let distances = known.iter().map(|&known| (strsim::levenshtein(name, known), known));
    let suggestion = distances.min().filter(|(distance, _)| *distance <= 2).map(|(_, known)| known);
    WorkloadError::Unknown { name: name.to_owned(), suggestion, known }
}
