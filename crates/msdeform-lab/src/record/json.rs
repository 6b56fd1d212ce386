//! Records as text: a line for each fact and for each item of a list, so that people can read and compare them.

use serde::Serialize;

use super::RecordError;

pub fn to_json(value: &impl Serialize) -> Result<String, RecordError> {
    let compact = serde_json::to_string(value).map_err(RecordError::Serialise)?;
    Ok(laid_out(&compact) + "\n")
}

/// Starts a line for every field and every item of an outermost list; an item itself stays on its line.
fn laid_out(compact: &str) -> String {
    let mut out = String::with_capacity(compact.len() + compact.len() / 4);
    // The brackets that are open. What an outermost list holds is at a depth of two brackets or more.
    let mut open: Vec<char> = Vec::new();
    let mut chars = compact.chars().peekable();
    while let Some(c) = chars.next() {
        let is_item = open.iter().rev().skip(1).any(|&bracket| bracket == '[');
        let line = |depth: usize| "\n".to_owned() + &"  ".repeat(depth);
        match c {
            '"' => copy_string(&mut chars, &mut out),
            '[' | '{' => {
                open.push(c);
                out.push(c);
                let is_empty = matches!(chars.peek(), Some(']' | '}'));
                if !is_empty && !open[..open.len() - 1].contains(&'[') {
                    out += &line(open.len());
                }
            }
            ']' | '}' => {
                open.pop();
                if !is_item && !out.ends_with(['[', '{']) {
                    out += &line(open.len());
                }
                out.push(c);
            }
            ',' if is_item => out += ", ",
            ',' => out += &(",".to_owned() + &line(open.len())),
            ':' => out += ": ",
            _ => out.push(c),
        }
    }
    out
}

/// The rest of a string, whose first quotation mark was read.
fn copy_string(rest: &mut impl Iterator<Item = char>, out: &mut String) {
    out.push('"');
    while let Some(c) = rest.next() {
        out.push(c);
        match c {
            '\\' => out.extend(rest.next()),
            '"' => return,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_and_items_have_a_line_each() {
        let value = serde_json::json!({
            "a": {"b": 1, "c": {}},
            "d": [{"e": [1, 2], "f": {"g": []}}, {}],
            "h": [],
            "i[": "[\"{,:\\",
        });
        let expected = "{\n  \"a\": {\n    \"b\": 1,\n    \"c\": {}\n  },\n  \"d\": [\n    \
                        {\"e\": [1, 2], \"f\": {\"g\": []}},\n    {}\n  ],\n  \"h\": [],\n  \"i[\": \"[\\\"{,:\\\\\"\n}\n";
        let text = to_json(&value).unwrap();
        assert_eq!(text, expected);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }
}
