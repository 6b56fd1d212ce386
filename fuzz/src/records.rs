//! Files that the laboratory and the plans read.

use std::path::Path;

use msdeform::{DType, Direction, Mode, Problem};
use msdeform_cuda::tuning::{CallClass, Origin, Tuning, TuningFile};
use msdeform_cuda::{KernelPack, decode_entry, encode_entry};
use msdeform_lab::counters::{self, CounterFile};
use msdeform_lab::tune::TuneRecord;
use msdeform_lab::workload::Sizes;
use msdeform_lab::{Ceilings, Record, Workload, record};
use msdeform_report::ledger::Ledger;
use msdeform_report::page::{self, Page};

const PATH: &str = "memory";

fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

pub(crate) fn workload(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    let Ok(workload) = Workload::parse(text, Path::new(PATH)) else { return };
    for &layout in &workload.layouts {
        for dtype in DType::FAST {
            for batch in [None, Some(0), Some(usize::MAX)] {
                let sizes = Sizes { batch, ..Sizes::default() };
                let _ = workload.problem(dtype, layout, sizes);
            }
        }
    }
    let _ = (workload.standard_queries(), workload.pixels(), workload.cpu_batch());
}

pub(crate) fn tuning(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    // The device that the file is about, or else nothing but the first check would run.
    let here = serde_json::from_str::<Origin>(text).unwrap_or_else(|_| Origin {
        device: "a device".to_owned(),
        compute_capability: None,
        multiprocessors: None,
        msdeform: "0.1.0".to_owned(),
        fingerprint: String::new(),
    });
    let Ok(file) = TuningFile::parse(text, &here) else { return };
    if let Ok(written) = serde_json::to_string(&file) {
        assert_eq!(TuningFile::parse(&written, &here).as_ref(), Ok(&file));
    }
    let tuning = Tuning::Loaded { path: PATH.into(), entries: file.entries };
    let _ = (tuning.summary(), tuning.ignored());
    let problem = Problem::builder().heads(8).channels(32).queries(300).levels([(8, 8)]).build();
    if let Ok(problem) = problem {
        for direction in Direction::ALL {
            let _ = tuning.find(&CallClass::of(&problem, direction, Mode::Fast, Some(2)));
        }
    }
}

pub(crate) fn cubin(bytes: &[u8]) {
    let whole = |bytes: &[u8]| {
        if let Some(entry) = decode_entry(bytes) {
            assert_eq!(encode_entry(&entry), bytes, "an entry is written in one way");
        }
    };
    whole(bytes);
    // A fuzzer cannot guess a hash, so it is made right here.
    let hash = blake3::hash(bytes);
    whole(&[b"msdacub1", hash.as_bytes().as_slice(), bytes].concat());
}

pub(crate) fn pack(bytes: &[u8]) {
    let whole = |bytes: Vec<u8>| {
        let Ok(pack) = KernelPack::parse(Path::new("kernels.pack"), bytes) else { return };
        for content in pack.contents() {
            // Found, or reported as damaged.
            assert!(!matches!(pack.find(content), Ok(None)), "a kernel is listed and not there");
        }
    };
    whole(bytes.to_vec());
    // The same for the hash of the index.
    const INDEX_AT: usize = 48;
    let length = bytes.get(8..16).and_then(<[u8]>::first_chunk::<8>);
    let length = length.and_then(|length| usize::try_from(u64::from_le_bytes(*length)).ok());
    let end = length.and_then(|length| INDEX_AT.checked_add(length));
    if let Some(index) = end.and_then(|end| bytes.get(INDEX_AT..end)) {
        let mut fixed = bytes.to_vec();
        fixed[16..INDEX_AT].copy_from_slice(blake3::hash(index).as_bytes());
        whole(fixed);
    }
}

pub(crate) fn ledger(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    if let Ok(mut ledger) = Ledger::parse(text, Path::new(PATH)) {
        let _ = ledger.unverified(&msdeform::ATTENTION);
        ledger.forget_unregistered();
    }
}

pub(crate) fn record(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    let path = Path::new(PATH);
    let ceilings = record::parse::<Ceilings>(text, path).ok();
    let _ = record::parse::<TuneRecord>(text, path);
    let counters =
        record::parse::<CounterFile>(text, path).map_or_else(|_| Vec::new(), |file| file.counted);
    let Ok(record) = record::parse::<Record>(text, path) else { return };
    let _ = msdeform_report::summary(&record);
    let records = [record];
    let _ = record::newest(&records);
    if let Ok(Some(page)) = Page::of(&records, ceilings.as_ref(), &counters) {
        let _ = (page::html(&page), page::markdown(&page));
    }
}

pub(crate) fn counters(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    let _ = counters::parse(text);
}
