//! All readers under libFuzzer. The variable `MSDEFORM_READER` names the reader that gets the bytes.

#![no_main]

use std::sync::LazyLock;

static READER: LazyLock<fuzz::Target> =
    LazyLock::new(|| fuzz::target(&std::env::var("MSDEFORM_READER").unwrap_or_default()));

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (READER.run)(bytes));
