//! What a ledger must have an entry of, as a flat list.

use std::sync::{LazyLock, OnceLock};

use msdeform::{DType, Operator};
use msdeform_cuda::DeviceProps;
use msdeform_cuda::variants::Variant;
use msdeform_cuda_lab::REGISTRY;
use msdeform_lab::models::{self, Specialisation};

use super::hashes::{Sources, takes};
use super::{Entry, Key, What, key};

/// One thing that a GPU must have verified.
pub(super) struct Claim {
    pub(super) what: What,
    pub(super) operator: &'static Operator,
    pub(super) variant: &'static Variant,
    /// Of a variant.
    dtype: Option<DType>,
    pub(super) kernel: Option<Specialisation>,
    /// Of today's sources. Thousands of kernels are configured and hashed, each once in a process.
    hash: OnceLock<String>,
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
        let claim = |what, variant, dtype, kernel| Self {
            what,
            operator,
            variant,
            dtype,
            kernel,
            hash: OnceLock::new(),
        };
        let is_plain = *operator == msdeform::ATTENTION;
        let mut found = Vec::new();
        for &variant in REGISTRY.iter().filter(|variant| is_plain || takes(variant, operator)) {
            let wanted = [What::Workloads, What::Random];
            let wanted = if variant.spec.rung { &wanted[..1] } else { &wanted };
            for &dtype in variant.spec.dtypes {
                found.extend(wanted.iter().map(|&what| claim(what, variant, Some(dtype), None)));
            }
        }
        let kernels = models::specialisations(&DeviceProps::h200(), operator).into_iter();
        found.extend(kernels.map(|k| claim(What::Kernels, k.variant, None, Some(k))));
        found
    }

    pub(super) fn id(&self) -> &'static str {
        self.variant.spec.id
    }

    /// Empty of a kernel.
    pub(super) fn dtype(&self) -> &'static str {
        self.dtype.map_or("", DType::name)
    }

    pub(super) fn hash(&self) -> &str {
        self.hash.get_or_init(|| self.hash_of(Sources::of(self.variant)))
    }

    /// Its hash if the variant had these texts: of a kernel, of a variant with its launches, or of the texts alone.
    pub(super) fn hash_of(&self, sources: &Sources) -> String {
        match (&self.kernel, self.dtype) {
            (Some(kernel), _) => sources.unit_hash(&kernel.unit),
            (None, Some(dtype)) if self.what == What::Workloads => {
                sources.fingerprint(self.variant, dtype, self.operator)
            }
            _ => sources.hash(),
        }
    }

    /// The key of its entry, if it has this hash.
    pub(super) fn key(&self, hash: &str) -> Key {
        key(self.what, self.operator.name, self.id(), self.dtype(), hash)
    }

    /// An entry without a result for this hash.
    pub(super) fn entry(&self, hash: &str) -> Entry {
        let (operator, variant) = (self.operator.name.to_owned(), self.id().to_owned());
        let (dtype, hash) = (self.dtype().to_owned(), hash.to_owned());
        Entry { what: self.what, operator, variant, dtype, hash, ..Entry::default() }
    }
}
