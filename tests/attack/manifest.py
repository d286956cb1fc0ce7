# SPDX-License-Identifier: Apache-2.0
"""Manifests and headers that nobody writes, with a checksum that is right: each an error or a state, and nothing else.

Children read them, with limits on memory and time. A decoy next to the store keeps all its files, also when the store
is written to. A manifest or header whose checksum is wrong is refused, always.
"""

import json
import os
import re
import resource
import shutil
import signal
import struct

import penstock
import torch
import xxhash

from tests.attack.crowd import Process
from tests.attack.files import a_store

STEPS = 40
MEMORY_BYTES_MAX = 6 << 30
CHILD_S = 20
SEALED = re.compile(rb',"checksum":"([0-9a-f]{16})"\}\n$')
EXPECTED = (OSError, ValueError, KeyError, TypeError)
NUMBERS = [
    b"0", b"1", b"-1", b"2", b"255", b"4096", b"65536", b"2147483648", b"4294967296", b"9223372036854775807",
    b"18446744073709551615", b"18446744073709551616", b"1e308", b"1e5", b"0.5", b"null", b"true", b'"x"', b"[]", b"{}",
]  # fmt: skip
HEADER = {
    "a": {"dtype": "F32", "shape": [10, 10], "data_offsets": [0, 400]},
    "b": {"dtype": "U8", "shape": [0], "data_offsets": [400, 400]},
    "c": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [400, 412]},
    "__metadata__": {"k": "v"},
}
DECOY = {"shard-00001.safetensors": b"d" * 5000, "precious.txt": b"the only copy"}


def texts(decoy):
    names = [b"../x", b"/etc/passwd", decoy, decoy + b"/00000001-step-0.0123456789abcdef01234567", b".lock", b"a/b"]
    names += [b"shard-00001.safetensors", b"\\u0000", b"\\ud800", b"F32", b"U8", b"F4", b"BF16", b"A" * 5000, b""]
    names += [b"list", b"dict", b"tensor", b"ndarray", b"Size", b"pg"]
    return [b'"' + name + b'"' for name in names] + [b"7", b"null"]


def replaced(r, text, pattern, values):
    found = list(re.finditer(pattern, text))
    if not found:
        return text
    one = r.choice(found)
    return text[: one.start()] + r.choice(values) + text[one.end() :]


def mutated(r, text, decoy):
    for _ in range(r.choice([1, 1, 1, 2, 3])):
        kind = r.randrange(6)
        if kind < 3:
            text = replaced(r, text, rb"(?<![\w\"])-?\d+(?![\w\"])", NUMBERS)
        elif kind == 3:
            text = replaced(r, text, rb'"[^"\\]*"', texts(decoy))
        elif kind == 4:  # inside of the structure, which is text within text
            text = replaced(r, text, rb"(?<=[,\[:])\d+(?=[,\]])", NUMBERS[:13])
        else:
            begin = r.randrange(len(text))
            end = min(len(text), begin + r.randrange(1, 40))
            between = r.choice([b"", text[begin:end] * 2, bytes([r.randrange(256)]) + text[begin + 1 : end]])
            text = text[:begin] + between + text[end:]
    return text


def sealed(text):
    return text + b',"checksum":"' + xxhash.xxh3_64_hexdigest(text).encode() + b'"}\n'


def changed_seal(r, text):
    """A manifest with one digit of its checksum, or one byte before it, changed."""
    at = r.choice([len(text) - 4 - r.randrange(16), r.randrange(len(text) - 40)])
    return text[:at] + (b"1" if text[at : at + 1] != b"1" else b"2") + text[at + 1 :]


class Scene:
    def __init__(self, run):
        self.run = run
        self.folder = run.folder
        self.decoy = f"{run.folder}/decoy"
        os.mkdir(self.decoy)
        for name, content in DECOY.items():
            with open(f"{self.decoy}/{name}", "wb") as file:
                file.write(content)
        big = torch.arange(20_000.0)
        self.state = {"a": torch.ones(100), "view": big[5:100], "same": big, "t": big.view(100, 200).t()}
        self.state["b"] = {"c": torch.arange(5000), "v": [1, "x", 2.5, None, (1, 2)]}
        self.state |= {"p": torch.nn.Parameter(torch.ones(3)), "z": torch.zeros(0, 3)}
        # In a child: an engine of this process would be in every child.
        Process(self.save).end()
        (self.checkpoint,) = (entry.path for entry in os.scandir(f"{self.folder}/store") if entry.name[0] == "0")
        self.path = f"{self.checkpoint}/manifest.json"
        with open(self.path, "rb") as file:
            self.good = file.read()
        self.body = SEALED.sub(b"", self.good)
        run.check(sealed(self.body) == self.good, "the manifest does not end with the XXH3 of what is before it")

    def save(self):
        with a_store(f"{self.folder}/store", shard_bytes=20_000) as store:
            store.save(self.state)

    def write(self, path, content):
        with open(path, "wb") as file:
            file.write(content)

    def child(self, function, what):
        """What a child does with it: 'read', or 'refused'."""

        def limited():
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
            signal.alarm(CHILD_S)
            try:
                function()
            except EXPECTED:
                return "refused"
            return "read"

        try:
            answer = Process(limited).end(CHILD_S + 10)
        except RuntimeError as error:
            self.run.check(False, f"{what}: {error}")
        found = {name: open(f"{self.decoy}/{name}", "rb").read() for name in sorted(os.listdir(self.decoy))}
        self.run.check(found == DECOY, f"{what}: the decoy has changed: {sorted(found)}")
        self.run.count(answer)
        return answer

    # ---- what the children do

    def read(self):
        with a_store(f"{self.folder}/store") as store:
            store.list()
            repr(store.load())

    def write_next(self):
        with a_store([f"{self.folder}/copy", f"{self.folder}/other"], keep=1) as store:
            store.save({"q": torch.ones(5)})
            store.save({"q": torch.ones(6)})
            store.collect()

    def load_tensors(self):
        path = f"{self.folder}/h.safetensors"
        for tensor in penstock.load(path).values():
            tensor.clone()
        penstock.load(path, mmap=True)
        penstock.inspect(path)
        penstock.weights.plan(path, memory="8MiB", rate="1GB/s")

    # ---- steps

    def a_manifest(self):
        r = self.run.random
        self.write(self.path, sealed(mutated(r, self.body, self.decoy.encode())))
        self.run.note("a manifest", open(self.path, "rb").read()[:300])
        self.child(self.read, "reading a store with a strange manifest")
        if r.random() < 0.3:
            self.child(lambda: penstock.Checkpoint(self.checkpoint).verify(), "verifying a strange manifest")
        if r.random() < 0.3:
            for name in ("copy", "other"):
                shutil.rmtree(f"{self.folder}/{name}", ignore_errors=True)
            shutil.copytree(f"{self.folder}/store", f"{self.folder}/copy")
            os.mkdir(f"{self.folder}/other")
            self.child(self.write_next, "saving to a store with a strange manifest")

    def a_wrong_checksum(self):
        self.write(self.path, changed_seal(self.run.random, self.good))
        self.run.note("a manifest with a wrong checksum")
        answer = self.child(self.read, "reading a store with a wrong checksum")
        self.run.check(answer == "refused", "wrong bytes: a manifest whose checksum is wrong is read")

    def a_header(self):
        r = self.run.random
        header = mutated(r, json.dumps(HEADER).encode(), self.decoy.encode())
        length = len(header)
        if r.random() < 0.1:
            length = r.choice([0, 1, 2**31, 2**63, 2**64 - 1, length + 1000])
        data = b"\1" * r.choice([412, 412, 412, 0, 411, 413, 5000])
        self.run.note("a header", header[:300], length, len(data))
        self.write(f"{self.folder}/h.safetensors", struct.pack("<Q", length) + header + data)
        self.child(self.load_tensors, "loading a strange .safetensors")


def attack(run):
    scene = Scene(run)
    for _ in run.steps(STEPS):
        kinds = [scene.a_manifest] * 5 + [scene.a_header] * 4 + [scene.a_wrong_checksum]
        run.random.choice(kinds)()
    scene.write(scene.path, scene.good)
    run.check(scene.child(scene.read, "reading the store again") == "read", "the good manifest does not load any more")
