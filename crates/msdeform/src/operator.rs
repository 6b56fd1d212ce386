//! What an operator is: the tensors it reads and the one it makes. Everything else that is known about a call's
//! tensors, in either direction and on every device, follows from this.

use std::fmt;

use crate::{DType, Direction, Problem, Shape};

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
    shape: fn(&Problem) -> Shape,
    gradient: Option<Role>,
}

const _: () = {
    let mut place = 0;
    while place < Role::COUNT {
        assert!(DESCRIPTIONS[place].role.index() == place, "in the order of the roles");
        place += 1;
    }
};

const DESCRIPTIONS: [Description; Role::COUNT] = {
    use Role::*;
    const fn of(
        role: Role,
        (name, field): (&'static str, &'static str),
        storage: Storage,
        shape: fn(&Problem) -> Shape,
        gradient: Option<Role>,
    ) -> Description {
        Description { role, name, field, storage, shape, gradient }
    }
    let value: fn(&Problem) -> Shape = |of| Shape::new(of.value_shape());
    let pairs: fn(&Problem) -> Shape = |of| Shape::new(of.locations_shape());
    let numbers: fn(&Problem) -> Shape = |of| Shape::new(of.weights_shape());
    let output: fn(&Problem) -> Shape = |of| Shape::new(of.output_shape());
    let references: fn(&Problem) -> Shape = |of| Shape::new(of.references_shape());
    let (channels, samples) = (Storage::Channels, Storage::Samples);
    [
        of(Value, ("value", "value"), channels, value, Some(GradValue)),
        of(Locations, ("sampling_locations", "locations"), samples, pairs, Some(GradLocations)),
        of(Weights, ("attention_weights", "weights"), samples, numbers, Some(GradWeights)),
        of(Output, ("output", "output"), Storage::Output, output, Some(GradOutput)),
        of(GradValue, ("grad_value", "grad_value"), channels, value, None),
        of(GradLocations, ("grad_sampling_locations", "grad_locations"), samples, pairs, None),
        of(GradWeights, ("grad_attention_weights", "grad_weights"), samples, numbers, None),
        of(GradOutput, ("grad_output", "grad_output"), Storage::Output, output, None),
        of(
            References,
            ("reference_points", "references"),
            Storage::References,
            references,
            Some(GradReferences),
        ),
        of(Offsets, ("sampling_offsets", "offsets"), samples, pairs, Some(GradOffsets)),
        of(Logits, ("attention_logits", "logits"), samples, numbers, Some(GradLogits)),
        of(
            GradReferences,
            ("grad_reference_points", "grad_references"),
            Storage::References,
            references,
            None,
        ),
        of(GradOffsets, ("grad_sampling_offsets", "grad_offsets"), samples, pairs, None),
        of(GradLogits, ("grad_attention_logits", "grad_logits"), samples, numbers, None),
    ]
};

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
    pub const fn index(self) -> usize {
        self as usize
    }

    const fn description(self) -> &'static Description {
        &DESCRIPTIONS[self.index()]
    }

    /// Its name in signatures, errors and files.
    pub const fn name(self) -> &'static str {
        self.description().name
    }

    /// Its name in kernels and their parameters.
    pub const fn field(self) -> &'static str {
        self.description().field
    }

    /// Whose format and alignment it has.
    pub const fn storage(self) -> Storage {
        self.description().storage
    }

    /// The most that [`Role::free_axes`] returns.
    pub(crate) const MOST_FREE_AXES: usize = 3;

    /// How many of the first axes may have any strides in a call on a CPU, or on a GPU. The elements of the other axes are
    /// contiguous. Of values on a GPU only the last axis must be.
    pub const fn free_axes(self, is_on_cpu: bool) -> usize {
        match self {
            Self::Value if !is_on_cpu => 3,
            Self::References if is_on_cpu => 3,
            Self::References | Self::Offsets | Self::Logits => 2,
            _ => 0,
        }
    }

    /// The gradient of this tensor; none of a gradient.
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
    pub const fn operator(&self) -> &'static Operator {
        Operator::by_rule(self.offsets().is_some())
    }

    /// Shape of a tensor where it is packed. Samples are one axis.
    pub fn shape_of(&self, role: Role) -> Shape {
        (role.description().shape)(self)
    }

    /// Elements of a tensor where it is packed.
    pub fn len_of(&self, role: Role) -> usize {
        self.shape_of(role).iter().product()
    }

    /// Storage format of a tensor.
    pub const fn format_of(&self, role: Role) -> DType {
        match role.storage() {
            Storage::Channels => self.dtype(),
            Storage::Output => self.output_dtype(),
            Storage::Samples => self.sampling_dtype(),
            Storage::References => self.reference_dtype(),
        }
    }

    /// Bytes of a tensor where it is packed.
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
