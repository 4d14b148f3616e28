//! Which part of a device a command means.

use crate::sizes;
use butterfs::Part;
use clap::Args;
use serde::{Deserialize, Serialize};

/// The part of a device that holds the volume.
#[derive(Args, Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub struct PartArguments {
    /// The volume is in this partition of the image or device.
    #[arg(long, value_name = "N", conflicts_with = "offset")]
    partition: Option<u32>,
    /// The volume begins at this byte of the image or device.
    #[arg(long, value_name = "BYTES", value_parser = sizes::parse)]
    offset: Option<u64>,
}

impl PartArguments {
    /// The part that the arguments name.
    pub fn part(self) -> Part {
        match (self.partition, self.offset) {
            (Some(number), _) => Part::Partition(number),
            (None, Some(offset)) => Part::Offset(offset),
            (None, None) => Part::Whole,
        }
    }

    /// The options as they are written in a command; empty for the whole
    /// device.
    pub fn words(self) -> String {
        match self.part() {
            Part::Whole => String::new(),
            Part::Offset(offset) => format!(" --offset {offset}"),
            Part::Partition(number) => format!(" --partition {number}"),
        }
    }
}
