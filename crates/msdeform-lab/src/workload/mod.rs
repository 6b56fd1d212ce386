//! The shapes people run: one TOML file each, built into the binary or loaded from a path.

mod builtin;
mod case;
mod locations;

use std::path::{Path, PathBuf};

use msdeform::{ATTENTION, DType, Offsets, Operator, Problem, Role, ValueLayout};
use serde::{Deserialize, Serialize};

pub use builtin::{all, by_tag, find, table_position};
pub use case::{Label, TRAINING, WorkloadCase, directions, name_of, split_name};
pub use locations::Locations;

pub(crate) const LIMIT_BYTES: u64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    #[error(
        "unknown workload `{name}`{}; built in: {}. A path to a .toml file works too",
        did_you_mean(suggestion.as_deref()),
        known.join(", ")
    )]
    Unknown { name: String, suggestion: Option<&'static str>, known: Vec<&'static str> },
    #[error("cannot read the workload file {0}")]
    Read(#[from] msdeform_files::FileError),
    #[error("workload file {}: {message}", path.display())]
    Parse { path: PathBuf, message: String },
    #[error(transparent)]
    Memory(#[from] crate::MemoryError),
    #[error("workload `{name}`: {source}")]
    Problem { name: String, source: msdeform::Error },
}

fn did_you_mean(suggestion: Option<&str>) -> String {
    suggestion.map_or_else(String::new, |name| format!(" (did you mean `{name}`?)"))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Queries {
    Count(usize),
    /// One per pixel of the pyramid: encoders.
    Pixels(PixelsTag),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PixelsTag {
    Pixels,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Points {
    Same(usize),
    PerLevel(Vec<usize>),
}

/// Where the reference point of a query lies, around which `local` locations are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReferencePoints {
    /// The centre of the query's own pixel; the number of queries is that of the pixels.
    Pixels,
    /// Queries lie on a raster over the image, in the aspect ratio of the first level.
    Raster,
    /// Queries lie on a raster of this many columns.
    RasterWidth(usize),
    /// Drawn anew for every query: object queries of a decoder.
    Uniform,
}

/// What the model of a workload passes to the fused operator as references.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum References {
    /// A point for each level: encoders, decoders of one stage.
    #[default]
    PointPerLevel,
    /// A box for each level: decoders of two stages.
    BoxPerLevel,
    /// One box for all levels: RT-DETR.
    Box,
    /// So many points for all levels, in turn: BEVFormer's cross-attention.
    Anchors(usize),
}

impl References {
    pub const fn rule(self) -> Offsets {
        match self {
            Self::PointPerLevel => Offsets::from_points(),
            Self::BoxPerLevel => Offsets::from_boxes(),
            Self::Box => Offsets::from_boxes().one_for_all_levels(),
            Self::Anchors(count) => Offsets::from_points().anchors(count),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tag {
    /// Measured by the main job and compared with other implementations.
    Standard,
    /// Small and awkward; verified, not timed.
    Edge,
    /// Every pixel (or nearly) is a query.
    Encoder,
    /// A few hundred object queries.
    Decoder,
}

/// A named shape with the reason why it is worth measuring.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// The name in tables, on the command line and in records.
    pub name: String,
    pub why: String,
    pub tags: Vec<Tag>,
    /// The standard batch, as published comparisons use it.
    pub batch: usize,
    /// The batch that the main job times on a CPU, so that it ends within a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_cpu: Option<usize>,
    pub heads: usize,
    pub channels: usize,
    pub levels: Vec<(u32, u32)>,
    pub points: Points,
    pub queries: Queries,
    /// Where `local` locations are centred.
    pub reference_points: ReferencePoints,
    /// What offsets start from in a call of the fused operator.
    #[serde(default)]
    pub references: References,
    /// Kinds of locations it is run with, the most telling first.
    pub locations: Vec<Locations>,
    /// Layouts it is run in, the usual one first.
    #[serde(with = "layout_names")]
    pub layouts: Vec<ValueLayout>,
}

/// What a caller changes about a workload.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sizes {
    pub batch: Option<usize>,
    pub queries: Option<usize>,
}

impl Workload {
    /// A workload from the text of its file; `path` is for messages.
    pub fn parse(text: &str, path: &Path) -> Result<Self, WorkloadError> {
        let parse_error = |message| WorkloadError::Parse { path: path.to_owned(), message };
        let workload: Self = toml::from_str(text)
            .map_err(|error| parse_error(format!("not a workload: {error}")))?;
        if workload.locations.is_empty() || workload.layouts.is_empty() {
            return Err(parse_error("`locations` and `layouts` need at least one entry".into()));
        }
        let layout = workload.layouts[0];
        let problem = workload.problem(DType::F32, layout, Sizes::default())?;
        if workload.reference_points == ReferencePoints::Pixels
            && problem.queries() != workload.pixels()
        {
            return Err(parse_error(format!(
                "reference_points = \"pixels\" needs as many queries as pixels ({}), found {}",
                workload.pixels(),
                problem.queries()
            )));
        }
        if workload.references == References::Anchors(0) {
            return Err(parse_error("`anchors` must be at least 1".into()));
        }
        if workload.reference_points == ReferencePoints::RasterWidth(0) {
            return Err(parse_error("`raster_width` must be at least 1".into()));
        }
        Ok(workload)
    }

    pub(crate) fn load(path: &Path) -> Result<Self, WorkloadError> {
        Self::parse(&msdeform_files::read_text(path, LIMIT_BYTES)?, path)
    }

    /// A built-in workload by name, or one from a file if `name` looks like a path.
    pub fn named(name: &str) -> Result<Self, WorkloadError> {
        if let Some(workload) = find(name) {
            return Ok(workload.clone());
        }
        let path = Path::new(name);
        if path.extension().is_some_and(|extension| extension == "toml")
            || path.components().count() > 1
        {
            return Self::load(path);
        }
        Err(builtin::unknown(name))
    }

    pub fn has(&self, tag: Tag) -> bool {
        self.tags.contains(&tag)
    }

    /// Pixels of one image, borders not counted.
    pub fn pixels(&self) -> usize {
        // More than can be counted is refused with the problem; until then it must not wrap around.
        let pixels =
            |&(height, width): &(u32, u32)| (height as usize).saturating_mul(width as usize);
        self.levels.iter().map(pixels).fold(0, usize::saturating_add)
    }

    pub fn points_per_level(&self) -> Vec<usize> {
        match &self.points {
            Points::Same(points) => vec![*points; self.levels.len()],
            Points::PerLevel(points) => points.clone(),
        }
    }

    pub fn standard_queries(&self) -> usize {
        match self.queries {
            Queries::Count(count) => count,
            Queries::Pixels(_) => self.pixels(),
        }
    }

    pub fn cpu_batch(&self) -> usize {
        self.batch_cpu.unwrap_or(self.batch)
    }

    pub fn problem(
        &self,
        dtype: DType,
        layout: ValueLayout,
        sizes: Sizes,
    ) -> Result<Problem, WorkloadError> {
        self.problem_of(&ATTENTION, dtype, layout, sizes)
    }

    /// The description of a call of an operator. References are `f32` for every dtype, because models compute them apart.
    pub fn problem_of(
        &self,
        operator: &Operator,
        dtype: DType,
        layout: ValueLayout,
        sizes: Sizes,
    ) -> Result<Problem, WorkloadError> {
        let mut builder = Problem::builder()
            .batch(sizes.batch.unwrap_or(self.batch))
            .heads(self.heads)
            .channels(self.channels)
            .levels(self.levels.iter().copied())
            .points_per_level(self.points_per_level())
            .queries(sizes.queries.unwrap_or_else(|| self.standard_queries()))
            .layout(layout)
            .dtype(dtype);
        if operator.inputs.contains(&Role::References) {
            builder = builder.offsets(self.references.rule()).reference_dtype(DType::F32);
        }
        builder.build().map_err(|source| WorkloadError::Problem { name: self.name.clone(), source })
    }
}

mod layout_names {
    use msdeform::ValueLayout;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(
        layouts: &[ValueLayout],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(layouts.iter().map(|layout| layout.name()))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<ValueLayout>, D::Error> {
        Vec::<String>::deserialize(deserializer)?
            .iter()
            .map(|name| name.parse().map_err(D::Error::custom))
            .collect()
    }
}

#[cfg(test)]
mod tests;
