//! Levels given as tensors: height, width, start and points of each, in the words of the Python half where they are wrong.

use crate::error::CallError;

/// What a call says about its levels, read from its tensors.
pub struct Given<'a> {
    /// (height, width) of each.
    pub shapes: &'a [[i64; 2]],
    /// The first pixel of each; without them the levels follow each other.
    pub starts: Option<&'a [i64]>,
    /// The points of each; without them the locations say it.
    pub points: Option<&'a [i64]>,
}

impl Given<'_> {
    /// Four numbers for each level. Without starts the levels must be all of the value's pixels: too few would be
    /// computed without a word, from the wrong pixels if a level was forgotten.
    pub fn flatten(&self, value: &[i64], locations: &[i64]) -> Result<Vec<i64>, CallError> {
        let count = self.shapes.len();
        let shared;
        let points = match self.points {
            Some(points) if points.iter().any(|&points| points < 0) => {
                return Err(CallError::Levels(format!(
                    "`points` must be a number of points, 0 or more, or a list with the number of each level; found {points:?}"
                )));
            }
            Some(points) => points,
            None => {
                shared = vec![shared_points(locations, count)?; count];
                &shared
            }
        };
        let following;
        let starts = if let Some(starts) = self.starts {
            starts
        } else {
            following = self.following_starts();
            &following
        };
        for (name, given) in [("level_start_index", starts), ("points", points)] {
            if given.len() != count {
                return Err(CallError::Levels(format!(
                    "`{name}` has {} entries for {count} levels; give one per level",
                    given.len()
                )));
            }
        }
        let rows = self.shapes.iter().zip(starts).zip(points);
        let numbers: Vec<i64> = rows
            .flat_map(|((shape, &start), &points)| [shape[0], shape[1], start, points])
            .collect();
        match value {
            &[_, pixels, _, _] if self.starts.is_none() => self.check_pixels(pixels)?,
            _ => {}
        }
        Ok(numbers)
    }

    fn following_starts(&self) -> Vec<i64> {
        let mut end = 0_i64;
        self.shapes
            .iter()
            .map(|[height, width]| {
                let start = end;
                end = end.saturating_add(height.saturating_mul(*width));
                start
            })
            .collect()
    }

    fn check_pixels(&self, pixels: i64) -> Result<(), CallError> {
        let end = self
            .shapes
            .iter()
            .fold(0_i64, |end, [height, width]| end.saturating_add(height.saturating_mul(*width)));
        // A level that is wrong in itself is refused with the problem.
        if end == pixels || self.shapes.iter().flatten().any(|&size| size <= 0) {
            return Ok(());
        }
        let pairs: Vec<(i64, i64)> =
            self.shapes.iter().map(|&[height, width]| (height, width)).collect();
        Err(CallError::Levels(format!(
            "`value` has {pixels} pixels, but the levels of `spatial_shapes` {pairs:?} have {end}; values with gaps \
             between levels need `level_start_index`, as a list or in host memory"
        )))
    }
}

/// Points of each level, read off the locations.
fn shared_points(locations: &[i64], levels: usize) -> Result<i64, CallError> {
    match *locations {
        [_, _, _, _, points, _] => Ok(points),
        [_, _, _, samples, 2] => match i64::try_from(levels) {
            Ok(0) if samples == 0 => Ok(0),
            Ok(levels) if levels > 0 && samples % levels == 0 => Ok(samples / levels),
            _ => Err(CallError::Levels(format!(
                "`sampling_locations` has shape {locations:?}: {samples} samples are not the same number of points on \
                 each of {levels} levels; give `points=[...]`, the number of points of each level"
            ))),
        },
        _ => Err(CallError::Levels(format!(
            "`sampling_locations` has shape {locations:?}; expected [batch, queries, heads, levels, points, 2] or \
             [batch, queries, heads, samples, 2], with `points=[...]` where levels have different numbers of points"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPES: [[i64; 2]; 2] = [[3, 4], [1, 2]];
    const VALUE: [i64; 4] = [1, 14, 2, 8];

    fn given<'a>(starts: Option<&'a [i64]>, points: Option<&'a [i64]>) -> Given<'a> {
        Given { shapes: &SHAPES, starts, points }
    }

    fn refusal(given: &Given<'_>, value: &[i64], locations: &[i64]) -> String {
        given.flatten(value, locations).unwrap_err().to_string()
    }

    #[test]
    fn levels_follow_each_other_and_locations_say_how_many_points_they_have() {
        let expected = [3, 4, 0, 5, 1, 2, 12, 5];
        assert_eq!(given(None, None).flatten(&VALUE, &[1, 7, 2, 2, 5, 2]).unwrap(), expected);
        assert_eq!(given(None, None).flatten(&VALUE, &[1, 7, 2, 10, 2]).unwrap(), expected);
        let given = given(Some(&[2, 0]), Some(&[1, 3]));
        let gaps = given.flatten(&[1, 99, 2, 8], &[1, 7, 2, 4, 2]).unwrap();
        assert_eq!(gaps, [3, 4, 2, 1, 1, 2, 0, 3]);
    }

    #[test]
    fn what_does_not_fit_is_refused_by_name() {
        let locations = [1, 7, 2, 2, 5, 2];
        let said = refusal(&given(None, None), &[1, 15, 2, 8], &locations);
        assert!(said.starts_with(
            "`value` has 15 pixels, but the levels of `spatial_shapes` [(3, 4), (1, 2)] have 14"
        ));
        let said = refusal(&given(None, None), &VALUE, &[1, 7, 2, 9, 2]);
        assert!(
            said.contains("9 samples are not the same number of points on each of 2 levels"),
            "{said}"
        );
        let said = refusal(&given(Some(&[0]), None), &VALUE, &locations);
        assert_eq!(said, "`level_start_index` has 1 entries for 2 levels; give one per level");
        let said = refusal(&given(None, Some(&[1, -1])), &VALUE, &locations);
        assert!(said.ends_with("found [1, -1]"), "{said}");
        let said = refusal(&given(None, None), &VALUE, &[1, 7, 2]);
        assert!(said.starts_with("`sampling_locations` has shape [1, 7, 2]; expected"), "{said}");
    }
}
