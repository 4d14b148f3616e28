//! Commands about a mounted volume, run by the server that has it.
//!
//! Only the program that has a volume mounted knows its trees. So whoever wants
//! to look into them asks that program. This module owns the socket of a server
//! and who may use it, but not the commands: a request is bytes that the
//! serving program understands, and an answer is what the command prints and
//! how it ended. The socket's name is the value of an extended attribute of the
//! mount's root. The socket says who asks.

mod client;
mod farewell;
mod listener;
mod parts;
mod starts;

pub use client::Connection;
pub use farewell::{End, Waiter};
pub(crate) use farewell::{Farewell, process_behind};
pub(crate) use listener::start;
pub use listener::{Answer, Command, Files, Runner};
