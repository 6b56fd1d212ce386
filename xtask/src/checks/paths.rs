//! No file names a place on somebody's machine: such a path is a leak at best and a command that
//! runs nowhere else at worst.

use anyhow::{Result, ensure};

use crate::steps::Report;
use crate::tree;

/// First components of absolute paths that mean a person's or a build machine's folder.
const PRIVATE_FOLDERS: [&str; 5] = ["home", "root", "work", "Users", "workspace"];

/// Checks every text file of the repository.
pub fn check() -> Result<Report> {
    let (mut checked, mut found) = (0, Vec::new());
    for file in tree::files()? {
        let Ok(text) = std::fs::read_to_string(tree::root().join(&file)) else { continue };
        checked += 1;
        for (index, line) in text.lines().enumerate() {
            if let Some(path) = private_path(line) {
                found.push(format!("{}:{}: {path}", file.display(), index + 1));
            }
        }
    }
    ensure!(found.is_empty(), "paths of a machine:\n  {}", found.join("\n  "));
    Ok(Report::check(format!("{checked} files")))
}

/// The first private path of a line.
fn private_path(line: &str) -> Option<&str> {
    line.match_indices('/').find_map(|(start, _)| {
        let before = line[..start].chars().next_back();
        // `src/home/x` and `https://host/home/x` are no absolute paths.
        if before.is_some_and(|c| c.is_alphanumeric() || "._-/~:}>)".contains(c)) {
            return None;
        }
        let path = line[start..].split([' ', '"', '\'', '`', ')', ',']).next()?;
        let mut parts = path[1..].splitn(2, '/');
        let (first, rest) = (parts.next()?, parts.next()?);
        (PRIVATE_FOLDERS.contains(&first) && !rest.is_empty()).then_some(path)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_absolute_private_paths_are_found() {
        let path = ["", "home", "me", "msdeform"].join("/");
        assert_eq!(private_path(&format!("cd {path} && cargo test")), Some(path.as_str()));
        assert_eq!(private_path(&format!("\"{path}\"")), Some(path.as_str()));
        for fine in
            ["crates/home/x", "https://example.org/home/x", "/usr/share/x", "a / b", "/home"]
        {
            assert_eq!(private_path(fine), None, "{fine}");
        }
    }
}
