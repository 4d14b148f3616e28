//! A volume served to the kernel: the library behind the FUSE trait.
//!
//! Owns the translation of requests, the kernel's lookups (`nodes`) and what
//! the server must enforce itself (immutable and append-only files, read-only
//! subvolumes). The kernel checks permissions (`default_permissions`).
//!
//! Opens are stateless: the kernel asks nothing at open and close. Only this
//! server changes the volume. So names, absent names and attributes never
//! expire, except the attributes of protected files (`intent`).
//! The server does not see reads that the kernel answers from its cache, so
//! they change no access time.

mod acting;
mod answered;
mod argument;
mod autodefrag;
mod caller;
mod callers_memory;
mod convert;
mod crowd;
mod device_changes;
mod guard;
mod informer;
mod intent;
mod ioctl;
mod nodes;
mod operations;
mod pages;
mod peer;
mod protected;
mod quotas;
mod rescan;
mod rights;
mod sending;
mod serve;
mod serve_data;
mod server;
mod sharing;
mod stale;
mod subvolumes;
mod telling;
mod trees;
mod volume_facts;
mod whole;

pub use acting::Acting;
pub(crate) use caller::may_administer;
pub(crate) use convert::Owners;
pub use nodes::inode_shown_as;
pub(crate) use peer::{Peer, Refused};
pub(crate) use server::{Served, Server, Transported};
