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
use parse::{Dialect, SetxattrShape};

/// Parses a request as the kernel sends it, with its header, and says what it
/// asks for.
///
/// # Errors
/// [`Malformed`], also for an unknown operation.
pub fn describe(request: &[u8]) -> Result<String, Malformed> {
    let message = Message::whole(request)?;
    let opcode = Opcode::from_number(message.header.opcode)
        .ok_or(Malformed("its operation is not known"))?;
    let (body, extensions) = message.parts()?;
    if opcode == Opcode::Init {
        return Ok(format!("{:?}", init::Offer::parse(body)?));
    }
    let groups = crate::Groups::parse(extensions)?;
    let mut text = format!("{groups:?}");
    let mut understood = Err(Malformed("no form of its operation fits"));
    for setxattr in [SetxattrShape::Extended, SetxattrShape::Short] {
        let operation = parse(opcode, &message.header, body, Dialect { setxattr });
        if let Ok(Operation::BatchForget(list)) = &operation {
            text.push_str(&format!(" {} nodes", list.iter().count()));
        }
        if understood.is_err() {
            understood = operation;
        }
    }
    Ok(format!("{:?} {text}", understood?))
}
