//! The server of a mount: a volume of the library, shown by the kernel through
//! FUSE.
//!
//! Owns how FUSE's requests are bound to the library, ioctls on subvolumes and
//! quotas, how several mounts share one server ([`mount`]), and the facts of a
//! mount ([`Facts`]). Owns the sockets by which other processes let a server
//! run commands ([`Connection`]) and learn how it ended ([`Waiter`]). It knows
//! no commands and prints nothing; events go to `tracing`.
//!
//! A program that has a volume open serves it by [`serve`]. The command
//! `butterfs mount` uses [`mount`].

mod attributes;
mod error;
mod facts;
pub mod facts_of_kernel;
mod join;
mod mounts;
mod options;
mod place;
mod remount;
mod requests;
mod serve;
mod service;
mod source;
mod uring;

pub use attributes::server_of;
pub use error::ServerError;
pub use facts::{
    DeviceEntry, DeviceShare, Facts, KindFacts, StatsFacts, TransportFacts, reset_stats, set_label,
};
pub use mounts::Mount;
pub use remount::{Remount, save};
pub use requests::{Acting, inode_shown_as};
pub use serve::{Mounted, Serving, mount, serve};
pub use service::{Answer, Command, Connection, End, Files, Runner, Waiter};
