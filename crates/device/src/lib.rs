//! Devices: where the bytes of a volume lie.
//!
//! Owns the trait [`BlockDevice`], its implementations (memory, regular file,
//! block device), the wrappers that tests and previews put around them, threads
//! that share a request, who may use a device at a time, and what a device
//! holds before it is formatted. Knows of file systems only how to tell them
//! apart, by their magic numbers.
//!
//! Invariants: an operation is done as a whole or is an error; nothing is read
//! or written outside `0..size`; what was written before a
//! [`BlockDevice::flush`] that succeeded survives a loss of power.

#![cfg_attr(
    not(test),
    deny(
        clippy::as_conversions,
        clippy::indexing_slicing,
        clippy::unwrap_used,
        clippy::panic
    )
)]

pub mod block_device;
pub mod caching;
pub mod error;
pub mod fault;
pub mod file;
pub mod growing_file;
pub mod helpers;
pub mod holder;
pub mod memory;
pub mod overlay;
pub mod overlay_file;
pub mod probe;
pub mod range;
pub mod read_only;
pub mod record;
pub mod shares;
pub mod trace;
pub mod waiting;
pub mod window;

mod direct;
mod pages;
mod parts;
mod process_memory;
mod sys;

pub use block_device::{Access, BlockDevice, WriteRequest};
pub use caching::{Caching, NotDirect};
pub use error::{DeviceError, Operation};
pub use fault::FaultDevice;
pub use file::FileDevice;
pub use growing_file::GrowingFile;
pub use helpers::Helpers;
pub use holder::Holder;
pub use memory::MemoryDevice;
pub use overlay::OverlayDevice;
pub use overlay_file::{
    OverlayBase, OverlayError, OverlayFile, OverlayHeader, OverlayPage, OverlayPurpose,
};
pub use process_memory::{memory_of_process, memory_pressure};
pub use range::DeviceRange;
pub use read_only::ReadOnlyDevice;
pub use record::{RecordDevice, Recording};
pub use shares::{ThreadTurn, each_by_a_thread};
pub use sys::{
    ignore_file_size_signal, keep_little_free_memory, return_free_memory, return_large_allocations,
};
pub use trace::TraceDevice;
pub use waiting::{about_to_wait, on_wait};
pub use window::WindowDevice;
