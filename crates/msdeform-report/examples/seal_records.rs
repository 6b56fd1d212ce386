//! Gives the records that older programs wrote their checksum. Run once; deleted after that.
#![allow(clippy::unwrap_used, reason = "run once by a person")]

fn main() {
    for path in std::env::args().skip(1) {
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, msdeform_files::sealed(&text)).unwrap();
    }
}
