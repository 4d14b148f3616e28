//! What is mounted where, from /proc/self/mountinfo.
//!
//! Owns the parsing of that file. It asks no file system, so it works on mounts
//! whose server is gone.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The device number, `major:minor`, of the topmost FUSE mount at `path`. An
/// error if the list of mounts cannot be read.
pub(super) fn device_at(path: &Path) -> io::Result<Option<String>> {
    let text = std::fs::read("/proc/self/mountinfo")?;
    Ok(find(&text, path.as_os_str().as_bytes()))
}

fn find(text: &[u8], path: &[u8]) -> Option<String> {
    text.split(|byte| *byte == b'\n')
        .filter_map(|line| {
            let mut fields = line.split(|byte| *byte == b' ');
            let device = fields.nth(2)?;
            let target = fields.nth(1)?;
            let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
            let matches = unescape(target) == path && kind.starts_with(b"fuse");
            matches.then(|| String::from_utf8_lossy(device).into_owned())
        })
        .next_back()
}

/// Space, tab, newline and backslash are written as three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let digits = tail
            .get(..3)
            .filter(|_| *first == b'\\')
            .and_then(|digits| {
                let digits = std::str::from_utf8(digits).ok()?;
                u8::from_str_radix(digits, 8).ok()
            });
        match digits {
            Some(byte) => {
                plain.push(byte);
                rest = &tail[3..];
            }
            None => {
                plain.push(*first);
                rest = tail;
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_topmost_fuse_mount_is_found() {
        let text = b"22 1 0:20 / /a\\040b rw - fuse.x x rw\n\
                     23 1 0:21 / /a\\040b rw shared:1 - fuse.y y rw\n\
                     24 1 0:22 / /a\\040b rw - tmpfs t rw\n\
                     broken\n";
        assert_eq!(find(text, b"/a b").as_deref(), Some("0:21"));
        assert_eq!(find(text, b"/a"), None);
    }

    #[test]
    fn odd_escapes_stay() {
        assert_eq!(unescape(b"\\134x\\"), b"\\x\\");
        assert_eq!(unescape(b"\\9\\777"), b"\\9\\777");
    }
}
