#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| msdeform_fuzz::run("pack", bytes));
