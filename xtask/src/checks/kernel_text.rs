//! A kernel reads like a page: lines that fit one, functions that are seen at once.

use anyhow::{Context, Result, ensure};

use msdeform_cuda::sources::{where_samples_are_given, where_samples_follow};

use crate::steps::Report;
use crate::{format, tree};

/// As in `.clang-format`, which leaves comments alone.
const MAX_COLUMNS: usize = 110;
const KERNELS: [&str; 2] = ["crates/msdeform-cuda/kernels", "crates/msdeform-cuda-lab/kernels"];
/// Of a function in the kernels, from its first line to its last.
const MAX_LINES: usize = 50;

/// Checks every CUDA and C++ file; functions only of the kernels.
pub fn check() -> Result<Report> {
    let (mut found, mut functions, mut longest) = (Vec::new(), 0, 0);
    for file in format::sources()? {
        let text = std::fs::read_to_string(tree::root().join(&file))
            .with_context(|| file.display().to_string())?;
        let name = file.display();
        for (index, line) in text.lines().enumerate() {
            let columns = line.chars().count();
            if columns > MAX_COLUMNS {
                found.push(format!("{name}:{}: {columns} columns", index + 1));
            }
        }
        if !KERNELS.iter().any(|folder| file.starts_with(folder)) {
            continue;
        }
        // What is compiled for samples that follow from offsets and what is compiled otherwise are never read together.
        let (given, follow) = (where_samples_are_given(&text), where_samples_follow(&text));
        let both = if given == follow { vec![given] } else { vec![given, follow] };
        for Function { lines, head } in both.iter().flat_map(|text| functions_of(text)) {
            functions += 1;
            longest = longest.max(lines);
            if lines > MAX_LINES {
                found.push(format!("{name}: {lines} lines of `{head}`"));
            }
        }
    }
    ensure!(found.is_empty(), "too long:\n  {}", found.join("\n  "));
    Ok(Report::check(format!("{functions} functions of at most {longest} lines")))
}

/// A function with its braces.
#[derive(Debug, PartialEq, Eq)]
struct Function {
    lines: usize,
    head: String,
}

/// The outermost functions of a file; lambdas are part of theirs. Counts braces, which is enough for formatted sources.
fn functions_of(text: &str) -> Vec<Function> {
    let mut functions = Vec::new();
    // What was opened and not yet closed: where its head begins, and the head if it is that of a function.
    let mut open: Vec<(usize, Option<String>)> = Vec::new();
    let (mut head, mut head_line) = (String::new(), 0);
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        let code = code_of(line);
        if code.trim_start().starts_with('#') {
            continue;
        }
        for character in code.chars() {
            match character {
                '{' => {
                    let inside = open.iter().any(|(_, function)| function.is_some());
                    let is_function = !inside && is_function_head(head.trim());
                    let first_line = if head.is_empty() { number } else { head_line };
                    let words: Vec<&str> = head.split_whitespace().collect();
                    open.push((first_line, is_function.then(|| words.join(" "))));
                    head.clear();
                }
                '}' => {
                    if let Some((first_line, Some(head))) = open.pop() {
                        functions.push(Function { lines: number + 1 - first_line, head });
                    }
                    head.clear();
                }
                ';' => head.clear(),
                _ if head.is_empty() && character.is_whitespace() => {}
                _ => {
                    if head.is_empty() {
                        head_line = number;
                    }
                    head.push(character);
                }
            }
        }
        if !head.is_empty() {
            head.push(' ');
        }
    }
    functions
}

fn is_function_head(head: &str) -> bool {
    let is_type = ["namespace", "struct", "enum"].iter().any(|word| head.starts_with(word));
    head.contains('(') && !is_type && !head.ends_with('=')
}

/// A line without its comment and without what stands in strings.
fn code_of(line: &str) -> String {
    let mut code = String::new();
    let mut characters = line.chars().peekable();
    let mut in_string = false;
    while let Some(character) = characters.next() {
        match character {
            '\\' if in_string => {
                characters.next();
            }
            '"' => in_string = !in_string,
            '/' if !in_string && characters.peek() == Some(&'/') => break,
            _ if in_string => {}
            _ => code.push(character),
        }
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_counted_with_their_heads_and_nothing_else_is() {
        let text = "namespace msda {\n\
                    struct Pair {\n    int at[2];\n    int sum() const { return at[0] + at[1]; }\n};\n\
                    constexpr Pair PAIR = {{1, 2}};\n\
                    // { not code\n\
                    template <typename T>\nvoid walk(\n    T visit) {\n    const auto twice = [&] {\n\
                    visit();  // }\n        say(\"}\");\n    };\n    twice();\n}\n\
                    }  // namespace msda\n";
        let found = functions_of(text);
        let lines: Vec<_> = found.iter().map(|f| f.lines).collect();
        assert_eq!(lines, [1, 9], "{found:?}");
        assert!(found[1].head.contains("walk"));
    }
}
