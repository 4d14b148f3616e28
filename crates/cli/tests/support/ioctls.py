"""Answers of Btrfs' ioctls on a mount, as text.

Usage: ioctls.py DIRECTORY FILE..., each file below the directory.
"""

import ctypes
import fcntl
import os
import struct
import sys


def ask(descriptor, number, argument):
    buffer = bytearray(argument)
    try:
        fcntl.ioctl(descriptor, number, buffer)
    except OSError as error:
        return os.strerror(error.errno)
    return bytes(buffer)


def resolve(descriptor, number, what, size=4096, flags=0):
    """The values of a btrfs_data_container, and its bytes behind them."""
    room = ctypes.create_string_buffer(max(size, 16))
    argument = struct.pack("=QQ24xQQ", what, size, flags, ctypes.addressof(room))
    told = ask(descriptor, number, argument)
    if isinstance(told, str):
        return told, b"", b""
    _, _, count, missed = struct.unpack_from("=IIII", room.raw)
    values = struct.unpack_from(f"={count}Q", room.raw, 16)
    return values, missed, room.raw[16:]


def text(raw, at):
    return raw[at : raw.index(0, at)].decode()


def main():
    top, files = sys.argv[1], sys.argv[2:]
    directory = os.open(top, os.O_RDONLY)

    # It is asked for the kind of checksum and the generation, too.
    told = ask(directory, 0x8400941F, struct.pack("=48xQ", 3).ljust(1024, b"\0"))
    last, devices, fsid, node, sector, clone, kind, size, flags, generation, uuid = struct.unpack_from(
        "=QQ16sIIIHHQQ16s", told
    )
    print("volume", last, devices, fsid.hex(), node, sector, clone, kind, size)
    if flags & 2:
        print("generation", generation)

    for device in range(4):
        told = ask(directory, 0xD000941E, struct.pack("=Q", device).ljust(4096, b"\0"))
        if not isinstance(told, str):
            number, uuid, used, total = struct.unpack_from("=Q16sQQ", told)
            told = (number, uuid.hex(), used, total, "a path" if told[3072] else "no path")
        print("device", device, told)
        told = ask(directory, 0xC4089434, struct.pack("=QQQ", device, 5, 0).ljust(1032, b"\0"))
        print("counters", device, told if isinstance(told, str) else struct.unpack_from("=QQQ5Q", told))

    # The number first, then with room for all.
    told = ask(directory, 0xC0109414, struct.pack("=QQ", 0, 0))
    (_, count) = struct.unpack("=QQ", told)
    room = ctypes.create_string_buffer(16 + 24 * count)
    struct.pack_into("=Q", room, 0, count)
    library = ctypes.CDLL(None, use_errno=True)
    assert library.ioctl(directory, ctypes.c_ulong(0xC0109414), room) == 0, os.strerror(ctypes.get_errno())
    _, count = struct.unpack_from("=QQ", room)
    for kind in range(count):
        flags, total, used = struct.unpack_from("=QQQ", room, 16 + 24 * kind)
        # The kernel's own reserve is no space of the volume.
        if not flags >> 49 & 1:
            print("space", hex(flags), total, used)

    print("features", struct.unpack("=QQQ", ask(directory, 0x80189439, bytes(24))))

    for name in files:
        number = os.stat(f"{top}/{name}").st_ino
        values, _, raw = resolve(directory, 0xC0389423, number)
        print("paths of", name, sorted(text(raw, at) for at in values))
    values, missed, _ = resolve(directory, 0xC0389423, number, 16)
    print("without room", values, missed)
    print("no inode", resolve(directory, 0xC0389423, 1 << 40)[0])

    for name in files:
        with open(f"{top}/{name}", "rb") as file:
            place = extent_of(file)
        if place is None:
            continue
        for number, flags in ((0xC0389424, 0), (0xC038943B, 0), (0xC038943B, 1), (0xC038943B, 2)):
            values = resolve(directory, number, place, 65536, flags)[0]
            if not isinstance(values, str):
                values = sorted(zip(values[::3], values[1::3], values[2::3]))
            print("files at data of", name, hex(number), flags, values)
    print("no extent", resolve(directory, 0xC0389424, 1 << 60, 65536)[0])


def extent_of(file):
    """Logical address of the second sector of a file, by TREE_SEARCH."""
    number = os.fstat(file.fileno()).st_ino
    key = struct.pack("=7Q4I32x", 0, number, number, 0, 1 << 40, 0, 1 << 60, 108, 108, 4096, 0)
    told = ask(file.fileno(), 0xD0009411, key.ljust(4096, b"\0"))
    if isinstance(told, str):
        return None
    count, at = struct.unpack_from("=I", told, 64)[0], 104
    for _ in range(count):
        _, objectid, _, kind, size = struct.unpack_from("=QQQII", told, at)
        data = told[at + 32 : at + 32 + size]
        if objectid == number and kind == 108 and data[20] == 1:
            disk, _, offset = struct.unpack_from("=QQQ", data, 21)
            return disk + offset + 4096
        at += 32 + size
    return None


main()
