//! Directory entries, extended attributes and ACLs.

use crate::meter::bounded;
use crate::tape::Tape;
use butterfs_format::acl::Acl;
use butterfs_format::checksum::{extref_hash, name_hash};
use butterfs_format::item::dir::{DirEntries, FileType};
use butterfs_format::item::inode::{ExtrefEntries, RefEntries};

/// A mode, then the bytes of an item, or of an ACL.
pub fn run(data: &[u8]) {
    bounded(16 << 20, || {
        let mut tape = Tape::new(data);
        let mode = u32::from(tape.u16());
        acl(tape.rest(), mode);
        let mut taken = 0;
        for entry in DirEntries::new(tape.rest()).flatten() {
            taken += entry.encode().len();
            let _ = name_hash(entry.name);
            if entry.kind == FileType::Xattr {
                acl(entry.data, mode);
            }
        }
        assert!(taken <= tape.rest().len());
        let names = RefEntries::new(tape.rest()).flatten().count();
        let long = ExtrefEntries::new(tape.rest()).flatten();
        let hashes = long.map(|entry| extref_hash(entry.parent, entry.name));
        assert!(names.max(hashes.count()) <= tape.rest().len());
    });
}

fn acl(value: &[u8], mode: u32) {
    let Ok(acl) = Acl::parse(value) else {
        return;
    };
    let bytes = acl.encode();
    assert_eq!(Acl::parse(&bytes).as_ref(), Ok(&acl));
    assert!(acl.mode() <= 0o777);
    let changed = acl.clone().with_mode(mode);
    assert_eq!(changed.mode(), mode & 0o777);
    assert!(Acl::parse(&changed.encode()).is_ok());
    let inherited = acl.inherit(mode);
    assert!(inherited.mode <= mode & 0o777);
}
