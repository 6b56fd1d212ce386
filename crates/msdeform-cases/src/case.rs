//! One call with all that can be said about it, and the line that stands for it.

use std::fmt;
use std::fmt::Write as _;
use std::str::FromStr;

use msdeform::{DType, Direction, Mode, Problem, Role, ValueLayout};
use msdeform_cuda::variants::{BackwardCall, Call, Configuration};
use msdeform_cuda::{DeviceProps, Gradients, OutputStrides, ValueStrides};

use crate::numbers::{Locations, Values, Weights};

/// A call of the operator: sizes, formats, memory, numbers, and who computes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// Sizes, formats and layout.
    pub problem: Problem,
    /// What it computes.
    pub wants: Wants,
    /// What gradients promise.
    pub mode: Mode,
    /// How the values lie in memory.
    pub value_memory: ValueMemory,
    /// How the gradient of the output lies in memory.
    pub upstream_memory: UpstreamMemory,
    /// Elements before the first one of each tensor, from an address that is a multiple of 256.
    pub offsets: Offsets,
    /// What the tensors hold.
    pub numbers: Numbers,
    /// Which numbers of that kind.
    pub seed: u64,
    /// Width of the raster that the queries are said to form.
    pub raster_width: u32,
    /// Who computes it.
    pub choice: Choice,
}

/// What a call computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wants {
    /// The forward pass.
    Output,
    /// These gradients.
    Gradients(Gradients),
}

impl Wants {
    /// Everything that a direction computes.
    #[must_use]
    pub const fn all(direction: Direction) -> Self {
        match direction {
            Direction::Forward => Self::Output,
            Direction::Backward => Self::Gradients(Gradients::ALL),
        }
    }
}

/// The values as a slice of a larger tensor: so many more pixels, heads and channels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ValueMemory {
    /// Pixels behind those of an image.
    pub pixels: usize,
    /// Heads behind those that are used.
    pub heads: usize,
    /// Channels behind those of a head.
    pub channels: usize,
    /// All images are the same memory.
    pub one_image: bool,
}

/// How the gradient of the output lies in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum UpstreamMemory {
    /// Contiguous.
    #[default]
    Packed,
    /// One number seen from everywhere: what `sum().backward()` delivers.
    Expanded,
    /// All queries share a row: what `mean(1).backward()` delivers.
    SharedRow,
    /// Part of longer rows, not a multiple of any vector.
    Sliced,
    /// Queries before images, as models that keep sequences first have it.
    QueriesFirst,
    /// Channels are not neighbours.
    Spread,
    /// All images share one: what a mean over the batch delivers.
    SharedImage,
    /// Channels before everything else: what a transposed view delivers.
    ChannelsFirst,
}

impl UpstreamMemory {
    /// All of them, the plainest first.
    pub const ALL: [Self; 8] = [
        Self::Packed,
        Self::Expanded,
        Self::SharedRow,
        Self::Sliced,
        Self::QueriesFirst,
        Self::Spread,
        Self::SharedImage,
        Self::ChannelsFirst,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Packed => "packed",
            Self::Expanded => "expanded",
            Self::SharedRow => "shared_row",
            Self::Sliced => "sliced",
            Self::QueriesFirst => "queries_first",
            Self::Spread => "spread",
            Self::SharedImage => "shared_image",
            Self::ChannelsFirst => "channels_first",
        }
    }
}

/// Elements before the first one of each tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offsets {
    /// Of the values.
    pub value: usize,
    /// Of the locations.
    pub locations: usize,
    /// Of the weights.
    pub weights: usize,
    /// Of the gradient of the output.
    pub upstream: usize,
    /// Of the output, or of the gradient of the values.
    pub first: usize,
    /// Of the gradient of the locations.
    pub grad_locations: usize,
    /// Of the gradient of the weights.
    pub grad_weights: usize,
}

impl Offsets {
    fn list(self) -> [usize; 7] {
        let Self { value, locations, weights, upstream, first, grad_locations, grad_weights } =
            self;
        [value, locations, weights, upstream, first, grad_locations, grad_weights]
    }
}

impl From<[usize; 7]> for Offsets {
    fn from(list: [usize; 7]) -> Self {
        let [value, locations, weights, upstream, first, grad_locations, grad_weights] = list;
        Self { value, locations, weights, upstream, first, grad_locations, grad_weights }
    }
}

/// What the tensors hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// Where samples lie.
    pub locations: Locations,
    /// What the values are.
    pub values: Values,
    /// What the weights are.
    pub weights: Weights,
    /// What the gradient of the output is.
    pub upstream: Values,
}

impl Default for Numbers {
    fn default() -> Self {
        Self {
            locations: Locations::Inside,
            values: Values::Unit,
            weights: Weights::Softmax,
            upstream: Values::Unit,
        }
    }
}

/// Who computes a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// Whatever the backend chooses.
    #[default]
    Own,
    /// This variant, with these knobs set by hand: what a tuning file could say.
    Named {
        /// Its id.
        variant: String,
        /// Knobs and their values.
        knobs: Vec<(String, i64)>,
    },
}

impl Case {
    /// A plain call: contiguous, ordinary numbers, the backend's own choice.
    #[must_use]
    pub fn plain(problem: Problem, wants: Wants) -> Self {
        Self {
            problem,
            wants,
            mode: Mode::Fast,
            value_memory: ValueMemory::default(),
            upstream_memory: UpstreamMemory::Packed,
            offsets: Offsets::default(),
            numbers: Numbers::default(),
            seed: 0,
            raster_width: 0,
            choice: Choice::Own,
        }
    }

    /// The same, computed by this variant with these knobs.
    #[must_use]
    pub fn by(self, variant: &str, knobs: Vec<(String, i64)>) -> Self {
        Self { choice: Choice::Named { variant: variant.to_owned(), knobs }, ..self }
    }

    /// Which way it goes.
    #[must_use]
    pub const fn direction(&self) -> Direction {
        match self.wants {
            Wants::Output => Direction::Forward,
            Wants::Gradients(_) => Direction::Backward,
        }
    }

    /// The call of a GPU that this is.
    #[must_use]
    pub fn call<'a>(&'a self, device: &'a DeviceProps) -> Call<'a> {
        let backward = match self.wants {
            Wants::Output => None,
            Wants::Gradients(gradients) => {
                let grad_output = self.upstream_strides();
                Some(BackwardCall { gradients, mode: self.mode, grad_output })
            }
        };
        Call {
            problem: &self.problem,
            strides: self.value_strides(),
            device,
            query_raster_width: self.raster_width,
            backward,
        }
    }

    /// The same call with every tensor as little aligned as a configuration allows.
    #[must_use]
    pub fn least_aligned(mut self, configuration: &Configuration) -> Self {
        let of = |role: Role| {
            configuration.alignment(role.storage()) / self.problem.format_of(role).size_bytes()
        };
        self.offsets = Offsets {
            value: of(Role::Value),
            locations: of(Role::Locations),
            weights: of(Role::Weights),
            upstream: of(Role::GradOutput),
            first: of(Role::Output).max(of(Role::GradValue)),
            grad_locations: of(Role::GradLocations),
            grad_weights: of(Role::GradWeights),
        };
        self
    }

    /// Where the values lie.
    #[must_use]
    pub fn value_strides(&self) -> ValueStrides {
        let ValueMemory { pixels, heads, channels, one_image } = self.value_memory;
        let pixels = (self.problem.spatial() + pixels) as i64;
        let heads = (self.problem.heads() + heads) as i64;
        let channels = (self.problem.channels() + channels) as i64;
        let batch = if one_image { 0 } else { pixels * heads * channels };
        if self.problem.layout().is_head_major() {
            ValueStrides { batch, head: pixels * channels, pixel: channels }
        } else {
            ValueStrides { batch, head: channels, pixel: heads * channels }
        }
    }

    /// Where the gradient of the output lies.
    #[must_use]
    pub fn upstream_strides(&self) -> OutputStrides {
        let packed = OutputStrides::packed(&self.problem);
        let (batch, row) = (self.problem.batch() as i64, packed.query);
        match self.upstream_memory {
            UpstreamMemory::Packed => packed,
            UpstreamMemory::Expanded => OutputStrides { batch: 0, query: 0, head: 0, channel: 0 },
            UpstreamMemory::SharedRow => OutputStrides { batch: row, query: 0, ..packed },
            UpstreamMemory::Sliced => OutputStrides {
                batch: self.problem.queries() as i64 * (row + 3),
                query: row + 3,
                ..packed
            },
            UpstreamMemory::QueriesFirst => {
                OutputStrides { batch: row, query: batch * row, ..packed }
            }
            UpstreamMemory::Spread => OutputStrides {
                batch: 2 * packed.batch,
                query: 2 * packed.query,
                head: 2 * packed.head,
                channel: 2,
            },
            UpstreamMemory::SharedImage => OutputStrides { batch: 0, ..packed },
            UpstreamMemory::ChannelsFirst => {
                let heads = self.problem.heads() as i64;
                let image = self.problem.queries() as i64 * heads;
                OutputStrides { batch: image, query: heads, head: 1, channel: batch * image }
            }
        }
    }

    /// Whether what is read lies as the processor's plans take it.
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        self.value_memory == ValueMemory::default()
            && self.upstream_memory == UpstreamMemory::Packed
    }

    /// Multiply-adds of the reference: what a case costs to check.
    #[must_use]
    pub fn work(&self) -> u64 {
        let samples = self.problem.weights_len() as u64;
        let each = 4 * self.problem.channels() as u64 + 16;
        samples * each + self.problem.value_len() as u64 + self.problem.output_len() as u64
    }
}

impl fmt::Display for Case {
    /// The line that makes it again: `key=value` for whatever is not as plain as it could be.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let p = &self.problem;
        let (batch, heads, channels, queries) = (p.batch(), p.heads(), p.channels(), p.queries());
        write!(f, "batch={batch} heads={heads} channels={channels} queries={queries}")?;
        let levels = p.levels().iter().map(|l| format!("{}x{}@{}", l.height, l.width, l.start));
        write!(f, " levels={} spatial={}", levels.collect::<Vec<_>>().join(","), p.spatial())?;
        write!(f, " points={} dtype={}", joined(p.points()), p.dtype())?;
        if p.sampling_dtype() != p.dtype() {
            write!(f, " sampling={}", p.sampling_dtype())?;
        }
        if p.layout() != ValueLayout::Interleaved {
            write!(f, " layout={}", p.layout())?;
        }
        if let Wants::Gradients(gradients) = self.wants {
            write!(f, " gradients={gradients} mode={}", self.mode)?;
        }
        if self.value_memory != ValueMemory::default() {
            let ValueMemory { pixels, heads, channels, one_image } = self.value_memory;
            let list = [pixels, heads, channels, usize::from(one_image)];
            write!(f, " value_memory={}", joined(&list))?;
        }
        if self.upstream_memory != UpstreamMemory::Packed {
            write!(f, " upstream_memory={}", self.upstream_memory.name())?;
        }
        if self.offsets != Offsets::default() {
            write!(f, " offsets={}", joined(&self.offsets.list()))?;
        }
        let Numbers { locations, values, weights, upstream } = self.numbers;
        write!(f, " locations={locations} values={values} weights={weights}")?;
        if let Wants::Gradients(_) = self.wants {
            write!(f, " upstream={upstream}")?;
        }
        write!(f, " seed={}", self.seed)?;
        if self.raster_width > 0 {
            write!(f, " raster={}", self.raster_width)?;
        }
        if let Choice::Named { variant, knobs } = &self.choice {
            write!(f, " variant={variant}")?;
            let mut list = String::new();
            for (name, value) in knobs {
                let comma = if list.is_empty() { "" } else { "," };
                write!(list, "{comma}{name}:{value}")?;
            }
            if !list.is_empty() {
                write!(f, " knobs={list}")?;
            }
        }
        Ok(())
    }
}

fn joined<T: ToString>(list: &[T]) -> String {
    list.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// A line that is no case.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a case: {0}")]
pub struct BadLine(String);

impl FromStr for Case {
    type Err = BadLine;

    fn from_str(line: &str) -> Result<Self, BadLine> {
        let mut fields = Fields::new(line)?;
        let mut levels = Vec::new();
        let mut starts = Vec::new();
        for level in fields.take("levels")?.split(',').filter(|level| !level.is_empty()) {
            let (size, start) = level.split_once('@').ok_or_else(|| bad("levels", level))?;
            let (height, width) = size.split_once('x').ok_or_else(|| bad("levels", level))?;
            levels.push((parsed::<i64>("levels", height)?, parsed::<i64>("levels", width)?));
            starts.push(parsed::<i64>("levels", start)?);
        }
        let dtype: DType = fields.parse("dtype")?;
        let problem = Problem::builder()
            .batch(fields.parse("batch")?)
            .heads(fields.parse("heads")?)
            .channels(fields.parse("channels")?)
            .queries(fields.parse("queries")?)
            .levels(levels)
            .level_starts(starts)
            .spatial(fields.parse("spatial")?)
            .points_per_level(numbers("points", fields.take("points")?)?)
            .dtype(dtype)
            .sampling_dtype(fields.parse_or("sampling", dtype)?)
            .layout(fields.parse_or("layout", ValueLayout::Interleaved)?)
            .build()
            .map_err(|error| BadLine(error.to_string()))?;
        let wants = match fields.optional("gradients") {
            None => Wants::Output,
            Some(names) => Wants::Gradients(gradients(names)?),
        };
        let mut case = Self::plain(problem, wants);
        case.mode = fields.parse_or("mode", Mode::Fast)?;
        if let Some(list) = fields.optional("value_memory") {
            let list = numbers("value_memory", list)?;
            let &[pixels, heads, channels, one_image] = &list[..] else {
                return Err(BadLine("value_memory has four numbers".into()));
            };
            case.value_memory = ValueMemory { pixels, heads, channels, one_image: one_image != 0 };
        }
        if let Some(name) = fields.optional("upstream_memory") {
            let found = UpstreamMemory::ALL.into_iter().find(|kind| kind.name() == name);
            case.upstream_memory = found.ok_or_else(|| bad("upstream_memory", name))?;
        }
        if let Some(list) = fields.optional("offsets") {
            let list = <[usize; 7]>::try_from(numbers("offsets", list)?);
            let list = list.map_err(|_| BadLine("offsets has seven numbers".into()))?;
            case.offsets = list.into();
        }
        let plain = Numbers::default();
        case.numbers = Numbers {
            locations: fields.parse_or("locations", plain.locations)?,
            values: fields.parse_or("values", plain.values)?,
            weights: fields.parse_or("weights", plain.weights)?,
            upstream: fields.parse_or("upstream", plain.upstream)?,
        };
        case.seed = fields.parse_or("seed", 0)?;
        case.raster_width = fields.parse_or("raster", 0)?;
        let knobs = fields.optional("knobs").unwrap_or_default();
        if let Some(variant) = fields.optional("variant") {
            let knobs = knobs.split(',').filter(|knob| !knob.is_empty()).map(|knob| {
                let (name, value) = knob.split_once(':').ok_or_else(|| bad("knobs", knob))?;
                Ok((name.to_owned(), parsed("knobs", value)?))
            });
            let knobs = knobs.collect::<Result<_, BadLine>>()?;
            case.choice = Choice::Named { variant: variant.to_owned(), knobs };
        }
        fields.finish()?;
        Ok(case)
    }
}

/// The `key=value` words of a line.
struct Fields<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Fields<'a> {
    fn new(line: &'a str) -> Result<Self, BadLine> {
        let words = line.split_whitespace();
        let fields = words.map(|word| {
            word.split_once('=').ok_or_else(|| BadLine(format!("`{word}` is not key=value")))
        });
        Ok(Self(fields.collect::<Result<_, _>>()?))
    }

    fn optional(&mut self, key: &str) -> Option<&'a str> {
        let at = self.0.iter().position(|(found, _)| *found == key)?;
        Some(self.0.swap_remove(at).1)
    }

    fn take(&mut self, key: &str) -> Result<&'a str, BadLine> {
        self.optional(key).ok_or_else(|| BadLine(format!("{key}= is missing")))
    }

    fn parse<T: FromStr>(&mut self, key: &str) -> Result<T, BadLine> {
        parsed(key, self.take(key)?)
    }

    fn parse_or<T: FromStr>(&mut self, key: &str, default: T) -> Result<T, BadLine> {
        self.optional(key).map_or(Ok(default), |word| parsed(key, word))
    }

    fn finish(self) -> Result<(), BadLine> {
        match self.0.first() {
            None => Ok(()),
            Some((key, _)) => Err(BadLine(format!("unknown key `{key}`"))),
        }
    }
}

fn bad(key: &str, word: &str) -> BadLine {
    BadLine(format!("{key}={word}"))
}

fn parsed<T: FromStr>(key: &str, word: &str) -> Result<T, BadLine> {
    word.parse().map_err(|_| bad(key, word))
}

fn numbers(key: &str, list: &str) -> Result<Vec<usize>, BadLine> {
    list.split(',').filter(|word| !word.is_empty()).map(|word| parsed(key, word)).collect()
}

fn gradients(names: &str) -> Result<Gradients, BadLine> {
    let mut found = Gradients { value: false, locations: false, weights: false };
    for name in names.split('+') {
        match name {
            "value" => found.value = true,
            "locations" => found.locations = true,
            "weights" => found.weights = true,
            _ => return Err(bad("gradients", names)),
        }
    }
    Ok(found)
}
