# SPDX-License-Identifier: Apache-2.0
"""What may be in a state (docs/formats.md, "The grammar"): what save() takes, load() gives back, by type, order, what
is shared, and to the bit; in all forms, and between Penstock and stock torch both ways. What it does not take is an
error of the save with its place, and nothing is replaced."""

import contextlib
import glob
import io
import math
import os
import pathlib
import random
import re
import struct
import tempfile
import types
from collections import Counter, OrderedDict, defaultdict

import numpy as np
import penstock
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st

# PENSTOCK_TEST_EXAMPLES: as many times the states of make test, and other ones each time.
MORE = int(os.environ.get("PENSTOCK_TEST_EXAMPLES", "0"))
FACTORIES = [None, list, dict, int, float, complex, str, bytes, bytearray, bool, tuple, set, frozenset, OrderedDict]
FACTORIES += [Counter]
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16]
DTYPES += [torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128, torch.uint16, torch.float8_e4m3fn]
NUMPY = [
    "b1",
    "i1",
    "u1",
    "i2",
    "u2",
    "i4",
    "u4",
    "i8",
    "u8",
    "f2",
    "f4",
    "f8",
    "c8",
    "c16",
    "U0",
    "U1",
    "U7",
    "S0",
    "S1",
]
NUMPY += ["S9"]


def examples(count):
    return settings(
        max_examples=count * max(MORE, 1), derandomize=not MORE, database=None, deadline=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip


def bits(number):
    return struct.pack("<d", number)


# ---- what is the same


class Same:
    """Compares two states. What can change is the same object in the same places; tensors share storages alike."""

    def __init__(self, zeros=True):
        """zeros: those at the end of NumPy's texts count. NumPy's own pickles lose them."""
        self.zeros = zeros
        self.there, self.back, self.storages = {}, {}, {}
        self.keep = []

    def check(self, a, b, place="state"):
        assert type(a) is type(b), f"{place}: {type(a)} became {type(b)}"
        if isinstance(a, (list, dict, set, bytearray, np.ndarray, torch.Tensor)) or (isinstance(a, tuple) and a):
            if id(a) in self.there:
                assert self.there[id(a)] == id(b), f"{place}: it was shared, and is not"
                return
            assert isinstance(a, tuple) or id(b) not in self.back, f"{place}: it was not shared, and is"
            self.there[id(a)], self.back[id(b)] = id(b), id(a)
            self.keep += [a, b]
        getattr(self, f"_{self._kind(a)}", self._plain)(a, b, place)

    @staticmethod
    def _kind(a):
        for kind, classes in (
            ("mapping", dict), ("items", (list, tuple)), ("set", (set, frozenset)), ("real", float),
            ("complex", complex),
            ("array", (np.ndarray, np.generic)), ("tensor", torch.Tensor),
        ):  # fmt: skip
            if isinstance(a, classes) and not (kind in ("real", "complex") and isinstance(a, np.generic)):
                return kind
        return "plain"

    def _plain(self, a, b, place):
        assert a == b, f"{place}: {a!r} became {b!r}"

    def _real(self, a, b, place):
        assert bits(a) == bits(b), f"{place}: {a!r} became {b!r}"

    def _complex(self, a, b, place):
        assert (bits(a.real), bits(a.imag)) == (bits(b.real), bits(b.imag)), f"{place}: {a!r} became {b!r}"

    def _items(self, a, b, place):
        assert len(a) == len(b), place
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            self.check(x, y, f"{place}[{i}]")

    def _set(self, a, b, place):
        # Without an order: by text, which says types and every digit.
        shown = [sorted(repr(v) if self.zeros else repr(v).replace("\\x00", "") for v in each) for each in (a, b)]
        assert shown[0] == shown[1], place

    def _mapping(self, a, b, place):
        if isinstance(a, defaultdict):
            assert a.default_factory is b.default_factory, place
        assert len(a) == len(b), place
        for (k, x), (m, y) in zip(a.items(), b.items(), strict=True):
            self.check(k, m, f"{place}: key {k!r}")
            self.check(x, y, f"{place}[{k!r}]")
        self_a, self_b = getattr(a, "__dict__", None), getattr(b, "__dict__", None)
        assert bool(self_a) == bool(self_b), place
        if self_a:
            self._mapping(self_a, self_b, f"{place}.__dict__")

    def _array(self, a, b, place):
        if isinstance(a, (np.str_, np.bytes_)):
            # Their str() and == look past zeros at the end.
            x, y = (v.encode("utf-32-le", "surrogatepass") if isinstance(v, str) else v[:] for v in (a, b))
            assert x == y if self.zeros else x.rstrip(b"\0") == y.rstrip(b"\0"), f"{place}: {a!r} became {b!r}"
            return
        assert (a.dtype.str, a.shape) == (b.dtype.str, b.shape), f"{place}: {a.dtype} became {b.dtype}"
        assert a.tobytes() == b.tobytes(), place
        if isinstance(a, np.ndarray) and a.size and a.dtype.itemsize:
            fortran = a.flags.f_contiguous and not a.flags.c_contiguous
            assert (b.flags.f_contiguous and not b.flags.c_contiguous) == fortran, place

    def _tensor(self, a, b, place):
        assert (a.dtype, a.shape, a.stride(), a.requires_grad) == (b.dtype, b.shape, b.stride(), b.requires_grad), place
        assert (a.is_conj(), a.is_neg()) == (b.is_conj(), b.is_neg()), place
        if a.numel():
            known = self.storages.setdefault(a.untyped_storage()._cdata, b.untyped_storage()._cdata)
            assert known == b.untyped_storage()._cdata, f"{place}: it shares another storage"
            assert content(a) == content(b), place


def content(tensor):
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes()


def check(a, b, zeros=True):
    Same(zeros).check(a, b)


# ---- states

floats = st.floats() | st.sampled_from(
    [-0.0, math.inf, -math.inf]
    + [struct.unpack("<d", struct.pack("<Q", n))[0] for n in (0x7FF8000000000001, 0xFFF << 51)]
)
integers = st.integers() | st.integers(0, 600).map(lambda n: 1 << n) | st.integers(0, 600).map(lambda n: -(1 << n))
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
numpy_scalars = st.one_of(
    [st.binary(min_size=n.itemsize, max_size=n.itemsize).map(lambda b, n=n: np.frombuffer(b, n)[0])
     for n in map(np.dtype, NUMPY[1:14])]
    + [st.booleans().map(np.bool_), texts.map(np.str_), st.binary(max_size=5).map(np.bytes_)]
)  # fmt: skip
scalars = st.one_of(
    st.none(), st.booleans(), integers, floats, st.complex_numbers(), texts, st.binary(max_size=40), numpy_scalars,
    st.sampled_from([np.str_(""), np.bytes_(b""), np.str_("a\0"), np.bytes_(b"\0")]),
    st.sampled_from(DTYPES), st.sampled_from([torch.device("cpu"), torch.device("cuda", 3), torch.device("meta")]),
)  # fmt: skip
sizes = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 9), max_size=4) | st.just([1] * 100)
sizes = sizes.map(torch.Size)
keys = st.one_of(texts, st.integers(-9, 99), scalars, sizes.filter(lambda s: len(s) < 60))
keys = keys | st.lists(keys, max_size=3).map(tuple)


@st.composite
def arrays(draw):
    kind = np.dtype(draw(st.sampled_from(NUMPY)))
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    if kind.itemsize == 0:
        return np.ndarray(shape, kind)
    if kind.kind == "U":
        return np.full(shape, draw(texts), kind)
    data = draw(st.binary(min_size=kind.itemsize, max_size=kind.itemsize))
    flat = np.frombuffer(data * math.prod(shape), np.uint8) % (2 if kind.kind == "b" else 255)
    made = flat.view(kind).reshape(shape) if math.prod(shape) else np.empty(shape, kind)
    return draw(st.sampled_from([np.copy, np.asfortranarray, lambda a: a[::-1] if a.ndim else a]))(made)


@st.composite
def tensors(draw):
    kind = draw(st.sampled_from(DTYPES))
    raw = torch.frombuffer(bytearray(draw(st.binary(min_size=64, max_size=64)) * 2), dtype=torch.uint8)
    flat = (raw % 2 if kind is torch.bool else raw).clone().view(kind)
    made = draw(st.sampled_from([
        lambda t: t, lambda t: t[1:5], lambda t: t[::2], lambda t: t[:4].reshape(2, 2).t(), lambda t: t[3],
        lambda t: t[2:2], lambda t: t[4:].reshape(-1, 4)[9:, 1:], lambda t: t[0].expand(3, 2),
        lambda t: t[:0].reshape(3, 0),
        lambda t: t.unfold(0, 3, 1),
    ]))(flat)  # fmt: skip
    if kind.is_complex and draw(st.booleans()):
        made = made.conj()
    if draw(st.booleans()) and kind.is_floating_point:
        made = (
            torch.nn.Parameter(made, requires_grad=draw(st.booleans()))
            if draw(st.booleans())
            else (made.detach().requires_grad_())
        )
    return made


def containers(inner):
    pairs = st.lists(st.tuples(keys, inner), max_size=4)
    return st.one_of(
        st.lists(inner, max_size=4), st.lists(inner, max_size=5).map(tuple), pairs.map(dict), pairs.map(OrderedDict),
        st.builds(defaultdict, st.sampled_from(FACTORIES), pairs), pairs.map(dict).map(Counter),
        st.frozensets(keys, max_size=3),
        st.sets(keys, max_size=3), st.builds(with_attribute, pairs, inner),
    )  # fmt: skip


def with_attribute(pairs, value):
    made = OrderedDict(pairs)
    made._metadata = value
    return made


leaves = st.one_of(scalars, sizes, arrays(), tensors(), st.binary(max_size=9).map(bytearray))


@st.composite
def states(draw):
    """Nested, with what is in it in other places of it once more: shared, viewed again, or containing itself."""
    state = [draw(st.recursive(leaves, containers, max_leaves=12)) for _ in range(draw(st.integers(1, 4)))]
    found = [state]
    for value in found:
        if len(found) > 40:
            break
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
        found += [v for v in inner if isinstance(v, (dict, list, tuple, set, bytearray, np.ndarray, torch.Tensor))]
    lists = [v for v in found if type(v) is list]
    for _ in range(draw(st.integers(0, 3))):
        again = draw(st.sampled_from(found))
        if isinstance(again, torch.Tensor) and again.ndim and draw(st.booleans()):
            again = again.detach()[:1]
        draw(st.sampled_from(lists)).append(again)
    return state


def saved(state):
    file = io.BytesIO()
    penstock.save(state, file)
    return file.getvalue()


@examples(100)
@given(states())
def test_a_state_comes_back_from_a_pt(state):
    check(state, penstock.load(io.BytesIO(saved(state))))


@pytest.fixture(scope="module")
def store():
    """In memory, where it may: a save syncs."""
    where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=where) as folder, penstock.CheckpointStore(folder, keep=1) as made:
        yield made


@examples(25)
@given(several=st.lists(states(), min_size=1, max_size=6))
def test_states_come_back_from_a_store(store, several):
    store.save(several)
    check(several, store.load())


def has_ring(value, above=(), done=None):
    """Of such values Python's pickler does not end, or weights_only does not read them."""
    done = set() if done is None else done
    if not isinstance(value, (list, tuple, dict)) or id(value) in done:
        return any(value is a for a in above)
    done.add(id(value))
    inner = [*value.values(), *getattr(value, "__dict__", {}).values()] if isinstance(value, dict) else value
    return any(has_ring(v, (*above, value), done) for v in inner)


@examples(50)
@given(states().filter(lambda s: not has_ring(s)))
def test_stock_torch_reads_ours_and_we_read_its(state):
    check(state, torch.load(io.BytesIO(saved(state)), weights_only=False), zeros=False)
    stock = io.BytesIO()
    try:
        torch.save(state, stock)
    except RuntimeError as error:
        assert "different types" in str(error) or "Cannot" in str(error)
        return
    theirs = torch.load(io.BytesIO(stock.getvalue()), weights_only=False)
    check(theirs, penstock.load(io.BytesIO(stock.getvalue())), zeros=False)


# Values that torch allows by itself, and by the list that transformers and accelerate give it.
plain = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**300), 2**300), st.floats(), texts, st.binary(max_size=40),
              tensors(), numpy_scalars, st.sampled_from(DTYPES), st.binary(max_size=9).map(bytearray),
              st.integers(0, 9).map(lambda n: np.arange(n, dtype=np.uint32)),
              st.lists(st.integers(0, 9)).map(torch.Size)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.lists(inner, max_size=4).map(tuple), st.dictionaries(texts, inner, max_size=4),
        st.dictionaries(texts, inner, max_size=4).map(OrderedDict),
        st.dictionaries(texts, inner, max_size=4).map(Counter),
        st.sets(st.integers(), max_size=4),
    ),
    max_leaves=12,
)  # fmt: skip


@examples(40)
@given(plain)
def test_stock_torch_reads_ours_with_weights_only(state):
    module = np._core.multiarray
    types = {type(np.dtype(kind)) for kind in NUMPY}
    allowed = [module._reconstruct, module.scalar, np.ndarray, np.dtype, *types]
    with torch.serialization.safe_globals(allowed):
        check(state, torch.load(io.BytesIO(saved(state)), weights_only=True), zeros=False)


def random_states():
    """What the Trainer of transformers saves as rng_state.pth."""
    return {"python": random.getstate(), "numpy": np.random.get_state(), "cpu": torch.get_rng_state()}


def test_the_names_that_transformers_allows_are_enough():
    module = np._core.multiarray
    allowed = [module._reconstruct, np.ndarray, np.dtype, type(np.dtype(np.uint32))]
    with torch.serialization.safe_globals(allowed):
        check(random_states(), torch.load(io.BytesIO(saved(random_states())), weights_only=True))


def test_transformers_own_list_is_enough(tmp_path):
    """With what it says itself, where it is set up."""
    root = pathlib.Path(__file__).resolve().parents[2]
    folders = glob.glob(f"{root}/.venv-deepspeed/lib/python*/site-packages/transformers/trainer_pt_utils.py")
    if not folders:
        pytest.skip("needs transformers: make setup")
    source = pathlib.Path(folders[0]).read_text()
    begin = source.index("def safe_globals():")
    body = re.search(r"def safe_globals\(\):\n(?:    .*\n|\n)+", source[begin:])[0]
    names = {"torch": torch, "np": np, "contextlib": contextlib, "version": types.SimpleNamespace(parse=tuple_of)}
    exec(body, names)
    with names["safe_globals"]():
        check(random_states(), torch.load(io.BytesIO(saved(random_states())), weights_only=True))


def tuple_of(version):
    return tuple(int(n) for n in re.findall(r"\d+", version)[:3])


@examples(40)
@given(
    st.dictionaries(texts.filter(lambda t: t != "__metadata__"), tensors(), max_size=5), st.dictionaries(texts, texts)
)
def test_tensors_come_back_from_safetensors(named, metadata):
    from safetensors.torch import load as stock_load, save as stock_save

    named = {name: t.detach().resolve_conj().clone().contiguous() for name, t in named.items()}
    named = {name: t for name, t in named.items() if t.dtype is not torch.complex128}
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        path = f"{folder}/x.safetensors"
        penstock.save(named, path, metadata=metadata)
        back = penstock.load(path)
        data = pathlib.Path(path).read_bytes()
    for loaded in (back, stock_load(data), penstock.load(io.BytesIO(stock_save(named)))):
        assert loaded.keys() == named.keys()
        for name, tensor in named.items():
            assert (loaded[name].dtype, loaded[name].shape) == (tensor.dtype, tensor.shape)
            assert content(loaded[name]) == content(tensor)


# ---- what comes back, kind by kind


def every_kind():
    """Where the review found what was saved and could not be read, and each kind of NumPy's."""
    yield from [np.str_(""), np.bytes_(b""), torch.Size([-1, 5]), torch.Size([1] * 100), torch.zeros(3, 4)[3:, 1:]]
    yield from [{np.str_(""): 1}, {np.bytes_(b"")}, np.str_("ab\0"), np.bytes_(b"ab\0"), np.str_("\ud800")]
    yield from [defaultdict(f, {1: 2}) for f in FACTORIES]
    yield from [Counter("abca"), Counter({"a": -1, "b": 2.5}), 1 << (8 * 65535), -(1 << (8 * 60000)), -(1 << 71)]
    for kind in NUMPY:
        yield from [np.ndarray((2, 3), kind), np.ndarray((0, 2), kind), np.ndarray((), kind)]
        yield np.asfortranarray(np.ones((2, 3), kind))
    yield torch.optim.lr_scheduler.MultiStepLR(
        torch.optim.SGD([torch.nn.Parameter(torch.ones(1))]), [2, 5]
    ).state_dict()


@pytest.mark.parametrize("number", range(len(list(every_kind()))))
def test_each_kind_comes_back(number, store):
    value = list(every_kind())[number]
    check(value, penstock.load(io.BytesIO(saved(value))))
    store.save(value)
    check(value, store.load())


def test_values_that_contain_themselves_come_back(store):
    inner = []
    ring = (inner, 1)
    inner += [ring, ring, Counter(), {"ring": ring}]
    inner[2]["self"] = inner[2]
    for state in (ring, [ring], {"list": inner, "ring": ring}, {"ring": ring, "list": inner}):
        for back in (penstock.load(io.BytesIO(saved(state))), store.save(state) and store.load()):
            check(state, back)
    long = [None]
    long[0] = (long, 1, 2, 3, 4)  # which pickle ends otherwise than a short one
    check(long[0], penstock.load(io.BytesIO(saved(long[0]))))
    stock = io.BytesIO()
    torch.save(long[0], stock)
    check(long[0], penstock.load(io.BytesIO(stock.getvalue())))
    check(long[0], torch.load(io.BytesIO(saved(long[0])), weights_only=False))


def test_torchs_file_of_a_defaultdict_of_int_is_read():
    for factory in (int, str, list):
        stock = io.BytesIO()
        torch.save(defaultdict(factory, {1: factory()}), stock)
        check(defaultdict(factory, {1: factory()}), penstock.load(io.BytesIO(stock.getvalue())))


# ---- what is refused, where it is


class Text(np.str_):
    pass


REFUSED = [
    1 << (8 * 65537), torch.Size([np.int64(3)]), np.zeros(2, np.dtype("f4", metadata={"unit": "m"})), Text("x"),
    np.datetime64("2020-01-01"), np.zeros(2, "m8[s]"), np.zeros(2, "V3"), np.array([None]), np.zeros(2, ">f4"),
    np.longdouble(1), "\ud800", defaultdict(Text), {frozenset([1]): 1}, {(0,) * 65: 1}, pathlib.Path("x"),
]  # fmt: skip


def counter_with_attributes():
    made = Counter("a")
    made.unit = "m"
    return made


@pytest.mark.parametrize("value", [*REFUSED, counter_with_attributes()], ids=lambda v: type(v).__name__)
def test_what_is_refused_is_named_at_the_call_and_replaces_nothing(value, tmp_path):
    path = tmp_path / "state.pt"
    penstock.save({"good": 1}, path)
    with penstock.CheckpointStore(tmp_path / "store", keep=1) as store:
        store.save({"good": 1}, step=1)
        state = {"opt": [0, value]}
        for call in (
            lambda: penstock.save(state, path), lambda: penstock.save_async(state, path),
            lambda: store.save(state), lambda: store.save_async(state),
        ):  # fmt: skip
            with pytest.raises((TypeError, ValueError), match=r"state\['opt'\]\[1\]"):
                call()
        assert [info.step for info in store.list()] == [1]
        assert store.load() == penstock.load(path) == {"good": 1}


def test_half_characters_in_a_safetensors_are_named(tmp_path):
    path = tmp_path / "x.safetensors"
    for state, metadata in (({"\udcff": torch.ones(1)}, None), ({"a": torch.ones(1)}, {"x": "\ud800"})):
        with pytest.raises(ValueError, match="half a character"):
            penstock.save(state, path, metadata=metadata)
    assert not path.exists()


def test_a_safetensors_header_with_a_zero_byte_is_refused():
    from safetensors.torch import save as stock_save

    data = stock_save({"abcdefgh": torch.ones(4)})
    size = int.from_bytes(data[:8], "little")
    text = data[8 : 8 + size].rstrip()
    damaged = data[:8] + text + b"\0" * (size - len(text)) + data[8 + size :]
    if len(text) == size:
        damaged = (size + 8).to_bytes(8, "little") + text + b"\0" * 8 + data[8 + size :]
    with pytest.raises(penstock.Damaged, match="a byte of it is 0"):
        penstock.load(io.BytesIO(damaged))
