//! What a ledger must have an entry of, as a flat list.

use std::sync::OnceLock;

use msdeform::{DType, Operator};
use msdeform_cuda::DeviceProps;
use msdeform_cuda::variants::{Unit, Variant};
use msdeform_cuda_lab::REGISTRY;
use msdeform_lab::models::{self, Specialisation};

use super::hashes::{Sources, takes};
use super::{Key, Section};

/// One thing that a GPU must have verified, by the hash of today's sources.
pub(super) struct Claim {
    pub(super) operator: &'static Operator,
    pub(super) variant: &'static dyn Variant,
    pub(super) what: What,
    pub(super) hash: String,
}

/// What of a variant.
pub(super) enum What {
    /// All workloads in one dtype.
    Workloads(DType),
    /// Random problems in one dtype.
    Random(DType),
    /// A kernel that dispatch may choose for a known model.
    Kernel(Box<Specialisation>),
}

impl Claim {
    /// Everything that must be verified of an operator: its variants, then its kernels. Rungs of the ladder compute no
    /// random problems, and only the plain operator. Computed once in a process: thousands of kernels are configured and
    /// hashed.
    pub(super) fn all(operator: &'static Operator) -> &'static [Self] {
        static KNOWN: [OnceLock<Vec<Claim>>; Operator::ALL.len()] =
            [const { OnceLock::new() }; Operator::ALL.len()];
        let place = Operator::ALL.iter().position(|known| *known == operator).unwrap_or(0);
        KNOWN[place].get_or_init(|| Self::computed(operator))
    }

    fn computed(operator: &'static Operator) -> Vec<Self> {
        let claim = |variant, what| {
            let claim = Self { operator, variant, what, hash: String::new() };
            Self { hash: claim.hash_of(Sources::of(variant)), ..claim }
        };
        let is_plain = *operator == msdeform::ATTENTION;
        let mut found = Vec::new();
        let variants = REGISTRY.iter().filter(|variant| is_plain || takes(**variant, operator));
        for &variant in variants {
            for &dtype in variant.spec().dtypes {
                found.push(claim(variant, What::Workloads(dtype)));
                found.extend((!variant.spec().rung).then(|| claim(variant, What::Random(dtype))));
            }
        }
        let kernels = models::specialisations(&DeviceProps::h200(), operator);
        let kernels =
            kernels.into_iter().map(|found| claim(found.variant, What::Kernel(Box::new(found))));
        found.extend(kernels);
        found
    }

    /// Its hash if the variant had these texts.
    pub(super) fn hash_of(&self, sources: &Sources) -> String {
        match &self.what {
            What::Workloads(dtype) => sources.fingerprint(self.variant, *dtype, self.operator),
            What::Random(_) => sources.hash(),
            What::Kernel(found) => sources.unit_hash(&found.unit),
        }
    }

    /// The kernel, if it is of one.
    pub(super) fn unit(&self) -> Option<&Unit> {
        if let What::Kernel(found) = &self.what { Some(&found.unit) } else { None }
    }

    /// The key of its entry, if it has this hash.
    pub(super) fn key(&self, hash: &str) -> Key {
        let (section, of) = match &self.what {
            What::Workloads(dtype) => (Section::Workloads, dtype.name()),
            What::Random(dtype) => (Section::Random, dtype.name()),
            What::Kernel(_) => (Section::Kernels, hash),
        };
        Key::new(section, self.operator.name, self.variant.spec().id, of)
    }
}
