//! See `butterfs_fuzz::targets::convert`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| butterfs_fuzz::targets::convert::run(data));
