//! See `butterfs_fuzz::targets::chunks`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| butterfs_fuzz::targets::chunks::run(data));
