//! Name, cores, caches and clocks of the CPU.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use sysinfo::{CpuRefreshKind, MemoryRefreshKind, RefreshKind, System};

/// Facts about this machine's CPU. Unknown facts are empty or zero.
#[derive(Clone, Debug, Default)]
pub(super) struct CpuFacts {
    pub(super) brand: String,
    pub(super) vendor: String,
    pub(super) family: u32,
    pub(super) model: u32,
    pub(super) logical_cores: usize,
    pub(super) physical_cores: usize,
    pub(super) clock_mhz: u64,
    pub(super) memory_bytes: u64,
    /// Bytes of the caches of core 0, by level and type: `L1d`, `L2`.
    pub(super) caches: BTreeMap<String, u64>,
}

impl CpuFacts {
    pub(super) fn detect() -> Self {
        let system = System::new_with_specifics(
            RefreshKind::nothing()
                .with_cpu(CpuRefreshKind::nothing().with_frequency())
                .with_memory(MemoryRefreshKind::nothing().with_ram()),
        );
        let logical_cores =
            std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
        let system = system.ok();
        let first = system.as_ref().and_then(|system| system.cpus().first());
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let field = |name: &str| cpuinfo_field(&cpuinfo, name);
        Self {
            brand: first.map(|cpu| cpu.brand().trim().to_owned()).unwrap_or_default(),
            vendor: first.map(|cpu| cpu.vendor_id().to_owned()).unwrap_or_default(),
            family: field("cpu family").and_then(|text| text.parse().ok()).unwrap_or(0),
            model: field("model").and_then(|text| text.parse().ok()).unwrap_or(0),
            logical_cores,
            physical_cores: System::physical_core_count().unwrap_or(logical_cores),
            clock_mhz: first.map_or(0, sysinfo::Cpu::frequency),
            memory_bytes: system.as_ref().map_or(0, System::total_memory),
            caches: caches(Path::new("/sys/devices/system/cpu/cpu0/cache")),
        }
    }

    /// Name of the folder of its records: the microarchitecture and the number of cores.
    pub(super) fn slug(&self) -> String {
        let what = match self.microarchitecture() {
            Some((family, generation)) => format!("{family}-{generation}"),
            None => slugify(&self.brand),
        };
        let what = if what.is_empty() { std::env::consts::ARCH.to_owned() } else { what };
        format!("{what}-{}c", self.logical_cores)
    }

    pub(super) fn name(&self) -> String {
        let brand = self.brand.replace("(R)", "").replace("(TM)", "");
        let brand = brand.split_whitespace().collect::<Vec<_>>().join(" ");
        let brand = if brand.is_empty() { std::env::consts::ARCH.to_owned() } else { brand };
        let generation = self
            .microarchitecture()
            .map_or_else(String::new, |(_, generation)| format!(" ({generation})"));
        let plural = if self.logical_cores == 1 { "" } else { "s" };
        format!("{brand}{generation}, {} core{plural}", self.logical_cores)
    }

    /// Family and generation of server chips, whose brand is often hidden in the cloud.
    fn microarchitecture(&self) -> Option<(&'static str, &'static str)> {
        match (self.vendor.as_str(), self.family, self.model) {
            ("GenuineIntel", 6, 85) => Some(("xeon", "skylake-cascade-lake")),
            ("GenuineIntel", 6, 106) => Some(("xeon", "ice-lake")),
            ("GenuineIntel", 6, 143) => Some(("xeon", "sapphire-rapids")),
            ("GenuineIntel", 6, 173) => Some(("xeon", "granite-rapids")),
            ("GenuineIntel", 6, 207) => Some(("xeon", "emerald-rapids")),
            ("AuthenticAMD", 23, 49) => Some(("epyc", "rome")),
            ("AuthenticAMD", 25, 0..=1) => Some(("epyc", "milan")),
            ("AuthenticAMD", 25, 16..=17) => Some(("epyc", "genoa")),
            ("AuthenticAMD", 26, 0..=17) => Some(("epyc", "turin")),
            _ => None,
        }
    }

    pub(super) fn last_level_cache_bytes(&self) -> u64 {
        self.caches.values().copied().max().unwrap_or(0)
    }

    pub(super) fn facts(&self) -> BTreeMap<String, String> {
        let governor = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor";
        let governor = std::fs::read_to_string(governor).ok();
        let family_model = format!("{}/{}", self.family, self.model);
        let facts = [
            ("processor", Some(self.brand.clone())),
            ("architecture", Some(std::env::consts::ARCH.to_owned())),
            ("logical_cores", Some(self.logical_cores.to_string())),
            ("physical_cores", Some(self.physical_cores.to_string())),
            ("memory_gib", Some((self.memory_bytes >> 30).to_string())),
            ("clock_mhz", (self.clock_mhz > 0).then(|| self.clock_mhz.to_string())),
            ("family_model", (self.family > 0).then_some(family_model)),
            ("generation", self.microarchitecture().map(|(_, generation)| generation.to_owned())),
            ("governor", governor.map(|text| text.trim().to_owned())),
        ];
        let facts = facts.into_iter().filter_map(|(name, fact)| Some((name.to_owned(), fact?)));
        let kib = |(name, bytes): (&String, &u64)| {
            (format!("cache_{}_kib", name.to_lowercase()), (bytes >> 10).to_string())
        };
        facts.chain(self.caches.iter().map(kib)).collect()
    }
}

fn cpuinfo_field<'a>(cpuinfo: &'a str, name: &str) -> Option<&'a str> {
    cpuinfo
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| key.trim() == name)
        .map(|(_, value)| value.trim())
}

/// Lower case, words joined by dashes, without trademark signs.
fn slugify(text: &str) -> String {
    let plain = text.to_lowercase().replace("(r)", "").replace("(tm)", "");
    let words: Vec<&str> = plain
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty() && !matches!(*word, "cpu" | "processor"))
        .collect();
    words.join("-")
}

fn caches(folder: &Path) -> BTreeMap<String, u64> {
    let cache = |folder: PathBuf| {
        let read = |file: &str| std::fs::read_to_string(folder.join(file)).ok();
        let suffix = match read("type")?.trim() {
            "Data" => "d",
            "Instruction" => "i",
            _ => "",
        };
        Some((format!("L{}{suffix}", read("level")?.trim()), parse_size(read("size")?.trim())?))
    };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| cache(entry.path())).collect()
}

fn parse_size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(['K', 'M', 'G']);
    let shift = match &text[digits.len()..] {
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => 0,
    };
    digits.parse::<u64>().ok().map(|number| number << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brands_become_folder_names() {
        assert_eq!(
            slugify("Intel(R) Core(TM) i7-1165G7 CPU @ 2.80GHz"),
            "intel-core-i7-1165g7-2-80ghz"
        );
        assert_eq!(slugify("Apple M2 Pro"), "apple-m2-pro");
        let cloud = CpuFacts {
            brand: "Intel(R) Xeon(R) Processor".into(),
            vendor: "GenuineIntel".into(),
            family: 6,
            model: 207,
            logical_cores: 2,
            ..CpuFacts::default()
        };
        assert_eq!(cloud.slug(), "xeon-emerald-rapids-2c");
        assert_eq!(cloud.name(), "Intel Xeon Processor (emerald-rapids), 2 cores");
        let unknown = CpuFacts { logical_cores: 1, ..CpuFacts::default() };
        assert_eq!(unknown.slug(), format!("{}-1c", std::env::consts::ARCH));
    }

    #[test]
    fn cache_sizes_are_read_with_their_unit() {
        assert_eq!(parse_size("48K"), Some(48 << 10));
        assert_eq!(parse_size("260M"), Some(260 << 20));
        assert_eq!(parse_size("512"), Some(512));
        assert_eq!(parse_size("big"), None);
    }

    #[test]
    fn this_machine_has_a_cpu() {
        let facts = CpuFacts::detect();
        assert!(facts.logical_cores >= 1);
        assert!(!facts.slug().contains(['/', ' ', '\\']));
        assert!(facts.facts().contains_key("architecture"));
    }
}
