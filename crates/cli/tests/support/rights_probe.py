"""What each kind of caller may do on a mounted Btrfs: one line per caller,
setting and operation. Run as root:

rights_probe.py MOUNTPOINT [protected | odds IMAGE]

BUTTERFS_RIGHTS=all tries all operations in all settings.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import stat
import struct
import sys
import time

libc = ctypes.CDLL(None, use_errno=True)
OWNER, GROUP, NAMED, NAMED_GROUP, STRANGER = 3001, 3002, 3003, 3004, 3005
CLONE_NEWUSER = 0x1000_0000

# Caller: user, group, further groups, way into a user namespace, capabilities.
CALLERS = {
    "owner": (OWNER, 3900, [], None, None),
    "group": (STRANGER, GROUP, [], None, None),
    "supplementary": (STRANGER, 3900, [3901, GROUP], None, None),
    "named-user": (NAMED, 3900, [], None, None),
    "named-group": (STRANGER, 3900, [NAMED_GROUP], None, None),
    "other": (STRANGER, 3900, [3901], None, None),
    "root": (0, 0, [0], None, None),
    "root-without-capabilities": (0, 0, [0], None, 0),
    "root-of-own-namespace": (STRANGER, 3900, [], "own", None),
    "owner-as-namespace-root": (OWNER, GROUP, [], "own", None),
    "root-of-all-ids": (0, 0, [0], "all", None),
    "dac-override": (STRANGER, 3900, [], None, 1 << 1),
    "fowner": (STRANGER, 3900, [], None, 1 << 3),
}


def call(name, *args):
    ctypes.set_errno(0)
    if getattr(libc, name)(*args) != 0:
        raise OSError(ctypes.get_errno(), name)


def set_capabilities(mask):
    """Permitted and effective ones, of this process."""
    header = struct.pack("Ii", 0x20080522, 0)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    data = struct.pack("6I", low, low, 0, high, high, 0)
    call("capset", header, data)


def become(caller):
    uid, gid, groups, namespace, capabilities = CALLERS[caller]
    if namespace == "all":
        call("unshare", CLONE_NEWUSER)
        return "wait"
    if capabilities is not None:
        call("prctl", 8, 1, 0, 0, 0)  # PR_SET_KEEPCAPS
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    if capabilities is not None:
        set_capabilities(capabilities)
    if namespace == "own":
        call("prctl", 4, 1, 0, 0, 0)  # PR_SET_DUMPABLE
        call("unshare", CLONE_NEWUSER)
        for file, text in [("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")]:
            with open(f"/proc/self/{file}", "w") as out:
                out.write(text)
    return "go"


def acl(owner, named, named_group, group, mask, other):
    entries = [(1, owner, -1), (2, named, NAMED), (4, group, -1), (8, named_group, NAMED_GROUP),
               (16, mask, -1), (32, other, -1)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)


# Setting: mode of the things, and their ACL.
SETTINGS = {
    "all": (0o777, None),
    "owner-only": (0o700, None),
    "group-only": (0o070, None),
    "other-only": (0o007, None),
    "sticky": (0o1777, None),
    "setgid": (0o2777, None),
    "granted": (0o700, acl(7, 7, 7, 0, 7, 0)),
    "masked": (0o700, acl(7, 7, 7, 7, 5, 5)),
    "forbidden": (0o777, acl(7, 0, 0, 7, 7, 7)),
    "empty-mask": (0o707, acl(7, 7, 7, 7, 0, 7)),
}

# Modes of the file where set-id bits are looked at.
SET_ID = {"all": 0o6777, "setgid": 0o6777, "sticky": 0o2666}
# Operations that only the server decides on: in every setting.
BY_SERVER = ("subvolume", "defragment", "chattr", "fssetxattr", "inode-path", "fallocate", "copy-range")
# Whoever may, may in any setting.
ONCE = ("quota", "group-", "rescan", "label", "read-label", "sync", "start-sync", "tree-search", "subvolume-default")
# Settings of what the kernel decides on.
FEW = ("all", "sticky", "granted", "masked")

# Numbers of the subvolumes `d/sub`, by place.
NUMBERS = {}
V1, V2 = 4096, 4096


def by_name(name, descriptor=0):
    return struct.pack("q", descriptor) + name.encode().ljust(V1 - 8, b"\0")


def by_name_2(name, descriptor=0, flags=0, size=0, pointer=0):
    head = struct.pack("qQQQQ", descriptor, 0, flags, size, pointer)
    return head.ljust(56, b"\0") + name.encode().ljust(V2 - 56, b"\0")


def ioctl(path, number, argument=0, flags=os.O_RDONLY):
    descriptor = os.open(path, flags)
    try:
        if isinstance(argument, (bytes, bytearray)):
            buffer = bytearray(argument)
            fcntl.ioctl(descriptor, number, buffer, True)
            return bytes(buffer)
        return fcntl.ioctl(descriptor, number, argument)
    finally:
        os.close(descriptor)


def show(path):
    """Mode, owner and group, and whether there is an ACL."""
    found = os.lstat(path)
    return f"{found.st_mode:o} {found.st_uid}:{found.st_gid}"


FALLOCATE = {"allocate": 0, "keep-size": 1, "punch": 3, "zero": 16, "zero-keep": 17}


def fallocate(path, mode, length=8192):
    descriptor = os.open(path, os.O_RDWR)
    try:
        call("fallocate", descriptor, mode, ctypes.c_long(0), ctypes.c_long(length))
    finally:
        os.close(descriptor)


def snapshot(source, place, name, second=False):
    descriptor = os.open(source, os.O_RDONLY)
    try:
        if second:
            ioctl(place, 0x50009417, by_name_2(name, descriptor, 2))
        else:
            ioctl(place, 0x50009401, by_name(name, descriptor))
    finally:
        os.close(descriptor)


def operations(top):
    """Each takes a place made for it: a directory `d`, a subvolume `s` and a
    file `f`, in a place where everybody may do everything."""
    d, s, f = (os.path.join(top, name) for name in "dsf")

    def within(name, place):
        return os.path.join(place, name)

    table = {}

    def add(name, needs):
        def keep(function):
            table[name] = (function, needs.split())
        return keep

    @add("open-read", "f")
    def _():
        os.close(os.open(f, os.O_RDONLY))

    @add("open-write", "f")
    def _():
        os.close(os.open(f, os.O_WRONLY))

    @add("open-append", "f")
    def _():
        os.close(os.open(f, os.O_WRONLY | os.O_APPEND))

    @add("access-write", "f")
    def _():
        if not os.access(f, os.W_OK):
            raise OSError(errno.EACCES, "access")

    @add("truncate", "f")
    def _():
        os.truncate(f, 5)

    @add("open-truncate", "f")
    def _():
        os.close(os.open(f, os.O_WRONLY | os.O_TRUNC))

    @add("utimes-now", "f")
    def _():
        os.utime(f)

    @add("utimes-given", "f")
    def _():
        os.utime(f, (1, 2))

    @add("chmod", "f")
    def _():
        os.chmod(f, 0o2770)
        return show(f)

    @add("chgrp", "f")
    def _():
        os.chown(f, -1, 3900)
        return show(f)

    @add("chown", "f")
    def _():
        os.chown(f, OWNER, -1)
        return show(f)

    @add("chown-to-nobody-else", "f")
    def _():
        os.chown(f, -1, -1)
        return show(f)

    for name in ("foo.bar", "user", "system.foo", "security", "os2.x"):
        add("unknown-xattr-" + name, "f")(lambda name=name: os.getxattr(f, name) and None)

    @add("user-xattr", "f")
    def _():
        os.setxattr(f, "user.x", b"1")

    @add("trusted-xattr", "f")
    def _():
        os.setxattr(f, "trusted.x", b"1")

    @add("property", "f")
    def _():
        os.setxattr(f, "btrfs.compression", b"zstd")

    @add("remove-xattr", "f")
    def _():
        os.removexattr(f, "user.old")

    @add("set-acl", "f")
    def _():
        os.setxattr(f, "system.posix_acl_access", acl(6, 6, 6, 6, 6, 0))
        return show(f)

    @add("write", "f")
    def _():
        with open(f, "r+b", 0) as file:
            file.write(b"0123456789")
        return show(f)

    for mode in FALLOCATE:
        add("fallocate-" + mode, "f")(lambda mode=mode: (fallocate(f, FALLOCATE[mode]), show(f))[1])

    @add("copy-range", "f source")
    def _():
        source, target = os.open(os.path.join(top, "source"), os.O_RDONLY), os.open(f, os.O_RDWR)
        os.copy_file_range(source, target, 4096, 0, 0)
        return show(f)

    for name, flag in [("immutable", 0x10), ("append", 0x20), ("nodump", 0x40), ("nocow", 0x800000)]:
        add("chattr-" + name, "f")(lambda flag=flag: ioctl(f, 0x40086602, struct.pack("I", flag)) and None)

    @add("fssetxattr", "f")
    def _():
        ioctl(f, 0x401C5820, struct.pack("I", 0x80).ljust(28, b"\0"))

    @add("defragment", "f")
    def _():
        ioctl(f, 0x50009402, b"\0" * 4096)

    @add("defragment-writing", "f")
    def _():
        ioctl(f, 0x50009402, b"\0" * 4096, os.O_RDWR)

    @add("defragment-range", "f")
    def _():
        ioctl(f, 0x40309410, struct.pack("QQQIIIIIII", 0, 1 << 40, 0, 0, 0, 0, 0, 0, 0, 0)[:48].ljust(48, b"\0"))

    @add("defragment-directory", "d")
    def _():
        ioctl(d, 0x50009402, b"\0" * 4096)

    @add("create", "d")
    def _():
        path = within("new", d)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o666))
        return show(path)

    @add("mkdir", "d")
    def _():
        os.mkdir(within("new", d))
        return show(within("new", d))

    @add("symlink", "d")
    def _():
        os.symlink("x", within("new", d))
        return show(within("new", d))

    @add("link", "d f")
    def _():
        os.link(f, within("new", d))

    @add("mkfifo", "d")
    def _():
        os.mkfifo(within("new", d))
        return show(within("new", d))

    @add("tmpfile", "d")
    def _():
        os.close(os.open(d, os.O_TMPFILE | os.O_RDWR, 0o600))

    @add("unlink", "d file")
    def _():
        os.unlink(within("file", d))

    @add("rmdir", "d empty")
    def _():
        os.rmdir(within("empty", d))

    @add("rename-away", "d file")
    def _():
        os.rename(within("file", d), os.path.join(top, "moved"))

    @add("rename-in", "d f")
    def _():
        os.rename(f, within("moved", d))

    @add("rename-within", "d file")
    def _():
        os.rename(within("file", d), within("moved", d))

    @add("rename-over", "d f file")
    def _():
        os.rename(f, within("file", d))

    @add("rename-subvolume", "s")
    def _():
        os.rename(s, os.path.join(top, "renamed"))

    @add("rename-subvolume-in", "d sub")
    def _():
        os.rename(within("sub", d), within("renamed", d))

    @add("rmdir-subvolume", "d sub")
    def _():
        os.rmdir(within("sub", d))

    @add("list", "d")
    def _():
        os.listdir(d)

    @add("subvolume-create", "d")
    def _():
        ioctl(d, 0x5000940E, by_name("new"))
        return show(within("new", d))

    @add("subvolume-create-2", "d")
    def _():
        ioctl(d, 0x50009418, by_name_2("new"))
        return show(within("new", d))

    @add("subvolume-snapshot", "s")
    def _():
        snapshot(s, top, "new")
        return show(os.path.join(top, "new"))

    @add("subvolume-snapshot-read-only", "s")
    def _():
        snapshot(s, top, "new", True)
        return show(os.path.join(top, "new"))

    @add("subvolume-snapshot-into", "d open")
    def _():
        snapshot(os.path.join(top, "open"), d, "new")

    @add("subvolume-snapshot-of-directory", "d")
    def _():
        snapshot(d, top, "new")

    @add("subvolume-delete", "d sub")
    def _():
        ioctl(d, 0x5000940F, by_name("sub"))

    @add("subvolume-delete-open", "s")
    def _():
        ioctl(top, 0x5000940F, by_name("s"))

    @add("subvolume-delete-2", "d sub")
    def _():
        ioctl(d, 0x5000943F, by_name_2("sub"))

    @add("subvolume-delete-directory", "d empty")
    def _():
        ioctl(d, 0x5000940F, by_name("empty"))

    @add("subvolume-delete-missing", "d")
    def _():
        ioctl(d, 0x5000940F, by_name("nosuch"))

    @add("subvolume-delete-by-id", "")
    def _():
        ioctl(top, 0x5000943F, by_name_2("", 0, 16)[:56] + struct.pack("Q", 1 << 40).ljust(V2 - 56, b"\0"))

    @add("subvolume-delete-by-its-id", "d sub")
    def _():
        # The subvolume lets everybody ask for its number.
        ioctl(top, 0x5000943F, by_name_2("", 0, 16)[:56] + struct.pack("Q", NUMBERS[top]).ljust(V2 - 56, b"\0"))

    @add("subvolume-read-only", "s")
    def _():
        ioctl(s, 0x4008941A, struct.pack("Q", 2))

    @add("subvolume-flags", "s")
    def _():
        ioctl(s, 0x80089419, b"\0" * 8)

    @add("subvolume-flags-of-directory", "d")
    def _():
        ioctl(d, 0x4008941A, struct.pack("Q", 2))

    @add("subvolume-default", "")
    def _():
        ioctl(top, 0x40089413, struct.pack("Q", 5))

    @add("subvolume-received", "s")
    def _():
        ioctl(s, 0xC0C89425, b"u" * 16 + b"\0" * 184)

    @add("subvolume-info", "s")
    def _():
        ioctl(s, 0x81F8943C, b"\0" * 504)

    @add("subvolume-refs", "")
    def _():
        ioctl(top, 0xD000943D, b"\0" * 4096)

    @add("subvolume-place", "d s sub")
    def _():
        # The subvolume's number and its directory's, from below its place.
        number = struct.unpack_from("Q", ioctl(within("sub", d), 0x81F8943C, b"\0" * 504))[0]
        inner = os.stat(d).st_ino & ((1 << 40) - 1)
        ioctl(top, 0xD000943E, struct.pack("QQ", inner, number).ljust(4096, b"\0"))

    @add("inode-path", "d")
    def _():
        ioctl(d, 0xD0009412, struct.pack("QQ", 0, 256).ljust(4096, b"\0"))

    @add("inode-path-of-other", "d")
    def _():
        ioctl(d, 0xD0009412, struct.pack("QQ", 5, 256).ljust(4096, b"\0"))

    @add("tree-search", "d")
    def _():
        key = struct.pack("QQQQQQQIIIIQQQQ", 5, 0, 2**64 - 1, 0, 2**64 - 1, 0, 2**64 - 1, 0, 255, 1, 0, 0, 0, 0, 0)
        ioctl(d, 0xD0009411, key.ljust(4096, b"\0"))

    @add("quota-off", "")
    def _():
        ioctl(top, 0xC0109428, struct.pack("QQ", 2, 0))

    @add("group-create", "")
    def _():
        ioctl(top, 0x4010942A, struct.pack("QQ", 1, 1 << 48 | 7))

    @add("group-assign", "")
    def _():
        ioctl(top, 0x40189429, struct.pack("QQQ", 1, 5, 1 << 48 | 7))

    @add("group-limit", "")
    def _():
        ioctl(top, 0x8030942B, struct.pack("6Q", 5, 0, 0, 0, 0, 0))

    @add("rescan", "")
    def _():
        ioctl(top, 0x4040942C, b"\0" * 64)

    @add("rescan-status", "")
    def _():
        ioctl(top, 0x8040942D, b"\0" * 64)

    @add("label", "")
    def _():
        ioctl(top, 0x41009432, b"label".ljust(256, b"\0"))

    @add("read-label", "")
    def _():
        ioctl(top, 0x81009431, b"\0" * 256)

    @add("sync", "")
    def _():
        ioctl(top, 0x9408)

    @add("start-sync", "")
    def _():
        ioctl(top, 0x80089418, b"\0" * 8)

    return table


def make(top, setting, needs):
    """What an operation needs, as root."""
    mode, rules = SETTINGS[setting]
    os.mkdir(top)
    os.chmod(top, 0o777)
    within = {name: os.path.join(top, name) for name in "dsf"}
    within |= {name: os.path.join(within["d"], name) for name in ("sub", "file", "empty")}
    within |= {name: os.path.join(top, name) for name in ("open", "source")}
    for name in needs:
        path = within[name]
        if name in ("s", "sub", "open"):
            ioctl(os.path.dirname(path), 0x5000940E, by_name(name))
        elif name in ("d", "empty"):
            os.mkdir(path)
        else:
            with open(path, "wb") as out:
                out.write(b"x" * 8192)
        if name == "f":
            os.setxattr(path, "user.old", b"1")
        if name == "sub":
            NUMBERS[top] = struct.unpack_from("Q", ioctl(path, 0x81F8943C, b"\0" * 504))[0]
        if name == "open":
            os.chown(path, STRANGER, 3900)
        elif name != "source":
            os.chown(path, OWNER, GROUP)
        if name in ("file", "empty", "source"):
            os.chmod(path, 0o666)
        elif name == "sub":
            os.chmod(path, 0o777)
        elif name in "dsf" and rules:
            os.setxattr(path, "system.posix_acl_access", rules)
        elif name in "dsf":
            os.chmod(path, mode)
        if name == "f" and setting in SET_ID:
            os.chmod(path, SET_ID[setting])


def attempt(operation):
    try:
        return f"ok {operation() or ''}".rstrip()
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error.errno))


def run(caller, tasks):
    """The operations, by a process that became `caller`; prints results."""
    ready, go = os.pipe(), os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            os.umask(0o027)
            state = become(caller)
            os.write(ready[1], b"r")
            if state == "wait":
                os.read(go[0], 1)
                os.setgroups([0])
            for label, operation in tasks:
                print(f"{caller} {label}: {attempt(operation)}")
            sys.stdout.flush()
        except BaseException as error:
            print(f"{caller} failed: {error!r}", flush=True)
        os._exit(0)
    os.read(ready[0], 1)
    if CALLERS[caller][3] == "all":
        for file in ("uid_map", "gid_map"):
            with open(f"/proc/{child}/{file}", "w") as out:
                out.write("0 0 65536")
        os.write(go[1], b"g")
    os.waitpid(child, 0)


def protected(mount):
    """Immutable and append-only files. What begins with `later` is of files
    and mappings that were open before: there a FUSE server refuses more."""

    def say(name, operation):
        print(f"{name}: {attempt(operation)}", flush=True)

    def opened(path, flags):
        return lambda: os.close(os.open(path, flags))

    def pages(name, path, mapping, descriptor):
        say("later write", lambda: os.pwrite(descriptor, b"LATE", 100) and None)
        mapping[200:204] = b"MAPS"
        say("later msync", mapping.flush)
        time.sleep(0.3)
        reader = os.open(path, os.O_RDONLY)
        found = os.pread(reader, 8192, 0)
        print(f"{name} keeps {found[:4]}")
        print(f"later content {found[100:104]} {found[200:204]}")
        mapping.close()
        os.close(descriptor)
        os.posix_fadvise(reader, 0, 0, os.POSIX_FADV_DONTNEED)
        found = os.pread(reader, 8192, 0)
        print(f"{name} kept {found[:4]}")
        os.close(reader)

    def fresh(path):
        with open(path, "wb") as out:
            out.write(b"0" * 8192)
        descriptor = os.open(path, os.O_RDWR)
        mapping = mmap.mmap(descriptor, 8192)
        mapping[:4] = b"PRE!"
        return descriptor, mapping

    now, omit = (1 << 30) - 1, (1 << 30) - 2
    for name, flag in (("immutable", 0x10), ("append", 0x20)):
        path = os.path.join(mount, name)
        descriptor, mapping = fresh(path)
        ioctl(path, 0x40086602, struct.pack("I", flag))
        for flags in ("RDONLY", "WRONLY", "RDWR", "WRONLY APPEND", "RDWR APPEND", "WRONLY APPEND TRUNC",
                      "RDONLY TRUNC", "PATH", "WRONLY CREAT TRUNC", "RDONLY NOATIME"):
            bits = 0
            for flag in flags.split():
                bits |= getattr(os, "O_" + flag)
            say(f"{name} open {flags}", opened(path, bits))
            say(f"{name} open anew {flags}", opened(f"/proc/self/fd/{descriptor}", bits))
        print(name, "access", [os.access(path, mode) for mode in (os.R_OK, os.W_OK, os.X_OK)])
        say(f"{name} times now", lambda: os.utime(path))
        say(f"{name} times given", lambda: os.utime(path, (1, 2)))
        for what in ((0, now, 0, omit), (0, omit, 0, now), (5, 5, 0, omit), (0, omit, 5, 5), (0, now, 5, 5)):
            say(f"{name} times {what}", lambda: call("utimensat", -100, path.encode(), struct.pack("4q", *what), 0))
        say(f"{name} chmod", lambda: os.chmod(path, 0o600))
        say(f"{name} chown", lambda: os.chown(path, 1, 1))
        say(f"{name} setxattr", lambda: os.setxattr(path, "user.a", b"b"))
        say(f"{name} truncate", lambda: os.truncate(path, 1))
        say(f"{name} link", lambda: os.link(path, path + "2"))
        say(f"{name} rename", lambda: os.rename(path, path + "2"))
        say(f"{name} unlink", lambda: os.unlink(path))
        pages(name, path, mapping, descriptor)
        if name == "append":
            with open(path, "ab") as out:
                out.write(b"more")
        print(name, os.stat(path).st_size)
        ioctl(path, 0x40086602, struct.pack("I", 0))
        say(f"{name} afterwards", opened(path, os.O_RDWR))

    inside = os.path.join(mount, "protected")
    ioctl(mount, 0x5000940E, by_name("protected"))
    descriptor, mapping = fresh(os.path.join(inside, "file"))
    ioctl(inside, 0x4008941A, struct.pack("Q", 2))
    pages("read-only", os.path.join(inside, "file"), mapping, descriptor)


def odds(mount, image):
    """Small rules of subvolumes, quotas and labels."""

    def say(name, operation):
        print(f"{name}: {attempt(operation)}", flush=True)

    def at(name):
        return os.path.join(mount, name)

    def inherit(command, name, descriptor):
        groups = struct.pack("QQQQ5QQ", 0, 1, 0, 0, 0, 0, 0, 0, 0, 1 << 48 | 7)
        memory = ctypes.create_string_buffer(groups)
        ioctl(mount, command, by_name_2(name, descriptor, 4, len(groups), ctypes.addressof(memory)))

    for name in ("empty", "full", "outer", "limited"):
        ioctl(mount, 0x5000940E, by_name(name))
    open(at("full/file"), "w").close()
    for name in ("empty", "full"):
        ioctl(at(name), 0x4008941A, struct.pack("Q", 2))
        say(f"rmdir of read-only {name}", lambda: os.rmdir(at(name)))

    ioctl(at("outer"), 0x5000940E, by_name("inner"))
    snapshot(at("outer"), mount, "snapshot")
    stub = at("snapshot/inner")
    for name in ("user.x", "trusted.x", "btrfs.compression"):
        say(f"stub setxattr {name}", lambda: os.setxattr(stub, name, b"zstd"))
        say(f"stub getxattr {name}", lambda: os.getxattr(stub, name))
        say(f"stub removexattr {name}", lambda: os.removexattr(stub, name))
    say("stub list", lambda: os.listdir(stub))
    say("stub rmdir", lambda: os.rmdir(stub))

    outer = os.open(at("outer"), os.O_RDONLY)
    say("inherit without quotas", lambda: inherit(0x50009418, "made", 0))
    say("inherit in a snapshot without quotas", lambda: inherit(0x50009417, "taken", outer))

    ioctl(mount, 0x41009432, b"at once".ljust(256, b"\0"))
    with open(image, "rb") as volume:
        volume.seek(0x10000 + 0x12B)
        print("label", volume.read(7))

    os.mkdir(at("acl"))
    os.setxattr(at("acl"), "system.posix_acl_default", acl(7, 7, 5, 5, 7, 0))
    ioctl(at("acl"), 0x5000940E, by_name("new"))
    print("default ACL", show(at("acl/new")), os.listxattr(at("acl/new")))

    ioctl(mount, 0xC0109428, struct.pack("QQ", 1, 0))
    ioctl(mount, 0x942E)
    path = at("limited/file")
    with open(path, "wb") as out:
        out.write(b"x" * 300000)
    libc.syncfs(outer)
    ioctl(at("limited"), 0x8030942B, struct.pack("6Q", 0, 1, 1000, 0, 0, 0))
    say("over the limit: create", opened_new(at("limited/new")))
    say("over the limit: touch", lambda: os.utime(path))
    say("over the limit: chmod", lambda: os.chmod(path, 0o600))
    say("over the limit: chown", lambda: os.chown(path, 1, 1))
    say("over the limit: chattr", lambda: ioctl(path, 0x40086602, struct.pack("I", 0x40)) and None)
    say("over the limit: unlink", lambda: os.unlink(path))
    flags(mount, at, say, outer)
    in_removed_directory(at, say, outer)
    os.close(outer)
    holes(at, say)


def flags(mount, at, say, outer):
    """Flags of requests and of subvolumes."""

    def quiet(file, command, argument):
        ioctl(file, command, argument)

    for name, kept in (("still", 0x10), ("grows", 0x20)):
        ioctl(mount, 0x5000940E, by_name(name))
        ioctl(at(name), 0x40086602, struct.pack("I", kept))
        say(f"rename of subvolume {name}", lambda: os.rename(at(name), at(name + "2")))
        say(f"rmdir of subvolume {name}", lambda: os.rmdir(at(name)))
    ioctl(mount, 0x5000940E, by_name("fixed"))
    ioctl(at("fixed"), 0x4008941A, struct.pack("Q", 2))
    os.mkdir(at("other"))
    say("move of a read-only subvolume", lambda: os.rename(at("fixed"), at("other/fixed")))
    say("rename of a read-only subvolume", lambda: os.rename(at("fixed"), at("fixed2")))
    for unknown in (1, 3, 8, 16, 1 << 40):
        made = by_name_2(f"made{unknown}", 0, unknown, 0, 0)
        say(f"create with flags {unknown}", lambda: quiet(mount, 0x50009418, made))
        taken = by_name_2(f"taken{unknown}", outer, unknown, 0, 0)
        say(f"snapshot with flags {unknown}", lambda: quiet(mount, 0x50009417, taken))
        lost = by_name_2("empty", 0, unknown, 0, 0)
        say(f"delete with flags {unknown}", lambda: quiet(mount, 0x5000943F, lost))
        argument = struct.pack("Q", unknown)
        say(f"set flags {unknown}", lambda: quiet(at("limited"), 0x4008941A, argument))
    say("flags of a file", lambda: quiet(at("full/file"), 0x80089419, bytes(8)))
    place = os.open(at("outer"), os.O_PATH)
    taken = by_name_2("of-a-path", place, 0, 0, 0)
    say("snapshot of a path", lambda: quiet(mount, 0x50009417, taken))
    os.close(place)
    for inode in (7, 1 << 40):
        argument = struct.pack("QQ", 5, inode).ljust(4096, b"\0")
        say(f"path of inode {inode}", lambda: quiet(mount, 0xD0009412, argument))


def in_removed_directory(at, say, source):
    """Subvolumes in a directory that is gone but still open."""
    os.mkdir(at("gone"))
    gone = os.open(at("gone"), os.O_RDONLY)
    os.rmdir(at("gone"))

    def request(number, argument):
        fcntl.ioctl(gone, number, bytearray(argument), True)

    say("subvolume, directory is gone", lambda: request(0x5000940E, by_name("x")))
    say("subvolume 2, directory is gone", lambda: request(0x50009418, by_name_2("x")))
    say("snapshot, directory is gone", lambda: request(0x50009401, by_name("x", source)))
    say("snapshot 2, directory is gone", lambda: request(0x50009417, by_name_2("x", source)))
    os.close(gone)


def holes(at, say):
    """Where a sparse file has data, while a mapping holds some of them; and
    attributes of files with and without content."""
    file = os.open(at("sparse"), os.O_RDWR | os.O_CREAT, 0o644)
    os.ftruncate(file, 1 << 20)
    memory = mmap.mmap(file, 1 << 20)

    def found(when):
        for offset in (0, 98304, 102400, 499712, 503808, 1000000, 1 << 20):
            for word, whence in (("data", os.SEEK_DATA), ("hole", os.SEEK_HOLE)):
                say(f"{word} from {offset}, {when}", lambda: os.lseek(file, offset, whence))

    memory[500000:500005] = b"HELLO"
    found("one page")
    memory[100000] = 1
    memory[1000000] = 1
    found("three pages")
    memory.flush()
    found("written")
    for name, content in (("no data", b""), ("data", b"x")):
        with open(at(name), "wb") as out:
            out.write(content)
        for word in (0x00800400, 0x00800004, 0x00000404, 0x00000400):
            argument = struct.pack("I", word)
            say(f"flags {word:#x}, {name}", lambda: ioctl(at(name), 0x40086602, argument) and None)
            got = ioctl(at(name), 0x80086601, bytes(4))
            print(f"flags, {name}: {struct.unpack('I', got)[0]:#x}", flush=True)
    memory.close()
    os.close(file)


def opened_new(path):
    return lambda: os.close(os.open(path, os.O_CREAT | os.O_WRONLY))


def main():
    mount = sys.argv[1]
    if "protected" in sys.argv:
        return protected(mount)
    if "odds" in sys.argv:
        return odds(mount, sys.argv[3])
    everything = os.environ.get("BUTTERFS_RIGHTS") == "all"
    table = operations("/")
    for caller in CALLERS:
        for setting in SETTINGS:
            base = os.path.join(mount, f"{caller}.{setting}")
            os.mkdir(base)
            tasks = []
            for name, (_, needs) in table.items():
                if name.startswith(ONCE):
                    settings = ("all",)
                elif name.startswith(BY_SERVER) or everything:
                    settings = SETTINGS
                else:
                    settings = FEW
                if setting not in settings:
                    continue
                top = os.path.join(base, name)
                make(top, setting, needs)
                tasks.append((f"{setting} {name}", operations(top)[name][0]))
            run(caller, tasks)


if __name__ == "__main__":
    main()
