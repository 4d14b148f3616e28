//! `butterfs lab choose`.

use crate::fail::{Done, fail};
use clap::Args;

/// Finds a file system and its options for your workload.
#[derive(Args, Debug)]
pub(super) struct Choose {}

impl Choose {
    pub(super) fn run(self) -> Done {
        fail("not yet")
    }
}
