//! The kernel's FUSE protocol, version 7.31 and later.
//!
//! Owns the layouts, the parsing of requests, the agreement at INIT and the
//! encoding of notifications. Owns no file descriptor and no thread. Requests
//! are treated as hostile: a malformed one is an error, never a panic.

mod features;
pub(crate) mod init;
pub(crate) mod layout;
mod message;
pub(crate) mod notify;
mod opcode;
mod operation;
mod parse;
pub(crate) mod wire;

pub use features::Features;
pub use init::Negotiated;
pub use opcode::Opcode;
pub use wire::Malformed;

pub(crate) use message::{Body, Message};
pub(crate) use operation::{CopiedWidth, Operation};
pub(crate) use parse::parse;
