//! How templates write text and numbers. A number that was not measured is a dash.

use askama::{Result, Values};
use msdeform_lab::digits;

use crate::table::{self, or_dash};

/// Text that cannot become markup.
#[askama::filter_fn]
pub(crate) fn xml<T: AsRef<str>>(text: T, _: &dyn Values) -> Result<String> {
    Ok(text.as_ref().replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;"))
}

/// Text in a table of Markdown, which another program wrote.
#[askama::filter_fn]
pub(crate) fn foreign<T: AsRef<str>>(text: T, _: &dyn Values) -> Result<String> {
    Ok(text.as_ref().replace('|', "/").replace('<', "&lt;"))
}

/// Anything that may be missing.
#[askama::filter_fn]
pub(crate) fn dash<T: Text>(value: T, _: &dyn Values) -> Result<String> {
    Ok(or_dash(value.text(), |text| text))
}

/// So many characters of a date or a commit.
#[askama::filter_fn]
pub(crate) fn prefix<T: AsRef<str>>(text: T, _: &dyn Values, length: usize) -> Result<String> {
    Ok(text.as_ref().chars().take(length).collect())
}

/// The place of a shape. Tenths are finer than a screen.
#[askama::filter_fn]
pub(crate) fn tenths<T: Number>(place: T, _: &dyn Values) -> Result<f64> {
    Ok((10.0 * place.number().unwrap_or(f64::NAN)).round() / 10.0)
}

/// A part of a whole in percent, as far as it can be drawn: what is no share is drawn as none.
#[askama::filter_fn]
pub(crate) fn percent_of<T: Number, W: Number>(
    part: T,
    _: &dyn Values,
    whole: W,
) -> Result<String> {
    let share = part.number().zip(whole.number()).map_or(0.0, |(part, whole)| part / whole);
    Ok(format!("{:.2}", if share.is_finite() { 100.0 * share.clamp(0.0, 1.0) } else { 0.0 }))
}

/// With so many decimals, and a unit.
#[askama::filter_fn]
pub(crate) fn fixed<T: Number>(
    number: T,
    _: &dyn Values,
    decimals: usize,
    unit: &str,
) -> Result<String> {
    Ok(or_dash(number.number(), |number| format!("{number:.decimals$}{unit}")))
}

/// With so many decimals and an exponent.
#[askama::filter_fn]
pub(crate) fn scientific<T: Number>(number: T, _: &dyn Values, decimals: usize) -> Result<String> {
    Ok(or_dash(number.number(), |number| format!("{number:.decimals$e}")))
}

/// With three significant digits.
#[askama::filter_fn]
pub(crate) fn three<T: Number>(number: T, _: &dyn Values) -> Result<String> {
    Ok(or_dash(number.number().filter(|number| number.is_finite()), digits::three_digits))
}

/// Thousands and millions by letter.
#[askama::filter_fn]
pub(crate) fn count<T: Number>(number: T, _: &dyn Values) -> Result<String> {
    Ok(or_dash(number.number(), table::count))
}

/// In another unit.
#[askama::filter_fn]
pub(crate) fn times<T: Number>(number: T, _: &dyn Values, factor: f64) -> Result<Option<f64>> {
    Ok(number.number().map(|number| number * factor))
}

/// A number that stays on one line with its unit, where a narrow table would break them. Lists of them may break.
#[askama::filter_fn]
pub(crate) fn unbroken<T: ToString>(cell: T, _: &dyn Values) -> Result<String> {
    let cell = cell.to_string();
    let is_number = cell.starts_with(|first: char| first.is_ascii_digit()) && !cell.contains(", ");
    Ok(if is_number { cell.replace(' ', "\u{a0}") } else { cell })
}

/// A time in microseconds with three significant digits and its unit.
#[askama::filter_fn]
pub(crate) fn time<T: Number>(time_us: T, _: &dyn Values) -> Result<String> {
    Ok(or_dash(time_us.number(), digits::time))
}

/// A number that may be missing, behind any number of references.
pub(crate) trait Number {
    fn number(&self) -> Option<f64>;
}

impl Number for f64 {
    fn number(&self) -> Option<f64> {
        Some(*self)
    }
}

impl<T: Number> Number for Option<T> {
    fn number(&self) -> Option<f64> {
        self.as_ref()?.number()
    }
}

impl<T: Number> Number for &T {
    fn number(&self) -> Option<f64> {
        (*self).number()
    }
}

/// Text that may be missing, likewise.
pub(crate) trait Text {
    fn text(&self) -> Option<String>;
}

impl<T: ToString> Text for Option<T> {
    fn text(&self) -> Option<String> {
        self.as_ref().map(T::to_string)
    }
}

impl<T: Text> Text for &T {
    fn text(&self) -> Option<String> {
        (*self).text()
    }
}
