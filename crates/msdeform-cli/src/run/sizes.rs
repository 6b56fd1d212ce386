//! What is said about a call's sizes on the command line, in shapes and in file lengths, brought
//! together into one [`Problem`]. Whatever is said twice must agree.

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;
use msdeform::{
    ATTENTION, DType, Error, FROM_OFFSETS, LevelLists, OffsetRule, Operator, Problem,
    ProblemBuilder, Role, Signature, TensorSignature, ValueLayout,
};

use super::formats::{Stored, Tensor, Tensors, names};
use super::offsets::{self, OffsetArgs};
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
    /// Height x width of each level; not needed beside spatial_shapes
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
    /// How samples follow from offsets.
    #[command(flatten)]
    pub offsets: OffsetArgs,
}

fn level_size(text: &str) -> Result<(i64, i64), String> {
    let parse = |size: &str| size.trim().parse().ok();
    text.split_once(['x', 'X'])
        .and_then(|(height, width)| Some((parse(height)?, parse(width)?)))
        .ok_or_else(|| format!("`{text}` is not a size like 92x160"))
}

/// A call as its files describe it.
#[derive(Debug, PartialEq)]
pub struct Described {
    pub problem: Problem,
    /// What the operator reads, in its order.
    pub tensors: Vec<Stated>,
}

/// A tensor that the operator reads, as it is in its file.
#[derive(Clone, Debug, PartialEq)]
pub struct Stated {
    pub role: Role,
    /// The problem may say a wider one.
    pub dtype: DType,
    /// Also that in which its gradient is written.
    pub shape: Vec<usize>,
}

impl Described {
    /// The shape of the tensor whose gradient this is.
    pub fn shape_of_gradient(&self, gradient: Role) -> Option<&[usize]> {
        let found = self.tensors.iter().find(|stated| stated.role.gradient() == Some(gradient))?;
        Some(&found.shape)
    }
}

/// Brings together everything that is known about a call.
pub fn describe(
    tensors: &Tensors<'_>,
    args: &SizeArgs,
    operator: &'static Operator,
) -> Result<Described> {
    let levels = levels(tensors, args)?;
    let starts = starts(tensors, levels.len())?;
    let value = tensors.get(names::VALUE)?;
    // Offsets and logits have the shapes of locations and weights.
    let [.., first, second] = *operator.inputs else { bail!("an operator without samples") };
    let locations = tensors.get(first.name())?;
    let weights = tensors.get(second.name())?;
    let mut builder = Problem::builder().levels(levels.iter().copied());
    if let Some(starts) = &starts {
        builder = builder.level_starts(starts.iter().copied());
    }
    let sizes = levels.iter().map(|&(height, width)| [height, width]).collect();
    let pyramid = Pyramid { levels: levels.len(), sizes, starts, builder };
    match (&value.stated, &locations.stated, &weights.stated) {
        (Some(value_stated), Some(locations_stated), Some(weights_stated)) => stated(
            &pyramid,
            (tensors, args, operator),
            (value, value_stated),
            (locations, locations_stated),
            (weights, weights_stated),
        ),
        _ if operator != &ATTENTION => bail!(
            "{}: states no shape; keep calls from offsets as .npy or .safetensors",
            locations.label()
        ),
        _ => raw(&pyramid, args, value, locations, weights),
    }
}

/// The levels, not yet placed in a value tensor.
struct Pyramid {
    levels: usize,
    sizes: Vec<[i64; 2]>,
    starts: Option<Vec<i64>>,
    builder: ProblemBuilder,
}

impl Pyramid {
    /// Pixels that the levels take in a layout.
    fn end(&self, layout: ValueLayout) -> Result<usize> {
        Ok(self.builder.clone().queries(0).layout(layout).build()?.spatial())
    }

    /// Points of each level out of the samples of a query and head.
    fn points(&self, args: &SizeArgs, samples: usize, from: &Tensor<'_>) -> Result<Vec<usize>> {
        let points = match args.points.as_slice() {
            [] => {
                ensure!(
                    self.levels > 0 && samples.is_multiple_of(self.levels),
                    Usage(format!(
                        "{}: {samples} samples do not divide into {} levels; give --points for each level",
                        from.label(),
                        self.levels
                    ))
                );
                vec![samples / self.levels; self.levels]
            }
            [same] => vec![*same; self.levels],
            list => list.to_vec(),
        };
        ensure!(
            points.len() == self.levels,
            Usage(format!(
                "--points has {} entries for {} levels; give one, or one per level",
                points.len(),
                self.levels
            ))
        );
        ensure!(
            points.iter().try_fold(0usize, |sum, &count| sum.checked_add(count)) == Some(samples),
            Usage(format!(
                "{}: {samples} samples per query and head, but --points adds up to {}",
                from.label(),
                points.iter().map(|&count| count as u128).sum::<u128>()
            ))
        );
        Ok(points)
    }
}

/// Files with types and shapes.
fn stated(
    pyramid: &Pyramid,
    (tensors, args, operator): (&Tensors<'_>, &SizeArgs, &'static Operator),
    (value, (value_stored, value_shape)): (&Tensor<'_>, &(Stored, Vec<usize>)),
    (locations, (locations_stored, locations_shape)): (&Tensor<'_>, &(Stored, Vec<usize>)),
    (weights, (weights_stored, weights_shape)): (&Tensor<'_>, &(Stored, Vec<usize>)),
) -> Result<Described> {
    let value_dtype = float_type(value, *value_stored, args.dtype)?;
    // Raw 16-bit locations are what the values are, unless said.
    let sampling = args.sampling_dtype;
    let locations_dtype =
        float_type(locations, *locations_stored, sampling.or(raw_like(*locations_stored, args)))?;
    let weights_dtype =
        float_type(weights, *weights_stored, sampling.or(raw_like(*weights_stored, args)))?;
    let sampling_dtype =
        sampling_dtype(value_dtype, (locations, locations_dtype), (weights, weights_dtype))?;

    let (batch, queries, heads, samples) = match *locations_shape.as_slice() {
        [batch, queries, heads, levels, points, 2] if levels == pyramid.levels => {
            let samples = levels.checked_mul(points).context("sizes past all memory")?;
            (batch, queries, heads, samples)
        }
        [batch, queries, heads, samples, 2] => (batch, queries, heads, samples),
        _ => bail!(
            "{}: shape {locations_shape:?}, expected [N, Lq, M, L, P, 2] with L = {} or \
             [N, Lq, M, samples, 2]",
            locations.label(),
            pyramid.levels
        ),
    };
    for (option, said, found) in [
        ("--batch", args.batch, batch),
        ("--queries", args.queries, queries),
        ("--heads", args.heads, heads),
    ] {
        ensure!(
            said.is_none_or(|said| said == found),
            Usage(format!(
                "{}: shape {locations_shape:?} says {found}, {option} says {}",
                locations.label(),
                said.unwrap_or_default()
            ))
        );
    }
    let points = pyramid.points(args, samples, locations)?;
    let (layout, spatial, channels) = place_value(pyramid, args, value, value_shape, batch, heads)?;
    let is_from_offsets = operator == &FROM_OFFSETS;
    let references = is_from_offsets
        .then(|| offsets::references(tensors, args, value_dtype, sampling_dtype))
        .transpose()?;

    let placed = match layout.is_head_major() {
        true => vec![batch, heads, spatial, channels],
        false => vec![batch, spatial, heads, channels],
    };
    let signed = [
        Some((value_dtype, &placed)),
        references.as_ref().map(|(stated, computed)| (*computed, &stated.shape)),
        Some((sampling_dtype, locations_shape)),
        Some((sampling_dtype, weights_shape)),
    ];
    let signed: Vec<(DType, Vec<i64>)> = signed
        .into_iter()
        .flatten()
        .map(|(dtype, shape)| (dtype, shape.iter().map(|&size| size as i64).collect()))
        .collect();
    let signed: Vec<TensorSignature<'_>> =
        signed.iter().map(|(dtype, shape)| TensorSignature { dtype: *dtype, shape }).collect();
    let points: Vec<i64> = points.into_iter().map(|count| count as i64).collect();
    let levels = LevelLists {
        sizes: &pyramid.sizes,
        starts: pyramid.starts.as_deref(),
        points: Some(&points),
    };
    let rule = is_from_offsets.then(|| OffsetRule::OfReferences(args.offsets.options()));
    let signature =
        Signature { rule, layout, expands_references: true, ..Signature::new(&signed, levels) };
    let problem = signature.problem().map_err(|error| with_label(error, tensors, value))?;
    offsets::check_scale(&problem, tensors, args)?;
    let output_dtype = args.output_dtype.unwrap_or(value_dtype);
    let problem = problem.to_builder().output_dtype(output_dtype).build()?;

    let [.., first, second] = *operator.inputs else { bail!("an operator without samples") };
    let of = |role, dtype, shape: &[usize]| Stated { role, dtype, shape: shape.to_vec() };
    let mut tensors = vec![of(Role::Value, value_dtype, value_shape)];
    tensors.extend(references.map(|(stated, _)| stated));
    tensors.push(of(first, locations_dtype, locations_shape));
    tensors.push(of(second, weights_dtype, weights_shape));
    Ok(Described { problem, tensors })
}

/// An error about a tensor, with the file that it is in.
fn with_label(error: Error, tensors: &Tensors<'_>, value: &Tensor<'_>) -> anyhow::Error {
    match error {
        Error::ShapeMismatch { tensor, found, expected } => {
            let label = tensors.find(tensor).map_or_else(|| tensor.to_owned(), Tensor::label);
            let more = if tensor == names::REFERENCE_POINTS {
                "; --anchors takes any number of references"
            } else {
                ""
            };
            anyhow!("{label}: shape {found:?}, expected {expected}{more}")
        }
        error => anyhow::Error::from(error).context(value.label()),
    }
}

/// Layout, pixels and channels of a value tensor with a shape: the layout whose pixels fit exactly,
/// the ecosystem's first.
fn place_value(
    pyramid: &Pyramid,
    args: &SizeArgs,
    value: &Tensor<'_>,
    shape: &[usize],
    batch: usize,
    heads: usize,
) -> Result<(ValueLayout, usize, usize)> {
    let fit = |layout: ValueLayout| match *shape {
        [n, pixels, m, channels] if !layout.is_head_major() && (n, m) == (batch, heads) => {
            Some((layout, pixels, channels))
        }
        [n, m, pixels, channels] if layout.is_head_major() && (n, m) == (batch, heads) => {
            Some((layout, pixels, channels))
        }
        [planes, pixels, channels]
            if layout.is_head_major() && Some(planes) == batch.checked_mul(heads) =>
        {
            Some((layout, pixels, channels))
        }
        _ => None,
    };
    let layouts = args.layout.map_or(ValueLayout::ALL.to_vec(), |layout| vec![layout]);
    let fits: Vec<_> = layouts.iter().filter_map(|&layout| fit(layout)).collect();
    let mut expected = Vec::new();
    for &layout in &layouts {
        let end = pyramid.end(layout).with_context(|| value.label())?;
        expected.push(match layout {
            ValueLayout::Interleaved => format!("[{batch}, {end}, {heads}, D] ({layout})"),
            _ => format!("[{batch}, {heads}, {end}, D] ({layout})"),
        });
        if let Some(found) = fits.iter().find(|fit| fit.0 == layout && fit.1 == end) {
            ensure_channels(args, value, found.2)?;
            return Ok(*found);
        }
    }
    // Gaps behind the levels are only believed of those who say where their levels start.
    match fits.first() {
        Some(&found) if pyramid.starts.is_some() && found.1 > pyramid.end(found.0)? => {
            ensure_channels(args, value, found.2)?;
            Ok(found)
        }
        _ => {
            let refused =
                format!("{}: shape {shape:?}, expected {}", value.label(), expected.join(" or "));
            if args.layout.is_some() { bail!(Usage(refused)) } else { bail!(refused) }
        }
    }
}

fn ensure_channels(args: &SizeArgs, value: &Tensor<'_>, channels: usize) -> Result<()> {
    match args.channels {
        Some(said) if said != channels => {
            bail!(Usage(format!("{}: {channels} channels, --channels says {said}", value.label())))
        }
        _ => Ok(()),
    }
}

/// Bare elements: everything from the command line and the lengths of the files.
fn raw(
    pyramid: &Pyramid,
    args: &SizeArgs,
    value: &Tensor<'_>,
    locations: &Tensor<'_>,
    weights: &Tensor<'_>,
) -> Result<Described> {
    let missing: Vec<&str> = [
        ("--heads", args.heads.is_none()),
        ("--channels", args.channels.is_none()),
        ("--points", args.points.is_empty()),
        ("--dtype", args.dtype.is_none()),
    ]
    .into_iter()
    .filter_map(|(option, missing)| missing.then_some(option))
    .collect();
    let (Some(heads), Some(channels), Some(value_dtype), []) =
        (args.heads, args.channels, args.dtype, missing.as_slice())
    else {
        bail!(Usage(format!(
            "{}: .bin files state no sizes; give {}",
            value.file.display(),
            missing.join(", ")
        )));
    };
    let samples = match args.points.as_slice() {
        [same] => same.checked_mul(pyramid.levels),
        list => list.iter().try_fold(0usize, |sum, &count| sum.checked_add(count)),
    }
    .context("--points: sizes past all memory")?;
    let points = pyramid.points(args, samples, locations)?;

    let layout = args.layout.unwrap_or(ValueLayout::Interleaved);
    let end = pyramid.end(layout).with_context(|| value.label())?;
    let pixel = product(&[heads, channels, value_dtype.size_bytes()])?;
    let image = product(&[end, pixel])?;
    let batch = match args.batch {
        Some(batch) => batch,
        None => whole(value.bytes.len(), image).with_context(|| {
            format!(
                "{}: {} bytes are no whole number of images of {image} bytes ({end} pixels x \
                 {heads} heads x {channels} channels of {value_dtype}, {layout}); check the sizes \
                 and --layout",
                value.file.display(),
                value.bytes.len()
            )
        })?,
    };
    // Only stated level starts can leave pixels behind the last level.
    let spatial = if pyramid.starts.is_some() && batch > 0 {
        whole(value.bytes.len(), product(&[batch, pixel])?).unwrap_or(end)
    } else {
        end
    };

    let row = product(&[heads, samples])?;
    let (queries, sampling) = match (args.queries, args.sampling_dtype) {
        (Some(queries), Some(sampling)) => (queries, sampling),
        (Some(queries), None) => {
            let elements = product(&[batch, queries, row])?;
            let is_f32 = product(&[elements, 4])? == weights.bytes.len();
            (queries, if is_f32 { DType::F32 } else { value_dtype })
        }
        (None, sampling) => {
            // Half of the bytes could as well be twice the queries.
            let sampling = match sampling {
                None if value_dtype.size_bytes() == 2 => bail!(Usage(format!(
                    "{}: give --queries or --sampling-dtype; the length alone does not tell",
                    weights.file.display()
                ))),
                sampling => sampling.unwrap_or(value_dtype),
            };
            let query = product(&[batch, row, sampling.size_bytes()])?;
            let queries = whole(weights.bytes.len(), query).with_context(|| {
                format!(
                    "{}: {} bytes are no whole number of queries of {query} bytes ({batch} images \
                     x {heads} heads x {samples} samples of {sampling})",
                    weights.file.display(),
                    weights.bytes.len()
                )
            })?;
            (queries, sampling)
        }
    };
    let problem = pyramid
        .builder
        .clone()
        .batch(batch)
        .heads(heads)
        .channels(channels)
        .queries(queries)
        .points_per_level(points)
        .spatial(spatial)
        .layout(layout)
        .dtype(value_dtype)
        .output_dtype(args.output_dtype.unwrap_or(value_dtype))
        .sampling_dtype(sampling_dtype(value_dtype, (locations, sampling), (weights, sampling))?)
        .build()
        .with_context(|| value.label())?;
    let of = |role, dtype, shape: &[usize]| Stated { role, dtype, shape: shape.to_vec() };
    let tensors = vec![
        of(Role::Value, value_dtype, &problem.value_shape()),
        of(Role::Locations, sampling, &problem.locations_shape()),
        of(Role::Weights, sampling, &problem.weights_shape()),
    ];
    Ok(Described { problem, tensors })
}

fn product(sizes: &[usize]) -> Result<usize> {
    let checked = sizes.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
    checked.with_context(|| format!("sizes {sizes:?} are past all memory"))
}

fn whole(bytes: usize, unit: usize) -> Option<usize> {
    (unit > 0 && bytes.is_multiple_of(unit)).then(|| bytes / unit)
}

/// What a 16-bit tensor without a type holds: the type given for the values, if that has 16 bits.
pub fn raw_like(stored: Stored, args: &SizeArgs) -> Option<DType> {
    args.dtype.filter(|dtype| stored == Stored::Bits16 && dtype.size_bytes() == 2)
}

/// The format of a tensor for real numbers, checked against what was said about it.
pub fn float_type(tensor: &Tensor<'_>, stored: Stored, said: Option<DType>) -> Result<DType> {
    match (stored, said) {
        (Stored::Bits16, Some(said)) if said.size_bytes() == 2 => Ok(said),
        (Stored::Bits16, _) => bail!(Usage(format!(
            "{}: elements are two raw bytes; say what they are with --dtype bf16 or --dtype f16",
            tensor.label()
        ))),
        _ => {
            let found = stored.dtype().with_context(|| {
                format!("{}: is {stored}, expected f32, f16, bf16 or f64", tensor.label())
            })?;
            match said {
                Some(said) if said != found => {
                    bail!(Usage(format!(
                        "{}: is {found}, the command line says {said}",
                        tensor.label()
                    )))
                }
                _ => Ok(found),
            }
        }
    }
}

/// The one format in which locations and weights are computed: as stored where the backends take
/// it, else widened, which is exact.
fn sampling_dtype(
    value: DType,
    (locations, locations_dtype): (&Tensor<'_>, DType),
    (weights, weights_dtype): (&Tensor<'_>, DType),
) -> Result<DType> {
    if value == DType::F64 {
        return Ok(DType::F64);
    }
    for (tensor, dtype) in [(locations, locations_dtype), (weights, weights_dtype)] {
        ensure!(
            dtype != DType::F64,
            "{}: is f64 beside {value} values; convert it to f32, or the values to f64",
            tensor.label()
        );
    }
    let same = locations_dtype == weights_dtype && locations_dtype == value;
    Ok(if same { value } else { DType::F32 })
}

/// Level sizes from `spatial_shapes`, from the command line, or from both if they agree.
fn levels(tensors: &Tensors<'_>, args: &SizeArgs) -> Result<Vec<(i64, i64)>> {
    let Some(tensor) = tensors.find(names::SPATIAL_SHAPES) else {
        ensure!(
            !args.levels.is_empty(),
            "{}; or give --levels HxW,HxW,...",
            tensors.get(names::SPATIAL_SHAPES).err().map(|e| e.to_string()).unwrap_or_default()
        );
        return Ok(args.levels.clone());
    };
    if let Some((_, shape)) = &tensor.stated {
        ensure!(
            matches!(shape.as_slice(), [_, 2]),
            "{}: shape {shape:?}, expected [L, 2]",
            tensor.label()
        );
    }
    let expected = (!args.levels.is_empty()).then_some(2 * args.levels.len());
    let numbers = integers(tensor, expected)?;
    let found: Vec<(i64, i64)> = numbers.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
    ensure!(
        args.levels.is_empty() || args.levels == found,
        Usage(format!("{}: {found:?}, --levels says {:?}", tensor.label(), args.levels))
    );
    Ok(found)
}

fn starts(tensors: &Tensors<'_>, levels: usize) -> Result<Option<Vec<i64>>> {
    let Some(tensor) = tensors.find(names::LEVEL_START_INDEX) else { return Ok(None) };
    let starts = integers(tensor, Some(levels))?;
    ensure!(
        starts.len() == levels,
        "{}: {} entries for {levels} levels",
        tensor.label(),
        starts.len()
    );
    Ok(Some(starts))
}

/// The integers of a tensor. A raw file is told apart by its length where the count is known. Where
/// it is not, sizes of levels are: two `i32` read as one `i64` give a level 2^32 pixels high.
fn integers(tensor: &Tensor<'_>, expected: Option<usize>) -> Result<Vec<i64>> {
    let bytes = tensor.bytes;
    let wide = || -> Vec<i64> {
        bytes.as_chunks().0.iter().map(|&chunk| i64::from_le_bytes(chunk)).collect()
    };
    let narrow = || -> Vec<i64> {
        bytes.as_chunks().0.iter().map(|&chunk| i32::from_le_bytes(chunk).into()).collect()
    };
    let stored = match (&tensor.stated, expected) {
        (Some((stored, _)), _) => *stored,
        (None, Some(count)) if count.checked_mul(8) == Some(bytes.len()) => Stored::I64,
        (None, Some(count)) if count.checked_mul(4) == Some(bytes.len()) => Stored::I32,
        (None, Some(count)) => bail!(
            "{}: {} bytes, expected {count} integers of 8 or 4 bytes",
            tensor.label(),
            bytes.len()
        ),
        (None, None) => {
            let plausible = |numbers: &[i64]| numbers.iter().all(|&n| n > 0 && n < 1 << 32);
            if bytes.len().is_multiple_of(16) && plausible(&wide()) {
                Stored::I64
            } else if bytes.len().is_multiple_of(8) && plausible(&narrow()) {
                Stored::I32
            } else {
                bail!(
                    "{}: {} bytes are no pairs of positive i64 or i32",
                    tensor.label(),
                    bytes.len()
                );
            }
        }
    };
    match stored {
        Stored::I64 => Ok(wide()),
        Stored::I32 => Ok(narrow()),
        other => bail!("{}: is {other}, expected i64 or i32", tensor.label()),
    }
}

/// The upstream gradient must look like the output.
pub fn check_grad_output(tensor: &Tensor<'_>, problem: &Problem) -> Result<()> {
    let Some((stored, shape)) = &tensor.stated else { return Ok(()) };
    let expected = problem.output_dtype();
    // Two raw bytes are what the output is.
    let said = (*stored == Stored::Bits16).then_some(expected);
    let dtype = float_type(tensor, *stored, said)?;
    let like = if expected == problem.dtype() { " like the values" } else { "" };
    ensure!(
        dtype == expected,
        "{}: is {dtype}, expected {expected}{like}; --output-dtype says what output and grad_output are",
        tensor.label()
    );
    let [batch, queries, row] = problem.output_shape();
    ensure!(
        shape.as_slice() == [batch, queries, row]
            || shape.as_slice() == [batch, queries, problem.heads(), problem.channels()],
        "{}: shape {shape:?}, expected {:?} like the output",
        tensor.label(),
        [batch, queries, row]
    );
    Ok(())
}
