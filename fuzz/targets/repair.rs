//! See `butterfs_fuzz::targets::repair`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| butterfs_fuzz::targets::repair::run(data));
