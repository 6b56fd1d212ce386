//! Sizes that files do not state: from the command line and the lengths of raw files.

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use msdeform::{DType, OffsetOptions, Operator, Problem, ProblemBuilder, Role, ValueLayout};

use super::call::Stated;
use super::files::{LEVEL_START_INDEX, SPATIAL_SHAPES, Stored, Tensor, Tensors, name_of};
use crate::exit::Usage;

/// Sizes on the command line.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Sizes (.bin files state none; elsewhere they are only checked)")]
pub struct SizeArgs {
    /// Images, N; from the length of value.bin if not given
    #[arg(long, value_name = "N")]
    pub batch: Option<usize>,
    /// Attention heads, M
    #[arg(long, value_name = "M")]
    pub heads: Option<usize>,
    /// Channels of one head, D
    #[arg(long, value_name = "D")]
    pub channels: Option<usize>,
    /// Queries, Lq; from the length of attention_weights.bin if not given
    #[arg(long, value_name = "LQ")]
    pub queries: Option<usize>,
    /// Points per level: one number, or one for each level (4 or 4,4,2,2)
    #[arg(long, value_name = "P", value_delimiter = ',')]
    pub points: Vec<usize>,
    /// Height x width of each level; not needed with spatial_shapes
    #[arg(long, value_name = "HxW", value_delimiter = ',', value_parser = level_size)]
    pub levels: Vec<(i64, i64)>,
    /// Element type of value, output and grad_output: f32, f16, bf16 or f64
    #[arg(long, value_name = "TYPE")]
    pub dtype: Option<DType>,
    /// Element type of output and grad_output, if not that of value
    #[arg(long, value_name = "TYPE")]
    pub output_dtype: Option<DType>,
    /// Element type of sampling_locations and attention_weights, if not that of value
    #[arg(long, value_name = "TYPE")]
    pub sampling_dtype: Option<DType>,
    /// Memory order of value: interleaved (N,S,M,D), head_major (N,M,S,D), head_major_padded
    #[arg(long, value_name = "LAYOUT")]
    pub layout: Option<ValueLayout>,
    /// The rule of the fused operator.
    #[command(flatten)]
    pub offsets: OffsetArgs,
}

/// The rule of the fused operator.
#[derive(Args, Clone, Debug, Default)]
#[command(
    next_help_heading = "Fused operator (with sampling_offsets, attention_logits and reference_points)"
)]
pub struct OffsetArgs {
    /// Part of a box that an offset of one covers, in a level of one point [default: 0.5]
    #[arg(long, value_name = "SCALE")]
    pub offset_scale: Option<f32>,
    /// References are anchors that serve all levels: point p starts from anchor p mod their number
    #[arg(long)]
    pub anchors: bool,
    /// The logits are the weights, without a softmax
    #[arg(long)]
    pub raw_weights: bool,
    /// Take the nearest pixel instead of interpolating
    #[arg(long)]
    pub nearest: bool,
}

impl OffsetArgs {
    pub(crate) fn first_set(&self) -> Option<&'static str> {
        let options = [
            ("--offset-scale", self.offset_scale.is_some()),
            ("--anchors", self.anchors),
            ("--raw-weights", self.raw_weights),
            ("--nearest", self.nearest),
        ];
        options.into_iter().find_map(|(option, is_set)| is_set.then_some(option))
    }

    pub(crate) fn options(&self) -> OffsetOptions {
        let default = OffsetOptions::default();
        OffsetOptions {
            anchors: self.anchors,
            scale: self.offset_scale.unwrap_or(default.scale),
            softmax: !self.raw_weights,
            nearest: self.nearest,
        }
    }
}

fn level_size(text: &str) -> Result<(i64, i64), String> {
    let parse = |size: &str| size.trim().parse().ok();
    text.split_once(['x', 'X'])
        .and_then(|(height, width)| Some((parse(height)?, parse(width)?)))
        .ok_or_else(|| format!("`{text}` is not a size like 92x160"))
}

/// The levels, not yet placed in a value tensor.
pub struct Pyramid {
    pub sizes: Vec<[i64; 2]>,
    pub starts: Option<Vec<i64>>,
    builder: ProblemBuilder,
}

impl Pyramid {
    pub fn new(tensors: &Tensors<'_>, args: &SizeArgs) -> Result<Self> {
        let levels = levels(tensors, args)?;
        let mut builder = Problem::builder().queries(0).levels(levels.iter().copied());
        let mut starts = None;
        if let Some(tensor) = tensors.find(LEVEL_START_INDEX) {
            let (found, levels) = (integers(tensor, Some(levels.len()))?, levels.len());
            let (label, count) = (tensor.label(), found.len());
            ensure!(count == levels, "{label}: {count} entries for {levels} levels");
            builder = builder.level_starts(found.iter().copied());
            starts = Some(found);
        }
        let sizes = levels.into_iter().map(<[i64; 2]>::from).collect();
        Ok(Self { sizes, starts, builder })
    }

    /// Pixels that the levels take in the layout of `value`.
    pub fn end(&self, layout: ValueLayout, value: &Tensor<'_>) -> Result<usize> {
        let built = self.builder.clone().layout(layout).build();
        Ok(built.with_context(|| value.label())?.spatial())
    }
}

/// Level sizes from `spatial_shapes`, from the command line, or from both if they agree.
fn levels(tensors: &Tensors<'_>, args: &SizeArgs) -> Result<Vec<(i64, i64)>> {
    let given = &args.levels;
    let tensor = match tensors.get(SPATIAL_SHAPES) {
        Ok(tensor) => tensor,
        Err(_) if !given.is_empty() => return Ok(given.clone()),
        Err(error) => bail!("{error}; or give --levels HxW,HxW,..."),
    };
    let label = tensor.label();
    if let Some((_, shape)) = &tensor.stated {
        ensure!(matches!(**shape, [_, 2]), "{label}: shape {shape:?}, expected [L, 2]");
    }
    let expected = (!given.is_empty()).then_some(2 * given.len());
    let pairs = integers(tensor, expected)?.as_chunks().0.to_vec();
    let found: Vec<(i64, i64)> = pairs.into_iter().map(<(i64, i64)>::from).collect();
    ensure!(
        given.is_empty() || *given == found,
        Usage(format!("{label}: {found:?}, but --levels is {given:?}"))
    );
    Ok(found)
}

/// The integers of a tensor. A raw file is told apart by its length where the count is known. Where
/// it is not, sizes of levels are: two `i32` read as one `i64` give a level 2^32 pixels high.
fn integers(tensor: &Tensor<'_>, expected: Option<usize>) -> Result<Vec<i64>> {
    let (label, bytes, length) = (tensor.label(), tensor.bytes, tensor.bytes.len());
    let wide = || bytes.as_chunks().0.iter().map(|&chunk| i64::from_le_bytes(chunk)).collect();
    let narrow =
        || bytes.as_chunks().0.iter().map(|&chunk| i32::from_le_bytes(chunk).into()).collect();
    let plausible = |numbers: Vec<i64>| numbers.iter().all(|&n| n > 0 && n < 1 << 32);
    let is_wide = match (&tensor.stated, expected) {
        (Some((Stored::I64, _)), _) => true,
        (Some((Stored::I32, _)), _) => false,
        (Some((other, _)), _) => bail!("{label}: is {}, expected i64 or i32", name_of(*other)),
        (None, Some(count)) if count.checked_mul(8) == Some(length) => true,
        (None, Some(count)) if count.checked_mul(4) == Some(length) => false,
        (None, Some(count)) => {
            bail!("{label}: {length} bytes, expected {count} integers of 8 or 4 bytes")
        }
        (None, None) if length.is_multiple_of(16) && plausible(wide()) => true,
        (None, None) if length.is_multiple_of(8) && plausible(narrow()) => false,
        (None, None) => bail!("{label}: {length} bytes are not pairs of positive i64 or i32"),
    };
    Ok(if is_wide { wide() } else { narrow() })
}

/// The inputs of a call in raw files: everything from the command line and the lengths of the files.
pub fn of_raw_files(
    pyramid: &Pyramid,
    tensors: &Tensors<'_>,
    args: &SizeArgs,
    operator: &Operator,
) -> Result<Vec<Stated>> {
    let [Role::Value, positions, weights] = *operator.inputs else {
        let label = tensors.get(Role::Offsets.name())?.label();
        bail!("{label}: states no shape; the fused operator takes .npy or .safetensors files");
    };
    let (value, of_weights) = (tensors.get("value")?, tensors.get(weights.name())?);
    let (heads, channels, dtype) = given(args, value)?;
    let samples = match args.points.as_slice() {
        [same] => same.checked_mul(pyramid.sizes.len()),
        list => list.iter().try_fold(0usize, |sum, &count| sum.checked_add(count)),
    }
    .context("--points: sizes past all memory")?;

    let layout = args.layout.unwrap_or(ValueLayout::Interleaved);
    let end = pyramid.end(layout, value)?;
    let pixel = product(&[heads, channels, dtype.size_bytes()])?;
    let image = product(&[end, pixel])?;
    let images = || {
        format!(
            "images of {image} bytes ({end} pixels x {heads} heads x {channels} channels of {dtype}, \
             {layout}); check the sizes and --layout"
        )
    };
    let batch = args.batch.map_or_else(|| whole(value, image, images), Ok)?;
    // Only stated level starts can leave pixels behind the last level.
    let spatial = match product(&[batch, pixel])? {
        column if pyramid.starts.is_some() => whole(value, column, String::new).unwrap_or(end),
        _ => end,
    };
    let row = product(&[batch, heads, samples])?;
    let sampling = match (args.sampling_dtype, args.queries) {
        (Some(sampling), _) => sampling,
        (None, Some(queries)) if product(&[queries, row, 4])? == of_weights.bytes.len() => {
            DType::F32
        }
        // Half of the bytes could as well be twice the queries.
        (None, None) if dtype.size_bytes() == 2 => bail!(Usage(format!(
            "{}: its length does not tell queries from bytes per element; give --queries or --sampling-dtype",
            of_weights.file.display()
        ))),
        _ => dtype,
    };
    let query = product(&[row, sampling.size_bytes()])?;
    let units = || {
        let each = format!("{batch} images x {heads} heads x {samples} samples of {sampling}");
        format!("queries of {query} bytes ({each})")
    };
    let queries = args.queries.map_or_else(|| whole(of_weights, query, units), Ok)?;
    let value = match layout.is_head_major() {
        true => vec![batch, heads, spatial, channels],
        false => vec![batch, spatial, heads, channels],
    };
    let each = vec![batch, queries, heads, samples];
    Ok(vec![
        Stated { role: Role::Value, dtype, shape: value },
        Stated { role: positions, dtype: sampling, shape: [&each[..], &[2]].concat() },
        Stated { role: weights, dtype: sampling, shape: each },
    ])
}

/// What only the command line states of raw files: heads, channels and the dtype of the values.
fn given(args: &SizeArgs, value: &Tensor<'_>) -> Result<(usize, usize, DType)> {
    let points = args.points.first();
    if let (Some(heads), Some(channels), Some(_), Some(dtype)) =
        (args.heads, args.channels, points, args.dtype)
    {
        return Ok((heads, channels, dtype));
    }
    let given = [
        ("--heads", args.heads.is_some()),
        ("--channels", args.channels.is_some()),
        ("--points", points.is_some()),
        ("--dtype", args.dtype.is_some()),
    ];
    let missing = given.into_iter().filter_map(|(option, given)| (!given).then_some(option));
    let (file, missing) = (value.file.display(), missing.collect::<Vec<_>>().join(", "));
    bail!(Usage(format!("{file}: .bin files state no sizes; give {missing}")))
}

fn product(sizes: &[usize]) -> Result<usize> {
    let checked = sizes.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
    checked.with_context(|| format!("sizes {sizes:?} are past all memory"))
}

/// How many units the bytes of a raw file are.
fn whole(tensor: &Tensor<'_>, unit: usize, units: impl FnOnce() -> String) -> Result<usize> {
    let (file, length) = (tensor.file.display(), tensor.bytes.len());
    ensure!(
        unit > 0 && length.is_multiple_of(unit),
        "{file}: {length} bytes are not a whole number of {}",
        units()
    );
    Ok(length / unit)
}
