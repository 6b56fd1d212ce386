//! Shapes behind convolutions, pooling, resizing and padding: the sizes of the levels come from there.

use crate::dim::{Dim, Dims};
use crate::operators::Call;

/// The shapes of the outputs of an operator of this table.
pub(crate) fn shapes(call: &Call<'_>) -> Option<Vec<Dims>> {
    let node = call.node();
    let first = call.dims(0);
    let dims = match node.op_type.as_str() {
        "Conv" | "ConvInteger" | "FusedConv" | "QLinearConv" => {
            let weights = call.dims(if node.op_type == "QLinearConv" { 3 } else { 1 });
            let kernel = node
                .ints("kernel_shape")
                .map(<[i64]>::to_vec)
                .or_else(|| weights?.get(2..)?.iter().map(Dim::known).collect())?;
            let channels = weights.and_then(|dims| dims.first()).cloned();
            windows(call, first?, channels.unwrap_or_else(Dim::unknown), &kernel)?
        }
        "MaxPool" | "AveragePool" | "LpPool" => {
            windows(call, first?, first?.get(1)?.clone(), node.ints("kernel_shape")?)?
        }
        "ConvTranspose" => {
            let weights = call.dims(1)?;
            let group = node.int("group").unwrap_or(1);
            let channels = weights.get(1)?.times(&group.into())?;
            let kernel: Vec<i64> =
                weights.get(2..)?.iter().map(Dim::known).collect::<Option<_>>()?;
            transposed(call, first?, channels, &kernel)?
        }
        "GlobalAveragePool" | "GlobalMaxPool" => {
            let dims = first?;
            (0..dims.len()).map(|at| if at < 2 { dims[at].clone() } else { 1i64.into() }).collect()
        }
        "Resize" | "Upsample" => resized(call, first?)?,
        "Pad" => padded(call, first?)?,
        "Tile" => {
            let repeats = call.numbers(1)?;
            let sizes = first?.iter().zip(&repeats).map(|(dim, times)| dim.times(times));
            sizes.map(|size| size.unwrap_or_else(Dim::unknown)).collect()
        }
        "DepthToSpace" | "SpaceToDepth" => {
            let block = node.int("blocksize")?;
            let square = Dim::from(block.checked_mul(block)?);
            let [batch, channels, height, width] = &first?[..] else { return None };
            let (block, is_deep) = (Dim::from(block), node.op_type == "SpaceToDepth");
            let side = |dim: &Dim| if is_deep { dim.over(&block) } else { dim.times(&block) };
            let depth = if is_deep { channels.times(&square) } else { channels.over(&square) };
            vec![batch.clone(), depth?, side(height)?, side(width)?]
        }
        "GatherND" => {
            let (data, indices) = (first?, call.dims(1)?);
            let folded = usize::try_from(node.int("batch_dims").unwrap_or(0)).ok()?;
            let (length, front) = indices.split_last()?;
            [front, data.get(folded.checked_add(length.size()?)?..)?].concat()
        }
        "TopK" => {
            let (mut dims, at) = (first?.clone(), call.axis(-1, first?.len())?);
            dims[at] = call.numbers(1)?.first()?.clone();
            return Some(vec![dims.clone(), dims]);
        }
        _ => return None,
    };
    Some(vec![dims])
}

/// One number of a list for each axis of the image.
fn each<'n>(call: &Call<'n>, name: &str, otherwise: i64) -> impl Fn(usize) -> i64 + use<'n> {
    let list: Vec<i64> = call.node().ints(name).unwrap_or_default().to_vec();
    move |at| list.get(at).copied().unwrap_or(otherwise)
}

fn windows(call: &Call<'_>, input: &Dims, channels: Dim, kernel: &[i64]) -> Option<Dims> {
    let node = call.node();
    let (strides, dilations, pads) =
        (each(call, "strides", 1), each(call, "dilations", 1), each(call, "pads", 0));
    let mode = node.text("auto_pad").unwrap_or("NOTSET");
    let rounds_up = node.int("ceil_mode").unwrap_or(0) != 0;
    let count = kernel.len();
    let size = |at: usize| {
        let stride = strides(at).max(1);
        let reach = dilations(at).checked_mul(kernel[at] - 1)?;
        let dim = input.get(2 + at)?;
        if mode.starts_with("SAME") {
            return if stride == 1 {
                Some(dim.clone())
            } else {
                Some(Dim::from((dim.known()? + stride - 1) / stride))
            };
        }
        let border = if mode == "VALID" { 0 } else { pads(at).checked_add(pads(count + at))? };
        let taken = reach.checked_sub(border)?;
        if stride == 1 && taken == 0 {
            return Some(dim.clone());
        }
        let room = dim.known()?.checked_sub(taken)?.checked_sub(1)?;
        let steps = if rounds_up {
            room.checked_add(stride - 1)? / stride
        } else {
            room.div_euclid(stride)
        };
        Some((steps + 1).into())
    };
    let mut dims = vec![input.first()?.clone(), channels];
    dims.extend((0..count).map(|at| size(at).unwrap_or_else(Dim::unknown)));
    Some(dims)
}

fn transposed(call: &Call<'_>, input: &Dims, channels: Dim, kernel: &[i64]) -> Option<Dims> {
    let (strides, dilations, pads, more) = (
        each(call, "strides", 1),
        each(call, "dilations", 1),
        each(call, "pads", 0),
        each(call, "output_padding", 0),
    );
    let count = kernel.len();
    let size = |at: usize| {
        let reach = dilations(at).checked_mul(kernel[at] - 1)?;
        let added = reach + more(at) + 1 - strides(at) - pads(at) - pads(count + at);
        let grown = input.get(2 + at)?.times(&strides(at).into())?;
        if added == 0 { Some(grown) } else { Some(grown.known()?.checked_add(added)?.into()) }
    };
    let mut dims = vec![input.first()?.clone(), channels];
    dims.extend((0..count).map(|at| size(at).unwrap_or_else(Dim::unknown)));
    Some(dims)
}

fn resized(call: &Call<'_>, input: &Dims) -> Option<Dims> {
    // Newer opsets have a region in front of the scales.
    let scales = if call.node().op_type == "Upsample" { 1 } else { 2 };
    if let Some(sizes) = call.numbers(3).filter(|sizes| sizes.len() == input.len()) {
        return Some(sizes);
    }
    let scales = call.floats(scales).filter(|scales| scales.len() == input.len())?;
    let size = |(dim, &scale): (&Dim, &f64)| {
        if scale.fract() == 0.0 && scale > 0.0 {
            return dim.times(&Dim::from(scale as i64));
        }
        Some(((dim.known()? as f64 * scale).floor() as i64).into())
    };
    Some(input.iter().zip(scales).map(|at| size(at).unwrap_or_else(Dim::unknown)).collect())
}

fn padded(call: &Call<'_>, input: &Dims) -> Option<Dims> {
    let pads = call.pads().filter(|pads| pads.len() == 2 * input.len());
    let size = |(at, dim): (usize, &Dim)| {
        let pads = pads.as_ref()?;
        let more = pads[at].checked_add(pads[input.len() + at])?;
        if more == 0 { Some(dim.clone()) } else { Some(dim.known()?.checked_add(more)?.into()) }
    };
    Some(input.iter().enumerate().map(|at| size(at).unwrap_or_else(Dim::unknown)).collect())
}
