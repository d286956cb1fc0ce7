# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of many ranks, by threads of this process: parts of tensors, and what each failure shows on all ranks."""

import contextlib
import itertools
import random
import threading
import time

import penstock
import pytest

torch = pytest.importorskip("torch")


def on_ranks(count, function, ranks=None):
    """function(rank, Ranks) on a thread for each rank: its results, or what it raised."""
    out = [None] * count

    def run(number, own):
        try:
            out[number] = function(number, own)
        except BaseException as error:
            out[number] = error

    threads = [threading.Thread(target=run, args=row) for row in enumerate(ranks or penstock.Ranks.of_threads(count))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return out


def save_all(folder, states, step=1, rank_wait_s=20, **more):
    """states[r] is saved by rank r: what each save gave, or raised."""

    def run(number, own):
        with penstock.CheckpointStore(folder, ranks=own, rank_wait_s=rank_wait_s) as store:
            return store.save(states[number], step=step, **more)

    return on_ranks(len(states), run)


def good(results):
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def bounds(dice, extent, pieces):
    """Random ranges that follow one another, some of them empty."""
    ends = sorted(dice.randint(0, extent) for _ in range(pieces - 1))
    return list(zip([0, *ends], [*ends, extent], strict=True))


def grid(dice, whole, count):
    """A Slice of a tensor for each of `count` ranks: a grid over two of its dimensions."""
    pieces = [1] * whole.dim()
    across = dice.choice([n for n in range(1, count + 1) if count % n == 0])
    pieces[0], pieces[-1] = (across, count // across) if whole.dim() > 1 else (count, count)
    axes = [bounds(dice, extent, n) for extent, n in zip(whole.shape, pieces, strict=True)]
    out = []
    for place in itertools.product(*axes):
        box = tuple(slice(*ends) for ends in place)
        out.append(penstock.Slice(whole[box].clone(), whole.shape, [begin for begin, _ in place]))
    return out


def flat_ranges(dice, whole, count):
    flat = whole.reshape(-1)
    return [
        penstock.FlatSlice(flat[begin:end].clone(), whole.shape, begin) for begin, end in bounds(dice, len(flat), count)
    ]


@pytest.mark.parametrize("seed", range(16))
def test_parts_of_any_layout_are_one_tensor_and_fill_those_of_any_other(tmp_path, seed):
    dice = random.Random(seed)
    count, others = dice.randint(2, 4), dice.randint(1, 4)
    types = [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
    wholes = [
        torch.randint(0, 100, [dice.randint(1, 9) for _ in range(dice.randint(1, 3))]).to(dice.choice(types))
        for _ in range(6)
    ]
    cut = [dice.choice([grid, flat_ranges]) for _ in wholes]
    parts = [make(dice, whole, count) for make, whole in zip(cut, wholes, strict=True)]
    same = torch.randn(5)
    states = [{"parts": [part[rank] for part in parts], "same": same.clone()} for rank in range(count)]
    infos = good(save_all(tmp_path / "s", states))
    assert {info.tensor_bytes for info in infos} == {sum(whole.nbytes for whole in wholes) + same.nbytes}
    loaded = penstock.CheckpointStore(tmp_path / "s").load()
    assert all(map(torch.equal, loaded["parts"], wholes)) and torch.equal(loaded["same"], same)
    targets = [dice.choice([grid, flat_ranges])(dice, torch.zeros_like(whole), others) for whole in wholes]
    for rank in range(others):
        own = [target[rank] for target in targets]
        penstock.CheckpointStore(tmp_path / "s").load(into={"parts": own, "same": torch.zeros(5)})
        for part, whole in zip(own, wholes, strict=True):
            if isinstance(part, penstock.FlatSlice):
                wanted = whole.reshape(-1)[part.begin : part.begin + part.tensor.numel()]
            else:
                box = [slice(o, o + n) for o, n in zip(part.offset, part.tensor.shape, strict=True)]
                wanted = whole[tuple(box)]
            assert torch.equal(part.tensor, wanted)


def test_a_part_alone_is_refused_by_a_store_of_one_process(tmp_path):
    store = penstock.CheckpointStore(tmp_path / "s")
    half = penstock.Slice(torch.ones(2, 4), [4, 4], [0, 0])
    with pytest.raises(ValueError, match=r"'w' is a part of a tensor of \[4, 4\].*ranks=penstock.Ranks.torch"):
        store.save({"w": half}, step=1)
    store.save({"w": penstock.Slice(torch.ones(4, 4), [4, 4], [0, 0])}, step=1)
    assert torch.equal(store.load()["w"], torch.ones(4, 4))
    with pytest.raises(TypeError, match=r"state\['w'\]: a penstock.*Slice cannot be saved"):
        penstock.save({"w": half}, tmp_path / "x.pt")


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        ({"w": penstock.Slice(torch.ones(1, 4), [4, 4], [3, 0])}, r"have 12 of the 16 elements of tensor 'w'"),
        ({"w": penstock.Slice(torch.ones(3, 4), [4, 4], [1, 0])}, "tensor 'w': two slices of it overlap"),
        ({"w": penstock.Slice(torch.ones(2, 4).half(), [4, 4], [2, 0])}, "F16|float16|type"),
        (penstock.Slice(torch.ones(2, 4), [4, 4], [2, 0]), "state: a value of another type"),
        ({"w": penstock.Slice(torch.ones(2, 4), [4, 4], [2, 0]), "n": object()}, "state\\['n'\\]: a object|builtins"),
        (object(), "cannot be saved"),
    ],
)
def test_what_does_not_fit_fails_on_all_ranks_and_the_next_save_works(tmp_path, second, reason):
    first = {"w": penstock.Slice(torch.ones(2, 4), [4, 4], [0, 0])}

    def run(number, own):
        with penstock.CheckpointStore(tmp_path / "s", ranks=own, rank_wait_s=20) as store:
            began = time.monotonic()
            with pytest.raises(Exception, match=reason) as caught:
                store.save(second if number else first, step=1)
            assert time.monotonic() - began < 10
            part = penstock.Slice(torch.full((2, 4), float(number)), [4, 4], [2 * number, 0])
            store.save({"w": part}, step=2)
            return str(caught.value)

    messages = good(on_ranks(2, run))
    assert "rank 1 of 2" in messages[0] or "tensor 'w'" in messages[0]
    store = penstock.CheckpointStore(tmp_path / "s")
    assert [info.step for info in store] == [2]
    assert store.load()["w"].sum() == 8


def test_other_arguments_fail_on_all_ranks_too(tmp_path):
    def run(number, own):
        with penstock.CheckpointStore(tmp_path / "s", ranks=own, rank_wait_s=20) as store:
            with pytest.raises(Exception, match="metadata"):
                store.save({"n": 1}, step=1, metadata={"loss": object()} if number else None)
            with pytest.raises(Exception, match="step"):
                store.save_async({"n": 1}, step=-1 if number else 1).result()
            return store.save({"n": 1}, step=3).step

    assert good(on_ranks(2, run)) == [3, 3]


def test_a_rank_that_does_not_call_is_named(tmp_path):
    results = save_all(tmp_path / "s", [{"n": 1}, {"n": 1}], step=1)
    good(results)

    def run(number, own):
        with penstock.CheckpointStore(tmp_path / "s", ranks=own, rank_wait_s=1) as store:
            if number == 0:
                store.save({"n": 1}, step=2)

    assert "rank 1 of 2 has not called it within 1 s" in str(on_ranks(2, run)[0])
    assert [info.step for info in penstock.CheckpointStore(tmp_path / "s")] == [1]


def test_saves_in_the_background_are_those_of_all_ranks(tmp_path):
    whole = torch.arange(4096.0).view(64, 64)

    def run(number, own):
        with penstock.CheckpointStore(tmp_path / "s", ranks=own, rank_wait_s=20, keep=2) as store:
            rows = whole[number * 16 : number * 16 + 16].clone()
            pending = []
            for step in range(4):
                pending.append(store.save_async({"w": penstock.Slice(rows, [64, 64], [number * 16, 0])}, step=step))
                rows += 1
            return [one.result().step for one in pending]

    assert good(on_ranks(4, run)) == [[0, 1, 2, 3]] * 4
    assert torch.equal(penstock.CheckpointStore(tmp_path / "s").load()["w"], whole + 3)


def test_a_cancelled_save_ends_on_all_ranks(tmp_path):
    def run(number, own):
        with penstock.CheckpointStore(tmp_path / "s", ranks=own, rank_wait_s=30) as store:
            if number:
                time.sleep(1)
                return None
            pending = store.save_async({"n": 1}, step=1)
            time.sleep(0.3)
            pending.cancel()
            began = time.monotonic()
            with pytest.raises(penstock.Error, match="cancel"):
                pending.result()
            assert time.monotonic() - began < 20

    good(on_ranks(2, run))


class OwnMailbox:
    """A mailbox as somebody would write one."""

    def __init__(self):
        self.values, self.there = {}, threading.Condition()

    def put(self, key, value):
        with self.there:
            self.values[key] = value
            self.there.notify_all()

    def get(self, key, timeout):
        with self.there:
            self.there.wait_for(lambda: key in self.values, timeout)
            return self.values.get(key)

    def erase(self, key):
        with self.there:
            self.values.pop(key, None)


def test_any_object_with_three_methods_is_a_mailbox(tmp_path):
    box = OwnMailbox()
    ranks = [penstock.Ranks(number, 3, box, host=f"node-{number}") for number in range(3)]
    assert repr(ranks[1]) == "<penstock.Ranks: rank 1 of 3 on 'node-1'>"

    def run(number, own):
        with penstock.CheckpointStore(tmp_path / "s", ranks=own, rank_wait_s=20) as store:
            for step in range(3):
                store.save({"n": torch.ones(3)}, step=step)

    good(on_ranks(3, run, ranks))
    assert len(penstock.CheckpointStore(tmp_path / "s")) == 3 and box.values == {}


def test_a_mailbox_that_fails_is_gone(tmp_path):
    class Broken(OwnMailbox):
        def put(self, key, value):
            raise ConnectionError("the line is cut")

    store = penstock.CheckpointStore(tmp_path / "s", ranks=penstock.Ranks(1, 2, Broken()), rank_wait_s=1)
    with pytest.raises(penstock.Error, match="mailbox of the ranks is gone .*the line is cut"):
        store.save({"n": 1}, step=1)
    for wrong in (b"text", 3):
        box = OwnMailbox()
        box.get = lambda key, timeout, found=wrong: found
        store = penstock.CheckpointStore(tmp_path / "s", ranks=penstock.Ranks(1, 2, box), rank_wait_s=1)
        with pytest.raises((penstock.Error, ValueError)):
            store.save({"n": 1}, step=1)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: penstock.Ranks(2, 2, OwnMailbox()), ValueError, "number"),
        (lambda: penstock.Ranks(0, 2), ValueError, "mailbox"),
        (lambda: penstock.CheckpointStore("x", ranks=3), TypeError, "ranks: expected penstock.Ranks, got"),
        (lambda: penstock.Ranks.torch(), ValueError, "init_process_group"),
        (lambda: penstock.Slice([1], [1], [0]), TypeError, "tensor: expected a torch tensor, got"),
        (lambda: penstock.Slice(torch.ones(2), [2, 2], [0, 0]), ValueError, "1 dimensions, shape 2, and offset 2"),
        (lambda: penstock.Slice(torch.ones(2), [4], [3]), ValueError, "elements 3 to 5 of dimension 0, which has 4"),
        (lambda: penstock.FlatSlice(torch.ones(2, 2), [4], 0), ValueError, "give a flat one"),
        (lambda: penstock.FlatSlice(torch.ones(3), [2, 2], 2), ValueError, "elements 2 to 5, and the tensor has 4"),
    ],
)
def test_wrong_arguments_are_named(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_into_parts_is_checked_before_anything_is_read(tmp_path):
    store = penstock.CheckpointStore(tmp_path / "s")
    store.save({"w": torch.ones(4, 4), "v": torch.arange(16.0).view(4, 4).t()}, step=1)
    whole = torch.zeros(4, 4)
    for wrong, message in (
        (penstock.Slice(torch.zeros(2, 4), [4, 5], [0, 0]), r"is torch.float32 of \[4, 5\]"),
        (penstock.Slice(torch.zeros(2, 4).half(), [4, 4], [0, 0]), r"is torch.float16 of \[4, 4\]"),
    ):
        with pytest.raises(ValueError, match=message):
            store.load(into={"w": wrong, "v": whole})
        assert whole.sum() == 0
    # A tensor that was saved as strides: what it is stored as decides.
    target = {"w": penstock.Slice(torch.zeros(2, 4), [4, 4], [2, 0]), "v": whole}
    assert store.load(into=target)["w"] is target["w"]
    assert torch.equal(target["w"].tensor, torch.ones(2, 4))
    strided = torch.zeros(4, 8)[:, ::2][:2]
    store.load(into={"w": penstock.Slice(strided, [4, 4], [0, 0]), "v": whole})
    assert torch.equal(strided, torch.ones(2, 4))
    shared = torch.zeros(4, 4)
    with pytest.raises(ValueError, match="share memory"):
        store.load(into={"w": penstock.Slice(shared[:2], [4, 4], [0, 0]), "v": shared})


def test_two_parts_in_one_memory_are_two_tensors_unless_they_are_the_same_part(tmp_path):
    whole = torch.arange(16.0).view(4, 4)

    def state(rank):
        rows = whole[2 * rank : 2 * rank + 2].clone()
        tied = rows[:, :]
        return {
            "a": penstock.Slice(rows, [4, 4], [2 * rank, 0]),
            "swapped": penstock.Slice(rows, [4, 4], [2 - 2 * rank, 0]),
            "columns": penstock.Slice(rows, [2, 8], [0, 4 * rank]),
            "flat": penstock.FlatSlice(rows.view(-1), [16], 8 * rank),
            "tied": penstock.Slice(tied, [4, 4], [2 * rank, 0]),
        }

    good(save_all(tmp_path / "s", [state(0), state(1)]))
    loaded = penstock.CheckpointStore(tmp_path / "s").load()
    assert torch.equal(loaded["a"], whole) and torch.equal(loaded["flat"], whole.view(-1))
    assert torch.equal(loaded["swapped"], torch.cat([whole[2:], whole[:2]]))
    assert torch.equal(loaded["columns"], torch.cat([whole[:2].view(2, 4), whole[2:].view(2, 4)], 1))
    assert loaded["tied"].data_ptr() == loaded["a"].data_ptr()


def test_parts_may_lie_inside_of_the_memory_of_others(tmp_path):
    """Each tensor is watched in its own storage: the part in the middle has none of the views around it."""

    def run(number, own):
        memory = torch.arange(100.0)
        state = {
            "part": penstock.Slice(memory[40:60], [40], [20 * number]),
            "first": penstock.Slice(memory[:10], [20], [10 * number]),
            "whole": memory,
            "view": memory[50:90],
        }
        alone = {"part": penstock.Slice(memory[40:60], [40], [20 * number]), "view": memory[50:90]}
        with penstock.CheckpointStore(tmp_path / "s", ranks=own, rank_wait_s=20) as store:
            store.save(state, step=1)
            store.save_async(alone, step=2).result()

    good(on_ranks(2, run))
    store = penstock.CheckpointStore(tmp_path / "s")
    values = torch.arange(100.0)
    for step in (1, 2):
        loaded = store.load(step)
        assert torch.equal(loaded["part"], values[40:60].repeat(2)) and torch.equal(loaded["view"], values[50:90])
    assert torch.equal(store.load(1)["whole"], values) and torch.equal(store.load(1)["first"], values[:10].repeat(2))


def test_tied_parts_are_tied_where_they_are_empty_too(tmp_path):
    def state(rank):
        rows = torch.full((2 if rank == 0 else 0, 3), 1.0)
        strided = torch.full((2 if rank == 0 else 0, 6), 2.0)[:, ::2]
        at = [0 if rank == 0 else 2, 0]
        out = {}
        for name, one in (("a", rows), ("b", rows.detach()), ("c", strided), ("d", strided[:])):
            out[name] = penstock.Slice(one, [2, 3], at)
        return out

    good(save_all(tmp_path / "s", [state(0), state(1)]))
    store = penstock.CheckpointStore(tmp_path / "s")
    loaded = store.load()
    assert loaded["a"].sum() == 6 and loaded["c"].sum() == 12
    assert loaded["a"].data_ptr() == loaded["b"].data_ptr() and loaded["c"].data_ptr() == loaded["d"].data_ptr()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_flat_buffer_has_nothing_of_some_tensors(tmp_path, asynchronous):
    """As ZeRO cuts a model: the ranges of the others are empty, all at one place of the buffer."""
    wholes = [torch.arange(6.0).view(2, 3) + 10 * i for i in range(4)]

    def run(number, own):
        buffer = torch.cat([whole.view(-1) for whole in wholes])[12 * number : 12 * number + 12].clone()
        state = {}
        for i, whole in enumerate(wholes):
            at = 6 * i - 12 * number
            held = buffer[at : at + 6] if 0 <= at < 12 else buffer[12:12]
            state[f"p{i}"] = penstock.FlatSlice(held, whole.shape, 0)
        with penstock.CheckpointStore(tmp_path / "s", ranks=own, rank_wait_s=20) as store:
            return store.save_async(state, step=1).result() if asynchronous else store.save(state, step=1)

    good(on_ranks(2, run))
    loaded = penstock.CheckpointStore(tmp_path / "s").load()
    assert all(torch.equal(loaded[f"p{i}"], whole) for i, whole in enumerate(wholes))


@pytest.mark.parametrize("part", [(torch.ones(0), 0), (torch.ones(1, 0, 2), [2, 0, 0])])
def test_a_part_of_a_tensor_without_elements_has_its_shape(tmp_path, part):
    store = penstock.CheckpointStore(tmp_path / "s")
    kind = penstock.FlatSlice if part[1] == 0 else penstock.Slice
    store.save({"w": kind(part[0], [3, 0, 2], part[1])}, step=1)
    assert store.load()["w"].shape == (3, 0, 2)
    for file in (tmp_path / "s").glob("0*/*.safetensors"):
        assert '"w":{"dtype":"F32","shape":[3,0,2]' in file.read_bytes().decode("latin1")


@pytest.mark.parametrize("shape", [[4], [2, 2]])
def test_parts_of_a_type_that_safetensors_has_not_are_refused_by_their_name(tmp_path, shape):
    def run(number, own):
        part = penstock.FlatSlice(torch.ones(2, dtype=torch.complex128), shape, 2 * number)
        with penstock.CheckpointStore(tmp_path / "s", ranks=own, rank_wait_s=20) as store:
            store.save({"w": part}, step=1)

    for error in on_ranks(2, run):
        assert "'w' is of a type that safetensors has not, so it cannot be saved in parts" in str(error)


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("bad", [0, 1])
def test_one_failure_in_the_background_is_one_and_the_next_save_is_made(tmp_path, bad, sync):
    """Ranks hear of it at different times. A rank that did not save for it would be the failure of the next one."""
    heard = threading.Barrier(3)

    def run(number, own):
        said = []
        with penstock.CheckpointStore(tmp_path / "s", ranks=own, rank_wait_s=20) as store:
            for step in range(6):
                state = {"w": penstock.Slice(torch.full((2,), float(step)), [6], [2 * number]), "n": 1}
                if step == 0 and number == bad:
                    state["n"] = object()
                try:
                    (store.save if sync and step == 1 else store.save_async)(state, step=step)
                except (OSError, TypeError, ValueError) as error:
                    said.append((step, str(error)))
                store.wait(raise_errors=False)
                heard.wait(20)
        return said

    with pytest.warns(RuntimeWarning, match="the save of step 0 failed") if sync else contextlib.nullcontext():
        results = good(on_ranks(3, run))
    assert [info.step for info in penstock.CheckpointStore(tmp_path / "s")] == [1, 2, 3, 4, 5]
    for number, said in enumerate(results):
        if number == bad:
            assert [step for step, _ in said] == [0]
        elif sync:
            assert said == []
        else:
            assert [step for step, _ in said] == [1]
            assert "the earlier save of step 0 failed, and step 1 was begun all the same: rank" in said[0][1]


class HastyMailbox:
    """Its get() does not wait."""

    def __init__(self, values):
        self.values = values

    def put(self, key, value):
        self.values[key] = value

    def get(self, key, timeout):
        return self.values.get(key)

    def erase(self, key):
        self.values.pop(key, None)


def test_a_mailbox_that_does_not_wait_accuses_nobody(tmp_path):
    values = {}

    def run(number, own):
        time.sleep(0.5 * number)
        with penstock.CheckpointStore(tmp_path / "s", ranks=own, rank_wait_s=2) as store:
            return store.save({"n": 1}, step=1)

    good(on_ranks(2, run, [penstock.Ranks(number, 2, HastyMailbox(values)) for number in range(2)]))


def test_memory_that_is_not_read_as_it_is_gets_no_part(tmp_path):
    store = penstock.CheckpointStore(tmp_path / "s")
    values = torch.tensor([1 + 1j, 2 + 2j])
    store.save({"w": values}, step=1)
    for view in (torch.zeros(2, dtype=torch.complex64).conj(), torch._neg_view(torch.zeros_like(values))):
        with pytest.raises(ValueError, match=r"into\['w'\] is a conjugated or negated view"):
            store.load(into={"w": penstock.Slice(view, [2], [0])})

    def run(number, own):
        with penstock.CheckpointStore(tmp_path / "r", ranks=own, rank_wait_s=20) as many:
            many.save({"w": penstock.Slice(values[number : number + 1].conj(), [2], [number])}, step=1)

    good(on_ranks(2, run))
    assert torch.equal(penstock.CheckpointStore(tmp_path / "r").load()["w"], values.conj())


def test_a_strided_range_is_filled(tmp_path):
    store = penstock.CheckpointStore(tmp_path / "s")
    whole = torch.arange(24.0).view(4, 6)
    store.save({"w": whole}, step=1)
    for begin, count in ((0, 24), (6, 12), (3, 2), (2, 17)):
        memory = torch.zeros(2 * count)
        store.load(into={"w": penstock.FlatSlice(memory[::2], [4, 6], begin)})
        assert torch.equal(memory[::2], whole.view(-1)[begin : begin + count]) and memory[1::2].sum() == 0


def test_what_a_call_refuses_counts_as_the_call_of_its_rank(tmp_path):
    def run(number, own):
        with penstock.CheckpointStore(tmp_path / "s", ranks=own, rank_wait_s=20) as store:
            began = time.monotonic()
            for wrong in (
                lambda: store.save({"n": 1}, stpe=1),
                lambda: store.save(),
                lambda: store.save({"n": {1: print}}),
            ):
                with pytest.raises(Exception, match="rank 1 of 2 .*TypeError" if number == 0 else ""):
                    wrong() if number else store.save({"n": 1}, step=1)
            assert time.monotonic() - began < 10
            return store.save({"n": 1}, step=2).step

    assert good(on_ranks(2, run)) == [2, 2]


def test_a_store_that_is_closed_on_one_rank_ends_the_save_of_the_others(tmp_path):
    def run(number, own):
        store = penstock.CheckpointStore(tmp_path / "s", ranks=own, rank_wait_s=30)
        store.save({"n": 1}, step=1)
        if number:
            store.close()
        began = time.monotonic()
        with pytest.raises(Exception, match="it is closed"):
            store.save({"n": 1}, step=2)
        assert time.monotonic() - began < 10

    good(on_ranks(2, run))


@pytest.mark.parametrize("seconds", [float("inf"), 1e30, 5_000_000, 0.5])
def test_any_limit_on_standing_still(tmp_path, seconds):
    good(save_all(tmp_path / "s", [{"n": 1}, {"n": 1}], rank_wait_s=seconds))
    for wrong in (-1, float("nan"), "soon"):
        with pytest.raises((ValueError, TypeError), match="rank_wait_s"):
            penstock.CheckpointStore(tmp_path / "s", rank_wait_s=wrong)


def test_a_part_stays_what_was_checked():
    part = penstock.Slice(torch.ones(2), [4], [2])
    with pytest.raises(AttributeError, match="offset cannot be changed"):
        part.offset = [3]
