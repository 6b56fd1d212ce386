//! What a ledger must have an entry of, as a flat list.

use std::sync::{LazyLock, OnceLock};

use msdeform::{DType, Operator};
use msdeform_cuda::DeviceProps;
use msdeform_cuda::variants::Variant;
use msdeform_cuda_lab::REGISTRY;
use msdeform_lab::models::{self, Specialisation};

use super::hashes::{Sources, takes};
use super::{Key, Section};

/// One thing that a GPU must have verified.
pub(super) struct Claim {
    pub(super) operator: &'static Operator,
    pub(super) variant: &'static Variant,
    pub(super) what: What,
    /// Of today's sources. Thousands of kernels are configured and hashed, each once in a process.
    hash: OnceLock<String>,
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
    /// random problems, and only the plain operator.
    pub(super) fn all(operator: &Operator) -> impl Iterator<Item = &'static Self> + use<> {
        static KNOWN: LazyLock<Vec<Claim>> =
            LazyLock::new(|| Operator::ALL.into_iter().flat_map(Claim::of_operator).collect());
        let name = operator.name;
        KNOWN.iter().filter(move |claim| claim.operator.name == name)
    }

    fn of_operator(operator: &'static Operator) -> Vec<Self> {
        let claim = |variant, what| Self { operator, variant, what, hash: OnceLock::new() };
        let is_plain = *operator == msdeform::ATTENTION;
        let mut found = Vec::new();
        for &variant in REGISTRY.iter().filter(|variant| is_plain || takes(variant, operator)) {
            for &dtype in variant.spec.dtypes {
                found.push(claim(variant, What::Workloads(dtype)));
                found.extend((!variant.spec.rung).then(|| claim(variant, What::Random(dtype))));
            }
        }
        let kernels = models::specialisations(&DeviceProps::h200(), operator).into_iter();
        found.extend(kernels.map(|kernel| claim(kernel.variant, What::Kernel(Box::new(kernel)))));
        found
    }

    pub(super) fn id(&self) -> &'static str {
        self.variant.spec.id
    }

    pub(super) fn hash(&self) -> &str {
        self.hash.get_or_init(|| self.hash_of(Sources::of(self.variant)))
    }

    /// Its hash if the variant had these texts.
    pub(super) fn hash_of(&self, sources: &Sources) -> String {
        match &self.what {
            What::Workloads(dtype) => sources.fingerprint(self.variant, *dtype, self.operator),
            What::Random(_) => sources.hash(),
            What::Kernel(found) => sources.unit_hash(&found.unit),
        }
    }

    /// The key of its entry, if it has this hash.
    pub(super) fn key(&self, hash: &str) -> Key {
        let (section, of) = match &self.what {
            What::Workloads(dtype) => (Section::Workloads, dtype.name()),
            What::Random(dtype) => (Section::Random, dtype.name()),
            What::Kernel(_) => (Section::Kernels, hash),
        };
        (section, self.operator.name.to_owned(), self.id().to_owned(), of.to_owned())
    }
}
