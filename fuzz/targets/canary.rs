//! See `butterfs_fuzz::targets::canary`. If `BUTTERFS_FUZZ_SEEDS` names a
//! directory, this also writes the seeds of all targets there: code that is
//! built with feedback must be linked with libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(
    init: if let Some(root) = std::env::var_os("BUTTERFS_FUZZ_SEEDS") {
        butterfs_fuzz::seeds::write(root.as_ref()).expect("the seeds are written");
    },
    |data: &[u8]| butterfs_fuzz::targets::canary::run(data)
);
