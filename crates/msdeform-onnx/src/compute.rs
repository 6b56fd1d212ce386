//! What operators compute from numbers, beyond moving them and adding them up: the index arithmetic of gathers, and the whole
//! numbers that shapes are made of.
//!
//! All numbers are f64, which holds the whole numbers of any index. Truth is one, falsehood zero.

use crate::array::{Array, elements, strides};
use crate::attributes::axis;
use crate::operators::Call;
use crate::proto::data_type;

/// The result of an operator of this table; `None` for the others.
pub(crate) fn computed(call: &Call<'_>, inputs: &[Array<f64>], most: usize) -> Option<Array<f64>> {
    let node = call.node();
    let map = |of: &dyn Fn(f64) -> f64| {
        let input = inputs.first()?;
        let data = input.data.iter().map(|&x| of(x)).collect();
        Some(Array { shape: input.shape.clone(), data })
    };
    let both = |of: &dyn Fn(f64, f64) -> f64| {
        let mut inputs = inputs.iter();
        let first = inputs.next()?.clone();
        inputs.try_fold(first, |a, b| zipped(&a, b, most, of))
    };
    let truth = |of: &dyn Fn(f64, f64) -> bool| both(&|a, b| f64::from(u8::from(of(a, b))));
    match node.op_type.as_str() {
        "Cast" => match i32::try_from(node.int("to")?).ok()? {
            data_type::BOOL => map(&|x| f64::from(u8::from(x != 0.0))),
            to if data_type::has_fractions(to) => None,
            _ => map(&f64::trunc),
        },
        "Floor" => map(&f64::floor),
        "Ceil" => map(&f64::ceil),
        "Neg" => map(&|x| -x),
        "Not" => map(&|x| f64::from(u8::from(x == 0.0))),
        "Clip" => {
            let bound = |at: usize, name: &str, otherwise: f64| match node.input(at) {
                Some(_) => {
                    let before = (1..at).filter(|&other| node.input(other).is_some()).count();
                    inputs.get(1 + before)?.data.first().copied()
                }
                None => Some(node.float(name).map_or(otherwise, f64::from)),
            };
            let (low, high) =
                (bound(1, "min", f64::NEG_INFINITY)?, bound(2, "max", f64::INFINITY)?);
            map(&|x| x.max(low).min(high))
        }
        "Min" => both(&f64::min),
        "Max" => both(&f64::max),
        "Mod" => both(&|a, b| if b == 0.0 { 0.0 } else { a - b * (a / b).floor() }),
        "Div" if call.is_whole(0) => both(&|a, b| (a / b).trunc()),
        "Equal" => truth(&|a, b| a == b),
        "Greater" => truth(&|a, b| a > b),
        "GreaterOrEqual" => truth(&|a, b| a >= b),
        "Less" => truth(&|a, b| a < b),
        "LessOrEqual" => truth(&|a, b| a <= b),
        "And" => truth(&|a, b| a != 0.0 && b != 0.0),
        "Or" => truth(&|a, b| a != 0.0 || b != 0.0),
        "Where" => {
            let [mask, one, other] = inputs else { return None };
            let one = zipped(mask, one, most, &|mask, x| if mask == 0.0 { f64::NAN } else { x })?;
            let shape = common(&one.shape, &other.shape)?;
            let (mask, one, other) =
                (mask.expanded(&shape)?, one.expanded(&shape)?, other.expanded(&shape)?);
            let chosen = mask.data.iter().zip(one.data.iter().zip(&other.data));
            let data = chosen.map(|(&mask, (&a, &b))| if mask == 0.0 { b } else { a }).collect();
            Some(Array { shape, data })
        }
        "Shape" => {
            let shape = inputs.first()?.shape.iter().map(|&size| size as f64);
            let data: Vec<f64> = shape.collect();
            let has_bounds = node.int("start").is_some() || node.int("end").is_some();
            (!has_bounds).then(|| Array { shape: vec![data.len()], data })
        }
        "Range" => {
            let number = |at: usize| inputs.get(at)?.data.first().copied();
            let (start, end, step) = (number(0)?, number(1)?, number(2)?);
            let count = ((end - start) / step).ceil().max(0.0);
            // A count that is not a number is not below any.
            let count = (count < most as f64).then_some(count as usize)?;
            let data = (0..count).map(|at| start + at as f64 * step).collect();
            Some(Array { shape: vec![count], data })
        }
        "ConstantOfShape" => {
            let sizes = inputs.first()?.data.iter().map(|&x| (x >= 0.0).then_some(x as usize));
            let shape: Vec<usize> = sizes.collect::<Option<_>>()?;
            let value = node.attribute("value").and_then(|value| value.t.as_ref());
            let number = match value {
                Some(tensor) => tensor.read_numbers()?.first().copied()?,
                None => 0.0,
            };
            elements(&shape).filter(|&count| count <= most)?;
            Array::filled(&shape, |_| number)
        }
        "CumSum" => {
            let input = inputs.first().filter(|input| input.shape.len() == 1)?;
            let is_reverse = node.int("reverse").unwrap_or(0) != 0;
            let is_exclusive = node.int("exclusive").unwrap_or(0) != 0;
            let mut sum = 0.0;
            let data = input.data.iter().map(|&x| {
                let before = sum;
                sum += x;
                if is_exclusive { before } else { sum }
            });
            (!is_reverse).then(|| Array { shape: input.shape.clone(), data: data.collect() })
        }
        "Tile" => tiled(inputs.first()?, &call.known_numbers(1)?, most),
        "Pad" => padded(call, inputs.first()?, most),
        "MatMul" => multiplied(inputs.first()?, inputs.get(1)?, most),
        "GatherElements" => {
            let (data, indices) = (inputs.first()?, inputs.get(1)?);
            let at = call.axis(0, data.shape.len())?;
            (indices.data.len() <= most).then(|| of_elements(data, indices, at))?
        }
        "GatherND" => of_vectors(call, inputs.first()?, inputs.get(1)?, most),
        "Gather" => of_indices(call, inputs.first()?, inputs.get(1)?, most),
        _ => None,
    }
}

/// The shape that two shapes have together.
fn common(a: &[usize], b: &[usize]) -> Option<Vec<usize>> {
    let rank = a.len().max(b.len());
    let at = |shape: &[usize], index: usize| {
        (index + shape.len()).checked_sub(rank).map_or(1, |index| shape[index])
    };
    let join = |index: usize| match (at(a, index), at(b, index)) {
        (1, size) | (size, 1) => Some(size),
        (one, other) => (one == other).then_some(one),
    };
    (0..rank).map(join).collect()
}

fn zipped(
    a: &Array<f64>,
    b: &Array<f64>,
    most: usize,
    of: &dyn Fn(f64, f64) -> f64,
) -> Option<Array<f64>> {
    let shape = common(&a.shape, &b.shape)?;
    elements(&shape).filter(|&count| count <= most)?;
    let (a, b) = (a.expanded(&shape)?, b.expanded(&shape)?);
    let data = a.data.iter().zip(&b.data).map(|(&a, &b)| of(a, b)).collect();
    Some(Array { shape, data })
}

fn index(number: f64, size: usize) -> Option<usize> {
    axis(number as i64, size)
}

fn of_elements(data: &Array<f64>, indices: &Array<f64>, at: usize) -> Option<Array<f64>> {
    if data.shape.len() != indices.shape.len() {
        return None;
    }
    let (own, steps) = (strides(&indices.shape), strides(&data.shape));
    let place = |(flat, &number): (usize, &f64)| {
        let picked = index(number, data.shape[at])?;
        let axes = 0..own.len();
        let offset = axes.filter(|&axis| axis != at).try_fold(picked * steps[at], |sum, axis| {
            let along = flat / own[axis] % indices.shape[axis];
            (along < data.shape[axis]).then(|| sum + along * steps[axis])
        });
        data.data.get(offset?).copied()
    };
    let gathered = indices.data.iter().enumerate().map(place).collect::<Option<_>>()?;
    Some(Array { shape: indices.shape.clone(), data: gathered })
}

fn of_indices(
    call: &Call<'_>,
    data: &Array<f64>,
    indices: &Array<f64>,
    most: usize,
) -> Option<Array<f64>> {
    let at = call.axis(0, data.shape.len())?;
    let shape = [&data.shape[..at], &indices.shape, &data.shape[at + 1..]].concat();
    elements(&shape).filter(|&count| count <= most)?;
    let inner = elements(&data.shape[at + 1..])?;
    let mut gathered = Vec::with_capacity(elements(&shape)?);
    for row in 0..elements(&data.shape[..at])? {
        for &number in &indices.data {
            let start = (row * data.shape[at] + index(number, data.shape[at])?) * inner;
            gathered.extend_from_slice(data.data.get(start..start + inner)?);
        }
    }
    Some(Array { shape, data: gathered })
}

fn of_vectors(
    call: &Call<'_>,
    data: &Array<f64>,
    indices: &Array<f64>,
    most: usize,
) -> Option<Array<f64>> {
    let folded = usize::try_from(call.node().int("batch_dims").unwrap_or(0)).ok()?;
    let (&length, front) = indices.shape.split_last()?;
    let rest = data.shape.get(folded.checked_add(length)?..)?;
    if indices.shape.get(..folded)? != data.shape.get(..folded)? || folded > front.len() {
        return None;
    }
    let shape = [front, rest].concat();
    elements(&shape).filter(|&count| count <= most)?;
    let (steps, inner) = (strides(&data.shape), elements(rest)?);
    let per_batch = elements(&front[folded..])?.max(1);
    let size_of_batch = elements(&data.shape[folded..])?;
    let mut gathered = Vec::with_capacity(elements(&shape)?);
    for (row, vector) in indices.data.chunks(length.max(1)).enumerate() {
        let mut start = row / per_batch * size_of_batch;
        for (at, &number) in vector.iter().enumerate() {
            start += index(number, data.shape[folded + at])? * steps[folded + at];
        }
        gathered.extend_from_slice(data.data.get(start..start + inner)?);
    }
    Some(Array { shape, data: gathered })
}

fn tiled(input: &Array<f64>, repeats: &[i64], most: usize) -> Option<Array<f64>> {
    let mut result = input.clone();
    for (at, &times) in repeats.iter().enumerate() {
        let times = usize::try_from(times).ok()?;
        result.data.len().checked_mul(times).filter(|&count| count <= most)?;
        if times != 1 {
            result = Array::concatenated(&vec![result; times], at)?;
        }
    }
    Some(result)
}

/// Zeros around the input; other modes are not followed.
fn padded(call: &Call<'_>, input: &Array<f64>, most: usize) -> Option<Array<f64>> {
    let node = call.node();
    let is_constant = node.text("mode").is_none_or(|mode| mode == "constant");
    let value = call.floats(2).and_then(|floats| floats.first().copied()).unwrap_or(0.0);
    let pads = call.pads()?;
    let rank = input.shape.len();
    if !is_constant || node.float("value").is_some_and(|x| x != 0.0) || pads.len() != 2 * rank {
        return None;
    }
    let sizes = (0..rank).map(|at| {
        let size = i64::try_from(input.shape[at]).ok()?;
        usize::try_from(size.checked_add(pads[at])?.checked_add(pads[rank + at])?).ok()
    });
    let shape: Vec<usize> = sizes.collect::<Option<_>>()?;
    elements(&shape).filter(|&count| count <= most)?;
    let (own, steps) = (strides(&shape), strides(&input.shape));
    Array::filled(&shape, |flat| {
        let inside = (0..rank).try_fold(0usize, |sum, at| {
            let along = i64::try_from(flat / own[at] % shape[at]).ok()? - pads[at];
            let along = usize::try_from(along).ok().filter(|&along| along < input.shape[at])?;
            Some(sum + along * steps[at])
        });
        inside.map_or(value, |offset| input.data[offset])
    })
}

fn multiplied(a: &Array<f64>, b: &Array<f64>, most: usize) -> Option<Array<f64>> {
    let (front_a, &[rows, length]) = a.shape.split_last_chunk()?;
    let (front_b, &[other, columns]) = b.shape.split_last_chunk()?;
    let front = common(front_a, front_b)?;
    let shape = [&front[..], &[rows, columns]].concat();
    if length != other || elements(&shape)? > most {
        return None;
    }
    let a = a.expanded(&[&front[..], &[rows, length]].concat())?;
    let b = b.expanded(&[&front[..], &[length, columns]].concat())?;
    let mut data = vec![0.0; elements(&shape)?];
    for (row, sums) in data.chunks_mut(columns.max(1)).enumerate() {
        let matrix = row / rows.max(1) * length * columns;
        for (at, &factor) in a.data[row * length..][..length].iter().enumerate() {
            for (sum, &x) in sums.iter_mut().zip(&b.data[matrix + at * columns..]) {
                *sum += factor * x;
            }
        }
    }
    Some(Array { shape, data })
}
