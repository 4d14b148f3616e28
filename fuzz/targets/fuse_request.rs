//! See `butterfs_fuzz::targets::fuse_request`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| butterfs_fuzz::targets::fuse_request::run(data));
