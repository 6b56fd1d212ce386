//! Templates over records. A name that is not there is an error where it is written as text, and a dash where it is
//! written as a number: a number that was not measured is a dash.

use std::sync::LazyLock;

use minijinja::value::Value;
use minijinja::{AutoEscape, Environment, ErrorKind, UndefinedBehavior, escape_formatter};
use msdeform_lab::RecordError;
use msdeform_lab::digits;

use crate::overview::bound_of;
use crate::table::{count, or_dash};

macro_rules! texts {
    ($($name:literal)*) => { [$(($name, include_str!(concat!("../templates/", $name)))),*] };
}

const TEXTS: [(&str, &str); 23] = texts! {
    "LADDER.txt" "PERFORMANCE.txt" "README.txt" "bench-ladder.txt" "chart.svg" "figures.txt" "kernel.txt" "onnx.txt"
    "overview.txt" "page.css" "page.html" "page.js" "page.txt" "peers.txt" "python-readme.txt" "python.txt" "roofline.css"
    "roofline.svg" "rungs.txt" "story.txt" "summary.txt" "tables.txt" "times.txt"
};

static TEMPLATES: LazyLock<Environment<'static>> = LazyLock::new(|| {
    let mut environment = Environment::new();
    environment.set_loader(|name| {
        let known = TEXTS.iter().find(|(known, _)| *known == name);
        Ok(known.map(|(_, text)| (*text).to_owned()))
    });
    environment.set_undefined_behavior(UndefinedBehavior::Chainable);
    environment.set_formatter(|out, state, value| {
        let is_text = value.as_str().is_some() && !value.is_safe();
        match f64::try_from(value.clone()) {
            _ if value.is_undefined() => Err(ErrorKind::UndefinedError.into()),
            // As Rust writes them: 12, not 12.0.
            Ok(number) if value.is_number() => Ok(write!(out, "{number}")?),
            _ if is_text && matches!(state.auto_escape(), AutoEscape::Html) => {
                Ok(out.write_str(&html(value.as_str().unwrap_or_default()))?)
            }
            _ => escape_formatter(out, state, value),
        }
    });
    add_filters(&mut environment);
    environment
});

/// Fills in a template.
pub(crate) fn render(template: &str, values: Value) -> Result<String, RecordError> {
    let rendered = TEMPLATES.get_template(template).and_then(|found| found.render(values));
    rendered.map_err(|error| RecordError::Serialise(serde::ser::Error::custom(error)))
}

/// Text that cannot become markup.
fn html(text: &str) -> String {
    let escaped = |c: char| match c {
        '&' | '<' | '>' | '"' | '\'' => format!("&#{};", u32::from(c)),
        _ => c.to_string(),
    };
    text.chars().map(escaped).collect()
}

fn add_filters(to: &mut Environment<'static>) {
    type Number = Option<f64>;
    to.add_filter("markup", |text: String| html(&text));
    // Text in a picture, and in a table of Markdown, which another program wrote.
    let xml = |text: String| text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    to.add_filter("xml", xml);
    to.add_filter("foreign", |text: String| text.replace('|', "/").replace('<', "&lt;"));
    to.add_filter("dash", |text: Option<String>| or_dash(text, |text| text));
    // So many characters of a date or a commit.
    let prefix = |text: String, length| text.chars().take(length).collect::<String>();
    to.add_filter("prefix", prefix);
    // With so many decimals and a unit, with an exponent, with three significant digits, thousands by letter, as a time.
    to.add_filter("fixed", |number: Number, decimals: usize, unit: String| {
        or_dash(number, |number| format!("{number:.decimals$}{unit}"))
    });
    to.add_filter("scientific", |number: Number, decimals: usize| {
        or_dash(number, |number| format!("{number:.decimals$e}"))
    });
    let finite = |number: Number| number.filter(|number| number.is_finite());
    to.add_filter("three", move |number: Number| or_dash(finite(number), digits::three_digits));
    to.add_filter("thousands", |number: Number| or_dash(number, count));
    to.add_filter("time", |time_us: Number| or_dash(time_us, digits::time));
    // In another unit, and as a part of something: nothing of nothing.
    to.add_filter("times", |number: Number, factor: f64| number.map(|number| number * factor));
    to.add_filter("over", |part: Number, whole: Number| Some(part? / whole?));
    // The place of a shape. Tenths are finer than a screen.
    to.add_filter("tenths", |place: f64| (10.0 * place).round() / 10.0);
    // A share as far as it can be drawn: what is no share is drawn as none.
    to.add_filter("percent", move |share: Number| {
        let share = finite(share).map_or(0.0, |share| share.clamp(0.0, 1.0));
        format!("{:.2}", 100.0 * share)
    });
    // A number that stays on one line with its unit, where a narrow table would break them. Lists of them may break.
    to.add_filter("unbroken", |cell: String| {
        let is_number = cell.starts_with(|c: char| c.is_ascii_digit()) && !cell.contains(", ");
        if is_number { cell.replace(' ', "\u{a0}") } else { cell }
    });
    // What the accuracy contract allows in a dtype.
    to.add_filter("bound", |dtype: String| bound_of(&dtype));
}

#[cfg(test)]
mod tests {
    use minijinja::context;

    use super::*;

    #[test]
    fn every_template_compiles_and_a_name_that_is_not_there_is_an_error() {
        for (name, _) in TEXTS {
            TEMPLATES.get_template(name).unwrap();
        }
        let unnamed = context! { rungs => [context! { origin => "x" }] };
        let error = render("bench-ladder.txt", unnamed).unwrap_err().to_string();
        assert!(error.contains("undefined value (in bench-ladder.txt:5)"), "{error}");
    }
}
