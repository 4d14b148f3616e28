//! Changes of a volume's devices: one at a time.

use crate::fail::{Failure, fail};
use butterfs::{DeviceChange, RunningChange, Volume};

/// Notes that a change begins. Errors if another one runs.
pub fn begun(volume: &Volume, what: DeviceChange) -> Result<RunningChange, Failure> {
    match volume.begin_device_change(what) {
        Some(running) => Ok(running),
        None => fail(
            "another removal, replacement or resize of a device of this volume is under way; wait for its end, or cancel it",
        ),
    }
}
