//! Which combinations of format, layout, model and knob a variant is compiled for.
//!
//! Every combination would be hundreds of compilations per variant. The cover has the first model in
//! every format and layout, and every other model, mixed formats and every value of every knob at least
//! once, each in another format and layout.

use msdeform::{DType, ValueLayout};
use msdeform_cuda::variants::Variant;

use super::scenes::{MODELS, Model};

/// One combination.
#[derive(Clone, Copy)]
pub struct Cell {
    pub dtype: DType,
    pub sampling_dtype: DType,
    pub layout: ValueLayout,
    pub model: &'static Model,
    /// A knob set by hand; the variant chooses the others.
    pub knob: Option<(&'static str, i64)>,
}

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}+{} {} {}", self.dtype, self.sampling_dtype, self.layout, self.model.name)?;
        self.knob.map_or(Ok(()), |(name, value)| write!(f, " {name}={value}"))
    }
}

/// The cells to run: of `supported` ones, a cover or all.
pub fn cells(variant: &dyn Variant, full: bool, supported: impl Fn(&Cell) -> bool) -> Vec<Cell> {
    let spec = variant.spec();
    let formats = spec.dtypes.iter().flat_map(|&dtype| {
        spec.layouts.iter().map(move |&layout| Cell {
            dtype,
            sampling_dtype: dtype,
            layout,
            model: &MODELS[0],
            knob: None,
        })
    });
    let formats: Vec<Cell> = formats.collect();
    let knobs: Vec<(&'static str, i64)> = variant
        .knobs()
        .iter()
        .flat_map(|knob| knob.values.iter().map(|&value| (knob.name, value)))
        .collect();
    let mixed = |cell: &Cell| Cell { sampling_dtype: DType::F32, ..*cell };
    if full {
        return formats
            .iter()
            .flat_map(
                |cell| {
                    if cell.dtype == DType::F32 { vec![*cell] } else { vec![*cell, mixed(cell)] }
                },
            )
            .flat_map(|cell| MODELS.iter().map(move |model| Cell { model, ..cell }))
            .flat_map(|cell| {
                let chosen = knobs.iter().map(move |&knob| Cell { knob: Some(knob), ..cell });
                std::iter::once(cell).chain(chosen)
            })
            .filter(|cell| supported(cell))
            .collect();
    }
    let mut cover: Vec<Cell> = formats
        .iter()
        .filter_map(|cell| {
            // A variant that does not do the first model is given the next one it does.
            MODELS.iter().map(|model| Cell { model, ..*cell }).find(|cell| supported(cell))
        })
        .collect();
    // Everything else starts its search in another format and layout.
    let mut turn = 0;
    let mut add = |choose: &dyn Fn(&Cell) -> Cell, among: &[Cell]| {
        turn += 1;
        let rotated = (0..among.len()).map(|i| choose(&among[(i + turn) % among.len()]));
        cover.extend(rotated.into_iter().find(|cell| supported(cell)));
    };
    for model in &MODELS[1..] {
        add(&|cell| Cell { model, ..*cell }, &formats);
    }
    for dtype in spec.dtypes.iter().filter(|&&dtype| dtype != DType::F32) {
        let same: Vec<Cell> = formats.iter().filter(|cell| cell.dtype == *dtype).copied().collect();
        let fits = |model| same.iter().any(|cell| supported(&Cell { model, ..mixed(cell) }));
        if let Some(model) = MODELS.iter().find(|model| fits(model)) {
            add(&|cell| Cell { model, ..mixed(cell) }, &same);
        }
    }
    for &knob in &knobs {
        let all: Vec<Cell> = MODELS
            .iter()
            .flat_map(|model| formats.iter().map(move |cell| Cell { model, ..*cell }))
            .collect();
        add(&|cell| Cell { knob: Some(knob), ..*cell }, &all);
    }
    cover
}
