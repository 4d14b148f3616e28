//! Requests of the kernel's FUSE protocol.

use crate::meter::bounded;
use crate::tape::Tape;
use butterfs_fuse::protocol;

/// A request as it is, and with a header whose length is right.
pub fn run(data: &[u8]) {
    bounded(16 << 20, || {
        let _ = protocol::describe(data);
        let mut tape = Tape::new(data);
        // Numbers of operations are below 64, but for one.
        let opcode = match tape.u8() {
            255 => 4096,
            number => u32::from(number) % 64,
        };
        let groups = u16::from(tape.u8());
        let body = tape.rest();
        let mut request = Vec::with_capacity(40 + body.len());
        let length = u32::try_from(40 + body.len()).unwrap_or(u32::MAX);
        request.extend(length.to_ne_bytes());
        request.extend(opcode.to_ne_bytes());
        request.extend([1; 28]);
        request.extend(groups.to_ne_bytes());
        request.extend([0; 2]);
        request.extend(body);
        let _ = protocol::describe(&request);
    });
}
