//! See `butterfs_fuzz::targets::commands`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| butterfs_fuzz::targets::commands::run(data));
