//! What a linker has to know of the frameworks of macOS, which come with Apple's SDK and nowhere else: where they are on a Mac, and
//! which names they have.

use std::path::{Path, PathBuf};

use anyhow::Result;

/// Those that `sysinfo` asks about processors and memory, with the names that it takes from each. What is missing here would be looked
/// for in everything that a process has loaded, as Python's names are: the trial of the wheel finds that.
const FRAMEWORKS: [(&str, &[&str]); 2] = [
    (
        "CoreFoundation",
        &[
            "CFDataGetBytes",
            "CFDataGetLength",
            "CFDataGetTypeID",
            "CFGetTypeID",
            "CFRelease",
            "CFRetain",
            "CFStringCreateWithBytesNoCopy",
            "kCFAllocatorDefault",
            "kCFAllocatorNull",
        ],
    ),
    (
        "IOKit",
        &[
            "IOIteratorNext",
            "IOObjectRelease",
            "IORegistryEntryCreateCFProperty",
            "IORegistryEntryGetName",
            "IOServiceGetMatchingServices",
            "IOServiceMatching",
            "kIOMasterPortDefault",
        ],
    ),
];

/// Writes them, and returns the folder that they are in.
pub fn write(cache: &Path) -> Result<PathBuf> {
    let folder = cache.join("macos-frameworks");
    for (name, symbols) in FRAMEWORKS {
        let framework = folder.join(format!("{name}.framework"));
        std::fs::create_dir_all(&framework)?;
        std::fs::write(framework.join(format!("{name}.tbd")), description(name, symbols))?;
    }
    Ok(folder)
}

/// A library as text, in the form that Apple's linker and others read.
fn description(name: &str, symbols: &[&str]) -> String {
    const TARGETS: &str = "[ x86_64-macos, arm64-macos ]";
    let symbols: Vec<String> = symbols.iter().map(|symbol| format!("_{symbol}")).collect();
    format!(
        "--- !tapi-tbd\ntbd-version: 4\ntargets: {TARGETS}\n\
         install-name: '/System/Library/Frameworks/{name}.framework/Versions/A/{name}'\n\
         exports:\n  - targets: {TARGETS}\n    symbols: [ {} ]\n...\n",
        symbols.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_framework_is_where_macs_have_it_with_its_names() {
        let text = description("IOKit", &["IOObjectRelease", "IOIteratorNext"]);
        let place = "install-name: '/System/Library/Frameworks/IOKit.framework/Versions/A/IOKit'\n";
        assert!(text.contains(place), "{text}");
        assert!(text.contains("symbols: [ _IOObjectRelease, _IOIteratorNext ]\n"), "{text}");
    }
}
