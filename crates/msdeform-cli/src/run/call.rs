//! From the shapes and dtypes of tensors and the command line to one [`Problem`], and from bytes to its inputs. What is
//! stated twice must agree.

use anyhow::{Context, Result, anyhow, bail, ensure};
use msdeform::{
    ATTENTION, DType, Error, FROM_OFFSETS, LevelLists, OffsetRule, Operator, Problem,
    ReferenceKind, Role, Signature, Storage, TensorSignature, ValueLayout,
};
use msdeform_lab::{Buffer, HostTensors};

use super::files::{Stored, Tensor, Tensors, name_of, stored_as};
use super::sizes::{Pyramid, SizeArgs, of_raw_files};
use crate::exit::Usage;

/// A call as its files describe it.
#[derive(Debug)]
pub struct Call {
    pub problem: Problem,
    /// What the operator reads, in its order.
    tensors: Vec<Stated>,
}

/// A tensor that the operator reads, as it is in its file.
#[derive(Clone, Debug)]
pub struct Stated {
    pub role: Role,
    /// The problem may have a wider one.
    pub dtype: DType,
    /// Also the shape in which the gradient is written.
    pub shape: Vec<usize>,
}

impl Call {
    /// Brings together everything that is known about a call.
    pub fn describe(tensors: &Tensors<'_>, args: &SizeArgs) -> Result<Self> {
        let operator = operator(tensors, args)?;
        let pyramid = Pyramid::new(tensors, args)?;
        let stated = operator.inputs.iter().map(|role| stated(tensors, args, *role));
        let (inputs, layout) = match stated.collect::<Result<Option<Vec<Stated>>>>()? {
            Some(inputs) => (inputs, args.layout),
            None => {
                let layout = args.layout.unwrap_or(ValueLayout::Interleaved);
                (of_raw_files(&pyramid, tensors, args, operator)?, Some(layout))
            }
        };
        let points = points(&pyramid, tensors, args, &inputs)?;
        let (layout, value_shape) = place_value(&pyramid, tensors, args, layout, &inputs)?;
        let channels = value_shape[3];
        if let Some(given) = args.channels.filter(|given| *given != channels) {
            let label = tensors.get("value")?.label();
            bail!(Usage(format!("{label}: has {channels} channels, but --channels is {given}")));
        }
        let dtypes = computed_dtypes(tensors, &inputs)?;
        let as_i64 = |sizes: &[usize]| sizes.iter().map(|&size| size as i64).collect::<Vec<i64>>();
        let mut shapes: Vec<Vec<i64>> = inputs.iter().map(|input| as_i64(&input.shape)).collect();
        shapes[0] = as_i64(&value_shape);
        let dtyped = dtypes.iter().zip(&shapes);
        let signatures: Vec<TensorSignature<'_>> =
            dtyped.map(|(&dtype, shape)| TensorSignature { dtype, shape }).collect();
        let points = points.as_deref().map(as_i64);
        let (sizes, starts) = (&pyramid.sizes, pyramid.starts.as_deref());
        let levels = LevelLists { sizes, starts, points: points.as_deref() };
        let has_references = operator.inputs.contains(&Role::References);
        let rule = has_references.then(|| OffsetRule::OfReferences(args.offsets.options()));
        let plain = Signature::new(&signatures, levels);
        let signature = Signature { rule, layout, expands_references: true, ..plain };
        let problem = signature.problem().map_err(|error| with_label(error, tensors))?;
        ensure_scale(&problem, tensors, args)?;
        let output_dtype = args.output_dtype.unwrap_or(problem.dtype());
        let problem = problem.to_builder().output_dtype(output_dtype).build()?;
        Ok(Self { problem, tensors: inputs })
    }

    /// Decodes the tensors of the call; `grad_output` only for a backward.
    pub fn inputs(&self, tensors: &Tensors<'_>, backward: bool) -> Result<HostTensors> {
        let problem = &self.problem;
        let mut inputs = Vec::new();
        for Stated { role, dtype, shape } in &self.tensors {
            let tensor = tensors.get(role.name())?;
            // References are fewer where the same ones serve several.
            let count = match role {
                Role::References => shape.iter().fold(1, |all: usize, n| all.saturating_mul(*n)),
                _ => problem.len_of(*role),
            };
            let buffer = floats(tensor, *dtype, problem.format_of(*role), count)?;
            inputs.push((*role, expanded(buffer, *role, shape, problem)));
        }
        if backward {
            let (tensor, dtype) = (tensors.get(Role::GradOutput.name())?, problem.output_dtype());
            ensure_like_output(tensor, problem)?;
            inputs.push((Role::GradOutput, floats(tensor, dtype, dtype, problem.output_len())?));
        }
        Ok(inputs.into_iter().collect())
    }

    /// The shape in which a result is written: that of the tensor whose gradient it is.
    pub fn shape_of_result(&self, role: Role) -> Vec<usize> {
        match self.tensors.iter().find(|stated| stated.role.gradient() == Some(role)) {
            // As many as there are queries, also where the same ones serve several.
            Some(_) if role == Role::GradReferences => self.problem.references_shape().to_vec(),
            Some(stated) => stated.shape.clone(),
            None => self.problem.output_shape().to_vec(),
        }
    }
}

/// The operator whose tensors are there.
fn operator(tensors: &Tensors<'_>, args: &SizeArgs) -> Result<&'static Operator> {
    let [offsets, locations] = [Role::Offsets, Role::Locations].map(Role::name);
    let Some(tensor) = tensors.find(offsets) else {
        return match args.offsets.first_set() {
            Some(option) => bail!(Usage(format!("{option} needs `{offsets}`, which is missing"))),
            None => Ok(&ATTENTION),
        };
    };
    ensure!(
        tensors.find(locations).is_none(),
        "{}: `{locations}` is there too; keep one of them",
        tensor.label()
    );
    Ok(&FROM_OFFSETS)
}

/// Dtype and shape of an input; `None` if its file states neither.
fn stated(tensors: &Tensors<'_>, args: &SizeArgs, role: Role) -> Result<Option<Stated>> {
    let tensor = tensors.get(role.name())?;
    let Some((stored, shape)) = &tensor.stated else { return Ok(None) };
    // Two raw bytes have the dtype that is given for the values, if that has 16 bits.
    let of_values = args.dtype.filter(|dtype| *stored == Stored::U16 && dtype.size_bytes() == 2);
    let given = match role.storage() {
        Storage::Channels => args.dtype,
        Storage::Samples => args.sampling_dtype.or(of_values),
        _ => of_values,
    };
    let dtype = float_type(tensor, *stored, given)?;
    Ok(Some(Stated { role, dtype, shape: shape.clone() }))
}

/// The dtype of a tensor of real numbers, checked against the one that is given for it.
fn float_type(tensor: &Tensor<'_>, stored: Stored, given: Option<DType>) -> Result<DType> {
    let label = tensor.label();
    let found = match (stored, given) {
        (Stored::U16, Some(given)) if given.size_bytes() == 2 => given,
        (Stored::U16, _) => bail!(Usage(format!(
            "{label}: elements are two raw bytes; name their dtype with --dtype bf16 or --dtype f16"
        ))),
        _ => {
            let known = DType::ALL.into_iter().find(|dtype| stored_as(*dtype) == stored);
            let stored = name_of(stored);
            known
                .with_context(|| format!("{label}: is {stored}, expected f32, f16, bf16 or f64"))?
        }
    };
    if let Some(given) = given.filter(|given| *given != found) {
        bail!(Usage(format!("{label}: is {found}, but the command line has {given}")));
    }
    Ok(found)
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

/// The points of each level, if they are given. Sizes on the command line must be those of the locations or offsets.
fn points(
    pyramid: &Pyramid,
    tensors: &Tensors<'_>,
    args: &SizeArgs,
    inputs: &[Stated],
) -> Result<Option<Vec<usize>>> {
    let [.., positions, _] = inputs else { bail!("an operator without samples") };
    let (label, shape) = (tensors.get(positions.role.name())?.label(), &positions.shape);
    let levels = pyramid.sizes.len();
    let (batch, queries, heads, samples) = match *shape.as_slice() {
        [batch, queries, heads, count, points, 2] if count == levels => {
            let samples = levels.checked_mul(points).context("sizes past all memory")?;
            (batch, queries, heads, samples)
        }
        [batch, queries, heads, samples, 2] => (batch, queries, heads, samples),
        _ => bail!(
            "{label}: shape {shape:?}, expected [N, Lq, M, L, P, 2] with L = {levels} or \
             [N, Lq, M, samples, 2]"
        ),
    };
    for (option, given, found) in [
        ("--batch", args.batch, batch),
        ("--queries", args.queries, queries),
        ("--heads", args.heads, heads),
    ] {
        if let Some(given) = given.filter(|given| *given != found) {
            bail!(Usage(format!("{label}: shape {shape:?} has {found}, but {option} is {given}")));
        }
    }
    let points = match args.points.as_slice() {
        [] => return Ok(None),
        [same] => vec![*same; levels],
        list => list.to_vec(),
    };
    let sum = points.iter().map(|&count| count as u128).sum::<u128>();
    ensure!(
        points.len() != levels || sum == samples as u128,
        Usage(format!(
            "{label}: {samples} samples per query and head, but --points adds up to {sum}"
        ))
    );
    Ok(Some(points))
}

/// The layout of the values and their shape with four axes: the layout whose pixels fit exactly, the ecosystem's first.
fn place_value(
    pyramid: &Pyramid,
    tensors: &Tensors<'_>,
    args: &SizeArgs,
    layout: Option<ValueLayout>,
    inputs: &[Stated],
) -> Result<(ValueLayout, [usize; 4])> {
    let [Stated { shape, .. }, .., positions, _] = inputs else {
        bail!("an operator without samples")
    };
    let (value, batch, heads) = (tensors.get("value")?, positions.shape[0], positions.shape[2]);
    let (mut spacious, mut expected) = (None, Vec::new());
    for layout in layout.map_or(ValueLayout::ALL.to_vec(), |layout| vec![layout]) {
        let end = pyramid.end(layout, value)?;
        let is_head_major = layout.is_head_major();
        let first = if is_head_major { [heads, end] } else { [end, heads] };
        expected.push(format!("[{batch}, {}, {}, D] ({layout})", first[0], first[1]));
        let axes = match *shape.as_slice() {
            [planes, pixels, channels]
                if is_head_major && Some(planes) == batch.checked_mul(heads) =>
            {
                [batch, heads, pixels, channels]
            }
            [images, first, second, channels] => [images, first, second, channels],
            _ => continue,
        };
        let (pixels, planes) = if is_head_major { (axes[2], axes[1]) } else { (axes[1], axes[2]) };
        if (axes[0], planes) != (batch, heads) {
            continue;
        }
        if pixels == end {
            return Ok((layout, axes));
        }
        // Unused pixels after the last level are accepted only with `level_start_index`.
        if pixels > end && pyramid.starts.is_some() {
            spacious = spacious.or(Some((layout, axes)));
        }
    }
    spacious.ok_or_else(|| {
        let expected = expected.join(" or ");
        let refused = format!("{}: shape {shape:?}, expected {expected}", value.label());
        if args.layout.is_some() { Usage(refused).into() } else { anyhow!(refused) }
    })
}

/// An error about a tensor, with the file that it is in.
fn with_label(error: Error, tensors: &Tensors<'_>) -> anyhow::Error {
    let label = |name: &str| tensors.find(name).map_or_else(|| name.to_owned(), Tensor::label);
    match error {
        Error::ShapeMismatch { tensor, found, expected } => {
            let is_references = tensor == Role::References.name();
            let more =
                if is_references { "; --anchors takes any number of references" } else { "" };
            anyhow!("{}: shape {found:?}, expected {expected}{more}", label(tensor))
        }
        Error::LevelCount { list: "points", levels, found } => Usage(format!(
            "--points has {found} entries for {levels} levels; give one, or one per level"
        ))
        .into(),
        Error::UnevenSamples { tensor, samples, levels } => Usage(format!(
            "{}: {samples} samples do not divide into {levels} levels; give --points for each level",
            label(tensor)
        ))
        .into(),
        error => anyhow::Error::from(error).context(label("value")),
    }
}

/// Refuses a scale if offsets start from points, which have none.
fn ensure_scale(problem: &Problem, tensors: &Tensors<'_>, args: &SizeArgs) -> Result<()> {
    let has_points = problem.offsets().is_some_and(|rule| rule.kind() == ReferenceKind::Point);
    if has_points && args.offsets.offset_scale.is_some() {
        let label = tensors.get(Role::References.name())?.label();
        bail!(Usage(format!("--offset-scale needs boxes, but {label} has points")));
    }
    Ok(())
}

/// The upstream gradient must look like the output.
fn ensure_like_output(tensor: &Tensor<'_>, problem: &Problem) -> Result<()> {
    let Some((stored, shape)) = &tensor.stated else { return Ok(()) };
    let (label, expected) = (tensor.label(), problem.output_dtype());
    // Two raw bytes have the dtype of the output.
    let dtype = float_type(tensor, *stored, (*stored == Stored::U16).then_some(expected))?;
    let like = if expected == problem.dtype() { " like the values" } else { "" };
    ensure!(
        dtype == expected,
        "{label}: is {dtype}, expected {expected}{like}; --output-dtype sets the dtype of output and grad_output"
    );
    let output @ [batch, queries, _] = problem.output_shape();
    ensure!(
        **shape == output || **shape == [batch, queries, problem.heads(), problem.channels()],
        "{label}: shape {shape:?}, expected {output:?} like the output"
    );
    Ok(())
}

/// References may be the same for all images or queries; devices want them one by one.
fn expanded(buffer: Buffer, role: Role, shape: &[usize], problem: &Problem) -> Buffer {
    let (Role::References, [images, rows, ..]) = (role, shape) else { return buffer };
    let (batch, queries) = (problem.batch(), problem.queries());
    if (*images, *rows) == (batch, queries) {
        return buffer;
    }
    // A file of a few bytes can declare any number of images and queries without references. Nothing is expanded for them.
    if problem.references_len() == 0 {
        return buffer.gather(0, std::iter::empty());
    }
    let [_, _, references, components] = problem.references_shape();
    let picked = (0..batch).flat_map(|image| {
        let first = if *images == 1 { 0 } else { image * rows };
        (0..queries).map(move |query| first + if *rows == 1 { 0 } else { query })
    });
    buffer.gather(references * components, picked)
}

/// The elements of a tensor, in the dtype in which the call is computed: that of the file, or a wider one.
fn floats(tensor: &Tensor<'_>, stored: DType, target: DType, count: usize) -> Result<Buffer> {
    let expected = count.saturating_mul(stored.size_bytes());
    ensure!(
        tensor.bytes.len() == expected,
        "{}: {} bytes, expected {expected} ({count} elements of {stored})",
        tensor.label(),
        tensor.bytes.len()
    );
    Ok(Buffer::from_le_bytes(stored, tensor.bytes).converted(target))
}
