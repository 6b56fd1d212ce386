//! Checksums of evidence: a record that was edited after a command wrote it is refused.
//!
//! The checksum is the SHA-256 of the text without the checksum itself: in JSON without the first member,
//! `"checksum": "sha256:...",`, in other files without the first line, `# checksum: sha256:...`.

use std::borrow::Cow;

use sha2::{Digest, Sha256};

const JSON: (&str, &str) = ("{\"checksum\": \"sha256:", "\",");
const COMMENT: (&str, &str) = ("# checksum: sha256:", "\n");

/// A text that does not have the checksum it carries.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "its checksum is that of another text, so it was edited after a command wrote it; \
     restore it from git or write it again by the command that it names"
)]
pub struct BrokenSeal;

/// The text with its checksum. A checksum that it already has is replaced.
#[must_use]
pub fn sealed(text: &str) -> String {
    let text = parts(text).map_or(Cow::Borrowed(text), |(_, body)| Cow::Owned(body));
    let checksum = checksum(&text);
    match text.strip_prefix('{') {
        Some(members) => format!("{}{checksum}{}{members}", JSON.0, JSON.1),
        None => format!("{}{checksum}{}{text}", COMMENT.0, COMMENT.1),
    }
}

/// Whether a text carries a checksum.
///
/// # Errors
/// [`BrokenSeal`] if the checksum is that of another text.
pub fn check_seal(text: &str) -> Result<bool, BrokenSeal> {
    match parts(text) {
        None => Ok(false),
        Some((found, body)) if found == checksum(&body) => Ok(true),
        Some(_) => Err(BrokenSeal),
    }
}

/// The checksum that a text carries, and what it is of.
fn parts(text: &str) -> Option<(&str, String)> {
    let split = |(start, end): (&str, &str)| text.strip_prefix(start)?.split_once(end);
    if let Some((found, members)) = split(JSON) {
        return Some((found, format!("{{{members}")));
    }
    split(COMMENT).map(|(found, body)| (found, body.to_owned()))
}

fn checksum(text: &str) -> String {
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edited_text_is_refused() {
        for text in ["{\n  \"schema\": 1,\n  \"us\": 12.5\n}\n", "peer,us\nours,12.5\n"] {
            let kept = sealed(text);
            assert_eq!(check_seal(&kept), Ok(true), "{kept}");
            assert_eq!(check_seal(&kept.replace("12.5", "11.5")), Err(BrokenSeal));
            assert_eq!(sealed(&kept), kept, "sealing twice changes nothing");
            assert_eq!(check_seal(text), Ok(false));
        }
    }

    #[test]
    fn a_sealed_record_is_still_json() {
        // `printf '{\n  "schema": 1\n}\n' | sha256sum`
        let checksum = "d48fe06f367756c31e9767b92caa3a9a74a108ecc9282c5de56643d8da95a630";
        let expected = format!("{{\"checksum\": \"sha256:{checksum}\",\n  \"schema\": 1\n}}\n");
        assert_eq!(sealed("{\n  \"schema\": 1\n}\n"), expected);
    }
}
