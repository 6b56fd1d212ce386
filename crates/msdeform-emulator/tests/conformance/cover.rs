//! The combinations of dtype, layout, shape and knob that a variant is compiled for.
//!
//! All combinations would be hundreds of compilations per variant. The cover has the first shape in
//! every dtype and layout. It has every other shape, mixed dtypes (with an even and an odd number of points), every
//! subset of the gradients and every value of every knob at least once, each in another dtype and layout.

use msdeform::{DType, Direction, Gradients, ValueLayout};
use msdeform_cuda::variants::{Knob, Variant};
use msdeform_lab::conformance::{Backend, SHAPES, Shape};

/// One combination.
#[derive(Clone, Copy)]
pub struct Cell {
    pub dtype: DType,
    pub sampling_dtype: DType,
    pub layout: ValueLayout,
    pub shape: &'static Shape,
    /// The gradients that a backward variant computes.
    pub gradients: Gradients,
    /// A knob set by hand; the variant chooses the others.
    pub knob: Option<(&'static str, i64)>,
}

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}+{} {} {}", self.dtype, self.sampling_dtype, self.layout, self.shape.name)?;
        if self.gradients != Gradients::ALL {
            write!(f, " only {}", self.gradients)?;
        }
        self.knob.map_or(Ok(()), |(name, value)| write!(f, " {name}={value}"))
    }
}

impl Cell {
    fn with_f32_sampling(&self) -> Self {
        Self { sampling_dtype: DType::F32, ..*self }
    }
}

/// The shapes that are small enough; the first is run for every dtype and layout.
fn shapes() -> impl Iterator<Item = &'static Shape> {
    SHAPES.iter().filter(|shape| shape.least == Backend::Emulator)
}

fn shape(name: &str) -> &'static Shape {
    shapes().find(|shape| shape.name == name).unwrap()
}

/// The shape whose rows of samples are only aligned to an element.
const ODD: &str = "odd points";

/// The cells to run, and why others are skipped.
#[derive(Default)]
pub struct Cover {
    pub cells: Vec<Cell>,
    pub refused: Vec<String>,
}

impl Cover {
    /// Adds the first supported candidate, or the first candidate's refusal if no candidate is supported.
    fn add(
        &mut self,
        candidates: impl IntoIterator<Item = Cell>,
        supported: &impl Fn(&Cell) -> Result<(), String>,
    ) {
        let mut refusal = None;
        for cell in candidates {
            match supported(&cell) {
                Ok(()) => return self.cells.push(cell),
                Err(reason) => {
                    refusal.get_or_insert(reason);
                }
            }
        }
        self.refused.extend(refusal);
    }
}

/// The cells of a variant: a cover, or all.
pub fn cover(
    variant: &Variant,
    full: bool,
    supported: impl Fn(&Cell) -> Result<(), String>,
) -> Cover {
    let spec = variant.spec;
    let mut formats = Vec::new();
    for &dtype in spec.dtypes {
        for &layout in spec.layouts {
            let (sampling_dtype, shape) = (dtype, &SHAPES[0]);
            let gradients = Gradients::ALL;
            formats.push(Cell { dtype, sampling_dtype, layout, shape, gradients, knob: None });
        }
    }
    let halves = |cell: &&Cell| cell.dtype != DType::F32;
    let in_every_model =
        |cell: &Cell| shapes().map(|shape| Cell { shape, ..*cell }).collect::<Vec<_>>();
    let values = |knob: &'static Knob| knob.values.iter().map(|&value| (knob.name, value));
    let knobs: Vec<(&'static str, i64)> = variant.settings().flat_map(values).collect();
    let subsets: &[Gradients] = match spec.direction {
        Direction::Forward => &[],
        Direction::Backward => &Gradients::subsets()[1..],
    };
    let mut cover = Cover::default();

    if full {
        let mixed = formats.iter().filter(halves).map(Cell::with_f32_sampling);
        let all = formats.iter().copied().chain(mixed).collect::<Vec<_>>();
        for cell in all.iter().flat_map(in_every_model) {
            cover.add([cell], &supported);
            for &knob in &knobs {
                cover.add([Cell { knob: Some(knob), ..cell }], &supported);
            }
            for &gradients in subsets {
                cover.add([Cell { gradients, ..cell }], &supported);
            }
        }
        return cover;
    }

    if variant.spec.rung {
        // A rung has one setting: both layouts, equal and differing points, every value of a knob.
        cover.add([formats[0]], &supported);
        let uneven = Cell { shape: shape("differing points"), ..formats[1] }.with_f32_sampling();
        cover.add([uneven, formats[1]], &supported);
        let odd = Cell { shape: shape(ODD), ..formats[0] };
        cover.add([odd.with_f32_sampling(), odd], &supported);
        for (turn, &knob) in knobs.iter().enumerate() {
            let cell = formats[turn % formats.len()];
            cover.add([Cell { knob: Some(knob), ..cell }], &supported);
        }
        return cover;
    }
    for cell in &formats {
        // A variant that refuses the first shape gets the first one that it takes.
        cover.add(in_every_model(cell), &supported);
    }
    // All other searches start in another dtype and layout.
    let rotated = |cells: &[Cell], turn: usize| {
        let mut cells = cells.to_vec();
        if !cells.is_empty() {
            let by = turn % cells.len();
            cells.rotate_left(by);
        }
        cells
    };
    for (turn, shape) in shapes().enumerate().skip(1) {
        let candidates = rotated(&formats, turn).into_iter().map(|cell| Cell { shape, ..cell });
        cover.add(candidates, &supported);
    }
    for (turn, &dtype) in spec.dtypes.iter().enumerate() {
        let same: Vec<Cell> =
            formats.iter().filter(|cell| cell.dtype == dtype).filter(halves).copied().collect();
        let mixed = rotated(&same, turn).iter().map(Cell::with_f32_sampling).collect::<Vec<_>>();
        cover.add(mixed.iter().flat_map(in_every_model), &supported);
        // A location in f32 is the widest pair, and here only the pair itself is aligned.
        let odd = rotated(&formats, turn).into_iter().filter(|cell| cell.dtype == dtype);
        let odd = odd.map(|cell| Cell { shape: shape(ODD), ..cell }.with_f32_sampling());
        cover.add(odd, &supported);
    }
    for (turn, &gradients) in subsets.iter().enumerate() {
        let candidates = rotated(&formats, turn);
        let candidates = candidates.iter().flat_map(in_every_model);
        cover.add(candidates.map(|cell| Cell { gradients, ..cell }), &supported);
    }
    for (turn, &knob) in knobs.iter().enumerate() {
        let candidates = rotated(&formats, turn);
        let candidates = candidates.iter().flat_map(in_every_model);
        cover.add(candidates.map(|cell| Cell { knob: Some(knob), ..cell }), &supported);
    }
    cover
}
