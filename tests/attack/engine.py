# SPDX-License-Identifier: Apache-2.0
"""The verbs of the engine against bytearrays: lists, paths and Files, ends of files, holes, other writers, eviction.

Each place in memory has guards around it. Options, lengths and places lie around the limits where the engine goes
another way: a sector, a page, a block, what is copied from the page cache, gaps that are read over.
"""

import ctypes
import mmap
import os

import numpy as np
import penstock

GUARD = 0xA5
FILE_BYTES_MAX = 6 << 20
STEPS = 120
MIB = 1 << 20
NEAR_LIMITS = [511, 512, 2047, 2048, 4095, 4096, 4097, 8192, 65536, MIB - 1, MIB, MIB + 1]
libc = ctypes.CDLL(None, use_errno=True)


class OneFile:
    def __init__(self, run, number):
        self.run = run
        self.name = f"f{number}"
        self.path = f"{run.folder}/{self.name}"
        self.content = bytearray()
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self.handles = {}

    def __len__(self):
        return len(self.content)

    def handle(self):
        """A File of one of three policies, sometimes a new one."""
        r = self.run.random
        kind = r.choice(["auto", "auto", "auto", "direct", "cached"])
        if kind in self.handles and r.random() < 0.05:
            self.handles.pop(kind).close()
        if kind not in self.handles:
            self.handles[kind] = penstock.File(self.path, "rw", cache=kind)
        return self.handles[kind]

    def put(self, offset, data):
        if len(data):
            if len(self) < offset + len(data):
                self.resize(offset + len(data))
            self.content[offset : offset + len(data)] = data

    def resize(self, size):
        if size < len(self):
            del self.content[size:]
        else:
            self.content.extend(bytes(size - len(self)))

    def close(self):
        for handle in self.handles.values():
            handle.close()
        os.close(self.fd)


class Scene:
    def __init__(self, run):
        self.run = run
        self.options = options(run.random)
        try:
            self.engine = penstock.Engine(**self.options)
        except penstock.Unsupported:  # a backend that this kernel does not have
            self.engine = penstock.Engine(**{**self.options, "backend": "auto"})
        self.files = [OneFile(run, number) for number in range(4)]
        run.note("options", self.options)

    # ---- random places

    def length(self, many):
        r = self.run.random
        if many:
            return r.randrange(6000)
        kind = r.random()
        if kind < 0.08:
            return 0
        if kind < 0.35:
            return r.randrange(1, 600)
        if kind < 0.6:
            return r.choice(NEAR_LIMITS)
        return r.randrange(1, 100_000 if kind < 0.85 else 2_500_000)

    def place(self, limit):
        r = self.run.random
        unit = r.choice([4096, 4096, 4096, 4096, 512, 1, 1, 1, 1, 1])
        return r.randrange(max(limit, 0) + 1) // unit * unit

    def memory(self, length):
        """(all of it with its guards, the part to use, where that begins)."""
        r = self.run.random
        begin = r.choice([0, 0, r.randrange(4096), 512, 1])
        kind = r.randrange(4)
        if kind == 0:
            whole = penstock.empty(length + 8192, pinned=False).numpy()
        elif kind == 1:
            whole = np.frombuffer(mmap.mmap(-1, length + 8192), np.uint8)
        else:
            whole = np.empty(length + 8192, np.uint8)
        whole[:] = GUARD
        return whole, whole[begin : begin + length], begin

    def targets(self, items, one_file):
        """What is given as the file: a path, a File, or a list of them; and whether they are paths."""
        paths = self.run.chance(0.4)
        chosen = {}
        for file, _, _ in items:
            if file not in chosen or self.run.chance(0.3):  # two Files of one file in a list
                chosen[file] = file.path if paths else file.handle()
        if one_file:
            return chosen[items[0][0]], paths
        return [chosen[file] for file, _, _ in items], paths

    def options_of_call(self, paths):
        r = self.run.random
        found = {"priority": r.choice(["normal", "urgent", "background"])}
        if paths and r.random() < 0.3:
            found["cache"] = r.choice(["direct", "cached", "auto"])
        return found

    def call(self, verb, *args, **kw):
        if self.run.chance(0.4):
            return getattr(self.engine, verb + "_async")(*args, **kw).result(60)
        return getattr(self.engine, verb)(*args, **kw)

    # ---- steps

    def write(self):
        r, run = self.run.random, self.run
        many = r.random() < 0.5
        count = r.choice([1, 2, 5, 30, 300]) if many else 1
        one_file = r.random() < 0.6 or not many
        first = r.choice(self.files)
        taken, items = {}, []
        for _ in range(count):
            file = first if one_file else r.choice(self.files)
            length = self.length(count >= 10)
            offset = self.place(min(FILE_BYTES_MAX - length, len(file) + r.choice([0, 0, 5000, 300_000])))
            if r.random() < 0.3 and len(file) + length < FILE_BYTES_MAX:
                offset = len(file)
            ranges = taken.setdefault(file, [])
            if length and any(offset < end and begin < offset + length for begin, end in ranges):
                continue
            ranges.append((offset, offset + length))
            items.append((file, offset, length))
        data = [self.memory(length)[1] for _, _, length in items]
        for part in data:
            part[:] = run.numbers.integers(0, 256, len(part), dtype=np.uint8)
        target, paths = self.targets(items, one_file)
        kw = {**self.options_of_call(paths), "sync": r.random() < 0.1}
        run.note("write", "paths" if paths else "Files", described(items), kw)
        places = [offset for _, offset, _ in items]
        done = self.call("write", target, *((data, places) if many else (data[0], places[0])), **kw)
        wanted = sum(length for _, _, length in items)
        run.check(done == wanted, f"write says {done} bytes of {wanted}")
        for (file, offset, _), part in zip(items, data):
            file.put(offset, part.tobytes())

    def extents(self, count, one_file, short):
        """What a read asks for: dense or scattered, repeated, at and past the end."""
        r = self.run.random
        first = r.choice(self.files)
        at = self.place(max(len(first), 1))
        dense = one_file and r.random() < 0.4
        items = []
        for _ in range(count):
            file = first if one_file else r.choice(self.files)
            length = self.length(count >= 10)
            if dense:
                offset = min(at, len(file))
                at += length + r.choice([0, 0, 1, 100, 3000])
            else:
                offset = self.place(len(file))
            if items and items[-1][0] is file and items[-1][1] < FILE_BYTES_MAX and r.random() < 0.1:
                offset = items[-1][1]
            if not short or r.random() < 0.7:
                length = min(length, max(len(file) - offset, 0))
            if short and r.random() < 0.1:
                offset = r.choice([len(file), len(file) + 5000, 1 << 40, (1 << 63) - 1 - length])
            items.append((file, offset, length))
        if not dense:
            r.shuffle(items)
        return items

    def read(self):
        r, run = self.run.random, self.run
        many = r.random() < 0.6
        count = r.choice([1, 2, 7, 40, 500]) if many else 1
        if many and r.random() < 0.02:
            count = r.choice([2047, 2048, 2049])
        one_file = r.random() < 0.6 or not many
        short = r.random() < 0.35
        items = self.extents(count, one_file, short)
        places = [self.memory(length) for _, _, length in items]
        target, paths = self.targets(items, one_file)
        kw = {**self.options_of_call(paths), "allow_short": short}
        run.note("read", "paths" if paths else "Files", described(items), kw, [len(file) for file in self.files])
        parts, offsets = [place[1] for place in places], [offset for _, offset, _ in items]
        got = self.call("read", target, *((parts, offsets) if many else (parts[0], offsets[0])), **kw)
        want = [max(0, min(length, len(file) - offset)) for file, offset, length in items]
        expected = (want if many else want[0]) if short else sum(length for _, _, length in items)
        run.check(got == expected, f"read says {str(got)[:200]}, and {str(expected)[:200]} is expected")
        for (file, offset, length), (whole, part, begin), bytes_ in zip(items, places, want):
            what = f"{file.name} at {offset}, {length} bytes"
            run.equal_bytes(part[:bytes_], np.frombuffer(file.content, np.uint8, bytes_, min(offset, len(file))), what)
            guards = np.concatenate([whole[:begin], whole[begin + bytes_ :]])
            run.check((guards == GUARD).all(), f"wrong bytes outside of the memory for {what}")

    def other(self):
        r, run = self.run.random, self.run
        file = r.choice(self.files)
        length = self.length(False)
        kind = r.choice(
            ["evict", "ahead", "truncate", "pwrite", "mapping", "hole", "preallocate", "whole", "size", "size"]
        )
        run.note(kind, file.name, len(file), length)
        if kind == "evict":
            os.fsync(file.fd)
            os.posix_fadvise(file.fd, 0, 0, os.POSIX_FADV_DONTNEED)
        elif kind == "ahead":
            os.posix_fadvise(file.fd, self.place(len(file)), length, os.POSIX_FADV_WILLNEED)
        elif kind == "truncate":
            size = self.place(r.choice([len(file), min(FILE_BYTES_MAX, len(file) + 100_000)]))
            r.choice([lambda: os.ftruncate(file.fd, size), lambda: file.handle().truncate(size)])()
            file.resize(size)
        elif kind == "whole":
            whole(run, file)
        elif kind == "size":
            size = file.handle().size
            run.check(size == len(file), f"{file.name}: size {size}, and {len(file)} is expected")
        elif kind == "preallocate":
            offset = self.place(len(file))
            if offset + length <= FILE_BYTES_MAX and file.handle().preallocate(offset, length) and length:
                file.resize(max(len(file), offset + length))
        elif len(file):
            self.by_others(file, kind, length)

    def by_others(self, file, kind, length):
        offset = self.place(len(file) - 1)
        length = min(length, len(file) - offset)
        data = self.run.numbers.integers(0, 256, length, dtype=np.uint8).tobytes()
        if kind == "pwrite":
            os.pwrite(file.fd, data, offset)
        elif kind == "mapping":
            with mmap.mmap(file.fd, len(file)) as mapping:
                mapping[offset : offset + length] = data
        else:
            data = bytes(length)
            if not length or libc.fallocate(file.fd, 3, ctypes.c_long(offset), ctypes.c_long(length)):
                return  # a file system without holes
        file.put(offset, data)

    def close(self):
        for file in self.files:
            whole(self.run, file)
            file.close()
        self.engine.close()


def whole(run, file):
    """What the system reads."""
    with open(file.path, "rb") as opened:
        got = np.frombuffer(opened.read(), np.uint8)
    run.equal_bytes(got, np.frombuffer(file.content, np.uint8), f"{file.name}, read by the system")


def described(items):
    return [(file.name, offset, length) for file, offset, length in items[:40]]


def options(r):
    found = {}
    if r.random() < 0.3:
        found["backend"] = r.choice(["posix", "libaio", "io_uring"])
    for share, name, values in (
        (0.5, "block_bytes", [65536, 131072, MIB]),
        (0.5, "queue_depth", [1, 2, 32]),
        (0.3, "gap_bytes", [0, 512, 65536]),
        (0.3, "inline_bytes_max", [0, 4096, MIB]),
        (0.3, "channels", [1, 3]),
        (0.2, "cache", ["direct", "cached", "auto"]),
    ):
        if r.random() < share:
            found[name] = r.choice(values)
    return found


def attack(run):
    scene = Scene(run)
    for _ in run.steps(STEPS):
        kind = run.random.random()
        with run.never(penstock.Cancelled, TimeoutError, OSError, ValueError, what="a call that is right"):
            (scene.read if kind < 0.5 else scene.write if kind < 0.75 else scene.other)()
        run.count("operations")
    scene.close()
