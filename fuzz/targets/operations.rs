//! See `butterfs_fuzz::targets::operations`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| butterfs_fuzz::targets::operations::run(data));
