# SPDX-License-Identifier: Apache-2.0
"""Jagged nested tensors: read as torch.load reads them, saved again, or refused with a way around."""

import io
import subprocess
import sys

import penstock
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")

nested_tensor = pytest.importorskip("torch.nested._internal.nested_tensor")


def numbers(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


def of_jagged(values, offsets, **more):
    return torch.nested.nested_tensor_from_jagged(values, torch.tensor(offsets), **more)


def noted(tensor):
    tensor.note = ["mine", torch.ones(2)]
    return tensor


def values():
    rows = [numbers(2, 3), numbers(4, 3), numbers(1, 3)]
    plain = torch.nested.nested_tensor(rows, layout=torch.jagged)
    return {
        "plain": plain,
        "cached": of_jagged(numbers(6, 3), [0, 2, 6], min_seqlen=2, max_seqlen=4),
        "not cached": of_jagged(numbers(6, 3), [0, 2, 6]),
        "lengths": of_jagged(numbers(6, 3), [0, 2, 6], lengths=torch.tensor([1, 3])),
        "another dimension": of_jagged(numbers(3, 6, 2), [0, 2, 6], jagged_dim=2),
        "int32": torch.nested.nested_tensor_from_jagged(numbers(5), torch.tensor([0, 5], dtype=torch.int32)),
        "bfloat16": torch.nested.nested_tensor(rows, layout=torch.jagged, dtype=torch.bfloat16),
        "empty rows": of_jagged(numbers(2, 3), [0, 0, 2, 2]),
        "no rows": of_jagged(numbers(0, 3), [0]),
        "narrowed": torch.nested.narrow(numbers(3, 5, 2), 1, torch.tensor([0, 1, 2]), 2, layout=torch.jagged),
        "turned": plain.transpose(1, 2),
        "requires grad": torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=True),
        "parameter": torch.nn.Parameter(torch.nested.nested_tensor(rows, layout=torch.jagged)),
        "attributes": noted(torch.nested.nested_tensor(rows, layout=torch.jagged)),
    }


def part(tensor):
    if tensor is None:
        return None
    bits = tensor.detach().contiguous().view(torch.uint8) if tensor.numel() else tensor
    return tensor.dtype, tensor.shape, tensor.stride(), bits.tolist(), tensor.requires_grad


def parts(tensor):
    """What one is made of, down to bytes, and what torch notes of it."""
    own = dict(tensor.__dict__)
    for name in ("_size", "_strides"):  # with numbers of this process
        own[name] = len(own[name])
    own = {name: one for name, one in own.items() if not name.startswith("_sym_")}  # of this process
    cache = own.pop("_metadata_cache")
    out = {name: part(own.pop(name)) for name in ("_values", "_offsets", "_lengths")}
    out |= {name: part(one) for name, one in sorted(cache.items())}
    note = own.pop("note", None)
    out["note"] = note and [note[0], part(note[1])]
    out["hints"] = sorted(own["_values"].__dict__) if "_values" in own else sorted(tensor._values.__dict__)
    return out | own | {"grad": tensor.requires_grad, "dtype": tensor.dtype, "layout": tensor.layout}


def same(wanted, found):
    assert type(found) is type(wanted) is nested_tensor.NestedTensor
    assert repr(parts(found)) == repr(parts(wanted))
    assert isinstance(found, torch.nn.Parameter) == isinstance(wanted, torch.nn.Parameter)
    for one, other in zip(wanted.unbind(), found.unbind(), strict=True):
        assert torch.equal(one, other)


def file_of(state, legacy=False, protocol=2):
    out = io.BytesIO()
    torch.save(state, out, pickle_protocol=protocol, _use_new_zipfile_serialization=not legacy)
    return out.getvalue()


def torchs(data):
    return torch.load(io.BytesIO(data), weights_only=True)


FORMS = [{}, {"legacy": True}, {"protocol": 4}]


@pytest.mark.parametrize("name", values())
def test_it_is_what_torch_reads(name):
    state = {"v": values()[name], "w": torch.ones(2)}
    for form in FORMS:
        data = file_of(state, **form)
        found = penstock.load(io.BytesIO(data))
        same(torch.load(io.BytesIO(data), weights_only=not form.get("protocol"))["v"], found["v"])
        same(state["v"], penstock.load(io.BytesIO(data), names="v"))
        assert torch.equal(found["w"], torch.ones(2))
        assert not penstock.inspect(io.BytesIO(data)).unread


def test_it_works_as_one(tmp_path):
    torch.save(values(), tmp_path / "m.pt")
    for found in (penstock.load(tmp_path / "m.pt"), penstock.load(tmp_path / "m.pt", mmap=True)):
        for name, wanted in values().items():
            if name not in ("no rows", "int32"):
                assert torch.equal((found[name] * 2).values(), (wanted * 2).values()), name
        padded = found["plain"].to_padded_tensor(0.0)
        assert padded.shape == (3, 4, 3) and torch.equal(padded[1], values()["plain"].unbind()[1])
        (found["requires grad"] * 3).values().sum().backward()
        assert torch.equal(found["requires grad"].grad.values(), torch.full((7, 3), 3.0))


@pytest.mark.parametrize("name", values())
def test_it_is_saved_again(tmp_path, name):
    wanted, path = values()[name], tmp_path / "m.pt"
    state = {"v": wanted, "again": [wanted], "w": torch.ones(2)}
    penstock.save(state, path)
    for found in (penstock.load(path), torch.load(path, weights_only=True)):
        same(wanted, found["v"])
        assert found["again"][0] is found["v"]
    penstock.save_async(state, path).result()
    same(wanted, penstock.load(path)["v"])
    penstock.save(penstock.load(path), path)
    same(wanted, torch.load(path, weights_only=True)["v"])
    with penstock.CheckpointStore(tmp_path / "store") as store:
        store.save(state, step=1)
        store.save_async(state, step=2).result()
        for step in (1, 2):
            found = store.load(step=step)
            same(wanted, found["v"])
            assert found["again"][0] is found["v"]
        same(wanted, store.load(names="v"))


def test_parts_share_memory_as_they_did(tmp_path):
    plain = values()["plain"]
    state = {"values": plain._values, "v": plain, "offsets": plain.offsets(), "turned": plain.transpose(1, 2)}
    torch.save(state, tmp_path / "m.pt")
    penstock.save(state, tmp_path / "ours.pt")
    for path in (tmp_path / "m.pt", tmp_path / "ours.pt"):
        found = penstock.load(path)
        found["values"].zero_()
        assert not found["v"].values().any() and not found["turned"].values().any()
        assert found["offsets"] is found["v"].offsets()
        same(torch.load(path, weights_only=True)["v"], penstock.load(path)["v"])


def test_its_parts_have_names(tmp_path):
    path, wanted = tmp_path / "m.pt", values()["lengths"]
    torch.save({"w": torch.ones(2), "v": wanted}, path)
    names = ["w", "v.values", "v.offsets", "v.lengths"]
    assert [row.name for row in penstock.inspect(path)][:4] == names
    assert torch.equal(penstock.load(path, names="v.values"), wanted._values)
    penstock.update(path, {"v.values": torch.zeros(6, 3)})
    assert not penstock.load(path)["v"].values().any()
    with pytest.raises(penstock.Unsupported, match=r"'v' is no dense tensor.*whole, by its name"):
        penstock.load(path, names={"v": slice(1)})


def test_it_is_not_filled_nor_updated_and_its_parts_are(tmp_path):
    path, wanted = tmp_path / "m.pt", values()["plain"]
    torch.save({"w": torch.ones(2), "v": wanted}, path)
    into = {"w": torch.zeros(2), "v": values()["plain"]}
    into_dense = into | {"v": torch.zeros(7, 3)}
    refused = r"into\['v'\]: got NestedTensor; .* whole, by their names, and their parts"
    with pytest.raises(TypeError, match=refused):
        penstock.load(path, into=into)
    with pytest.raises(penstock.Unsupported, match="'v' is no dense tensor: it is loaded whole, by its name"):
        penstock.load(path, into=into_dense)
    assert not into["w"].any()
    filled = {"w": torch.zeros(2), "v.values": torch.zeros(7, 3)}
    penstock.load(path, into=filled, names=["w", "v.values"])
    assert torch.equal(filled["v.values"], wanted._values)
    with pytest.raises(TypeError, match=r"'v'.*nested tensor.*'v\.values'"):
        penstock.update(path, {"v": wanted})
    with penstock.CheckpointStore(tmp_path / "store") as store:
        store.save({"w": torch.ones(2), "v": wanted})
        with pytest.raises(TypeError, match=refused):
            store.load(into=into)
        with pytest.raises(penstock.Unsupported, match="'v' is no dense tensor: it is loaded whole, by its name"):
            store.load(into=into_dense)
    for save in (penstock.save, penstock.save_async):
        with pytest.raises(TypeError, match=r"state\['v'\]: a nested tensor"):
            save({"v": wanted}, tmp_path / "m.safetensors")
    with pytest.raises(TypeError, match=r"'v'\]: a nested tensor"):
        penstock.save(iter([("v", wanted)]), tmp_path / "n.pt")


def test_types_and_devices(tmp_path):
    torch.save({"v": values()["cached"]}, tmp_path / "m.pt")
    found = penstock.load(tmp_path / "m.pt", dtype="bfloat16", device="cpu")["v"]
    assert found.dtype is torch.bfloat16 and found._get_max_seqlen() == 4
    assert torch.equal(found.values(), values()["cached"].values().bfloat16())


def test_torch_need_not_know_of_it_before(tmp_path):
    """torch.load refuses the file until the module of the class is imported."""
    torch.save({"v": values()["plain"]}, tmp_path / "m.pt")
    code = (
        "import penstock, torch\n"
        f"found = penstock.load({str(tmp_path / 'm.pt')!r})['v']\n"
        "assert found.layout is torch.jagged and found.shape[0] == 3"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


def test_what_it_holds_that_is_not_read_is_named():
    tensor = values()["plain"]
    tensor.note = subprocess.CalledProcessError(1, "x")
    data = file_of({"v": tensor, "w": torch.ones(2)})
    with pytest.raises(penstock.Unsupported, match=r"state\['v'\].*CalledProcessError"):
        penstock.load(io.BytesIO(data))
    found = penstock.load(io.BytesIO(data), unread="keep")
    assert torch.equal(found["w"], torch.ones(2)) and isinstance(found["v"].note, penstock.Unread)


# ---- what is no jagged tensor


def changed(change):
    tensor = values()["lengths"]
    change(tensor)
    return file_of({"v": tensor, "w": torch.ones(1)})


def set_to(name, value):
    def change(tensor):
        setattr(tensor, name, value)

    return change


OUTSIDE = {
    "an offset past the end": set_to("_offsets", torch.tensor([0, 2, 7])),
    "an offset far past the end": set_to("_offsets", torch.tensor([0, 2, 2**62])),
    "a negative offset": set_to("_offsets", torch.tensor([-1, 2, 6])),
    "a length past the end": set_to("_lengths", torch.tensor([1, 5])),
    "a huge length": set_to("_lengths", torch.tensor([1, 2**63 - 1])),
    "a negative length": set_to("_lengths", torch.tensor([1, -1])),
    "offsets that fall": lambda t: (setattr(t, "_lengths", None), setattr(t, "_offsets", torch.tensor([0, 4, 2]))),
}


@pytest.mark.parametrize("how", OUTSIDE)
def test_parts_outside_of_the_values_are_damage(how):
    data = changed(OUTSIDE[how])
    with pytest.raises(penstock.Damaged, match="jagged tensor does not lie in its values"):
        penstock.load(io.BytesIO(data))
    assert torch.equal(penstock.load(io.BytesIO(data), names="w"), torch.ones(1))


OTHERS = {
    "offsets of two dimensions": set_to("_offsets", torch.zeros(3, 1, dtype=torch.int64)),
    "no offsets": set_to("_offsets", torch.zeros(0, dtype=torch.int64)),
    "offsets of floats": set_to("_offsets", torch.zeros(3)),
    "too few lengths": set_to("_lengths", torch.zeros(1, dtype=torch.int64)),
    "a dimension that is not there": set_to("_ragged_idx", 3),
    "dimension 0": set_to("_ragged_idx", 0),
    "values that are no tensor": set_to("_values", [1]),
}


@pytest.mark.parametrize("how", OTHERS)
def test_other_parts_are_a_place_holder(how):
    data = changed(OTHERS[how])
    with pytest.raises(penstock.Unsupported, match=r"state\['v'\]"):
        penstock.load(io.BytesIO(data))
    assert isinstance(penstock.load(io.BytesIO(data), unread="keep")["v"], penstock.Unread)


class Call:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def test_the_state_has_the_same_parts():
    """torch sets what the state has in place of what the tensor was made of."""
    tensor = values()["lengths"]
    for name, other in (("_values", torch.ones(9, 9)), ("_ragged_idx", 2), ("_size", 3), ("_lengths", None)):
        func, kind, arguments, state = tensor.__reduce_ex__(2)[1]
        made = Call(torch._tensor._rebuild_from_type_v2, func, kind, arguments, state | {name: other})
        with pytest.raises(penstock.Unsupported, match="other parts than those that it is made of"):
            penstock.load(io.BytesIO(file_of({"v": made})))


def test_a_hint_that_is_none_is_named():
    """What is left out is what torch puts there; a call of anything else is not passed over."""
    tensor = of_jagged(numbers(6, 3), [0, 2, 6], min_seqlen=2, max_seqlen=4)
    tensor._metadata_cache["max_seqlen"]._dynamo_dynamic_range = {Call(print, "called")}
    with pytest.raises(penstock.Unsupported, match="_dynamo_dynamic_range"):
        penstock.load(io.BytesIO(file_of({"v": tensor})))
    tensor = of_jagged(numbers(6, 3), [0, 2, 6])
    tensor._dynamo_x = Call(print, "called")
    with pytest.raises(penstock.Unsupported, match="print"):
        penstock.load(io.BytesIO(file_of({"v": tensor})))
