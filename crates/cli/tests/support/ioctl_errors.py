"""What Btrfs' administrative ioctls answer to strange arguments, as text.

Usage: ioctl_errors.py DIRECTORY [USER [namespace]]. With USER, that user asks; with
`namespace`, as the root of a user namespace of its own.
"""

import ctypes
import fcntl
import os
import struct
import sys

SCRUB, CANCEL_SCRUB, SCRUB_PROGRESS = 0xC400941B, 0x941C, 0xC400941D
BALANCE, BALANCE_PROGRESS = 0xC4009420, 0x84009422
RESIZE, ADD, REMOVE, REMOVE_V2, REPLACE = 0x50009403, 0x5000940A, 0x5000940B, 0x5000943A, 0xCA289435
ALL = 2**64 - 1


def ask(descriptor, name, number, argument, size):
    buffer = bytearray(argument.ljust(size, b"\0")) if size else 0
    try:
        told = fcntl.ioctl(descriptor, number, buffer)
        told = f"result {told}"
    except OSError as error:
        told = os.strerror(error.errno)
    print(f"{name}: {told}")
    return bytes(buffer) if size else b""


def words(*numbers):
    return struct.pack(f"={len(numbers)}Q", *numbers)


def named(text):
    return bytes(8) + text


def by_name(text):
    return bytes(56) + text


def replaced(source, target):
    return words(0, 0, source, 0) + bytes(1025) + target


def enter_namespace(user):
    """Makes this process the root of a new user namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x10000000) != 0:
        sys.exit(f"no user namespace: {os.strerror(ctypes.get_errno())}")
    for name, text in [("uid_map", f"0 {user} 1"), ("setgroups", "deny"), ("gid_map", f"0 {user} 1")]:
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    assert os.getuid() == 0 and os.getgid() == 0


def main():
    # Only root finds the way to it.
    file = os.open(sys.argv[1], os.O_RDONLY)
    if len(sys.argv) > 2:
        os.setgroups([])
        os.setgid(int(sys.argv[2]))
        os.setuid(int(sys.argv[2]))
    if len(sys.argv) > 3:
        # Who changed its user may not write to its own files in /proc otherwise.
        ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
        enter_namespace(int(sys.argv[2]))
    ask(file, "scrub of no device", SCRUB, words(0, 0, ALL, 0), 1024)
    ask(file, "scrub of device 7", SCRUB, words(7, 0, ALL, 0), 1024)
    ask(file, "scrub with all flags", SCRUB, words(1, 0, ALL, ALL), 1024)
    ask(file, "progress of a scrub", SCRUB_PROGRESS, words(1), 1024)
    ask(file, "progress of device 7", SCRUB_PROGRESS, words(7), 1024)
    ask(file, "end of scrubs", CANCEL_SCRUB, b"", 0)
    ask(file, "balance with all flags", BALANCE, words(ALL), 1024)
    ask(file, "balance with all filters", BALANCE, words(1, 0) + b"\xff" * 400, 1024)
    ask(file, "resume of no balance", BALANCE, words(1 << 4), 1024)
    ask(file, "progress of no balance", BALANCE_PROGRESS, b"", 1024)
    # No end of the name: the kernel ends it itself.
    for size in [b"", b"x", b"1:", b"9:max", b"1:+x", b"1:3k3", b"-1:max", b"1:1", b"max ", b"\xff"]:
        ask(file, f"resize {size}", RESIZE, named(size), 4096)
    for path in [b"", b"/", b"/etc/passwd", b"/nowhere", b"/dev/null"]:
        ask(file, f"new device {path}", ADD, named(path), 4096)
    for path in [b"/nowhere", b"missing", b"/dev/null", b"cancel"]:
        ask(file, f"removal of {path}", REMOVE, named(path), 4096)
        ask(file, f"removal by name of {path}", REMOVE_V2, by_name(path), 4096)
    number = bytes(16) + words(8) + bytes(32)
    ask(file, "removal of device 7", REMOVE_V2, number + words(7), 4096)
    ask(file, "removal of device 1", REMOVE_V2, number + words(1), 4096)
    ask(file, "removal with all flags", REMOVE_V2, bytes(16) + words(ALL), 4096)
    told = ask(file, "state of a replacement", REPLACE, words(1), 2600)
    print(struct.unpack_from("=Q", told, 8))
    told = ask(file, "end of a replacement", REPLACE, words(2), 2600)
    print(struct.unpack_from("=Q", told, 8))
    ask(file, "strange replacement", REPLACE, words(9), 2600)
    ask(file, "replacement by nothing", REPLACE, replaced(1, b"/nowhere"), 2600)
    ask(file, "replacement by a file", REPLACE, replaced(1, b"/etc/passwd"), 2600)
    if len(sys.argv) > 2:
        # FUSE reads the argument before the server can say who may ask.
        return
    libc = ctypes.CDLL(None, use_errno=True)
    for number in [SCRUB, BALANCE, RESIZE, REMOVE_V2, REPLACE]:
        done = libc.ioctl(file, ctypes.c_ulong(number), ctypes.c_void_p(16))
        print("memory that is not there:", done, os.strerror(ctypes.get_errno()))


main()
