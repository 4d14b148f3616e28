//! Commands about a mounted volume, run by the server that has it.
//!
//! A program that has a volume mounted alone knows its trees, so whoever wants
//! to look into them asks it. Owns the socket of a server and who may use it,
//! not the commands: a request is bytes that the serving program understands,
//! and an answer is what the command prints and how it ended. The socket's name
//! is the value of an extended attribute of the mount's root; who asks is known
//! from the socket.

mod client;
mod farewell;
mod listener;
mod parts;

pub use client::Connection;
pub(crate) use farewell::Farewell;
pub use farewell::{End, Waiter};
pub(crate) use listener::start;
pub use listener::{Answer, Command, Runner};
