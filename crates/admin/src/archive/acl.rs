//! Access control lists as text, in the form of acl(5) that archives have.

use super::pax::Record;
use butterfs_format::acl::{Acl, Tag};

/// The text is no list, or it names a user or group that this machine does not
/// have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoList;

/// The attribute of a list that a pax record has, and its value; `None` if the
/// mode says as much as the list.
///
/// # Errors
/// [`NoList`]
pub(super) fn attribute(is_default: bool, text: &[u8]) -> Result<Option<Record>, NoList> {
    let name: &[u8] = match is_default {
        true => b"system.posix_acl_default",
        false => b"system.posix_acl_access",
    };
    let value = parse(
        std::str::from_utf8(text).map_err(|_| NoList)?,
        &of_this_machine,
    )
    .ok_or(NoList)?;
    let list = Acl::parse(&value).map_err(|_| NoList)?;
    let says_more = is_default || !list.is_mode_only();
    Ok(says_more.then(|| (name.to_vec(), value)))
}

/// The key and the text of a pax record with the list of an attribute; `None` if
/// the attribute is no list.
#[must_use]
pub fn record(name: &[u8], value: &[u8]) -> Option<(&'static str, String)> {
    let key = match name {
        b"system.posix_acl_access" => "SCHILY.acl.access",
        b"system.posix_acl_default" => "SCHILY.acl.default",
        _ => return None,
    };
    let list = Acl::parse(value).ok()?;
    let lines = list.entries().iter().map(|entry| {
        let whom = match entry.tag {
            Tag::UserObject => "user:".to_owned(),
            Tag::User(id) => format!("user:{id}"),
            Tag::GroupObject => "group:".to_owned(),
            Tag::Group(id) => format!("group:{id}"),
            Tag::Mask => "mask:".to_owned(),
            Tag::Other => "other:".to_owned(),
        };
        let has = |bit: u16, letter| match entry.permissions & bit {
            0 => '-',
            _ => letter,
        };
        let (r, w, x) = (has(4, 'r'), has(2, 'w'), has(1, 'x'));
        format!("{whom}:{r}{w}{x}")
    });
    Some((key, lines.collect::<Vec<_>>().join(",")))
}

/// The number of a user (in `/etc/passwd`) or group (in `/etc/group`).
fn of_this_machine(file: &str, name: &str) -> Option<u32> {
    let table = std::fs::read_to_string(file).ok()?;
    let mut lines = table.lines().map(|line| line.split(':'));
    let mut line = lines.find(|line| line.clone().next() == Some(name))?;
    line.nth(2)?.parse().ok()
}

/// The binary form, in the order that Linux wants.
fn parse(text: &str, number_of: &dyn Fn(&str, &str) -> Option<u32>) -> Option<Vec<u8>> {
    let mut entries: Vec<(u16, u32, u16)> = Vec::new();
    for line in text.split([',', '\n']) {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let fields: Vec<&str> = line.split(':').map(str::trim).collect();
        let (kind, name, rights, number) = match fields[..] {
            [kind, rights] => (kind, "", rights, None),
            [kind, name, rights] => (kind, name, rights, None),
            [kind, name, rights, number] => (kind, name, rights, Some(number)),
            _ => return None,
        };
        let (tag, file) = match (kind, name.is_empty()) {
            ("user" | "u", true) => (0x01, ""),
            ("user" | "u", false) => (0x02, "/etc/passwd"),
            ("group" | "g", true) => (0x04, ""),
            ("group" | "g", false) => (0x08, "/etc/group"),
            ("mask" | "m", true) => (0x10, ""),
            ("other" | "o", true) => (0x20, ""),
            _ => return None,
        };
        let id = match (file, number) {
            ("", _) => u32::MAX,
            (_, Some(number)) => number.parse().ok()?,
            (file, None) => name.parse().ok().or_else(|| number_of(file, name))?,
        };
        let mut bits = 0;
        for right in rights.chars() {
            bits |= match right {
                'r' => 4,
                'w' => 2,
                'x' => 1,
                '-' => 0,
                _ => return None,
            };
        }
        entries.push((tag, id, bits));
    }
    entries.sort_unstable();
    let mut value = 2_u32.to_le_bytes().to_vec();
    for (tag, id, bits) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(bits.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_tar_and_star() {
        let named = |file: &str, name: &str| match (file, name) {
            ("/etc/passwd", "anna") => Some(7),
            ("/etc/group", "staff") => Some(50),
            _ => None,
        };
        let entry = |tag: u16, bits: u16, id: u32| {
            [
                &tag.to_le_bytes()[..],
                &bits.to_le_bytes(),
                &id.to_le_bytes(),
            ]
            .concat()
        };
        let none = u32::MAX;
        let expected = [
            2_u32.to_le_bytes().to_vec(),
            entry(1, 7, none),
            entry(2, 4, 7),
            entry(4, 5, none),
            entry(8, 0, 50),
            entry(16, 5, none),
            entry(32, 1, none),
        ]
        .concat();
        for text in [
            "user::rwx\nuser:anna:r--\ngroup::r-x\ngroup:staff:---\nmask::r-x\nother::--x\n",
            "user::rwx,group::r-x,other::--x,mask::r-x,user:7:r--,group:50:---",
            "u::rwx,u:nobody here:r--:7,g::rx,g:other:-:50,m:r-x,o:x # effective",
        ] {
            assert_eq!(parse(text, &named).as_ref(), Some(&expected), "{text}");
        }
        let (key, text) = record(b"system.posix_acl_default", &expected).unwrap();
        assert_eq!(key, "SCHILY.acl.default");
        assert_eq!(parse(&text, &named), Some(expected));
        for bad in [
            "user:bertha:rwx",
            "user::rwz",
            "owner::r",
            "mask:7:r",
            "user",
        ] {
            assert_eq!(parse(bad, &named), None, "{bad}");
        }
        let mode_only = b"user::rwx,group::r-x,other::--x";
        assert_eq!(attribute(false, mode_only), Ok(None));
        assert!(attribute(true, mode_only).unwrap().is_some());
        assert!(attribute(false, b"user::rwx").is_err());
    }
}
