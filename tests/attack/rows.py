# SPDX-License-Identifier: Apache-2.0
"""read_rows, RowTable, TensorRows and read_npy against arrays of NumPy."""

import numpy as np
import penstock
import torch

from tests.attack.files import evict, write_tensors

STEPS = 40
GUARD = 0xA5
MANY = [0, 1, 5, 100, 1000, 5000]


def as_ids(r, ids):
    """The same numbers as one of the things that are taken."""
    return r.choice(
        [
            lambda: ids,
            lambda: ids.astype(np.int32),
            lambda: ids.astype(np.uint64),
            lambda: ids.astype(np.uint32),
            lambda: ids.tolist(),
            lambda: torch.from_numpy(ids.copy()),
        ]
    )()


class Table:
    """A file with rows, perhaps with bytes before them and between them."""

    def __init__(self, run, number, row_bytes):
        r = run.random
        self.path = f"{run.folder}/table{number}"
        self.row_bytes = row_bytes
        self.stride = row_bytes + r.choice([0, 0, 0, 28, 4096 - row_bytes % 4096, 1])
        self.base = r.choice([0, 0, 128, 4096, 77])
        self.rows = r.randrange(1, max(2, min(5000, 3_000_000 // self.stride)))
        content = run.numbers.integers(0, 256, self.base + self.rows * self.stride, dtype=np.uint8)
        content.tofile(self.path)
        if r.random() < 0.5:
            evict(self.path)
        self.array = content[self.base :].reshape(self.rows, self.stride)[:, :row_bytes]

    def described(self, by_path):
        file = self.path if by_path else penstock.File(self.path)
        return penstock.RowTable(file, base=self.base, stride=self.stride, row_bytes=self.row_bytes, rows=self.rows)


def read_rows(run):
    r = run.random
    row_bytes = r.choice([1, 4, 100, 512, 1000, 4096, 5000, 70_000])
    tables = [Table(run, i, row_bytes) for i in range(r.choice([1, 1, 2, 4]))]
    everything = np.concatenate([table.array for table in tables])
    count = min(r.choice(MANY), 8_000_000 // row_bytes)
    ids = run.numbers.integers(0, len(everything), count)
    if count and r.random() < 0.3:
        ids = np.minimum(run.numbers.zipf(1.5, count) - 1, len(everything) - 1)
    if r.random() < 0.3:
        ids = np.sort(ids)
    kw = {"priority": r.choice(["normal", "urgent"])}
    extra = 0
    to = np.arange(count)
    if count and r.random() < 0.4:
        extra = r.choice([0, 3])
        to = run.numbers.permutation(count + extra)[:count]
        kw["destinations"] = as_ids(r, to)
    out = np.full((count + extra, row_bytes), GUARD, np.uint8)
    wanted = out.copy()
    wanted[to] = everything[ids]
    if len(tables) == 1 and r.random() < 0.6:
        target = tables[0].path
        kw |= {"base": tables[0].base, "stride": tables[0].stride}
    else:
        by_path = r.random() < 0.5
        target = [table.described(by_path) for table in tables]
        if len(target) == 1 and r.random() < 0.5:
            target = target[0]
        elif len(target) > 1 and r.random() < 0.5:
            begins = np.cumsum([0] + [table.rows for table in tables])
            kw["table_of"] = np.searchsorted(begins, ids, "right") - 1
            ids = ids - begins[kw["table_of"]]
    run.note("read_rows", [(t.base, t.stride, t.row_bytes, t.rows) for t in tables], count, sorted(kw))
    if r.random() < 0.3:
        got = penstock.read_rows_async(target, as_ids(r, ids), out, **kw).result(30)
    else:
        got = penstock.read_rows(target, as_ids(r, ids), out, **kw)
    run.check(got == count * row_bytes, f"read_rows says {got} bytes of {count * row_bytes}")
    wrong = np.flatnonzero((out != wanted).any(axis=1))
    run.check(not len(wrong), lambda: f"wrong bytes in {len(wrong)} of {len(out)} rows: {wrong[:8]}")


def read_npy(run):
    r = run.random
    shape = r.choice([(), (1,), (3, 4), (1000,), (100, 100), (0, 3)])
    dtype = r.choice(["f4", "i8", "u1", "f2", "c8", "?"])
    arrays = run.numbers.integers(0, 2, (r.choice([1, 3, 50, 300]), *shape)).astype(dtype)
    version = r.choice([None, (1, 0), (2, 0), (3, 0)])
    paths = [f"{run.folder}/{i}.npy" for i in range(len(arrays))]
    for path, array in zip(paths, arrays):
        with open(path, "wb") as file:
            np.lib.format.write_array(file, array, version=version)
        if r.random() < 0.3:
            evict(path)
    out = np.empty(arrays.shape, dtype) if r.random() < 0.5 else None
    run.note("read_npy", shape, dtype, len(arrays), "out" if out is not None else "")
    got = penstock.read_npy(paths, out, progress=None)
    run.check(got.dtype == arrays.dtype and got.shape == arrays.shape, f"read_npy: {got.dtype} {got.shape}")
    run.equal_bytes(*(np.frombuffer(a.tobytes(), np.uint8) for a in (got, arrays)), "arrays of read_npy")


def tensor_rows(run):
    """Rows of a tensor in a file of safetensors, of torch or of ours."""
    r = run.random
    kind = r.choice(["safetensors", "torch", "pt", "own", "index"])
    dtype = r.choice([torch.float32, torch.float16, torch.bfloat16, torch.uint8, torch.int64])
    shape = r.choice([(300, 40), (2000, 3), (50, 7, 5), (17, 2000)])
    tensors = {f"w{i}": torch.from_numpy(run.numbers.integers(0, 100, shape)).to(dtype) for i in range(3)}
    write_tensors(kind, tensors, run.folder, "t")
    suffix = {"safetensors": ".safetensors", "torch": ".torch.pt", "pt": ".pt", "own": ".own.safetensors"}
    path = f"{run.folder}/t{suffix.get(kind, '.safetensors.index.json')}"
    name = r.choice(list(tensors))
    run.note("TensorRows", kind, dtype, shape, name)
    with penstock.TensorRows(path, name) as rows:
        for _ in range(3):
            ids = run.numbers.integers(0, shape[0], r.choice([0, 1, 50, 1000]))
            got = rows.gather(torch.from_numpy(ids))
            run.check(torch.equal(got, tensors[name][ids]), f"wrong bytes in rows of {name}, {kind}")


def attack(run):
    for _ in run.steps(STEPS):
        with run.never(OSError, ValueError, TypeError, what="a call that is right"):
            run.random.choice([read_rows, read_rows, read_npy, tensor_rows])(run)
        run.count("calls")
