# SPDX-License-Identifier: Apache-2.0
"""Threads that share Files and engines. The content of each file is fixed, so everyone knows what a read must give.

Six threads read, rewrite with the same bytes, cancel, and close and open Files again; two append records to one file;
one evicts, prefetches and dirties pages; one forks children that read.
"""

import errno
import os
import random
import threading
import time

import numpy as np
import penstock

from tests.attack.crowd import Process, in_threads

BYTES = 8 << 20
SMALL, SMALL_BYTES = 300, 5000
ROUND_S = 4
CONTENT = np.random.default_rng(7).integers(0, 256, BYTES, dtype=np.uint8)
GUARD = 0xA5


def synced(function, *args, **kw):
    """Where a direct write meets a page that somebody else has dirtied, the kernel reports EIO at the next sync, as
    docs/page_cache.md says. Both write the same bytes here."""
    try:
        function(*args, **kw)
    except OSError as error:
        if error.errno != errno.EIO:
            raise


class Scene:
    def __init__(self, run):
        self.run = run
        self.end = time.monotonic() + run.left(ROUND_S)
        self.seed = run.random.getrandbits(40)
        self.paths = [f"{run.folder}/large{i}" for i in range(3)]
        self.small = [f"{run.folder}/small{i}" for i in range(SMALL)]
        for path in self.paths:
            CONTENT.tofile(path)
        for i, path in enumerate(self.small):
            CONTENT[i * 100 : i * 100 + SMALL_BYTES].tofile(path)
        self.engines = [penstock.Engine(), penstock.Engine(queue_depth=2, channels=1, copy_threads=1)]
        policies = ("auto", "auto", "direct", "cached")
        self.files = [[penstock.File(path, "rw", cache=policy) for path in self.paths] for policy in policies]
        self.lock = threading.Lock()

    def over(self):
        return time.monotonic() >= self.end

    def expect(self, got, offset, what):
        self.run.equal_bytes(got, CONTENT[offset : offset + len(got)], f"{what} at {offset}, {len(got)} bytes")

    def count(self, operations):
        with self.lock:
            self.run.count("operations", operations)

    # ---- what the readers do

    def one(self, r, engine, file):
        length = r.choice([1, 100, 4096, 65536, 5000])
        offset = r.randrange(BYTES - length)
        offset = offset // 4096 * 4096 if r.random() < 0.5 else offset
        into = np.empty(length, np.uint8)
        engine.read(file, into, offset)
        self.expect(into, offset, "a read")

    def many(self, r, engine, file):
        parts = [np.empty(r.choice([10, 500, 3000]), np.uint8) for _ in range(r.choice([5, 100, 1000]))]
        offsets = [r.randrange(BYTES - 4000) for _ in parts]
        target = [r.choice(r.choice(self.files)) for _ in parts] if r.random() < 0.3 else file
        engine.read(target, parts, offsets)
        for part, offset in zip(parts, offsets):
            self.expect(part, offset, "an extent of a list")

    def cancelled(self, r, engine, file):
        """After a cancelled transfer has ended, nothing is written to its memory any more."""
        length = r.choice([1 << 20, 3 << 20, 100_001])
        offset = r.randrange(BYTES - length)
        into = np.empty(length, np.uint8)
        transfer = engine.read_async(file, into, offset, priority=r.choice(["urgent", "normal", "background"]))
        if r.random() < 0.5:
            transfer.result(30)
        else:
            time.sleep(r.random() * 0.001)
            transfer.cancel()
            try:
                transfer.result(30)
            except penstock.Cancelled:
                into[:] = GUARD
                time.sleep(r.random() * 0.004)
                self.run.check((into == GUARD).all(), "wrong bytes: a cancelled read went on writing to its memory")
                return
        self.expect(into, offset, "a read_async")

    def by_paths(self, r, engine, _):
        chosen = r.sample(range(SMALL), r.choice([1, 5, 200]))
        parts = [np.empty(SMALL_BYTES, np.uint8) for _ in chosen]
        engine.read([self.small[i] for i in chosen], parts)
        for i, part in zip(chosen, parts):
            self.expect(part, i * 100, f"small file {i}, as from")

    def rewrite(self, r, engine, file):
        length = r.choice([10, 5000, 70_000, 300_000])
        offset = r.randrange(BYTES - length)
        sync = r.random() < 0.05
        synced(engine.write, file, CONTENT[offset : offset + length], offset, sync=sync)

    def past_the_end(self, r, engine, file):
        into = np.empty(5000, np.uint8)
        offset = BYTES - r.randrange(5000)
        got = engine.read(file, into, offset, allow_short=True)
        self.run.check(got == BYTES - offset, f"a read at the end says {got}, and {BYTES - offset} is expected")
        self.expect(into[:got], offset, "a read at the end")

    def opened_again(self, r, engine, _):
        with penstock.File(r.choice(self.paths), "r", cache=r.choice(["auto", "direct", "cached"])) as file:
            self.one(r, engine, file)

    def reader(self, number):
        r = random.Random(self.seed + number)
        kinds = [self.one] * 4 + [self.many] * 2 + [self.cancelled, self.by_paths, self.rewrite, self.past_the_end]
        done = 0
        while not self.over():
            r.choice([*kinds, self.opened_again])(r, r.choice(self.engines), r.choice(r.choice(self.files)))
            done += 1
        self.count(done)

    # ---- the others

    def appender(self, number):
        """Records of its own letter, of random length; one of the two gathers them in a buffer."""
        r = random.Random(self.seed + 100 + number)
        written = []
        with penstock.File(f"{self.run.folder}/records", "a", **({"buffer": 12_000} if number else {})) as file:
            while not self.over():
                length = r.choice([1, 30, 500, 5000, 20_000])
                file.append(bytes([ord("a") + number]) * length + b"\n")
                written.append(length)
                time.sleep(0.001)
        return written

    def disturber(self):
        r = random.Random(self.seed + 50)
        fds = [os.open(path, os.O_RDWR) for path in self.paths]
        while not self.over():
            fd, offset = r.choice(fds), r.randrange(BYTES - 10_000)
            kind = r.randrange(5)
            if kind == 2:
                synced(os.fsync, fd)
            if kind <= 2:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            elif kind == 3:
                os.pwrite(fd, CONTENT[offset : offset + 10_000].tobytes(), offset)
            else:
                os.posix_fadvise(fd, offset, 1 << 20, os.POSIX_FADV_WILLNEED)
            time.sleep(0.002)
        for fd in fds:
            os.close(fd)

    def in_a_child(self):
        into = np.empty(4000, np.uint8)
        self.engines[0].read(self.files[0][0], into, 123_457)
        self.expect(into, 123_457, "a read in a forked child")
        parts = [np.empty(SMALL_BYTES, np.uint8) for _ in range(50)]
        self.engines[1].read(self.small[:50], parts)
        for i, part in enumerate(parts):
            self.expect(part, i * 100, f"small file {i} in a forked child, as from")

    def forker(self):
        while not self.over():
            Process(self.in_a_child).end(20)
            self.count(1)
            time.sleep(0.05)

    def close(self):
        for engine in self.engines:
            engine.close()
        for row in self.files:
            for file in row:
                file.close()


def check_records(run, written):
    """All records are there, whole, those of each thread in their order."""
    with open(f"{run.folder}/records", "rb") as file:
        lines = file.read().split(b"\n")
    run.check(lines.pop() == b"", "a record at the end has lost its end")
    for number, lengths in enumerate(written):
        letter = bytes([ord("a") + number])
        found = [len(line) for line in lines if line[:1] == letter and line == letter * len(line)]
        run.check(found == lengths, f"records of thread {number}: {len(found)} whole ones of {len(lengths)}, or moved")
    run.count("records", len(lines))


def attack(run):
    scene = Scene(run)
    written = [[], []]

    def append(number):
        written[number] = scene.appender(number)

    work = [lambda k=k: scene.reader(k) for k in range(6)] + [lambda k=k: append(k) for k in range(2)]
    in_threads([*work, scene.disturber, scene.forker], ROUND_S)
    check_records(run, written)
    scene.close()
