//! What the kernel prints about Btrfs.

use rustix::fs::OFlags;
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;

/// The kernel's log from a moment on.
#[derive(Debug)]
pub struct KernelLog {
    /// `None` if the log may not be read.
    records: Option<File>,
}

impl KernelLog {
    /// The log from now on.
    #[must_use]
    pub fn from_now() -> Self {
        let open = || {
            let mut file = File::options()
                .read(true)
                .custom_flags(OFlags::NONBLOCK.bits() as i32)
                .open("/dev/kmsg")?;
            file.seek(SeekFrom::End(0))?;
            Ok::<_, std::io::Error>(file)
        };
        Self {
            records: open().ok(),
        }
    }

    /// Warnings and errors of Btrfs that name one of `devices` (`loop3`),
    /// printed since the last call.
    pub fn btrfs_complaints(&mut self, devices: &[String]) -> Vec<String> {
        let Some(file) = &mut self.records else {
            return Vec::new();
        };
        let mut record = [0; 8192];
        let mut out = Vec::new();
        loop {
            match file.read(&mut record) {
                Ok(0) => break,
                Ok(length) => {
                    let text = String::from_utf8_lossy(&record[..length]);
                    let message = text.split_once(';').map_or(&*text, |(_, message)| message);
                    let message = message.lines().next().unwrap_or_default();
                    let complains = ["BTRFS warning", "BTRFS error", "BTRFS critical"]
                        .iter()
                        .any(|level| message.starts_with(level));
                    // "(device loop3)" or "(device loop3 state E)"
                    let names = |device: &String, end| {
                        let text = format!("device {device}{end}");
                        message.contains(&text)
                    };
                    let named = devices
                        .iter()
                        .any(|device| names(device, ")") || names(device, " "));
                    // Advice about the options that mkfs got.
                    let advises = message.contains("is being deprecated");
                    if complains && named && !advises {
                        out.push(message.to_owned());
                    }
                }
                // Records were overwritten before they were read.
                Err(error) if error.raw_os_error() == Some(EPIPE) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        out
    }
}

const EPIPE: i32 = rustix::io::Errno::PIPE.raw_os_error();
