//! See `butterfs_fuzz::targets::attributes`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| butterfs_fuzz::targets::attributes::run(data));
