"""Reads and writes files as it is told, by every way that Linux has.

A line on standard input is a command, a line on standard output its answer:

    write WAY FLAGS RWF OFFSET LENGTH BYTE SYNC PATH   -> ok
    read WAY FLAGS OFFSET LENGTH PATH                  -> bytes in hex

WAY is psync, libaio, io_uring or mmap; FLAGS are words of open(2) joined by
`+`, RWF is 0 or dsync, SYNC is none, fsync, fdatasync, msync or range. The
asynchronous ways have four requests under way at a time. Files and mappings
stay open. An error is answered as its number: `errno N`.
"""

import ctypes
import mmap
import os
import platform
import struct
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
ARM = platform.machine() == "aarch64"
IO_SETUP, IO_GETEVENTS, IO_SUBMIT = (0, 4, 2) if ARM else (206, 208, 209)
URING_SETUP, URING_ENTER = 425, 426
RWF = {"0": 0, "dsync": os.RWF_DSYNC}
DEPTH = 4


def syscall(*words):
    result = LIBC.syscall(*[ctypes.c_long(word) for word in words])
    if result < 0:
        raise OSError(ctypes.get_errno(), "a system call failed")
    return result


def address_of(memory):
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


class Uring:
    """One ring with room for DEPTH requests."""

    def __init__(self):
        params = ctypes.create_string_buffer(120)
        self.fd = syscall(URING_SETUP, DEPTH, ctypes.addressof(params))
        fields = struct.unpack("<10I", params.raw[:40])
        self.sq = struct.unpack("<8I", params.raw[40:72])
        self.cq = struct.unpack("<8I", params.raw[80:112])
        size = max(self.sq[6] + fields[0] * 4, self.cq[5] + fields[1] * 16)
        self.ring = mmap.mmap(self.fd, size)
        self.entries = mmap.mmap(self.fd, fields[0] * 64, offset=0x10000000)

    def word(self, at):
        return struct.unpack_from("<I", self.ring, at)[0]

    def run(self, opcode, fd, requests, rwf):
        tail = self.word(self.sq[1])
        for number, (address, length, offset) in enumerate(requests):
            slot = tail & self.word(self.sq[2])
            entry = struct.pack("<BBHiQQIIQ24x", opcode, 0, 0, fd, offset, address, length, rwf, number)
            self.entries[slot * 64:slot * 64 + 64] = entry
            struct.pack_into("<I", self.ring, self.sq[6] + slot * 4, slot)
            tail += 1
        struct.pack_into("<I", self.ring, self.sq[1], tail)
        count = len(requests)
        syscall(URING_ENTER, self.fd, count, count, 1, 0, 0)
        # They end in any order.
        results = {}
        head = self.word(self.cq[0])
        while len(results) < count:
            at = self.cq[5] + (head & self.word(self.cq[2])) * 16
            number, result = struct.unpack_from("<Qi", self.ring, at)
            results[number] = result
            head += 1
            struct.pack_into("<I", self.ring, self.cq[0], head)
        return [results[number] for number in range(count)]


class Aio:
    """One context of the older asynchronous interface."""

    def __init__(self):
        self.context = ctypes.c_ulong(0)
        syscall(IO_SETUP, DEPTH, ctypes.addressof(self.context))

    def run(self, opcode, fd, requests, rwf):
        blocks = [
            ctypes.create_string_buffer(
                struct.pack("<QIIHhIQQqQII", number, 0, rwf, opcode, 0, fd, address, length, offset, 0, 0, 0), 64)
            for number, (address, length, offset) in enumerate(requests)
        ]
        pointers = (ctypes.c_ulong * len(blocks))(*[ctypes.addressof(block) for block in blocks])
        syscall(IO_SUBMIT, self.context.value, len(blocks), ctypes.addressof(pointers))
        events = ctypes.create_string_buffer(32 * len(blocks))
        done = 0
        while done < len(blocks):
            room = ctypes.addressof(events) + 32 * done
            done += syscall(IO_GETEVENTS, self.context.value, 1, len(blocks) - done, room, 0)
        # They end in any order.
        ended = [struct.unpack_from("<QQq", events, 32 * at) for at in range(len(blocks))]
        results = {number: result for number, _, result in ended}
        return [results[number] for number in range(len(blocks))]


class Worker:
    def __init__(self):
        self.files = {}
        self.maps = {}
        self.engines = {}

    def file(self, path, flags):
        if (path, flags) not in self.files:
            number = 0
            for word in flags.split("+"):
                number |= getattr(os, "O_" + word)
            self.files[path, flags] = os.open(path, number, 0o644)
        return self.files[path, flags]

    def map(self, path, flags, end):
        known = self.maps.get(path)
        if known is None or len(known) < end:
            fd = self.file(path, flags)
            known = self.maps[path] = mmap.mmap(fd, os.fstat(fd).st_size)
        return known

    def asynchronous(self, way, writes, fd, memory, offset, rwf):
        if way not in self.engines:
            self.engines[way] = Aio() if way == "libaio" else Uring()
        opcode = {"libaio": (0, 1), "io_uring": (22, 23)}[way][writes]
        length = len(memory)
        # Whole sectors, and no more requests than there is room for.
        step = -(-length // (DEPTH * 4096)) * 4096
        address = address_of(memory)
        requests = [(address + at, min(step, length - at), offset + at) for at in range(0, length, step)]
        for result, request in zip(self.engines[way].run(opcode, fd, requests, rwf), requests):
            if result < 0:
                raise OSError(-result, "a request failed")
            if writes and result != request[1]:
                raise OSError(5, "a short write")
        return b""

    def write(self, way, flags, rwf, offset, length, byte, sync, path):
        offset, length = int(offset), int(length)
        content = bytes([int(byte)]) * length
        if way == "mmap":
            mapped = self.map(path, flags, offset + length)
            mapped[offset:offset + length] = content
            if sync == "msync":
                mapped.flush()
        else:
            memory = mmap.mmap(-1, length)
            memory[:] = content
            fd = self.file(path, flags)
            if way == "psync":
                if os.pwritev(fd, [memory], offset, RWF[rwf]) != length:
                    raise OSError(5, "a short write")
            else:
                self.asynchronous(way, 1, fd, memory, offset, RWF[rwf])
        fd = self.file(path, flags)
        if sync == "fsync":
            os.fsync(fd)
        elif sync == "fdatasync":
            os.fdatasync(fd)
        elif sync == "range":
            # All of the file: wait before, write, wait after.
            if LIBC.sync_file_range(fd, ctypes.c_long(0), ctypes.c_long(0), 7) != 0:
                raise OSError(ctypes.get_errno(), "sync_file_range failed")
        return "ok"

    def read(self, way, flags, offset, length, path):
        offset, length = int(offset), int(length)
        if way == "mmap":
            return self.map(path, flags, offset + length)[offset:offset + length].hex()
        memory = mmap.mmap(-1, length)
        fd = self.file(path, flags)
        if way == "psync":
            os.preadv(fd, [memory], offset)
        else:
            self.asynchronous(way, 0, fd, memory, offset, 0)
        return memory[:].hex()


def main():
    worker = Worker()
    for line in sys.stdin:
        command, rest = line.rstrip("\n").split(" ", 1)
        try:
            if command == "write":
                answer = worker.write(*rest.split(" ", 7))
            else:
                answer = worker.read(*rest.split(" ", 4))
        except OSError as error:
            answer = f"errno {error.errno}"
        print(answer, flush=True)


main()
