# SPDX-License-Identifier: Apache-2.0
"""Parts of states: into=, names=, slices, dtype=, mmap= and map_location=, of files of ours, torch and safetensors.

Each tensor of into= has a buffer of its own, with other strides, and guards around and between its elements.
"""

import fnmatch

import penstock
import penstock.safetensors
import safetensors
import torch

from tests.attack.alike import bytes_of, leaves, places, same
from tests.attack.files import a_store, write_tensors
from tests.attack.run import Wrong
from tests.attack.states import States, item_bytes, packed, reach

STEPS = 30
GUARD = 0xA5
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
PLAIN = [*FLOATS, torch.int64, torch.uint8, torch.bool, torch.int32]
SHAPES = [(), (3,), (7, 5), (300, 40), (1, 0), (70_000,), (2000, 300), (5, 4, 3, 2), (1,), (0,)]
LOCATIONS = ["cpu", torch.device("cpu"), {"cuda:0": "cpu"}, lambda s, _: s, lambda _, __: None]


def unshared(state):
    """The same values, each tensor contiguous with a storage of its own."""
    if isinstance(state, torch.Tensor):
        raw = bytearray(bytes_of(state)) or bytearray(16)
        storage = torch.frombuffer(raw, dtype=torch.uint8).clone().untyped_storage()
        return torch.empty(0, dtype=state.dtype).set_(storage, 0, tuple(state.shape), tuple(packed(state.shape)))
    if isinstance(state, dict):
        return type(state)((key, unshared(value)) for key, value in state.items())
    return [unshared(value) for value in state] if isinstance(state, list) else state


class Guarded:
    """Tensors for into=, and the buffers that they lie in."""

    def __init__(self, random):
        self.random = random
        self.buffers = []
        self.known = {}

    def like(self, state):
        if isinstance(state, torch.Tensor):
            if id(state) not in self.known:
                self.known[id(state)] = self.tensor(state)
            return self.known[id(state)]
        if isinstance(state, dict):
            made = type(state)()
            for key, value in state.items():
                made[key] = self.like(value)
            return made
        return [self.like(value) for value in state] if isinstance(state, list) else state

    def tensor(self, wanted):
        r = self.random
        order = list(range(wanted.dim()))
        r.shuffle(order)
        strides, step = [0] * wanted.dim(), r.choice([1, 1, 1, 2, 3])
        for i in order:
            strides[i] = step
            step = step * max(wanted.shape[i], 1) + (r.choice([0, 0, 3]) if r.random() < 0.3 else 0)
        if r.random() < 0.5:
            strides = packed(wanted.shape)
        begin = r.randrange(5)
        count = reach(wanted.shape, strides) + begin + 5
        buffer = torch.full((count * item_bytes(wanted.dtype),), GUARD, dtype=torch.uint8)
        made = torch.empty(0, dtype=wanted.dtype)
        made.set_(buffer.untyped_storage(), begin, tuple(wanted.shape), tuple(strides))
        self.buffers.append((buffer, made))
        if isinstance(wanted, torch.nn.Parameter):
            return torch.nn.Parameter(made, requires_grad=wanted.requires_grad)
        return made

    def check(self, what):
        for buffer, tensor in self.buffers:
            outside = torch.ones(len(buffer), dtype=torch.bool)
            if tensor.numel():
                outside[places(tensor)] = False
            if not bool((buffer[outside] == GUARD).all()):
                raise Wrong(f"{what}: wrong bytes outside of a tensor of {tuple(tensor.shape)} {tensor.stride()}")


def expect_tensor(got, wanted, what):
    shape = f"{got.dtype} {tuple(got.shape)}" if isinstance(got, torch.Tensor) else type(got).__name__
    if shape != f"{wanted.dtype} {tuple(wanted.shape)}":
        raise Wrong(f"{what}: {shape}, and {wanted.dtype} {tuple(wanted.shape)} is expected")
    if bytes_of(got) != bytes_of(wanted):
        raise Wrong(f"wrong bytes: {what}, {wanted.dtype} {tuple(wanted.shape)} {wanted.stride()}")


def check_into(run, state, load, what):
    guarded = Guarded(run.random)
    target = guarded.like(state)
    try:
        with torch.no_grad():
            loaded = load(into=target)
    except (ValueError, TypeError) as error:
        run.check("shar" in str(error) or "over" in str(error), f"{what}: into= is refused: {error}")
        run.count("refused")
        return
    filled, returned_at = dict(leaves(target)), dict(leaves(loaded))
    for path, wanted in leaves(state):
        got, returned = filled[path], returned_at[path]
        if bytes_of(got) != bytes_of(wanted):
            raise Wrong(f"wrong bytes: {what}, into= of {path}: {wanted.dtype} {tuple(wanted.shape)} {got.stride()}")
        run.check(returned is got or returned.data_ptr() == got.data_ptr(), f"{what}: into= gives another {path}")
    guarded.check(f"{what}, into=")
    run.count("into")


def a_slice(r, size):
    kind = r.randrange(5)
    if kind == 0 and size:
        return r.randrange(-size, size)
    if kind == 1:
        return slice(None)
    if kind == 2:
        return slice(r.randrange(-size - 1, size + 2), r.randrange(-size - 1, size + 2))
    if kind == 3:
        return slice(r.randrange(size + 1), None, r.choice([1, 2, 3]))
    return slice(0, size)


def check_names(run, state, load, what):
    r = run.random
    tensors = list(leaves(state))
    for path, wanted in r.sample(tensors, min(4, len(tensors))):
        name = ".".join(map(str, path))
        expect_tensor(load(names=name), wanted, f"{what}, names={name!r}")
        run.count("names")
        if wanted.dim() and not wanted.is_neg():
            cut = tuple(a_slice(r, size) for size in wanted.shape[: r.randrange(1, wanted.dim() + 1)])
            if len(cut) == 1 and r.random() < 0.7:
                cut = cut[0]
            expect_tensor(load(names={name: cut})[name], wanted.detach()[cut], f"{what}, {name!r} {cut}")
            run.count("slices")


def check_patterns(run, state, load, what):
    """Names with * ? [] give what fnmatch gives, or a KeyError where that is nothing."""
    r = run.random
    for _ in range(3):
        name = r.choice(sorted(state))
        at = r.randrange(len(name))
        pattern = name[:at] + r.choice(["*", "?", "[0-4k]", "[!k]", "[]x]", "**", ""]) + name[at + r.choice([0, 1]) :]
        if pattern in state or not set(pattern) & set("*?["):
            continue
        wanted = {name for name in state if fnmatch.fnmatchcase(name, pattern)}
        try:
            got = set(load(names=[pattern]))
        except KeyError:
            got = set()
        run.check(got == wanted, f"{what}, names={pattern!r}: {sorted(got)}, and fnmatch gives {sorted(wanted)}")
        run.count("patterns")


def check_dtype(run, state, load, what):
    """Floating point becomes what is asked for, as torch converts it; the rest stays as it is."""
    dtype = run.random.choice(FLOATS)
    types = {}
    for _, tensor in leaves(state):
        types.setdefault(tensor.untyped_storage()._cdata, set()).add(tensor.dtype)
    loaded = dict(leaves(load(dtype=dtype)))
    for path, wanted in leaves(state):
        got = loaded[path]
        if len(types[wanted.untyped_storage()._cdata]) > 1:
            continue  # one storage cannot be converted for all of its types
        if wanted.dtype not in FLOATS:
            expect_tensor(got, wanted, f"{what}, dtype={dtype}, {path}")
            continue
        wanted = wanted.detach().resolve_neg().to(dtype)
        run.check(got.dtype == dtype and got.shape == wanted.shape, f"{what}, dtype={dtype}: {path} is {got.dtype}")
        a, b = (torch.nan_to_num(t.detach().double(), 7.25) for t in (wanted, got))  # NaNs may have other bits
        run.check(torch.equal(a, b), f"wrong bytes: {what}, dtype={dtype}, {path}")
    run.count("dtype")


def check_mapped(run, state, path, what):
    """The file does not change when what is mapped from it does."""
    mapped = penstock.load(path, mmap=True)
    same(state, mapped, f"{what}, mmap")
    for _, tensor in leaves(mapped):
        torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).fill_(1)
    same(state, penstock.load(path), f"{what}, after writes to what was mapped")
    for where in LOCATIONS:
        same(state, penstock.load(path, map_location=where), f"{what}, map_location={where}")


def check_face(run, tensors, path):
    """penstock.safetensors and the library itself give the same, of slices too."""
    with penstock.safetensors.safe_open(path, "pt") as ours, safetensors.safe_open(path, "pt") as theirs:
        run.check(sorted(ours.keys()) == sorted(theirs.keys()), "safe_open gives other names")
        for name in tensors:
            expect_tensor(ours.get_tensor(name), theirs.get_tensor(name), f"safe_open, {name}")
            shape = tensors[name].shape
            if shape:
                begin = run.random.randrange(shape[0] + 1)
                cut = slice(begin, run.random.randrange(begin, shape[0] + 1))
                got, wanted = (opened.get_slice(name)[cut] for opened in (ours, theirs))
                expect_tensor(got, wanted, f"get_slice, {name} {cut}")
    run.count("safe_open")


def of_models(run, store):
    """A nested state with shared storages of all types: files of ours, torch's where it can, a store."""
    state = States(run.random).model()
    if run.chance(0.6):
        state = unshared(state)
    ours, stock = f"{run.folder}/ours.pt", f"{run.folder}/stock.pt"
    try:
        penstock.save(state, ours, sync=False)
        store.save(state)
    except (TypeError, ValueError) as error:
        run.note("refused", error)
        run.count("refused")
        return
    loads = {"ours": lambda **kw: penstock.load(ours, **kw), "store": store.load}
    try:
        torch.save(state, stock)
        loads["torch"] = lambda **kw: penstock.load(stock, **kw)
    except Exception:
        run.count("torch refuses")
    run.note("a state of a model", {path: (t.dtype, tuple(t.shape)) for path, t in leaves(state)})
    check_mapped(run, state, ours, "ours")
    for what, load in loads.items():
        check_into(run, state, load, what)
        check_names(run, state, load, what)
        check_dtype(run, state, load, what)


def of_files(run, _):
    """A flat state of contiguous tensors, which every format holds."""
    r = run.random
    tensors = {
        f"k{i}": torch.from_numpy(run.numbers.integers(-50, 50, r.choice(SHAPES))).to(r.choice(PLAIN))
        for i in range(r.choice([1, 4, 20]))
    }
    kind = r.choice(["safetensors", "safetensors", "torch", "own", "index", "pt"])
    run.note("a file of", kind, {name: (t.dtype, tuple(t.shape)) for name, t in tensors.items()})
    load = write_tensors(kind, tensors, run.folder, "t")
    got = load()
    run.check(set(got) == set(tensors), f"{kind}: other names")
    for name, wanted in tensors.items():
        expect_tensor(got[name], wanted, f"{kind}, {name}")
    some = r.sample(sorted(tensors), r.randrange(1, len(tensors) + 1))
    got = load(names=some)
    run.check(set(got) == set(some), f"{kind}: names={some} gives {sorted(got)}")
    for name in some:
        expect_tensor(got[name], tensors[name], f"{kind}, names={some}, {name}")
    check_into(run, tensors, load, kind)
    check_names(run, tensors, load, kind)
    check_dtype(run, tensors, load, kind)
    check_patterns(run, tensors, load, kind)
    if kind in ("safetensors", "own"):
        check_face(run, tensors, f"{run.folder}/t{'.own' if kind == 'own' else ''}.safetensors")


def attack(run):
    with a_store(f"{run.folder}/store", keep=1, shard_bytes=1 << 16) as store:
        for _ in run.steps(STEPS):
            with run.never(OSError, ValueError, TypeError, KeyError, what="a call that is right"):
                run.random.choice([of_models, of_files])(run, store)
            run.count("states")
