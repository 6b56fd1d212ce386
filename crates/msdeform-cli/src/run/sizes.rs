//! From the command line, the shapes in files and the lengths of raw files to one [`Problem`]. What is stated twice must
//! agree.

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;
use msdeform::{
    DType, Error, LevelLists, OffsetRule, Operator, Problem, ProblemBuilder, Role, Signature,
    Storage, TensorSignature, ValueLayout,
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
    /// The problem may have a wider one.
    pub dtype: DType,
    /// Also the shape in which the gradient is written.
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
    let pyramid = Pyramid::new(tensors, args)?;
    let inputs = operator.inputs.iter().map(|role| stated(tensors, args, *role));
    let (inputs, points, layout, value_shape) =
        match inputs.collect::<Result<Option<Vec<Stated>>>>()? {
            Some(inputs) => placed(&pyramid, tensors, args, inputs)?,
            None => raw(&pyramid, tensors, args, operator)?,
        };
    let dtypes = computed_dtypes(tensors, &inputs)?;
    let as_i64 = |sizes: &[usize]| sizes.iter().map(|&size| size as i64).collect::<Vec<i64>>();
    let mut shapes: Vec<Vec<i64>> = inputs.iter().map(|input| as_i64(&input.shape)).collect();
    shapes[0] = as_i64(&value_shape);
    let signatures: Vec<TensorSignature<'_>> = dtypes
        .iter()
        .zip(&shapes)
        .map(|(&dtype, shape)| TensorSignature { dtype, shape })
        .collect();
    let levels = LevelLists {
        sizes: &pyramid.sizes,
        starts: pyramid.starts.as_deref(),
        points: Some(&as_i64(&points)),
    };
    let has_references = operator.inputs.contains(&Role::References);
    let rule = has_references.then(|| OffsetRule::OfReferences(args.offsets.options()));
    let plain = Signature::new(&signatures, levels);
    let signature = Signature { rule, layout, expands_references: true, ..plain };
    let problem = signature.problem().map_err(|error| with_label(error, tensors))?;
    offsets::check_scale(&problem, tensors, args)?;
    let output_dtype = args.output_dtype.unwrap_or(problem.dtype());
    let problem = problem.to_builder().output_dtype(output_dtype).build()?;
    Ok(Described { problem, tensors: inputs })
}

/// Inputs, points of each level, layout, and the shape of `value` with four axes.
type Placed = (Vec<Stated>, Vec<usize>, ValueLayout, Vec<usize>);

/// Dtype and shape of an input; `None` if its file states neither.
fn stated(tensors: &Tensors<'_>, args: &SizeArgs, role: Role) -> Result<Option<Stated>> {
    let tensor = tensors.get(role.name())?;
    let Some((stored, shape)) = &tensor.stated else { return Ok(None) };
    // Two raw bytes have the dtype that is given for the values, if that has 16 bits.
    let of_values = args.dtype.filter(|dtype| *stored == Stored::Bits16 && dtype.size_bytes() == 2);
    let given = match role.storage() {
        Storage::Channels => args.dtype,
        Storage::Samples => args.sampling_dtype.or(of_values),
        _ => of_values,
    };
    let dtype = float_type(tensor, *stored, given)?;
    Ok(Some(Stated { role, dtype, shape: shape.clone() }))
}

/// The dtypes in which the inputs are computed: as stored if the backends take them, else widened, which is exact.
fn computed_dtypes(tensors: &Tensors<'_>, inputs: &[Stated]) -> Result<Vec<DType>> {
    let value = inputs[0].dtype;
    if value == DType::F64 {
        return Ok(vec![DType::F64; inputs.len()]);
    }
    for input in inputs {
        ensure!(
            input.dtype != DType::F64,
            "{}: is f64 with {value} values; convert it to f32, or the values to f64",
            tensors.get(input.role.name())?.label()
        );
    }
    let mut samples = inputs.iter().filter(|input| input.role.storage() == Storage::Samples);
    let sampling = if samples.all(|input| input.dtype == value) { value } else { DType::F32 };
    let computed = inputs.iter().map(|input| match input.role.storage() {
        Storage::Channels => value,
        Storage::Samples => sampling,
        _ if input.dtype == sampling => sampling,
        _ => DType::F32,
    });
    Ok(computed.collect())
}

/// The levels, not yet placed in a value tensor.
struct Pyramid {
    sizes: Vec<[i64; 2]>,
    starts: Option<Vec<i64>>,
    builder: ProblemBuilder,
}

impl Pyramid {
    fn new(tensors: &Tensors<'_>, args: &SizeArgs) -> Result<Self> {
        let levels = levels(tensors, args)?;
        let starts = starts(tensors, levels.len())?;
        let mut builder = Problem::builder().levels(levels.iter().copied());
        if let Some(starts) = &starts {
            builder = builder.level_starts(starts.iter().copied());
        }
        let sizes = levels.into_iter().map(|(height, width)| [height, width]).collect();
        Ok(Self { sizes, starts, builder })
    }

    /// Pixels that the levels take in a layout.
    fn end(&self, layout: ValueLayout) -> Result<usize> {
        Ok(self.builder.clone().queries(0).layout(layout).build()?.spatial())
    }

    /// Points of each level out of the samples of a query and head.
    fn points(&self, args: &SizeArgs, samples: usize, from: &Tensor<'_>) -> Result<Vec<usize>> {
        let levels = self.sizes.len();
        let points = match args.points.as_slice() {
            [] => {
                ensure!(
                    levels > 0 && samples.is_multiple_of(levels),
                    Usage(format!(
                        "{}: {samples} samples do not divide into {levels} levels; give --points for each level",
                        from.label()
                    ))
                );
                vec![samples / levels; levels]
            }
            [same] => vec![*same; levels],
            list => list.to_vec(),
        };
        ensure!(
            points.len() == levels,
            Usage(format!(
                "--points has {} entries for {levels} levels; give one, or one per level",
                points.len()
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

/// Files with dtypes and shapes.
fn placed(
    pyramid: &Pyramid,
    tensors: &Tensors<'_>,
    args: &SizeArgs,
    inputs: Vec<Stated>,
) -> Result<Placed> {
    let [value, .., positions, _] = inputs.as_slice() else { bail!("an operator without samples") };
    let (tensor, shape) = (tensors.get(positions.role.name())?, &positions.shape);
    let levels = pyramid.sizes.len();
    let (batch, queries, heads, samples) = match *shape.as_slice() {
        [batch, queries, heads, count, points, 2] if count == levels => {
            let samples = levels.checked_mul(points).context("sizes past all memory")?;
            (batch, queries, heads, samples)
        }
        [batch, queries, heads, samples, 2] => (batch, queries, heads, samples),
        _ => bail!(
            "{}: shape {shape:?}, expected [N, Lq, M, L, P, 2] with L = {levels} or \
             [N, Lq, M, samples, 2]",
            tensor.label()
        ),
    };
    for (option, given, found) in [
        ("--batch", args.batch, batch),
        ("--queries", args.queries, queries),
        ("--heads", args.heads, heads),
    ] {
        if let Some(given) = given.filter(|given| *given != found) {
            let label = tensor.label();
            bail!(Usage(format!("{label}: shape {shape:?} has {found}, but {option} is {given}")));
        }
    }
    let points = pyramid.points(args, samples, tensor)?;
    let of_value = tensors.get(names::VALUE)?;
    let (layout, spatial, channels) =
        place_value(pyramid, args, of_value, &value.shape, batch, heads)?;
    let value_shape = value_shape(layout, batch, heads, spatial, channels);
    Ok((inputs, points, layout, value_shape))
}

fn value_shape(
    layout: ValueLayout,
    batch: usize,
    heads: usize,
    spatial: usize,
    channels: usize,
) -> Vec<usize> {
    match layout.is_head_major() {
        true => vec![batch, heads, spatial, channels],
        false => vec![batch, spatial, heads, channels],
    }
}

/// An error about a tensor, with the file that it is in.
fn with_label(error: Error, tensors: &Tensors<'_>) -> anyhow::Error {
    let label = |name: &str| tensors.find(name).map_or_else(|| name.to_owned(), Tensor::label);
    match error {
        Error::ShapeMismatch { tensor, found, expected } => {
            let more = if tensor == names::REFERENCE_POINTS {
                "; --anchors takes any number of references"
            } else {
                ""
            };
            anyhow!("{}: shape {found:?}, expected {expected}{more}", label(tensor))
        }
        error => anyhow::Error::from(error).context(label(names::VALUE)),
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
    // Unused pixels after the last level are accepted only with `level_start_index`.
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
        Some(given) if given != channels => bail!(Usage(format!(
            "{}: has {channels} channels, but --channels is {given}",
            value.label()
        ))),
        _ => Ok(()),
    }
}

/// Bare elements: everything from the command line and the lengths of the files.
fn raw(
    pyramid: &Pyramid,
    tensors: &Tensors<'_>,
    args: &SizeArgs,
    operator: &Operator,
) -> Result<Placed> {
    let [Role::Value, positions, weights] = *operator.inputs else {
        let label = tensors.get(names::SAMPLING_OFFSETS)?.label();
        bail!("{label}: states no shape; the fused operator takes .npy or .safetensors files");
    };
    let value = tensors.get(names::VALUE)?;
    let of_weights = tensors.get(weights.name())?;
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
        [same] => same.checked_mul(pyramid.sizes.len()),
        list => list.iter().try_fold(0usize, |sum, &count| sum.checked_add(count)),
    }
    .context("--points: sizes past all memory")?;
    let points = pyramid.points(args, samples, tensors.get(positions.name())?)?;

    let layout = args.layout.unwrap_or(ValueLayout::Interleaved);
    let end = pyramid.end(layout).with_context(|| value.label())?;
    let pixel = product(&[heads, channels, value_dtype.size_bytes()])?;
    let image = product(&[end, pixel])?;
    let batch = match args.batch {
        Some(batch) => batch,
        None => whole(value.bytes.len(), image).with_context(|| {
            format!(
                "{}: {} bytes are not a whole number of images of {image} bytes ({end} pixels x \
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
            let is_f32 = product(&[elements, 4])? == of_weights.bytes.len();
            (queries, if is_f32 { DType::F32 } else { value_dtype })
        }
        (None, sampling) => {
            // Half of the bytes could as well be twice the queries.
            let sampling = match sampling {
                None if value_dtype.size_bytes() == 2 => bail!(Usage(format!(
                    "{}: its length does not tell queries from bytes per element; give --queries or --sampling-dtype",
                    of_weights.file.display()
                ))),
                sampling => sampling.unwrap_or(value_dtype),
            };
            let query = product(&[batch, row, sampling.size_bytes()])?;
            let queries = whole(of_weights.bytes.len(), query).with_context(|| {
                format!(
                    "{}: {} bytes are not a whole number of queries of {query} bytes ({batch} images \
                     x {heads} heads x {samples} samples of {sampling})",
                    of_weights.file.display(),
                    of_weights.bytes.len()
                )
            })?;
            (queries, sampling)
        }
    };
    let value_shape = value_shape(layout, batch, heads, spatial, channels);
    let flat = vec![batch, queries, heads, samples];
    let inputs = vec![
        Stated { role: Role::Value, dtype: value_dtype, shape: value_shape.clone() },
        Stated { role: positions, dtype: sampling, shape: [flat.clone(), vec![2]].concat() },
        Stated { role: weights, dtype: sampling, shape: flat },
    ];
    Ok((inputs, points, layout, value_shape))
}

fn product(sizes: &[usize]) -> Result<usize> {
    let checked = sizes.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
    checked.with_context(|| format!("sizes {sizes:?} are past all memory"))
}

fn whole(bytes: usize, unit: usize) -> Option<usize> {
    (unit > 0 && bytes.is_multiple_of(unit)).then(|| bytes / unit)
}

/// The dtype of a tensor of real numbers, checked against the one that is given for it.
fn float_type(tensor: &Tensor<'_>, stored: Stored, given: Option<DType>) -> Result<DType> {
    let found = match (stored, given) {
        (Stored::Bits16, Some(given)) if given.size_bytes() == 2 => given,
        (Stored::Bits16, _) => bail!(Usage(format!(
            "{}: elements are two raw bytes; name their dtype with --dtype bf16 or --dtype f16",
            tensor.label()
        ))),
        _ => stored.dtype().with_context(|| {
            format!("{}: is {stored}, expected f32, f16, bf16 or f64", tensor.label())
        })?,
    };
    if let Some(given) = given.filter(|given| *given != found) {
        bail!(Usage(format!("{}: is {found}, but the command line has {given}", tensor.label())));
    }
    Ok(found)
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
        Usage(format!("{}: {found:?}, but --levels is {:?}", tensor.label(), args.levels))
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
                    "{}: {} bytes are not pairs of positive i64 or i32",
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
    // Two raw bytes have the dtype of the output.
    let given = (*stored == Stored::Bits16).then_some(expected);
    let dtype = float_type(tensor, *stored, given)?;
    let like = if expected == problem.dtype() { " like the values" } else { "" };
    ensure!(
        dtype == expected,
        "{}: is {dtype}, expected {expected}{like}; --output-dtype sets the dtype of output and grad_output",
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
