//! Strides of the tensors that need not be contiguous, in elements.

use crate::{DType, Error, Problem, Role};

/// Strides of the value tensor, so that a slice of a larger tensor needs no copy. The channels of a pixel are adjacent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ValueStrides {
    /// From one image to the next.
    pub batch: i64,
    /// From one head to the next.
    pub head: i64,
    /// From one pixel of a head to the next.
    pub pixel: i64,
}

impl ValueStrides {
    /// Those of a contiguous tensor in the problem's layout.
    pub fn packed(problem: &Problem) -> Self {
        // All below isize::MAX: Problem checked the element count. Offsets of single coordinates may
        // not exist (no batch, no head), so the products are spelled out.
        let (heads, channels) = (problem.heads() as i64, problem.channels() as i64);
        let spatial = problem.spatial() as i64;
        let batch = heads * spatial * channels;
        if problem.layout().is_head_major() {
            Self { batch, head: spatial * channels, pixel: channels }
        } else {
            Self { batch, head: channels, pixel: heads * channels }
        }
    }

    /// Whether every stride is a multiple of `count` elements.
    pub const fn all_multiples_of(self, count: usize) -> bool {
        let count = count as i64;
        self.batch % count == 0 && self.head % count == 0 && self.pixel % count == 0
    }

    const fn axes(self, problem: &Problem) -> [Axis; 3] {
        [
            ("batch", self.batch, problem.batch()),
            ("head", self.head, problem.heads()),
            ("pixel", self.pixel, problem.spatial()),
        ]
    }

    /// Elements from the first to one past the last, 0 for an empty tensor. Saturates.
    pub fn extent(self, problem: &Problem) -> usize {
        extent(problem.channels(), &self.axes(problem))
    }

    /// Refuses negative strides and tensors that no address space holds.
    ///
    /// # Errors
    /// [`Error::Negative`] or [`Error::TooLarge`].
    pub fn check(self, problem: &Problem) -> Result<(), Error> {
        check("value", problem.channels(), &self.axes(problem))
    }
}

/// Strides of the gradient of the output, `[N, Lq, M, D]`. Zeros are legal, because the gradient of a sum is one number that
/// every position shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OutputStrides {
    /// From one image to the next.
    pub batch: i64,
    /// From one query to the next.
    pub query: i64,
    /// From one head to the next.
    pub head: i64,
    /// From one channel to the next.
    pub channel: i64,
}

impl OutputStrides {
    /// Those of a contiguous tensor.
    pub fn packed(problem: &Problem) -> Self {
        // All below isize::MAX: Problem checked the element count.
        let (heads, channels) = (problem.heads() as i64, problem.channels() as i64);
        let query = heads * channels;
        Self { batch: problem.queries() as i64 * query, query, head: channels, channel: 1 }
    }

    const fn axes(self, problem: &Problem) -> [Axis; 4] {
        [
            ("batch", self.batch, problem.batch()),
            ("query", self.query, problem.queries()),
            ("head", self.head, problem.heads()),
            ("channel", self.channel, problem.channels()),
        ]
    }

    /// Elements from the first to one past the last, 0 for an empty tensor. Saturates.
    pub fn extent(self, problem: &Problem) -> usize {
        extent(1, &self.axes(problem))
    }

    /// Refuses negative strides and tensors that no address space holds.
    ///
    /// # Errors
    /// [`Error::Negative`] or [`Error::TooLarge`].
    pub fn check(self, problem: &Problem) -> Result<(), Error> {
        check("grad_output", 1, &self.axes(problem))
    }
}

/// Strides of references, offsets or logits: the numbers of one query are adjacent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RowStrides {
    /// From one image to the next.
    pub image: i64,
    /// From one query to the next.
    pub query: i64,
}

/// Strides of what the fused operator reads. Zeros are legal, because all images may share their references.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SourceStrides {
    /// Of the references.
    pub references: RowStrides,
    /// Of the offsets.
    pub offsets: RowStrides,
    /// Of the logits.
    pub logits: RowStrides,
}

impl SourceStrides {
    /// Those of contiguous tensors.
    pub fn packed(problem: &Problem) -> Self {
        let of = |role| {
            let query = row_len(problem, role) as i64;
            RowStrides { image: problem.queries() as i64 * query, query }
        };
        Self {
            references: of(Role::References),
            offsets: of(Role::Offsets),
            logits: of(Role::Logits),
        }
    }

    /// Those of one of the three tensors.
    pub const fn of(&self, role: Role) -> Option<RowStrides> {
        match role {
            Role::References => Some(self.references),
            Role::Offsets => Some(self.offsets),
            Role::Logits => Some(self.logits),
            _ => None,
        }
    }

    /// Elements of one query, and the axes around them.
    fn rows(&self, problem: &Problem, role: Role) -> (usize, [Axis; 2]) {
        let RowStrides { image, query } = self.of(role).unwrap_or_default();
        let axes = [("batch", image, problem.batch()), ("query", query, problem.queries())];
        (row_len(problem, role), axes)
    }

    /// Elements from the first to one past the last of one of them, 0 for an empty tensor. Saturates.
    pub fn extent(&self, problem: &Problem, role: Role) -> usize {
        let (row, axes) = self.rows(problem, role);
        extent(row, &axes)
    }

    /// Refuses negative strides and tensors that no address space holds.
    ///
    /// # Errors
    /// [`Error::Negative`] or [`Error::TooLarge`].
    pub fn check(&self, problem: &Problem) -> Result<(), Error> {
        [Role::References, Role::Offsets, Role::Logits].into_iter().try_for_each(|role| {
            let (row, axes) = self.rows(problem, role);
            check(role.name(), row, &axes)
        })
    }
}

/// Elements of one query.
fn row_len(problem: &Problem, role: Role) -> usize {
    problem.len_of(role) / (problem.batch() * problem.queries()).max(1)
}

/// The name of an axis, its stride and its size.
type Axis = (&'static str, i64, usize);

fn extent(contiguous: usize, axes: &[Axis]) -> usize {
    if contiguous == 0 || axes.iter().any(|&(.., size)| size == 0) {
        return 0;
    }
    let reach = |&(_, stride, size): &Axis| {
        usize::try_from(stride).unwrap_or(usize::MAX).saturating_mul(size - 1)
    };
    axes.iter().map(reach).fold(contiguous, usize::saturating_add)
}

fn check(tensor: &'static str, contiguous: usize, axes: &[Axis]) -> Result<(), Error> {
    if let Some((axis, stride, _)) = axes.iter().find(|(_, stride, _)| *stride < 0) {
        let name = format!("{tensor} {axis} stride");
        return Err(Error::Negative { name, value: i128::from(*stride) });
    }
    let limit = isize::MAX.unsigned_abs() / DType::F64.size_bytes();
    if extent(contiguous, axes) > limit { Err(Error::TooLarge { tensor }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use crate::ValueLayout;

    use super::*;

    #[test]
    fn packed_strides_reach_every_element_in_every_layout() {
        for layout in ValueLayout::ALL {
            let problem = Problem::builder()
                .batch(2)
                .heads(3)
                .channels(5)
                .queries(1)
                .levels([(4, 6), (2, 3)])
                .layout(layout)
                .build()
                .unwrap();
            let strides = ValueStrides::packed(&problem);
            assert_eq!(strides.extent(&problem), problem.value_len(), "{layout}");
            let offset = strides.batch + 2 * strides.head;
            assert_eq!(offset as usize, problem.head_offset(1, 2), "{layout}");
            assert_eq!(strides.pixel as usize, problem.pixel_stride(), "{layout}");
        }
    }

    #[test]
    fn strides_that_make_no_sense_are_refused() {
        let problem =
            Problem::builder().batch(3).channels(8).queries(0).levels([(4, 4)]).build().unwrap();
        let packed = ValueStrides::packed(&problem);
        assert!(packed.check(&problem).is_ok());
        assert!(ValueStrides { batch: 0, ..packed }.check(&problem).is_ok(), "an expanded batch");
        let negative = ValueStrides { pixel: -8, ..packed }.check(&problem).unwrap_err();
        assert!(negative.to_string().contains("value pixel stride"), "{negative}");
        let huge = ValueStrides { batch: i64::MAX / 2, ..packed }.check(&problem).unwrap_err();
        assert!(matches!(huge, Error::TooLarge { tensor: "value" }));
    }

    #[test]
    fn an_output_gradient_may_be_one_number_seen_from_everywhere() {
        let problem = Problem::builder()
            .batch(2)
            .heads(3)
            .channels(5)
            .queries(7)
            .levels([(4, 4)])
            .build()
            .unwrap();
        let packed = OutputStrides::packed(&problem);
        assert_eq!(packed, OutputStrides { batch: 105, query: 15, head: 5, channel: 1 });
        assert_eq!(packed.extent(&problem), problem.output_len());
        let expanded = OutputStrides { batch: 0, query: 0, head: 0, channel: 0 };
        assert_eq!(expanded.extent(&problem), 1);
        assert!(expanded.check(&problem).is_ok());
        let negative = OutputStrides { query: -1, ..packed }.check(&problem).unwrap_err();
        assert!(negative.to_string().contains("grad_output query stride"), "{negative}");
    }
}
