//! See `butterfs_fuzz::targets::items`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| butterfs_fuzz::targets::items::run(data));
