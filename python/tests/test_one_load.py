# SPDX-License-Identifier: Apache-2.0
"""Files of each form and checkpoints of a store are loaded by one program: the same call has the same result."""

import penstock
import pytest
from penstock._state.boxes import box
from penstock.safetensors import SafetensorError, safe_open

torch = pytest.importorskip("torch")

KINDS = ["m.pt", "m.safetensors", "m.safetensors.index.json", "store"]
SHAPES = {"w": (6, 5), "cube": (3, 4, 5), "line": (7,), "none": (0, 3), "point": ()}
INDICES = [
    *(..., None, 0, -1, 2, slice(1, 3), slice(-2, None), slice(2, 1), slice(None, None, 2), slice(1, 6, 3), (), (0, 0)),
    *((1, ...), (..., 0), (..., slice(1, 3)), (slice(None), 1), (slice(1, 3), slice(0, 4, 2)), (None, 0), (0, None)),
    *((slice(None), None, slice(1, 2)), (1, slice(2, 3), -1), (..., slice(0, 0)), (0, ..., 0), (None, ..., None)),
]
WRONG = [99, -99, (0, 99), (0, 0, 0, 0), (..., 0, ...), slice(None, None, -1), True]


def state_of():
    return {name: torch.randn(shape) for name, shape in SHAPES.items()}


@pytest.fixture(params=KINDS)
def kept(request, tmp_path):
    """(a state, a load() of it)"""
    state = state_of()
    if request.param == "store":
        with penstock.CheckpointStore(tmp_path / "store") as store:
            store.save(state)
            yield state, store.load
        return
    penstock.save(state, tmp_path / request.param)
    yield state, lambda **how: penstock.load(tmp_path / request.param, **how)


def taken(tensor, index):
    try:
        return tensor[index]
    except (IndexError, ValueError, TypeError):
        return None


@pytest.mark.parametrize("name", SHAPES)
def test_an_index_has_the_result_that_it_has_in_torch(kept, name):
    state, load = kept
    for index in INDICES:
        expected = state[name] if index is None else taken(state[name], index)
        if expected is None:
            with pytest.raises(ValueError, match=r"names\['" + name + r"'\]: .* cannot be cut by"):
                load(names={name: index})
            continue
        (found,) = load(names={name: index}).values()
        assert found.shape == expected.shape and torch.equal(found, expected), index
        assert found.untyped_storage().nbytes() == found.nbytes, index


@pytest.mark.parametrize("index", WRONG, ids=str)
def test_a_wrong_index_is_named_with_the_tensor(kept, index):
    _, load = kept
    with pytest.raises(ValueError, match=r"names\['w'\]: \[6, 5\] cannot be cut by"):
        load(names={"w": index})


def test_a_tensor_of_a_checkpoint_and_a_slice_take_the_same_indices(tmp_path):
    state = state_of()
    penstock.save(state, tmp_path / "m.safetensors")
    with (
        penstock.CheckpointStore(tmp_path / "store") as store,
        safe_open(tmp_path / "m.safetensors", "pt") as file,
    ):
        checkpoint = store.open(store.save(state).generation)
        for name, tensor in state.items():
            for index in INDICES:
                expected = taken(tensor, index)
                if expected is None:
                    with pytest.raises(IndexError):
                        checkpoint[name][index]
                    with pytest.raises(SafetensorError, match="slicing"):
                        file.get_slice(name)[index]
                    continue
                for found in (checkpoint[name][index], file.get_slice(name)[index]):
                    assert found.shape == expected.shape and torch.equal(found, expected), (name, index)
        for index in WRONG:
            with pytest.raises((IndexError, ValueError, TypeError), match="w: "):
                checkpoint["w"][index]


def test_a_box_is_the_least_that_has_what_is_wanted():
    assert box((slice(1, 5, 2), -1), (6, 5, 4)) == (
        [1, 4, 0],
        [5, 5, 4],
        (slice(None, None, 2), 0, slice(None, None, 1)),
    )
    assert box((..., slice(2, 3)), (6, 5)) == ([0, 2], [6, 3], ())
    assert box((), ()) == ([], [], ())
    assert box((None, 3), (6,)) == ([3], [4], (None, 0))
    for wrong, message in [
        (1.5, "dimension 0: expected an integer, a slice or"),
        ((0, 5), r"dimension 1: expected -5 to 4, got 5"),
        ((0, 0, 0), "3 indices, and it has 2 dimensions"),
        ([0], "dimension 0: expected an integer"),
        (torch.tensor([1]), "dimension 0: expected an integer"),
    ]:
        with pytest.raises((TypeError, IndexError), match=message):
            box(wrong, (6, 5))
    with pytest.raises(IndexError, match="t: dimension 0: it is empty, got 0"):
        box(0, (0, 3), "t: ")


def test_the_same_state_comes_whole_in_part_and_in_place(kept):
    state, load = kept
    found = load()
    assert sorted(found) == sorted(state) and all(torch.equal(found[name], state[name]) for name in state)
    assert sorted(load(names=["[cw]*"])) == ["cube", "w"] and torch.equal(load(names="line"), state["line"])
    halves = load(dtype="float16")
    assert all(torch.equal(halves[name], state[name].half()) for name in state)
    for own in (torch.zeros_like, lambda t: torch.zeros(*t.shape, 2)[..., 0], lambda t: torch.zeros(t.T.shape).T):
        into = {name: own(tensor) if tensor.ndim != 3 else torch.zeros_like(tensor) for name, tensor in state.items()}
        found = load(into=into)
        assert sorted(found) == sorted(state)
        for name in state:
            assert found[name] is into[name] and torch.equal(into[name], state[name])


def test_a_backward_pass_hears_of_every_tensor_that_is_filled(kept):
    state, load = kept
    into = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    into["w"] = torch.zeros(5, 6).T
    before = {name: tensor._version for name, tensor in into.items()}
    load(into=into)
    assert all(tensor._version > before[name] for name, tensor in into.items())


def test_a_mapping_that_is_no_dict_is_filled(kept):
    import types

    state, load = kept
    into = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    found = load(into=types.MappingProxyType(into))
    assert all(found[name] is into[name] and torch.equal(into[name], state[name]) for name in state)


def test_views_that_are_a_storage_together_fill_one_memory(tmp_path):
    whole = torch.arange(20.0)
    penstock.save({"a": whole[:8], "b": whole[8:]}, tmp_path / "m.pt")
    memory = torch.zeros(20)
    found = penstock.load(tmp_path / "m.pt", into={"a": memory[:8], "b": memory[8:]})
    assert torch.equal(memory, whole) and found["a"].data_ptr() == memory.data_ptr()
