//! The structures of the protocol, field by field in the kernel's order.
//!
//! Owns only layouts. Source of the facts: `include/uapi/linux/fuse.h`, which
//! is also under the BSD licence. Names follow it without the `fuse_` prefix.

use super::wire::wire;

wire! {
    struct InHeader {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32,
        total_extlen: u16, padding: u16,
    }
    struct OutHeader { len: u32, error: i32, unique: u64 }

    struct InitIn {
        major: u32, minor: u32, max_readahead: u32, flags: u32,
    }
    /// Sent since 7.36 when the kernel sets INIT_EXT.
    struct InitInExt { flags2: u32, unused: [u32; 11] }
    struct InitOut {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16,
        congestion_threshold: u16, max_write: u32, time_gran: u32, max_pages: u16,
        map_alignment: u16, flags2: u32, max_stack_depth: u32, request_timeout: u16,
        unused_low: u16, unused: [u32; 5],
    }

    struct Attr {
        ino: u64, size: u64, blocks: u64, atime: i64, mtime: i64, ctime: i64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, nlink: u32, uid: u32,
        gid: u32, rdev: u32, blksize: u32, flags: u32,
    }
    struct EntryOut {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64,
        entry_valid_nsec: u32, attr_valid_nsec: u32, attr: Attr,
    }
    struct AttrOut { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr }

    struct SxTime { seconds: i64, nanoseconds: u32, reserved: u32 }
    struct Statx {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16,
        spare0: u16, ino: u64, size: u64, blocks: u64, attributes_mask: u64, atime: SxTime,
        btime: SxTime, ctime: SxTime, mtime: SxTime, rdev_major: u32, rdev_minor: u32,
        dev_major: u32, dev_minor: u32, spare2: [u32; 28],
    }
    struct StatxIn { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32 }
    struct StatxOut {
        attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u32; 4], stat: Statx,
    }

    struct Kstatfs {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32,
        namelen: u32, frsize: u32, padding: u32, spare: [u32; 6],
    }

    struct ForgetIn { nlookup: u64 }
    struct ForgetOne { nodeid: u64, nlookup: u64 }
    struct BatchForgetIn { count: u32, dummy: u32 }
    struct GetattrIn { getattr_flags: u32, dummy: u32, fh: u64 }
    struct SetattrIn {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: i64,
        mtime: i64, ctime: i64, atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32,
        unused4: u32, uid: u32, gid: u32, unused5: u32,
    }
    struct MknodIn { mode: u32, rdev: u32, umask: u32, padding: u32 }
    struct MkdirIn { mode: u32, umask: u32 }
    struct RenameIn { newdir: u64 }
    struct Rename2In { newdir: u64, flags: u32, padding: u32 }
    struct LinkIn { oldnodeid: u64 }
    struct OpenIn { flags: u32, open_flags: u32 }
    struct CreateIn { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    struct OpenOut { fh: u64, open_flags: u32, padding: u32 }
    struct ReleaseIn { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    struct FlushIn { fh: u64, unused: u32, padding: u32, lock_owner: u64 }
    struct ReadIn {
        fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32,
        padding: u32,
    }
    struct WriteIn {
        fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32,
        padding: u32,
    }
    struct WriteOut { size: u32, padding: u32 }
    struct FsyncIn { fh: u64, fsync_flags: u32, padding: u32 }
    /// Without SETXATTR_EXT; with it the request begins with `SetxattrInExt`.
    struct SetxattrIn { size: u32, flags: u32 }
    struct SetxattrInExt { size: u32, flags: u32, setxattr_flags: u32, padding: u32 }
    struct GetxattrIn { size: u32, padding: u32 }
    struct GetxattrOut { size: u32, padding: u32 }
    struct AccessIn { mask: u32, padding: u32 }
    struct InterruptIn { unique: u64 }
    struct BmapIn { block: u64, blocksize: u32, padding: u32 }
    struct BmapOut { block: u64 }
    struct IoctlIn { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32 }
    struct IoctlOut { result: i32, flags: u32, in_iovs: u32, out_iovs: u32 }
    struct FallocateIn { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 }
    struct LseekIn { fh: u64, offset: u64, whence: u32, padding: u32 }
    struct LseekOut { offset: u64 }
    struct CopyFileRangeIn {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64,
        flags: u64,
    }
    struct CopyFileRangeOut { bytes_copied: u64 }
    struct SyncfsIn { padding: u64 }

    struct Dirent { ino: u64, off: u64, namelen: u32, kind: u32 }

    struct ExtHeader { size: u32, kind: u32 }

    struct NotifyInvalInode { ino: u64, off: i64, len: i64 }
    struct NotifyInvalEntry { parent: u64, namelen: u32, flags: u32 }
    struct NotifyDelete { parent: u64, child: u64, namelen: u32, padding: u32 }
    struct NotifyRetrieve { notify_unique: u64, nodeid: u64, offset: u64, size: u32, padding: u32 }
    struct NotifyStore { nodeid: u64, offset: u64, size: u32, padding: u32 }
    struct NotifyPrune { count: u32, padding: u32, spare: u64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::wire::Wire;

    #[test]
    fn sizes_are_the_kernels() {
        assert_eq!(InHeader::SIZE, 40);
        assert_eq!(OutHeader::SIZE, 16);
        assert_eq!(InitIn::SIZE + InitInExt::SIZE, 64);
        assert_eq!(InitOut::SIZE, 64);
        assert_eq!(Attr::SIZE, 88);
        assert_eq!(EntryOut::SIZE, 128);
        assert_eq!(AttrOut::SIZE, 104);
        assert_eq!(Statx::SIZE, 256);
        assert_eq!(StatxOut::SIZE, 288);
        assert_eq!(StatxIn::SIZE, 24);
        assert_eq!(Kstatfs::SIZE, 80);
        assert_eq!(SetattrIn::SIZE, 88);
        assert_eq!(ReadIn::SIZE, 40);
        assert_eq!(WriteIn::SIZE, 40);
        assert_eq!(IoctlIn::SIZE, 32);
        assert_eq!(IoctlOut::SIZE, 16);
        assert_eq!(CopyFileRangeIn::SIZE, 56);
        assert_eq!(Dirent::SIZE, 24);
    }
}
