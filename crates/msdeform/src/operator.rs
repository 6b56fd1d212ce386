//! What an operator is: the tensors it reads and the one it makes. Everything else that is known about a call's
//! tensors, in either direction and on every device, follows from this.

use std::fmt;

use crate::{DType, Direction, Problem};

/// A tensor of a call, by what it is to the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// `[N, S, M, D]`, or head-major.
    Value,
    /// `[N, Lq, M, samples, 2]`: where samples are taken.
    Locations,
    /// `[N, Lq, M, samples]`: what each counts.
    Weights,
    /// `[N, Lq, M * D]`.
    Output,
    /// The gradient of the values, packed in their layout.
    GradValue,
    /// The gradient of the locations.
    GradLocations,
    /// The gradient of the weights.
    GradWeights,
    /// The gradient of the output.
    GradOutput,
    /// `[N, Lq, references, 2 or 4]`: the points or boxes that offsets start from.
    References,
    /// `[N, Lq, M, samples, 2]`: how far from them samples are taken.
    Offsets,
    /// `[N, Lq, M, samples]`: what each counts, before the softmax.
    Logits,
    /// The gradient of the references, packed.
    GradReferences,
    /// The gradient of the offsets.
    GradOffsets,
    /// The gradient of the logits.
    GradLogits,
}

/// Whose storage format a tensor has, and whose alignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Storage {
    /// That of the values and their gradient: rows of channels.
    Channels,
    /// That of the output and its gradient: rows of channels too.
    Output,
    /// That of locations and weights, or offsets and logits: a few numbers for every sample.
    Samples,
    /// That of the references: a few numbers for every query.
    References,
}

/// What a call does with a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// It reads it, and leaves it as it is.
    Read,
    /// It writes every element.
    Write,
}

/// What there is to know about a role.
struct Description {
    role: Role,
    /// As users meet it: in signatures, errors and files.
    name: &'static str,
    /// As kernels and parameters call it.
    field: &'static str,
    storage: Storage,
    gradient: Option<Role>,
    len: fn(&Problem) -> usize,
}

const _: () = {
    let mut place = 0;
    while place < Role::COUNT {
        assert!(DESCRIPTIONS[place].role.index() == place, "in the order of the roles");
        place += 1;
    }
};

const DESCRIPTIONS: [Description; Role::COUNT] = [
    Description {
        role: Role::Value,
        name: "value",
        field: "value",
        storage: Storage::Channels,
        gradient: Some(Role::GradValue),
        len: Problem::value_len,
    },
    Description {
        role: Role::Locations,
        name: "sampling_locations",
        field: "locations",
        storage: Storage::Samples,
        gradient: Some(Role::GradLocations),
        len: Problem::locations_len,
    },
    Description {
        role: Role::Weights,
        name: "attention_weights",
        field: "weights",
        storage: Storage::Samples,
        gradient: Some(Role::GradWeights),
        len: Problem::weights_len,
    },
    Description {
        role: Role::Output,
        name: "output",
        field: "output",
        storage: Storage::Output,
        gradient: Some(Role::GradOutput),
        len: Problem::output_len,
    },
    Description {
        role: Role::GradValue,
        name: "grad_value",
        field: "grad_value",
        storage: Storage::Channels,
        gradient: None,
        len: Problem::value_len,
    },
    Description {
        role: Role::GradLocations,
        name: "grad_sampling_locations",
        field: "grad_locations",
        storage: Storage::Samples,
        gradient: None,
        len: Problem::locations_len,
    },
    Description {
        role: Role::GradWeights,
        name: "grad_attention_weights",
        field: "grad_weights",
        storage: Storage::Samples,
        gradient: None,
        len: Problem::weights_len,
    },
    Description {
        role: Role::GradOutput,
        name: "grad_output",
        field: "grad_output",
        storage: Storage::Output,
        gradient: None,
        len: Problem::output_len,
    },
    Description {
        role: Role::References,
        name: "reference_points",
        field: "references",
        storage: Storage::References,
        gradient: Some(Role::GradReferences),
        len: Problem::references_len,
    },
    Description {
        role: Role::Offsets,
        name: "sampling_offsets",
        field: "offsets",
        storage: Storage::Samples,
        gradient: Some(Role::GradOffsets),
        len: Problem::locations_len,
    },
    Description {
        role: Role::Logits,
        name: "attention_logits",
        field: "logits",
        storage: Storage::Samples,
        gradient: Some(Role::GradLogits),
        len: Problem::weights_len,
    },
    Description {
        role: Role::GradReferences,
        name: "grad_reference_points",
        field: "grad_references",
        storage: Storage::References,
        gradient: None,
        len: Problem::references_len,
    },
    Description {
        role: Role::GradOffsets,
        name: "grad_sampling_offsets",
        field: "grad_offsets",
        storage: Storage::Samples,
        gradient: None,
        len: Problem::locations_len,
    },
    Description {
        role: Role::GradLogits,
        name: "grad_attention_logits",
        field: "grad_logits",
        storage: Storage::Samples,
        gradient: None,
        len: Problem::weights_len,
    },
];

impl Role {
    /// How many there are.
    pub const COUNT: usize = 14;

    /// All of them, in the order of a table of all.
    pub const ALL: [Self; Self::COUNT] = {
        let mut all = [Self::Value; Self::COUNT];
        let mut place = 0;
        while place < Self::COUNT {
            all[place] = DESCRIPTIONS[place].role;
            place += 1;
        }
        all
    };

    /// Its place in a table of all.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    const fn description(self) -> &'static Description {
        &DESCRIPTIONS[self.index()]
    }

    /// Its name in signatures, errors and files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.description().name
    }

    /// Its name in kernels and their parameters.
    #[must_use]
    pub const fn field(self) -> &'static str {
        self.description().field
    }

    /// Whose format and alignment it has.
    #[must_use]
    pub const fn storage(self) -> Storage {
        self.description().storage
    }

    /// How many of the first axes may have any strides in a call on a CPU, or on a GPU. The elements of the other axes are
    /// contiguous. Of values on a GPU only the last axis must be.
    #[must_use]
    pub const fn free_axes(self, is_on_cpu: bool) -> usize {
        match self {
            Self::Value if !is_on_cpu => 3,
            Self::References if is_on_cpu => 3,
            Self::References | Self::Offsets | Self::Logits => 2,
            _ => 0,
        }
    }

    /// The gradient of this tensor; none of a gradient.
    #[must_use]
    pub const fn gradient(self) -> Option<Self> {
        self.description().gradient
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// An operator: what it reads and what it makes of that.
#[derive(Debug, PartialEq, Eq)]
pub struct Operator {
    /// Its name in records and tables.
    pub name: &'static str,
    /// How the problem of another operator is built, for error messages.
    pub(crate) otherwise: &'static str,
    /// What a forward call reads. A backward call reads it again and writes the gradient of each, as far as asked.
    pub inputs: &'static [Role],
    /// What a forward call writes. A backward call reads its gradient.
    pub output: Role,
}

/// The plain operator: it reads sampling locations and attention weights.
pub static ATTENTION: Operator = Operator {
    name: "plain",
    otherwise: "with `.offsets(rule)`",
    inputs: &[Role::Value, Role::Locations, Role::Weights],
    output: Role::Output,
};

/// The fused operator: it computes locations and weights from a model's raw offsets and logits.
pub static FROM_OFFSETS: Operator = Operator {
    name: "fused",
    otherwise: "without `.offsets(rule)`",
    inputs: &[Role::Value, Role::References, Role::Offsets, Role::Logits],
    output: Role::Output,
};

impl Operator {
    /// Every operator there is.
    pub const ALL: [&Self; 2] = [&ATTENTION, &FROM_OFFSETS];

    /// The operator of a problem, which depends on whether it has a rule for offsets.
    pub(crate) const fn by_rule(has_rule: bool) -> &'static Self {
        if has_rule { &FROM_OFFSETS } else { &ATTENTION }
    }

    /// The inputs, for error messages.
    pub(crate) fn input_names(&self) -> String {
        let names: Vec<String> = self.inputs.iter().map(|role| format!("`{role}`")).collect();
        names.join(", ")
    }

    /// The tensors of a call: what is read, then what is written, in the order of every signature and parameter.
    pub fn tensors(&self, direction: Direction) -> impl Iterator<Item = (Role, Access)> + use<> {
        let (inputs, output) = (self.inputs, self.output);
        let is_backward = direction == Direction::Backward;
        let gradients =
            inputs.iter().filter_map(|input| input.gradient()).filter(move |_| is_backward);
        let upstream = output.gradient().filter(|_| is_backward);
        let read = inputs.iter().copied().chain(upstream).map(|role| (role, Access::Read));
        let made = Some(output).filter(|_| !is_backward);
        read.chain(made.into_iter().chain(gradients).map(|role| (role, Access::Write)))
    }

    /// The tensors that a call writes.
    pub fn written(&self, direction: Direction) -> impl Iterator<Item = Role> + use<> {
        self.tensors(direction).filter(|(_, access)| *access == Access::Write).map(|(role, _)| role)
    }
}

impl Problem {
    /// The operator whose call the problem describes.
    #[must_use]
    pub const fn operator(&self) -> &'static Operator {
        Operator::by_rule(self.offsets().is_some())
    }

    /// Elements of a tensor where it is packed.
    #[must_use]
    pub fn len_of(&self, role: Role) -> usize {
        (role.description().len)(self)
    }

    /// Storage format of a tensor.
    #[must_use]
    pub const fn format_of(&self, role: Role) -> DType {
        match role.storage() {
            Storage::Channels => self.dtype(),
            Storage::Output => self.output_dtype(),
            Storage::Samples => self.sampling_dtype(),
            Storage::References => self.reference_dtype(),
        }
    }

    /// Bytes of a tensor where it is packed.
    #[must_use]
    pub fn bytes_of(&self, role: Role) -> usize {
        self.len_of(role) * self.format_of(role).size_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Offsets;

    #[test]
    fn a_gradient_has_the_shape_and_format_of_its_tensor() {
        let problem = Problem::builder()
            .batch(2)
            .heads(3)
            .channels(5)
            .queries(7)
            .levels([(4, 6), (2, 3)])
            .points(2)
            .dtype(DType::F16)
            .output_dtype(DType::Bf16)
            .sampling_dtype(DType::F32)
            .offsets(Offsets::from_boxes())
            .reference_dtype(DType::F64)
            .build()
            .unwrap();
        let roles = ATTENTION.inputs.iter().chain(FROM_OFFSETS.inputs);
        for role in roles.chain([&ATTENTION.output]) {
            let gradient = role.gradient().unwrap();
            assert_eq!(gradient.name(), format!("grad_{role}"));
            assert_eq!(problem.len_of(gradient), problem.len_of(*role));
            assert_eq!(problem.format_of(gradient), problem.format_of(*role));
            assert_eq!(gradient.gradient(), None);
        }
        assert_eq!(problem.format_of(Role::Value), DType::F16);
        assert_eq!(problem.format_of(Role::GradOutput), DType::Bf16);
        assert_eq!(problem.bytes_of(Role::GradWeights), 2 * 7 * 3 * 4 * 4);
        assert_eq!(problem.bytes_of(Role::GradReferences), 2 * 7 * 2 * 4 * 8);
        assert_eq!(problem.operator(), &FROM_OFFSETS);
    }

    #[test]
    fn the_backward_follows_from_the_forward() {
        let names = |direction| {
            let tensors = ATTENTION.tensors(direction);
            tensors.map(|(role, access)| format!("{access:?} {}", role.field())).collect::<Vec<_>>()
        };
        assert_eq!(
            names(Direction::Forward),
            ["Read value", "Read locations", "Read weights", "Write output"]
        );
        assert_eq!(
            names(Direction::Backward),
            [
                "Read value",
                "Read locations",
                "Read weights",
                "Read grad_output",
                "Write grad_value",
                "Write grad_locations",
                "Write grad_weights",
            ]
        );
        assert_eq!(ATTENTION.written(Direction::Backward).count(), 3);
    }
}
