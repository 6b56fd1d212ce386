//! A case as one line of text.

use std::fmt;
use std::str::FromStr;

use msdeform::{
    DType, Gradients, Mode, Offsets, Problem, ReferenceKind, ReferenceOf, Role, ValueLayout,
};

use super::{Case, Numbers, Starts, ValueMemory, VariantChoice};

impl fmt::Display for Case {
    /// The line that makes it again: `key=value` for all that differs from the plainest case.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let p = &self.problem;
        let (batch, heads, channels, queries) = (p.batch(), p.heads(), p.channels(), p.queries());
        write!(f, "batch={batch} heads={heads} channels={channels} queries={queries}")?;
        let levels = p.levels().iter().map(|l| format!("{}x{}@{}", l.height, l.width, l.start));
        write!(f, " levels={} spatial={}", joined(levels), p.spatial())?;
        write!(f, " points={} dtype={}", joined(p.points()), p.dtype())?;
        let plain = Self::plain(p.clone(), self.wants);
        let mut word = |key: &str, value: &dyn fmt::Display, is_plain: bool| {
            if is_plain { Ok(()) } else { write!(f, " {key}={value}") }
        };
        word("sampling", &p.sampling_dtype(), p.sampling_dtype() == p.dtype())?;
        word("output", &p.output_dtype(), p.output_dtype() == p.dtype())?;
        word("layout", &p.layout(), p.layout() == ValueLayout::Interleaved)?;
        if let Some(rule) = p.offsets() {
            word("from", &rule_word(rule), false)?;
            word("references", &p.reference_dtype(), false)?;
        }
        if let Some(gradients) = self.wants {
            word("gradients", &gradients, false)?;
            word("mode", &self.mode, false)?;
        }
        let ValueMemory { pixels, heads, channels, one_image } = self.value_memory;
        let value_memory = joined([pixels, heads, channels, usize::from(one_image)]);
        word("value_memory", &value_memory, self.value_memory == plain.value_memory)?;
        let upstream_is_plain = self.upstream_memory == plain.upstream_memory;
        word("upstream_memory", &self.upstream_memory, upstream_is_plain)?;
        word("source_memory", &self.source_memory, self.source_memory == plain.source_memory)?;
        word("offsets", &joined(self.starts), self.starts == plain.starts)?;
        let Numbers { samples, values, weights, upstream } = self.numbers;
        word("locations", &samples, false)?;
        word("values", &values, false)?;
        word("weights", &weights, false)?;
        word("upstream", &upstream, self.wants.is_none())?;
        word("seed", &self.seed, false)?;
        word("raster", &self.raster_width, self.raster_width == 0)?;
        if let VariantChoice::Named { variant, knobs } = &self.choice {
            word("variant", variant, false)?;
            let list = joined(knobs.iter().map(|(name, value)| format!("{name}:{value}")));
            word("knobs", &list, knobs.is_empty())?;
        }
        Ok(())
    }
}

fn joined<T: ToString>(list: impl IntoIterator<Item = T>) -> String {
    list.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(",")
}

/// A line that does not describe a case.
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
        let mut problem = Problem::builder()
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
            .output_dtype(fields.parse_or("output", dtype)?)
            .layout(fields.parse_or("layout", ValueLayout::Interleaved)?);
        if let Some(word) = fields.optional("from") {
            problem = problem.offsets(rule(word)?).reference_dtype(fields.parse("references")?);
        }
        let problem = problem.build().map_err(|error| BadLine(error.to_string()))?;
        let wants = fields.optional("gradients").map(gradients).transpose()?;
        let mut case = Self::plain(problem, wants);
        case.mode = fields.parse_or("mode", Mode::Fast)?;
        if let Some(list) = fields.optional("value_memory") {
            let list = numbers("value_memory", list)?;
            let &[pixels, heads, channels, one_image] = &list[..] else {
                return Err(BadLine("value_memory has four numbers".into()));
            };
            case.value_memory = ValueMemory { pixels, heads, channels, one_image: one_image != 0 };
        }
        case.upstream_memory = fields.parse_or("upstream_memory", case.upstream_memory)?;
        case.source_memory = fields.parse_or("source_memory", case.source_memory)?;
        if let Some(list) = fields.optional("offsets") {
            let list = Starts::try_from(numbers("offsets", list)?);
            case.starts = list.map_err(|_| BadLine("offsets has seven numbers".into()))?;
        }
        let Numbers { samples, values, weights, upstream } = case.numbers;
        case.numbers = Numbers {
            samples: fields.parse_or("locations", samples)?,
            values: fields.parse_or("values", values)?,
            weights: fields.parse_or("weights", weights)?,
            upstream: fields.parse_or("upstream", upstream)?,
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
            case.choice = VariantChoice::Named { variant: variant.to_owned(), knobs };
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

/// A rule for offsets as one word: `boxes,anchors:3,scale:2,raw,nearest`.
fn rule_word(rule: &Offsets) -> String {
    let kind = match rule.kind() {
        ReferenceKind::Point => "points",
        ReferenceKind::Box => "boxes",
    };
    let of = match rule.reference_of() {
        ReferenceOf::Level => None,
        ReferenceOf::Query => Some("shared".to_owned()),
        ReferenceOf::Anchor(count) => Some(format!("anchors:{count}")),
    };
    let scale = (rule.scale() != 0.5).then(|| format!("scale:{}", rule.scale()));
    let raw = (!rule.has_softmax()).then(|| "raw".to_owned());
    let nearest = rule.is_nearest().then(|| "nearest".to_owned());
    joined([Some(kind.to_owned()), of, scale, raw, nearest].into_iter().flatten())
}

fn rule(word: &str) -> Result<Offsets, BadLine> {
    let mut rule = Offsets::from_points();
    for part in word.split(',') {
        rule = match part.split_once(':').unwrap_or((part, "")) {
            ("points", "") => Offsets::from_points(),
            ("boxes", "") => Offsets::from_boxes(),
            ("shared", "") => rule.one_for_all_levels(),
            ("anchors", count) => rule.anchors(parsed("from", count)?),
            ("scale", scale) => rule.offset_scale(parsed("from", scale)?),
            ("raw", "") => rule.raw_weights(),
            ("nearest", "") => rule.nearest(),
            _ => return Err(bad("from", word)),
        };
    }
    Ok(rule)
}

fn gradients(names: &str) -> Result<Gradients, BadLine> {
    let role = |name| match name {
        "value" => Ok(Role::GradValue),
        "locations" => Ok(Role::GradLocations),
        "weights" => Ok(Role::GradWeights),
        "references" => Ok(Role::GradReferences),
        _ => Err(bad("gradients", names)),
    };
    names.split('+').map(role).collect()
}
