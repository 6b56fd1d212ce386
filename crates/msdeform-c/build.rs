//! The name that programs look for at run time. Its number is `MSDEFORM_ABI_VERSION`; a test holds that.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libmsdeform.so.1");
    }
}
