//! Records as text: a line for each fact and for each item of a list, so that people can read and compare them.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

use super::RecordError;

/// What goes into a file among the records.
///
/// # Errors
/// [`RecordError::Serialise`].
pub fn to_json(value: &impl Serialize) -> Result<String, RecordError> {
    let mut out = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut out, Lines::default());
    value.serialize(&mut serializer).map_err(RecordError::Serialise)?;
    out.push(b'\n');
    Ok(String::from_utf8_lossy(&out).into_owned())
}

/// Starts a line for every field and every item of an outermost list; an item itself stays on its line.
#[derive(Default)]
struct Lines {
    depth: usize,
    /// Lists around the place.
    lists: usize,
    has_value: bool,
}

impl Lines {
    fn line<W: ?Sized + Write>(&self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b"\n")?;
        (0..self.depth).try_for_each(|_| writer.write_all(b"  "))
    }

    fn begin<W: ?Sized + Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.has_value = false;
        writer.write_all(bracket)
    }

    /// `in_item`: the bracket closes something within an item of a list.
    fn end<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        bracket: &[u8],
        in_item: bool,
    ) -> io::Result<()> {
        self.depth -= 1;
        if self.has_value && !in_item {
            self.line(writer)?;
        }
        self.has_value = true;
        writer.write_all(bracket)
    }

    fn separate<W: ?Sized + Write>(
        &self,
        writer: &mut W,
        first: bool,
        in_item: bool,
    ) -> io::Result<()> {
        match (first, in_item) {
            (true, true) => Ok(()),
            (true, false) => self.line(writer),
            (false, true) => writer.write_all(b", "),
            (false, false) => {
                writer.write_all(b",")?;
                self.line(writer)
            }
        }
    }
}

impl Formatter for Lines {
    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.lists += 1;
        self.begin(writer, b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.lists -= 1;
        self.end(writer, b"]", self.lists > 0)
    }

    fn begin_array_value<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.separate(writer, first, self.lists > 1)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.has_value = true;
        Ok(())
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.begin(writer, b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.end(writer, b"}", self.lists > 0)
    }

    fn begin_object_key<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.separate(writer, first, self.lists > 0)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.has_value = true;
        Ok(())
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
        });
        let expected = "{\n  \"a\": {\n    \"b\": 1,\n    \"c\": {}\n  },\n  \"d\": [\n    \
                        {\"e\": [1, 2], \"f\": {\"g\": []}},\n    {}\n  ],\n  \"h\": []\n}\n";
        let text = to_json(&value).unwrap();
        assert_eq!(text, expected);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }
}
