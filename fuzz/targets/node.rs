//! See `butterfs_fuzz::targets::node`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| butterfs_fuzz::targets::node::run(data));
