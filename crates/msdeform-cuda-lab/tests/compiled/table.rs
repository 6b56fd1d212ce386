//! The committed table: one sorted line per kernel, so that a change reads well in a diff.

use std::collections::BTreeMap;
use std::fmt;

use msdeform_cuda::nvrtc::KernelResources;
use msdeform_cuda::variants::Unit;

/// The key of a line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The entry: a variant's id, or its id and a step.
    pub kernel: String,
    arch: String,
    /// The macros without their common prefix, such as `VALUE_DTYPE=1 LEVELS=4`.
    defines: String,
}

impl Key {
    pub fn new(kernel: &str, arch: &str, unit: &Unit) -> Self {
        // Commas separate columns.
        let defines = unit.name().replace(',', ":");
        Self { kernel: kernel.to_owned(), arch: arch.to_owned(), defines }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} for {} ({})", self.kernel, self.arch, self.defines)
    }
}

/// Kernels and their resources, by one compiler.
pub struct Table {
    compiler: String,
    lines: BTreeMap<Key, Numbers>,
}

/// The comparison of a new table with the committed one.
pub enum Verdict {
    /// Made by compilers of different versions.
    OtherCompiler {
        /// The committed table's.
        recorded: String,
    },
    /// Counts of equal and better lines, and texts for those that are worse or missing.
    Compared { same: usize, better: usize, worse: Vec<String> },
}

const COLUMNS: &str =
    "kernel,arch,defines,registers,stack_bytes,spill_store_bytes,spill_load_bytes,shared_bytes";
const COMPILER: &str = "# NVRTC ";

impl Table {
    pub fn new(compiler: String, lines: Vec<(Key, KernelResources)>) -> Self {
        let lines = lines.into_iter().map(|(key, resources)| (key, numbers(resources)));
        Self { compiler, lines: lines.collect() }
    }

    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Reads the committed text; an empty one is an empty table.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut table = Self { compiler: String::new(), lines: BTreeMap::new() };
        for (number, line) in text.lines().enumerate() {
            if let Some(compiler) = line.strip_prefix(COMPILER) {
                table.compiler = compiler.to_owned();
            } else if !line.starts_with('#') && line != COLUMNS {
                let line = parse_line(line)
                    .ok_or_else(|| format!("resources.csv:{}: cannot read `{line}`", number + 1))?;
                table.lines.extend([line]);
            }
        }
        Ok(table)
    }

    pub fn compare(&self, committed: &Self) -> Verdict {
        if !committed.lines.is_empty() && committed.compiler != self.compiler {
            return Verdict::OtherCompiler { recorded: committed.compiler.clone() };
        }
        let (mut same, mut better, mut worse) = (0, 0, Vec::new());
        for (key, &found) in &self.lines {
            match committed.lines.get(key) {
                None => worse.push(format!("{key}: not in the table")),
                Some(&recorded) if found == recorded => same += 1,
                Some(&recorded) => match grown(found, recorded) {
                    grown if grown.is_empty() => better += 1,
                    grown => worse.push(format!("{key}: {grown}")),
                },
            }
        }
        let gone = committed.lines.keys().filter(|key| !self.lines.contains_key(key));
        worse.extend(gone.map(|key| format!("{key}: gone")));
        Verdict::Compared { same, better, worse }
    }
}

/// The numbers of a line, in the order of [`COLUMNS`], and their names in messages.
const NUMBERS: [&str; 5] = [
    "registers",
    "bytes of stack",
    "bytes of spill stores",
    "bytes of spill loads",
    "bytes of static shared memory",
];
type Numbers = [u32; NUMBERS.len()];

fn numbers(of: KernelResources) -> Numbers {
    [of.registers, of.stack_bytes, of.spill_store_bytes, of.spill_load_bytes, of.shared_bytes]
}

/// A text for the numbers that grew; empty if none did.
fn grown(found: Numbers, recorded: Numbers) -> String {
    let pairs = NUMBERS.iter().zip(recorded.iter().zip(found));
    let grown = pairs.filter(|(_, (recorded, found))| found > recorded);
    grown
        .map(|(name, (recorded, found))| format!("{recorded} -> {found} {name}"))
        .collect::<Vec<_>>()
        .join(", ")
}

fn parse_line(line: &str) -> Option<(Key, Numbers)> {
    let [kernel, arch, defines, numbers @ ..] = &line.split(',').collect::<Vec<_>>()[..] else {
        return None;
    };
    let numbers = numbers.iter().map(|number| number.parse().ok()).collect::<Option<Vec<_>>>()?;
    let [kernel, arch, defines] = [kernel, arch, defines].map(|&text| text.to_owned());
    Some((Key { kernel, arch, defines }, numbers.try_into().ok()?))
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "# What kernels take on each architecture. Written by `cargo xtask resources`."
        )?;
        writeln!(f, "{COMPILER}{}", self.compiler)?;
        writeln!(f, "{COLUMNS}")?;
        for (Key { kernel, arch, defines }, numbers) in &self.lines {
            write!(f, "{kernel},{arch},{defines}")?;
            for number in numbers {
                write!(f, ",{number}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
