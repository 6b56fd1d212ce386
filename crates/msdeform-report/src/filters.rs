//! How templates write text and numbers.

use askama::{Result, Values};

/// Text that cannot become markup.
#[askama::filter_fn]
pub(crate) fn xml<T: AsRef<str>>(text: T, _: &dyn Values) -> Result<String> {
    Ok(text.as_ref().replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;"))
}

/// The place of a shape. Tenths are finer than a screen.
#[askama::filter_fn]
pub(crate) fn tenths<T: Number>(place: T, _: &dyn Values) -> Result<f64> {
    Ok((10.0 * place.value()).round() / 10.0)
}

/// A number of a template, which is behind any number of references.
pub(crate) trait Number {
    fn value(&self) -> f64;
}

impl Number for f64 {
    fn value(&self) -> f64 {
        *self
    }
}

impl<T: Number> Number for &T {
    fn value(&self) -> f64 {
        (*self).value()
    }
}
