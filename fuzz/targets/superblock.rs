//! See `butterfs_fuzz::targets::superblock`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| butterfs_fuzz::targets::superblock::run(data));
