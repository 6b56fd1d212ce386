//! Ours and the peers as tables for documents.

use askama::Template;
use msdeform::DType;
use msdeform_lab::workload::{self, Tag};

use super::{Against, BACKWARD, FORWARD};
use crate::filters;
use crate::table::{distinct, or_dash};

/// The cases of the README: trained models draw their locations so.
const LOCATIONS: &str = "local";

/// `short`: a line for each workload, and the ranges of all in a sentence. `all`: the ranges of each kind of workload and
/// dtype, and every time of every peer, in brackets if it is not exact. `memory`: what a backward allocates above its
/// inputs, where ours was measured.
#[derive(Template)]
#[template(path = "peers.txt", escape = "none", blocks = ["short", "all", "memory"])]
pub(crate) struct Tables<'a> {
    pub(crate) cases: &'a [Against],
}

impl<'a> Tables<'a> {
    fn local(&self) -> Vec<&'a Against> {
        self.cases.iter().filter(|case| case.locations == LOCATIONS).collect()
    }

    /// Each workload in `f32`, and in `f16` where that was measured.
    fn by_workload(&self) -> Vec<(&'a Against, [Option<&'a Against>; 2])> {
        let of = |dtype| self.local().into_iter().filter(move |case| case.dtype == dtype);
        let half = |case: &Against| of(DType::F16).find(|half| half.workload == case.workload);
        of(DType::F32).map(|case| (case, [Some(case), half(case)])).collect()
    }

    /// How much faster the forward and the backward are, and what memory the backward needs.
    fn ranges<'c>(&self, cases: impl IntoIterator<Item = &'c &'c Against>) -> [String; 3] {
        let cases: Vec<&&Against> = cases.into_iter().collect();
        let range = |ratio: &dyn Fn(&Against) -> Option<f64>| {
            let ratios = || cases.iter().filter_map(|case| ratio(case));
            let ends = ratios().reduce(f64::min).zip(ratios().reduce(f64::max));
            or_dash(ends, |(least, most)| format!("{least:.1}x to {most:.1}x"))
        };
        let speedup = |call| range(&|case| case.speedup(call));
        [speedup(FORWARD), speedup(BACKWARD), range(&Against::memory_ratio)]
    }

    /// The ranges of each kind of workload and dtype.
    fn kinds(&self) -> Vec<(&'static str, DType, [String; 3])> {
        let kinds = [(Tag::Encoder, "encoders"), (Tag::Decoder, "decoders")].into_iter();
        let kinds = kinds.flat_map(|(tag, kind)| DType::ALL.map(|dtype| (tag, kind, dtype)));
        let ranges = kinds.filter_map(|(tag, kind, dtype)| {
            let mut own = self.local();
            own.retain(|case| case.dtype == dtype && case.has(tag));
            (!own.is_empty()).then(|| (kind, dtype, self.ranges(&own)))
        });
        ranges.collect()
    }

    /// Peers in the order in which the cases have them, perhaps only those whose memory was measured.
    fn names(&self, with_memory: bool) -> Vec<&'a str> {
        let peers = self.cases.iter().flat_map(|case| &case.peers);
        let shown = peers.filter(|peer| !with_memory || peer.memory_mib.is_some());
        distinct(shown.map(|peer| peer.peer.as_str()))
    }
}

impl Against {
    fn has(&self, tag: Tag) -> bool {
        workload::find(&self.workload).is_some_and(|found| found.has(tag))
    }

    fn best_us(&self, call: usize) -> Option<f64> {
        Some(self.best_exact(call)?.1)
    }

    fn speedup(&self, call: usize) -> Option<f64> {
        Some(self.best_us(call)? / self.ours_us[call])
    }

    fn least_memory_mib(&self) -> Option<f64> {
        Some(self.least_memory()?.1)
    }

    fn memory_of(&self, peer: &str) -> Option<f64> {
        self.peer(peer)?.memory_mib
    }

    /// What ours allocates over what the leanest exact peer does.
    fn memory_ratio(&self) -> Option<f64> {
        Some(self.ours_memory_mib? / self.least_memory_mib()?)
    }
}
