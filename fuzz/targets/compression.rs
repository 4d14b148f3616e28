//! See `butterfs_fuzz::targets::compression`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| butterfs_fuzz::targets::compression::run(data));
