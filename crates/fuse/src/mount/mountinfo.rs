//! What is mounted where, from /proc/self/mountinfo.
//!
//! Owns the parsing of that file. It asks no file system, so it works on mounts
//! whose server is gone.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The device number, `major:minor`, of the last mount at `path`.
pub(super) fn device_at(path: &Path) -> Option<String> {
    let text = std::fs::read("/proc/self/mountinfo").ok()?;
    devices(&text, path.as_os_str().as_bytes()).last()
}

/// Whether a mount of the file system with this device number is at `path`,
/// maybe below another one.
pub(super) fn is_at(path: &Path, device: &str) -> bool {
    let text = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    devices(&text, path.as_os_str().as_bytes()).any(|found| found == device)
}

/// The device numbers of all mounts at `path`, in the order of the table.
fn devices<'a>(text: &'a [u8], path: &'a [u8]) -> impl Iterator<Item = String> + 'a {
    text.split(|byte| *byte == b'\n').filter_map(move |line| {
        let mut fields = line.split(|byte| *byte == b' ');
        let device = fields.nth(2)?;
        let target = fields.nth(1)?;
        (unescape(target) == path).then(|| String::from_utf8_lossy(device).into_owned())
    })
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
    fn mounts_at_a_path_are_found_in_order() {
        let text = b"22 1 0:20 / /a\\040b rw - fuse.x x rw\n\
                     23 1 0:21 / /a\\040b rw shared:1 - fuse.y y rw\n\
                     24 1 0:22 / /a rw - tmpfs t rw\n\
                     broken\n";
        let found: Vec<String> = devices(text, b"/a b").collect();
        assert_eq!(found, ["0:20", "0:21"]);
        assert_eq!(devices(text, b"/b").next(), None);
    }

    #[test]
    fn odd_escapes_stay() {
        assert_eq!(unescape(b"\\134x\\"), b"\\x\\");
        assert_eq!(unescape(b"\\9\\777"), b"\\9\\777");
    }
}
