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
    lines: BTreeMap<Key, KernelResources>,
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
        Self { compiler, lines: lines.into_iter().collect() }
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
                let (key, resources) = parse_line(line)
                    .ok_or_else(|| format!("resources.csv:{}: cannot read `{line}`", number + 1))?;
                table.lines.insert(key, resources);
            }
        }
        Ok(table)
    }

    pub fn compare(&self, committed: &Self) -> Verdict {
        if !committed.lines.is_empty() && committed.compiler != self.compiler {
            return Verdict::OtherCompiler { recorded: committed.compiler.clone() };
        }
        let (mut same, mut better, mut worse) = (0, 0, Vec::new());
        for (key, found) in &self.lines {
            match committed.lines.get(key) {
                None => worse.push(format!("{key}: not in the table")),
                Some(recorded) if found == recorded => same += 1,
                Some(recorded) => match grown(found, recorded) {
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

fn numbers(resources: &KernelResources) -> [(&'static str, u32); 5] {
    let KernelResources {
        registers,
        stack_bytes,
        spill_store_bytes,
        spill_load_bytes,
        shared_bytes,
    } = *resources;
    [
        ("registers", registers),
        ("bytes of stack", stack_bytes),
        ("bytes of spill stores", spill_store_bytes),
        ("bytes of spill loads", spill_load_bytes),
        ("bytes of static shared memory", shared_bytes),
    ]
}

/// A text for the resources that grew; empty if none did.
fn grown(found: &KernelResources, recorded: &KernelResources) -> String {
    let pairs = numbers(found).into_iter().zip(numbers(recorded));
    let grown = pairs.filter(|((_, found), (_, recorded))| found > recorded);
    grown
        .map(|((name, found), (_, recorded))| format!("{recorded} -> {found} {name}"))
        .collect::<Vec<_>>()
        .join(", ")
}

fn parse_line(line: &str) -> Option<(Key, KernelResources)> {
    let [kernel, arch, defines, numbers @ ..] = &line.split(',').collect::<Vec<_>>()[..] else {
        return None;
    };
    let numbers = numbers.iter().map(|number| number.parse().ok()).collect::<Option<Vec<u32>>>()?;
    let [registers, stack_bytes, spill_store_bytes, spill_load_bytes, shared_bytes] = numbers[..]
    else {
        return None;
    };
    let key = Key {
        kernel: (*kernel).to_owned(),
        arch: (*arch).to_owned(),
        defines: (*defines).to_owned(),
    };
    let resources = KernelResources {
        registers,
        stack_bytes,
        spill_store_bytes,
        spill_load_bytes,
        shared_bytes,
    };
    Some((key, resources))
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "# What kernels take on each architecture. Written by `cargo xtask resources`."
        )?;
        writeln!(f, "{COMPILER}{}", self.compiler)?;
        writeln!(f, "{COLUMNS}")?;
        for (Key { kernel, arch, defines }, resources) in &self.lines {
            write!(f, "{kernel},{arch},{defines}")?;
            for (_, number) in numbers(resources) {
                write!(f, ",{number}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
