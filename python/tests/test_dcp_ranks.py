# SPDX-License-Identifier: Apache-2.0
"""penstock.dcp on ranks that are processes, joined by gloo: one checkpoint at a path, in any layout, and no collective
operation after the start."""

import os
import warnings

import penstock
import pytest

torch = pytest.importorskip("torch")
# Before the ranks are forked: each import takes them seconds.
for module in ("checkpoint", "device_mesh", "fsdp", "tensor"):
    pytest.importorskip(f"torch.distributed.{module}")
hf_storage = pytest.importorskip("torch.distributed.checkpoint.hf_storage")
import torch.distributed.checkpoint as dcp  # noqa: E402
from penstock import dcp as ours  # noqa: E402
from rank_processes import run_ranks  # noqa: E402
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner  # noqa: E402


def whole(tensor):
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


def sharded(seed, count):
    """A model of which fully_shard() cuts every parameter, and its optimizer."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(7, 13), torch.nn.LayerNorm(13))
    optimizer_of = torch.optim.AdamW
    fully_shard(model)
    optimizer = optimizer_of(model.parameters(), lr=0.1)
    model(torch.ones(3, 7)).square().sum().backward()
    optimizer.step()
    return model, optimizer


def state_of(seed, count):
    model, optimizer = sharded(seed, count)
    return {"model": model, "opt": optimizer.state_dict(), "epoch": seed, "step": torch.tensor(seed)}


def values(state):
    model = state["model"].state_dict() if hasattr(state["model"], "state_dict") else state["model"]
    out = {name: whole(one) for name, one in model.items()}
    for number, row in state["opt"]["state"].items():
        out |= {f"{number}.{name}": whole(one) for name, one in row.items()}
    return {**out, "epoch": state["epoch"], "step": state["step"].clone()}


def same(a, b):
    return a.keys() == b.keys() and all(
        torch.equal(a[key], b[key]) if isinstance(a[key], torch.Tensor) else a[key] == b[key] for key in a
    )


def no_collectives():
    import torch.distributed as dist

    def forbidden(*_, **__):
        raise AssertionError("a collective operation")

    names = ("all_reduce", "all_gather", "all_gather_object", "gather_object", "scatter_object_list", "barrier")
    for name in (*names, "broadcast", "broadcast_object_list", "all_gather_into_tensor"):
        for module in (dist, dist.distributed_c10d):
            setattr(module, name, forbidden)


def save_ours(rank, folder, count):
    for seed in (1, 2):  # the second over the first
        state = state_of(seed, count)
        ours.save(state, checkpoint_id=f"{folder}/c")
    ours.async_save(state, checkpoint_id=f"{folder}/async").result(60)
    for _ in range(3):  # the plans of the second and the third are cached
        planner = DefaultSavePlanner(enable_plan_caching=True)
        dcp.save(state, storage_writer=ours.StorageWriter(f"{folder}/planned"), planner=planner)
    dcp.save(state, checkpoint_id=f"{folder}/stock")
    found = values(state)
    plain = {"a": torch.arange(5.0), "n": 7}
    no_collectives()
    for _ in range(2):
        ours.save(plain, checkpoint_id=f"{folder}/plain")
    ours.async_save(plain, checkpoint_id=f"{folder}/plain").result(60)
    ours.load(plain, checkpoint_id=f"{folder}/plain")
    return found


def load_all(rank, folder, count):
    out = []
    for name in ("c", "async", "planned", "stock"):
        state = state_of(3, count)
        ours.load(state, checkpoint_id=f"{folder}/{name}")
        out.append(values(state))
    state = state_of(4, count)  # torch's own planner, and torch without us
    dcp.load(state, storage_reader=ours.StorageReader(f"{folder}/c"), planner=DefaultLoadPlanner())
    out.append(values(state))
    model = {"model": sharded(5, count)[0].state_dict()}
    dcp.load(model, storage_reader=hf_storage.HuggingFaceStorageReader(f"{folder}/c"))
    return out, {name: whole(one) for name, one in model["model"].items()}


def test_fsdp2_is_saved_over_an_older_one_and_loaded_by_others(tmp_path):
    count, others = 2, 3
    (tmp_path / "s").mkdir()
    saved = run_ranks(count, tmp_path / "a", save_ours, str(tmp_path / "s"), count)
    assert all(same(one, saved[0]) for one in saved)
    assert sorted(os.listdir(tmp_path / "s")) == ["async", "c", "plain", "planned", "stock"]
    for found, model in run_ranks(others, tmp_path / "b", load_all, str(tmp_path / "s"), others):
        for one in found:
            assert same(one, saved[0])
        assert all(torch.equal(model[name], saved[0][name]) for name in model)
    assert not penstock.Checkpoint(tmp_path / "s" / "c").verify()


def save_keys_of_its_own(rank, folder):
    key = f"dp_rank_{rank}"
    ours.save({"w": torch.arange(4.0), key: {"it": rank, "rng": torch.full((3,), rank)}}, checkpoint_id=folder)
    own = {"w": torch.zeros(4), key: {"it": -1, "rng": torch.zeros(3, dtype=torch.int64)}}
    ours.load(own, checkpoint_id=folder)
    stock = {"w": torch.zeros(4), key: {"rng": torch.zeros(3, dtype=torch.int64)}}
    dcp.load(stock, storage_reader=hf_storage.HuggingFaceStorageReader(folder))
    return own, stock


def test_keys_that_only_some_ranks_have(tmp_path):
    for rank, (own, stock) in enumerate(run_ranks(2, tmp_path / "r", save_keys_of_its_own, str(tmp_path / "c"))):
        assert own[f"dp_rank_{rank}"]["it"] == rank
        for state in (own, stock):
            assert state["w"].tolist() == [0, 1, 2, 3] and state[f"dp_rank_{rank}"]["rng"].tolist() == [rank] * 3


def save_different_values(rank, folder):
    said = []
    for name, value in (("value", f"{rank}"), ("tensor", torch.tensor(rank)), ("none", torch.ones(3))):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            ours.save({"a": torch.ones(3), "of": value}, checkpoint_id=f"{folder}/{name}")
        said.append(" ".join(str(one.message) for one in seen))
    return said


def test_replicas_that_differ_are_those_of_rank_0_and_a_warning(tmp_path):
    said = run_ranks(2, tmp_path / "r", save_different_values, str(tmp_path))
    for value, tensor, none in said:
        assert "['of']: another value on rank 1 of 2" in value and "that of the first was saved" in value
        assert "tensor 'of' is not the same on rank 0 of 2" in tensor and "that of the first was saved" in tensor
        assert "rank 0" not in none
    for name, expected in (("value", "0"), ("tensor", torch.tensor(0))):
        state = {"of": "" if name == "value" else torch.tensor(9)}
        ours.load(state, checkpoint_id=tmp_path / name)
        assert state["of"] == expected


class Failing:
    def state_dict(self):
        raise RuntimeError("no state today")

    def load_state_dict(self, state):
        pass


def fail_on_one(rank, folder):
    said = []
    for state in ({"a": Failing() if rank == 1 else torch.ones(1)}, {"a": object() if rank == 1 else 1}, {"a": 1}):
        try:
            ours.save(state, checkpoint_id=f"{folder}/c")
            said.append("saved")
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


def test_what_fails_on_one_rank_fails_on_all_and_the_next_save_is_one_again(tmp_path):
    zero, one = run_ranks(2, tmp_path / "r", fail_on_one, str(tmp_path))
    assert "no state today" in one[0] and "no state today" in zero[0] and "rank 1" in zero[0]
    assert "TypeError" in one[1] and "state['a']" in one[1] and "state['a']" in zero[1]
    assert zero[2] == one[2] == "saved"


def save_alone(rank, folder):
    ours.save({"a": torch.full((3,), float(rank))}, checkpoint_id=f"{folder}/{rank}", no_dist=True)
    import torch.distributed as dist

    group = dist.new_group([1, 2])
    if rank:
        rows = penstock.Slice(torch.full((2,), float(rank)), (4,), (2 * (rank - 1),))
        ours.save({"a": rows}, checkpoint_id=f"{folder}/group", process_group=group)


def test_no_dist_and_a_process_group(tmp_path):
    run_ranks(3, tmp_path / "r", save_alone, str(tmp_path))
    for rank in range(3):
        assert penstock.Checkpoint(tmp_path / f"{rank}")["a"][...].tolist() == [rank] * 3
    assert penstock.Checkpoint(tmp_path / "group")["a"][...].tolist() == [1, 1, 2, 2]
