//! FUSE for file systems written in Rust: the kernel's protocol, the transport
//! that carries it, and mounting.
//!
//! Owns: the bytes exchanged with the kernel ([`protocol`]), the trait a file
//! system implements ([`FileSystem`]), the threads that serve it
//! ([`Session`]), and the ways to mount and unmount ([`mount`]).
//! Owns no inode table, no lookup counts and no knowledge of any disk format:
//! node ids and handles are numbers the file system chose and gets back.
//!
//! A request is served on the thread that read it. Reads are written by the
//! file system straight into the reply buffer, and writes arrive as a slice of
//! the request buffer, so that data is copied once, by the kernel.

mod caller_count;
mod config;
mod context;
mod counts;
mod cpu_wakeup;
mod crew;
mod dispatch;
mod errno;
mod filesystem;
mod id;
mod identity;
pub mod mount;
mod notifier;
mod peer;
mod pool;
pub mod protocol;
pub mod reply;
pub mod request;
mod request_slot;
mod session;
mod signals;
mod transport;

pub use config::{Config, Handles, Pinning, Transports};
pub use context::{Context, Groups};
pub use cpu_wakeup::{CpuWakeup, Wake};
pub use errno::Errno;
pub use filesystem::FileSystem;
pub use id::{FileHandle, NodeId, RequestId};
pub use mount::{MountError, MountOptions, UnmountMode, Unmounter};
pub use notifier::{EntryChange, InvalidRange, Notifier};
pub use peer::{is_running, peer_groups, peer_process};
pub use protocol::{Features, Negotiated};
pub use request_slot::about_to_wait;
pub use session::{RunningSession, Session, SessionError};
pub use signals::{SignalGuard, on_signals, unmount_on_signals, unmount_or_detach};
