//! The smallest server of a block mount, for `make vm-kill`. It does nothing
//! against the hang that a server without its mount namespace meets when it is
//! killed (`mount/namespace`), so it shows that the kernel under test has that
//! hang. Run it in a virtual machine alone.
//!
//! Usage: orphan DEVICE MOUNTPOINT

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;

use butterfs_fuse::mount::MountFlags;

/// Bytes in front of a request, and of a reply.
const REQUEST: usize = 40;
const REPLY: usize = 16;
/// Bytes of INIT's reply, and its number.
const INIT_REPLY: usize = 64;
const INIT: u32 = 26;

fn main() -> std::io::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [device, point] = &words[..] else {
        eprintln!("usage: orphan DEVICE MOUNTPOINT");
        std::process::exit(2);
    };
    let mut connection = File::options().read(true).write(true).open("/dev/fuse")?;
    let data = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,blksize=4096",
        connection.as_raw_fd()
    );
    let data = std::ffi::CString::new(data)?;
    rustix::mount::mount(device, point, "fuseblk", MountFlags::empty(), Some(&*data))?;
    let mut request = vec![0; 1 << 21];
    loop {
        let length = connection.read(&mut request)?;
        if length < REQUEST {
            continue;
        }
        let opcode = u32::from_le_bytes([request[4], request[5], request[6], request[7]]);
        let (error, body) = match opcode {
            INIT => (0, INIT_REPLY),
            _ => (-libc::ENOSYS, 0),
        };
        let mut reply = vec![0; REPLY + body];
        let length = (reply.len() as u32).to_le_bytes();
        reply[..4].copy_from_slice(&length);
        reply[4..8].copy_from_slice(&error.to_le_bytes());
        reply[8..16].copy_from_slice(&request[8..16]);
        if opcode == INIT {
            // Version 7.31.
            reply[16] = 7;
            reply[20] = 31;
            // The largest write.
            reply[37] = 0x10;
        }
        // ENOENT: nobody waits for the answer any more.
        let _ = connection.write(&reply);
    }
}
