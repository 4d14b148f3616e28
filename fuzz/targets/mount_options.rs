//! See `butterfs_fuzz::targets::mount_options`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| butterfs_fuzz::targets::mount_options::run(data));
