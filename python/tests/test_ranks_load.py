# SPDX-License-Identifier: Apache-2.0
"""Loads by several ranks: all load one checkpoint, which each of them can use, or none does. By threads of this
process, and by processes with DTensors."""

import os
import random
import time
import warnings

import penstock
import pytest

torch = pytest.importorskip("torch")
for module in ("device_mesh", "tensor"):
    pytest.importorskip(f"torch.distributed.{module}")
from rank_processes import Failed, RankProcesses, run_ranks  # noqa: E402
from test_ranks import on_ranks  # noqa: E402


def good(results):
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


@pytest.fixture
def saved(tmp_path):
    """Checkpoints of the steps 1, 2 and 3: a matrix of 12 rows that all are the step, and values."""
    folder = tmp_path / "s"
    with penstock.CheckpointStore(folder) as store:
        for step in (1, 2, 3):
            store.save(
                {"w": torch.full((12, 100_000), float(step)), "step": step, "bias": torch.ones(5) * step}, step=step
            )
    return folder


def rows_of(number, count):
    return penstock.Slice(torch.zeros(12 // count, 100_000), [12, 100_000], [number * (12 // count), 0])


def damage(folder, step):
    """One byte in the last row of the matrix."""
    (shard,) = (folder / f"0000000{step}-step-{step}").glob("*.safetensors")
    data = bytearray(shard.read_bytes())
    at = data.rindex(torch.full((100,), float(step)).numpy().tobytes())
    data[at] ^= 1
    shard.write_bytes(data)


def open_store(folder, own, **more):
    return penstock.CheckpointStore(folder, ranks=own, rank_wait_s=20, **more)


def test_each_rank_loads_what_it_asks_for_of_the_same_checkpoint(saved):
    def run(number, own):
        with open_store(saved, own) as store:
            newest = store.load(into={"w": rows_of(number, 4), "step": 0, "bias": torch.zeros(5)})
            assert newest["step"] == 3 and (newest["w"].tensor == 3).all()
            asked = store.load(2, names="w" if number else None)
            assert ((asked if number else asked["w"]) == 2).all()
            first = store.load(generation=1, names=["bias"] if number == 2 else {"w": slice(0, 2)})
            assert (first["bias"] == 1).all() if number == 2 else first["w"].shape == (2, 100_000)
            assert (store.open(2)["w"][...] == 2).all(), "alone"
            return True

    assert good(on_ranks(4, run)) == [True] * 4


@pytest.mark.parametrize("count", [1, 2, 3])
def test_damage_that_only_one_rank_reads_makes_all_take_the_one_before(saved, count):
    damage(saved, 3)

    def run(number, own):
        with open_store(saved, own) as store:
            part = rows_of(number, count)
            loaded = store.load(into={"w": part, "step": 0, "bias": torch.zeros(5)})
            again = store.load(names="bias")  # nobody reads the damaged row
            return loaded["step"], float(part.tensor.min()), float(part.tensor.max()), float(again[0])

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert good(on_ranks(count, run)) == [(2, 2.0, 2.0, 3)] * count
    texts = [str(one.message) for one in warned]
    assert sum("00000003-step-3' was passed over" in text for text in texts) == count
    if count > 1:
        assert any(f"rank {count - 1} of {count}" in text and "w" in text for text in texts), texts


def test_damage_in_the_one_that_is_asked_for_is_raised_on_all(saved):
    damage(saved, 3)

    def run(number, own):
        with open_store(saved, own) as store:
            with pytest.raises(penstock.Damaged, match=r"rank 1 of 2 .*w"):
                store.load(generation=3, into={"w": rows_of(number, 2), "bias": torch.zeros(5)})
            with warnings.catch_warnings(), pytest.raises(FileNotFoundError, match=r"step 3.*00000003-step-3.*rank 1"):
                warnings.simplefilter("ignore")
                store.load(3, into={"w": rows_of(number, 2)})
            return store.load(2)["step"]

    assert good(on_ranks(2, run)) == [2, 2]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"into": {"w": torch.zeros(3, 3)}}, r"\[3, 3\]|3, 3"),
        ({"into": {"w": torch.zeros(12, 100_000).half()}}, "16"),
        ({"into": {"other": torch.zeros(5)}}, "other"),
        ({"into": {"w": penstock.Slice(torch.zeros(6, 100_000), [13, 100_000], [0, 0])}}, "13"),
        ({"into": 5}, "into"),
        ({"names": ["nobody"]}, "nobody"),
        ({"dtype": "int99"}, "dtype"),
        ({"generation": -1}, "generation"),
        ({"generation": 1, "step": 1}, "generation or step"),
        ({"pickle": "yes"}, "pickle"),
        ({"speed": 3}, "speed"),
    ],
)
def test_what_does_not_fit_on_one_rank_fills_none_and_the_next_load_works(saved, wrong, reason):
    for victim in (0, 1):

        def run(number, own, victim=victim):
            with open_store(saved, own) as store:
                own_part, bias = rows_of(number, 2), torch.zeros(5)
                began = time.monotonic()
                with pytest.raises(Exception, match=reason) as caught:
                    store.load(**(wrong if number == victim else {"into": {"w": own_part, "bias": bias}}))
                assert time.monotonic() - began < 15
                assert (own_part.tensor == 0).all(), "it was filled"
                store.load(into={"w": own_part, "bias": bias})
                assert (own_part.tensor == 3).all()
                return type(caught.value), str(caught.value)

        errors = good(on_ranks(2, run))
        assert errors[victim][0] is not penstock.Error, errors
        assert victim == 0 or f"rank {victim} of 2" in errors[1 - victim][1], errors


def test_no_checkpoint_is_said_on_all(tmp_path):
    def run(number, own):
        with open_store(tmp_path / "s", own) as store:
            with pytest.raises(FileNotFoundError, match="there is no checkpoint in"):
                store.load()
            with pytest.raises(ValueError, match="no checkpoint of generation 3"):
                store.load(generation=3)
            store.save({"n": 1}, step=1)
            with pytest.raises(FileNotFoundError, match="no checkpoint of step 2.*there are 1"):
                store.load(2)
            return store.load()

    assert good(on_ranks(3, run)) == [{"n": 1}] * 3


def test_a_load_sees_the_save_in_the_background_before_it(tmp_path):
    def run(number, own):
        with open_store(tmp_path / "s", own, keep=2) as store:
            seen = []
            for step in range(6):
                pending = store.save_async({"w": torch.full((1000,), float(step)), "step": step}, step=step)
                seen.append(store.load()["step"])
                assert pending.done()
            return seen

    assert good(on_ranks(3, run)) == [list(range(6))] * 3


@pytest.mark.parametrize("seed", range(6))
def test_any_order_of_saves_and_loads_of_which_some_fail(tmp_path, seed):
    """What all ranks do is drawn with one seed, and which of them is given something wrong, too."""

    def run(number, own):
        dice, out = random.Random(seed), []
        with open_store(tmp_path / "s", own, keep=3) as store:
            for step in range(25):
                what, victim = dice.choice(["save", "save_async", "load", "step"]), dice.choice([None, None, 0, 1, 2])
                wrong = victim == number
                try:
                    if what == "save":
                        store.save({"n": step, "bad": object()} if wrong else {"n": step}, step=step)
                    elif what == "save_async":
                        store.save_async({"n": step}, step=-1 if wrong else step).result()
                    elif what == "load":
                        out.append(store.load(names=["x"] if wrong else None)["n"])
                    else:
                        out.append(store.load("no" if wrong else 0)["n"])
                except Exception as error:
                    out.append(victim is None and f"{type(error).__name__}")
        return out

    results = good(on_ranks(3, run))
    assert results[0] == results[1] == results[2]


# ---- processes


def load_dtensors(rank, folder):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (3,))
    target = distribute_tensor(torch.zeros(12, 100_000), mesh, [Shard(0)])
    with penstock.CheckpointStore(folder, ranks=penstock.Ranks.torch(), rank_wait_s=30) as store:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loaded = store.load(into={"w": target, "step": 0, "bias": torch.zeros(5)})
    return loaded["step"], float(target.to_local().min()), float(target.to_local().max())


def test_processes_with_dtensors_of_which_one_meets_damage(saved, tmp_path):
    assert run_ranks(3, tmp_path / "a", load_dtensors, str(saved)) == [(3, 3.0, 3.0)] * 3
    damage(saved, 3)
    assert run_ranks(3, tmp_path / "b", load_dtensors, str(saved)) == [(2, 2.0, 2.0)] * 3


def load_and_die(rank, folder, victim):
    store = penstock.CheckpointStore(folder, ranks=penstock.Ranks.torch(), rank_wait_s=2)
    part = rows_of(rank, 3)

    def progress(done, total):
        if rank == victim:
            os._exit(9)

    began = time.monotonic()
    try:
        store.load(into={"w": part}, progress=progress)
    except OSError as error:
        return str(error), time.monotonic() - began
    return "loaded", 0.0


@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_that_dies_in_a_load_ends_it_on_all(saved, tmp_path, victim):
    with RankProcesses(3, tmp_path / "r", load_and_die, str(saved), victim) as ranks:
        results = ranks.results()
    for rank, result in enumerate(results):
        if rank != victim:
            assert not isinstance(result, Failed), result
            text, seconds = result
            assert text != "loaded" and seconds < 30
            assert victim == 0 or "rank 2 of 3" in text
