//! The `msdeform` command line.
fn main() {}
