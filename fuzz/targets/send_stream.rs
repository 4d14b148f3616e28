//! See `butterfs_fuzz::targets::send_stream`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| butterfs_fuzz::targets::send_stream::run(data));
