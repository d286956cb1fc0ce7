# SPDX-License-Identifier: Apache-2.0
"""Not one byte outside of the memory that was given changes.

Each row of the table reads into pieces of one arena that is full of canaries: before, between and after the pieces, and
between their elements where they are strided. Afterwards the pieces hold what was read, and the rest is as it was. A
public verb that reads and has no row fails the test.
"""

import itertools

import numpy as np
import penstock
import pytest
import torch
from penstock import deepnvme

CANARY = 0xA5
DATA = np.random.default_rng(3).integers(0, 256, 300_001, dtype=np.uint8)
ODD = (1, 7, 512, 4095, 4096, 4097, 65_537, 200_001)  # sizes of pieces
READERS: dict[str, object] = {}


class Arena:
    """Memory of canaries, of which pieces are given away."""

    def __init__(self, size=4 << 20):
        self.memory = np.full(size, CANARY, np.uint8)
        self.torch = torch.from_numpy(self.memory)
        self._expected = self.memory.copy()
        self._expected_torch = torch.from_numpy(self._expected)
        self._end = 64 - self.memory.ctypes.data % 64 + 3

    def piece(self, size, dtype=torch.uint8, shape=None, strides=None, align=1):
        """A tensor with canaries on both sides; strides: in elements; align: of its address. Its place is kept for
        expect()."""
        width = torch.empty(0, dtype=dtype).element_size()
        begin = -(-self._end // width) * width
        begin += -(self.memory.ctypes.data + begin) % align
        self._end = begin + size + 67
        shape = (size // width,) if shape is None else shape
        typed = self.torch[begin : begin + size].view(dtype) if width > 1 else self.torch[begin : begin + size]
        tensor = typed.as_strided(shape, strides) if strides else typed.view(shape)
        tensor._place = (begin, size, dtype, shape, strides)
        return tensor

    def expect(self, tensor, value):
        begin, size, dtype, shape, strides = tensor._place
        part = self._expected_torch[begin : begin + size]
        typed = part.view(dtype)
        there = typed.as_strided(shape, strides) if strides else typed.view(shape)
        there.copy_(torch.as_tensor(value).view(shape) if not isinstance(value, torch.Tensor) else value)

    def check(self):
        wrong = np.flatnonzero(self.memory != self._expected)
        assert not len(wrong), f"{len(wrong)} bytes are wrong, the first at {wrong[0]} of {len(self.memory)}"


def reader(*names):
    def add(run):
        for name in names:
            READERS[name] = run
        return run

    return add


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(DATA.tobytes())
    return str(path)


# ---- transfers


def reads(arena, read, file):
    """Single pieces, lists of them, short reads: by path and by File."""
    with penstock.File(file) as opened:
        for number, where in enumerate((file, opened)):
            for size in ODD:
                piece = arena.piece(size)
                read(where, piece, size // 3 + number)
                arena.expect(piece, DATA[size // 3 + number :][:size])
            many = [arena.piece(size) for size in ODD]
            offsets = [1000 * i + 1 for i in range(len(ODD))]
            read(where, many, offsets)
            for piece, offset in zip(many, offsets, strict=True):
                arena.expect(piece, DATA[offset:][: piece.nbytes])
            with pytest.raises(EOFError):
                read(where, lost := arena.piece(5000), len(DATA) + 5000)
            assert (lost == CANARY).all()


def short_reads(arena, read, file):
    with penstock.File(file) as opened:
        pairs = ((1, 4096), (511, 512), (4097, 9000), (0, 100), (700, 65_536), (4096, 4097), (len(DATA) % 4096, 16_384))
        for where, (left, size), align in itertools.product((file, opened), pairs, (1, 4096)):
            piece = arena.piece(size, align=align)
            assert read(where, piece, len(DATA) - left, allow_short=True) == min(left, size)
            there = np.full(size, CANARY, np.uint8)
            there[: min(left, size)] = DATA[len(DATA) - left :][:size]
            arena.expect(piece, there)


@pytest.fixture(params=["module", "engine", "posix"])
def verbs(request, file):
    """(read, read_async) of several engines."""
    if request.param == "module":
        yield penstock.read, penstock.read_async
        return
    options = {"engine": {"block_bytes": 65_536}, "posix": {"backend": "posix"}}
    with penstock.Engine(**options[request.param]) as engine:
        yield engine.read, engine.read_async


@reader("read", "Engine.read")
def test_read(verbs, file):
    arena = Arena()
    reads(arena, verbs[0], file)
    arena.check()


@reader("read_async", "Engine.read_async")
def test_read_async(verbs, file):
    arena = Arena()
    reads(arena, lambda *arguments: verbs[1](*arguments).result(), file)
    arena.check()


@reader("read", "read_async", "Engine.read", "Engine.read_async")
def test_a_short_read_leaves_what_is_past_its_count(verbs, file):
    arena = Arena()
    short_reads(arena, verbs[0], file)
    short_reads(arena, lambda *arguments, **options: verbs[1](*arguments, **options).result(), file)
    arena.check()


@reader("read_rows", "read_rows_async", "Engine.read_rows", "Engine.read_rows_async")
@pytest.mark.parametrize("align", [1, 4096])
def test_read_rows(file, align):
    rows = len(DATA) // 100
    arena = Arena()
    with penstock.Engine() as engine:
        for read in (
            penstock.read_rows,
            engine.read_rows,
            lambda *arguments, **options: penstock.read_rows_async(*arguments, **options).result(),
            lambda *arguments, **options: engine.read_rows_async(*arguments, **options).result(),
        ):
            ids = [rows - 1, 0, 5, 5, 6, rows // 2]
            piece = arena.piece(len(ids) * 100, align=align)
            assert read(file, ids, piece, row_bytes=100) == piece.nbytes
            arena.expect(piece, np.concatenate([DATA[i * 100 : (i + 1) * 100] for i in ids]))
    arena.check()


@reader("read_npy")
def test_read_npy(tmp_path):
    arrays = [np.random.default_rng(i).integers(0, 255, (7, 33), dtype=np.uint8) for i in range(5)]
    for i, array in enumerate(arrays):
        np.save(tmp_path / f"{i}.npy", array)
    arena = Arena()
    piece = arena.piece(5 * 7 * 33, shape=(5, 7, 33))
    penstock.read_npy([tmp_path / f"{i}.npy" for i in range(5)], piece.numpy())
    arena.expect(piece, np.stack(arrays))
    arena.check()


@reader("load_into")
def test_load_into_a_model(tmp_path):
    saved = torch.nn.Linear(33, 7)
    penstock.save(saved.state_dict(), tmp_path / "model.pt")
    arena, model = Arena(), torch.nn.Linear(33, 7)
    for name, parameter in saved.named_parameters():
        into = arena.piece(parameter.nbytes, dtype=torch.float32, shape=tuple(parameter.shape))
        setattr(model, name, torch.nn.Parameter(into))
        arena.expect(into, parameter.detach())
    penstock.load_into(model, tmp_path / "model.pt")
    arena.check()


# ---- files of formats, and stores


STATE = {
    "flat": torch.arange(3000, dtype=torch.float32),
    "matrix": torch.randn(40, 50),
    "wide": torch.arange(70_001, dtype=torch.int64),
    "half": torch.randn(333).to(torch.bfloat16),
    "byte": torch.tensor(7, dtype=torch.uint8),
    "none": torch.zeros(0, 3),
}


def like(arena, state):
    """A tensor of the arena for each of the state: in one piece, a column of a wider matrix, every second element."""
    into = {}
    for name, tensor in state.items():
        width = tensor.element_size()
        if tensor.dim() == 2 and tensor.numel():
            rows, columns = tensor.shape
            pitch = columns + 13
            size = width * ((rows - 1) * pitch + columns)
            into[name] = arena.piece(size, tensor.dtype, (rows, columns), (pitch, 1))
        elif name == "wide":
            size = width * (2 * tensor.numel() - 1)
            into[name] = arena.piece(size, tensor.dtype, tuple(tensor.shape), (2,))
        else:
            into[name] = arena.piece(tensor.nbytes, tensor.dtype, tuple(tensor.shape))
    return into


@pytest.fixture(params=["pt", "safetensors", "safetensors.index.json", "store", "checkpoint"])
def form(request, tmp_path):
    """save(state), load(**arguments)."""
    path = tmp_path / f"c.{request.param}"
    if request.param in ("store", "checkpoint"):
        with penstock.CheckpointStore(path) as store:
            made = {
                "store": store.load,
                "checkpoint": lambda **arguments: store.open(store.latest().generation).load(**arguments),
            }
            yield store.save, made[request.param]
    else:
        yield (
            lambda state: penstock.save(state, path, shard_bytes=100_000),
            lambda **arguments: penstock.load(path, **arguments),
        )


@reader("load", "CheckpointStore.load", "Checkpoint.load")
def test_load_into(form):
    save, load = form
    save(STATE)
    arena = Arena()
    into = like(arena, STATE)
    load(into=into)
    for name, tensor in STATE.items():
        arena.expect(into[name], tensor)
    arena.check()


@reader("load", "CheckpointStore.load", "Checkpoint.load")
@pytest.mark.parametrize("part", ["all", "some"])
def test_load_into_views_of_one_storage(tmp_path, part):
    """Flat buffers, columns, a transposed view: in the store as in a file."""
    flat, matrix = torch.arange(3000, dtype=torch.float32), torch.randn(30, 20)
    state = {
        "a": flat[:1000],
        "b": flat[1000:1999],
        "c": flat[2500:],
        "left": matrix[:, :7],
        "right": matrix[:, 9:],
        "turned": torch.randn(8, 9).t(),
        "steps": torch.arange(100.0)[3::7],
    }
    with penstock.CheckpointStore(tmp_path / "s") as store:
        store.save(state)
        penstock.save(state, tmp_path / "s.pt")
        for form in ("store", "pt"):
            arena = Arena()
            own, grid = arena.piece(12_000, torch.float32), arena.piece(2400, torch.float32, (30, 20))
            into = {"a": own[:1000], "b": own[1000:1999], "c": own[2500:], "left": grid[:, :7], "right": grid[:, 9:]}
            into["turned"] = arena.piece(288, torch.float32, (9, 8), (1, 9))
            into["steps"] = arena.piece(4 * 92, torch.float32, (14,), (7,))
            chosen = into if part == "all" else {name: into[name] for name in ("b", "left", "steps")}
            flats, grids = own.clone(), grid.clone()
            if form == "store":
                store.load(into=chosen)
            else:
                penstock.load(tmp_path / "s.pt", into=chosen, names=list(chosen))
            for name in chosen:
                assert torch.equal(chosen[name], state[name]), name
            for name, view in (("a", flats[:1000]), ("b", flats[1000:1999]), ("c", flats[2500:]),
                               ("left", grids[:, :7]), ("right", grids[:, 9:])):  # fmt: skip
                if name in chosen:
                    view.copy_(state[name])
            arena.expect(own, flats)
            arena.expect(grid, grids)
            for name in ("turned", "steps"):
                if name in chosen:
                    arena.expect(into[name], state[name])
            arena.check()


# ---- DeepNVMe


def handle_verbs():
    handle = deepnvme.aio_handle(block_size=65_536)
    yield "read", lambda piece, file, at: handle.read(piece, file, True, at)
    yield "pread", lambda piece, file, at: handle.pread(piece, file, True, False, at)
    yield "pread", lambda piece, file, at: (handle.pread(piece, file, False, True, at), handle.wait())
    yield "sync_pread", lambda piece, file, at: handle.sync_pread(piece, file, at)
    yield "async_pread", lambda piece, file, at: (handle.async_pread(piece, file, at), handle.wait())


@reader("deepnvme.aio_handle.read", "deepnvme.aio_handle.pread", "deepnvme.aio_handle.sync_pread",
        "deepnvme.aio_handle.async_pread")  # fmt: skip
def test_handles(file):
    arena = Arena(8 << 20)
    for _, read in handle_verbs():
        for size in ODD:
            piece = arena.piece(size)
            read(piece, file, size // 3)
            arena.expect(piece, DATA[size // 3 :][:size])
    arena.check()


@reader("deepnvme.aio_read", "deepnvme.deepspeed_memcpy")
def test_functions_of_deepnvme(file):
    arena = Arena()
    for size in ODD:
        piece = arena.piece(size)
        deepnvme.aio_read(piece, file, 65_536, 8, False, False, True)
        arena.expect(piece, DATA[:size])
        copy = arena.piece(size)
        deepnvme.deepspeed_memcpy(copy, torch.from_numpy(DATA[5 : 5 + size].copy()))
        arena.expect(copy, DATA[5 : 5 + size])
    arena.check()


@reader("deepnvme.FastFileWriter")
def test_the_buffer_of_a_writer(tmp_path):
    """It is used as memory of the writer, whole; what is around it is not."""
    arena = Arena()
    buffer = arena.piece(65_536)
    writer = deepnvme.FastFileWriter(str(tmp_path / "f"), deepnvme.FastFileWriterConfig(deepnvme.aio_handle(), buffer))
    writer.write(DATA.tobytes())
    writer.close()
    arena.expect(buffer, buffer.clone())
    arena.check()
    assert (tmp_path / "f").read_bytes() == DATA.tobytes()


# ---- the table is whole

# Named like a reader, and without memory of the caller.
NO_READERS = {
    "Pickled.load": "makes an object of bytes that were read",
    "FileWriter.read": "refuses",
    "FileWriter.readable": "a constant",
    "deepnvme.AsyncIOBuilder.load": "gives a module",
    "deepnvme.GDSBuilder.load": "gives a module",
    "deepnvme.PinMemoryBuilder.load": "gives a module",
    "deepnvme.UtilsBuilder.load": "gives a module",
    "deepnvme.gds_handle": "its verbs are those of aio_handle; python/tests/gpu reads into frames on a GPU",
}
