//! The text that a kernel is compiled from: its file with everything it includes, without the parts of other steps and
//! of the other operator.
//!
//! This one text is compiled, hashed and verified, and a kernel gets the macros that its text mentions. So a knob that a
//! kernel does not mention cannot compile it again, and a change of a header concerns the kernels that include it.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use crate::sources::SourceFile;
use crate::variants::Variant;

/// What every macro of a kernel starts with.
pub(crate) const MACRO_PREFIX: &str = "MSDA_";
const STEP_PREFIX: &str = "MSDA_STEP_";
const FUSED: &str = "MSDA_FROM_OFFSETS";

/// Which parts of a file belong to a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Selection {
    /// Those of every step and operator.
    Everything,
    /// Those of one step, named like its macro, and of one operator.
    Kernel {
        /// `MSDA_STEP_<NAME>`; empty for a file without steps.
        step: String,
        /// Whether it is the fused operator.
        is_fused: bool,
    },
}

impl Selection {
    /// That of a step of a variant's file.
    fn of_step(variant: &Variant, step: &str, is_fused: bool) -> Self {
        let name = if step.is_empty() { "MAIN".to_owned() } else { step.to_uppercase() };
        let step = format!("{STEP_PREFIX}{name}");
        let has_step = variant.source.text.contains(&step);
        Self::Kernel { step: if has_step { step } else { String::new() }, is_fused }
    }

    /// That of compiler options.
    pub fn of_defines(defines: &[String]) -> Self {
        let names =
            defines.iter().filter_map(|define| define.strip_prefix("-D")?.split('=').next());
        let step = names.clone().find(|name| name.starts_with(STEP_PREFIX)).unwrap_or_default();
        Self::Kernel { step: step.to_owned(), is_fused: names.clone().any(|name| name == FUSED) }
    }

    /// The value of a condition. `None` if it is left to the compiler.
    fn value(&self, directive: &str) -> Option<bool> {
        match directive {
            "#ifdef MSDA_EMULATED" => return Some(false),
            "#ifndef MSDA_EMULATED" => return Some(true),
            _ => {}
        }
        let names = directive.strip_prefix("#if ")?.split("||").map(str::trim);
        let is_known = |name: &str| name.starts_with(STEP_PREFIX) || name == FUSED;
        names.clone().all(is_known).then_some(())?;
        Some(match self {
            Self::Everything => true,
            Self::Kernel { step, is_fused } => {
                names.clone().any(|name| name == step || (name == FUSED && *is_fused))
            }
        })
    }
}

/// The value of a conditional of the preprocessor that is open. `None` if it is left to the compiler.
type Conditional = Option<bool>;

/// The text of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelText {
    text: String,
    macros: BTreeSet<String>,
    /// The macro of the step, without its prefix, if the file has steps.
    pub(crate) step: Option<String>,
}

impl KernelText {
    /// Joins a file with those of the headers that it includes.
    pub fn new(source: SourceFile, headers: &[SourceFile], selection: &Selection) -> Self {
        let mut writer = Writer {
            headers,
            selection,
            included: BTreeSet::new(),
            text: String::new(),
            differs: false,
        };
        writer.file(source);
        let mut macros = macros_of(&writer.text);
        if writer.differs {
            macros.extend(FUSED.strip_prefix(MACRO_PREFIX).map(str::to_owned));
        }
        let step = match selection {
            Selection::Kernel { step, .. } => step.strip_prefix(MACRO_PREFIX).map(str::to_owned),
            Selection::Everything => None,
        };
        Self { text: writer.text, macros, step }
    }

    /// The text of the kernel of a step. Every plan needs it, so it is found without a search in sources.
    pub(crate) fn of_step(variant: &Variant, step: &'static str, is_fused: bool) -> Arc<Self> {
        type Known = HashMap<(&'static str, &'static str, bool), Arc<KernelText>>;
        static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Self::of(variant, &Selection::of_step(variant, step, is_fused));
        Arc::clone(known.entry((variant.spec.id, step, is_fused)).or_insert_with(new))
    }

    /// The text of a variant's kernel, made once in a process.
    pub fn of(variant: &Variant, selection: &Selection) -> Arc<Self> {
        type Known = HashMap<(&'static str, Selection), Arc<KernelText>>;
        static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);
        let key = (variant.spec.id, selection.clone());
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Arc::new(Self::new(variant.source, (variant.headers)(), selection));
        Arc::clone(known.entry(key).or_insert_with(new))
    }

    /// For the compiler, whose messages then name files and lines.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Lines of code alone: the same for texts that differ in comments.
    pub fn code(&self) -> impl Iterator<Item = &str> {
        self.text.lines().filter(|line| !line.is_empty() && !line.starts_with("#line"))
    }

    /// Whether a macro stands in it. The name is without its prefix.
    pub(crate) fn mentions(&self, name: &str) -> bool {
        self.macros.contains(name)
    }
}

struct Writer<'a> {
    headers: &'a [SourceFile],
    selection: &'a Selection,
    included: BTreeSet<&'static str>,
    text: String,
    /// Whether the two operators have different texts. The macro that tells them apart is then part of what is compiled,
    /// although the conditions on it are gone from the text.
    differs: bool,
}

impl Writer<'_> {
    fn file(&mut self, file: SourceFile) {
        self.place(1, file.name);
        let mut open: Vec<Conditional> = Vec::new();
        for (number, line) in file.text.lines().enumerate() {
            let code = without_comment(line);
            self.differs |= code.starts_with("#if") && code.contains(FUSED) && is_selected(&open);
            if !self.directive(code, &mut open) && is_selected(&open) {
                match included_name(code).and_then(|name| self.header(name)) {
                    Some(header) => {
                        if self.included.insert(header.name) {
                            self.file(header);
                            self.place(number + 1, file.name);
                        }
                    }
                    None if code == "#pragma once" => {}
                    None => self.text += code,
                }
            }
            self.text.push('\n');
        }
    }

    /// Follows conditionals; whether the line is one that this text need not have.
    fn directive(&self, code: &str, open: &mut Vec<Conditional>) -> bool {
        if code.starts_with("#if") {
            let value = self.selection.value(code);
            open.push(value);
            return value.is_some();
        }
        let innermost = open.last_mut().and_then(Option::as_mut);
        let is_ours = innermost.is_some();
        match (code, innermost) {
            ("#else", Some(value)) => *value = *self.selection == Selection::Everything || !*value,
            ("#endif", _) => drop(open.pop()),
            _ => return false,
        }
        is_ours
    }

    fn header(&self, name: &str) -> Option<SourceFile> {
        self.headers.iter().copied().find(|header| header.name == name)
    }

    fn place(&mut self, line: usize, file: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "#line {line} \"{file}\"");
    }
}

fn is_selected(open: &[Conditional]) -> bool {
    !open.contains(&Some(false))
}

/// Kernels use line comments only, and have no `//` in strings; a test holds the former.
fn without_comment(line: &str) -> &str {
    line.split("//").next().unwrap_or_default().trim_end()
}

fn included_name(code: &str) -> Option<&str> {
    code.strip_prefix("#include \"")?.split('"').next()
}

fn macros_of(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text.split(|c| !is_part(c));
    words.filter_map(|word| word.strip_prefix(MACRO_PREFIX)).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use msdeform::Offsets;

    use super::*;
    use crate::driver::DeviceProps;
    use crate::registry::REGISTRY;
    use crate::variants::tests::deformable_detr;
    use crate::variants::{Call, KnobChoices};

    const HEADERS: [SourceFile; 3] = [
        SourceFile { name: "a.cuh", text: "#pragma once\n#include \"b.cuh\"\nint a = MSDA_A;\n" },
        SourceFile { name: "b.cuh", text: "#pragma once\nint b;  // not MSDA_C\n" },
        SourceFile {
            name: "c.cuh",
            text: "#if MSDA_FROM_OFFSETS\nint fused;\n#else\nint plain;\n#endif\n",
        },
    ];
    const SOURCE: &str = "#include \"a.cuh\"\n#if MSDA_STEP_ONE || MSDA_STEP_TWO\n#include \"c.cuh\"\n\
        #if MSDA_B == 0\nint zero;\n#else\nint other;\n#endif\n#endif\n#if MSDA_STEP_TWO\nint two;\n#endif\n\
        #include \"b.cuh\"\n#include \"unknown.h\"\n";

    fn text(selection: &Selection) -> KernelText {
        KernelText::new(SourceFile { name: "x.cu", text: SOURCE }, &HEADERS, selection)
    }

    fn kernel(step: &str, is_fused: bool) -> Selection {
        Selection::Kernel { step: step.to_owned(), is_fused }
    }

    #[test]
    fn a_text_has_what_its_step_and_operator_include_once() {
        let code = |selection| text(&selection).code().collect::<Vec<_>>().join("|");
        let ends = "#include \"unknown.h\"";
        let begins = "int b;|int a = MSDA_A;";
        assert_eq!(code(kernel("MSDA_STEP_THREE", false)), format!("{begins}|{ends}"));
        let left = "#if MSDA_B == 0|int zero;|#else|int other;|#endif";
        let one = format!("{begins}|int plain;|{left}|{ends}");
        assert_eq!(code(kernel("MSDA_STEP_ONE", false)), one);
        let two = format!("{begins}|int fused;|{left}|int two;|{ends}");
        assert_eq!(code(kernel("MSDA_STEP_TWO", true)), two);
        let all = format!("{begins}|int fused;|int plain;|{left}|int two;|{ends}");
        assert_eq!(code(Selection::Everything), all);
    }

    #[test]
    fn macros_are_mentioned_in_code_and_not_in_comments() {
        let found =
            |selection: &Selection| ["A", "B", "C"].map(|name| text(selection).mentions(name));
        assert_eq!(found(&kernel("", false)), [true, false, false]);
        assert_eq!(found(&kernel("MSDA_STEP_ONE", false)), [true, true, false]);
        // Whether a step includes what differs between operators decides whether it is compiled for each.
        for (step, differs) in [("MSDA_STEP_ONE", true), ("MSDA_STEP_THREE", false)] {
            for is_fused in [false, true] {
                assert_eq!(
                    text(&kernel(step, is_fused)).mentions("FROM_OFFSETS"),
                    differs,
                    "{step}"
                );
            }
        }
    }

    /// What is compiled is selected by the options, so they must tell texts apart.
    #[test]
    fn the_options_of_a_kernel_select_its_text() {
        for variant in REGISTRY.iter().copied().filter(|variant| variant.takes_offsets) {
            let device = DeviceProps::h200();
            for problem in
                [deformable_detr(300), deformable_detr(300).offsets(Offsets::from_points())]
            {
                let problem = problem.build().unwrap();
                let call = Call::in_direction(variant.spec.direction, &problem, &device);
                let Ok(configuration) = variant.configure(&call, &KnobChoices::default()) else {
                    continue;
                };
                for unit in configuration.units(variant, &call) {
                    let is_fused = problem.offsets().is_some();
                    let planned = KernelText::of_step(variant, unit.step, is_fused);
                    let compiled = KernelText::of(variant, &Selection::of_defines(&unit.defines));
                    assert!(
                        planned.as_str() == compiled.as_str(),
                        "{} {}",
                        variant.spec.id,
                        unit.step
                    );
                }
            }
        }
    }

    #[test]
    fn the_compiler_is_told_which_file_a_line_is_of() {
        let text = text(&kernel("MSDA_STEP_TWO", false));
        let (before, _) = text.as_str().split_once("int two;").unwrap();
        let (_, after) = before.rsplit_once("#line ").unwrap();
        let (place, between) = after.split_once('\n').unwrap();
        let first: usize = place.split(' ').next().unwrap().parse().unwrap();
        assert!(place.ends_with("\"x.cu\""), "{place}");
        assert_eq!(first + between.lines().count(), 1 + line_of("int two;"), "{}", text.as_str());
    }

    fn line_of(code: &str) -> usize {
        SOURCE.lines().position(|line| line == code).unwrap()
    }

    #[test]
    fn options_name_their_selection() {
        let defines = ["-DMSDA_A=1", "-DMSDA_STEP_SORT=1", "-DMSDA_FROM_OFFSETS=1"];
        let of = |defines: &[&str]| {
            Selection::of_defines(
                &defines.iter().map(|&define| define.to_owned()).collect::<Vec<_>>(),
            )
        };
        assert_eq!(of(&defines), kernel("MSDA_STEP_SORT", true));
        assert_eq!(of(&defines[..1]), kernel("", false));
    }

    /// A header that only a condition of the compiler's includes would be missing where it is needed later.
    #[test]
    fn conditions_that_the_compiler_decides_include_nothing() {
        for variant in REGISTRY {
            let text = KernelText::of(variant, &Selection::Everything);
            let mut depth = 0;
            for line in text.as_str().lines() {
                depth += i32::from(line.starts_with("#if")) - i32::from(line.starts_with("#endif"));
                assert!(depth == 0 || !line.starts_with("#line"), "{variant:?}: {line}");
            }
            assert_eq!(depth, 0, "{variant:?}");
        }
    }
}
