//! See `butterfs_fuzz::targets::survey`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| butterfs_fuzz::targets::survey::run(data));
