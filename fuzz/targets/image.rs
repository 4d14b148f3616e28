//! See `butterfs_fuzz::targets::image`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| butterfs_fuzz::targets::image::run(data));
