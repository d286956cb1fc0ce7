# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of ranks that are processes, joined by torch.distributed: FSDP2, DTensors of any layout, and what happens
when a rank is killed, stopped or interrupted."""

import contextlib
import itertools
import os
import random
import signal
import time
from datetime import timedelta

import penstock
import pytest

torch = pytest.importorskip("torch")
# Before the ranks are forked: each import takes them seconds.
for module in ("device_mesh", "fsdp", "tensor", "tensor.parallel"):
    pytest.importorskip(f"torch.distributed.{module}")
from rank_processes import Failed, RankProcesses, run_ranks  # noqa: E402


def whole(tensor):
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


def of_everything(function, state):
    """The state with function(tensor) in the place of each tensor."""
    if isinstance(state, dict):
        return {key: of_everything(function, value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return [of_everything(function, value) for value in state]
    return function(state) if isinstance(state, torch.Tensor) else state


def same(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


# ---- FSDP2


def fsdp(seed):
    """A model of which fully_shard() cuts every parameter, unevenly, and its optimizer after one step."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(7, 13), torch.nn.LayerNorm(13), torch.nn.Linear(13, 5))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(3, 7)).square().sum().backward()
    optimizer.step()
    return model, optimizer


def save_fsdp(rank, folder):
    model, optimizer = fsdp(seed=1)
    state = {"model": model.state_dict(), "opt": optimizer.state_dict(), "epoch": 3}
    with penstock.CheckpointStore(folder, ranks=penstock.Ranks.torch(), rank_wait_s=30) as store:
        pending = store.save_async(state, step=7)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()  # the save has its own copy
        assert pending.result().step == 7
    model, optimizer = fsdp(seed=1)
    return of_everything(whole, {"model": model.state_dict(), "opt": optimizer.state_dict(), "epoch": 3})


def load_fsdp(rank, folder):
    model, optimizer = fsdp(seed=2)
    state = {"model": model.state_dict(), "opt": optimizer.state_dict(), "epoch": 0}
    loaded = penstock.CheckpointStore(folder).load(into=state)
    assert loaded["model"]["0.weight"] is state["model"]["0.weight"]
    model.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["opt"])
    return of_everything(whole, {"model": model.state_dict(), "opt": optimizer.state_dict(), "epoch": loaded["epoch"]})


def test_fsdp2_on_four_ranks_goes_on_with_three_and_with_two(tmp_path):
    saved = run_ranks(4, tmp_path / "four", save_fsdp, str(tmp_path / "s"))
    assert all(same(state, saved[0]) for state in saved)
    assert same(of_everything(whole, penstock.CheckpointStore(tmp_path / "s").load()), saved[0])
    for count in (3, 2):
        for state in run_ranks(count, tmp_path / f"{count}", load_fsdp, str(tmp_path / "s")):
            assert same(state, saved[0])


# ---- DTensors of any layout


def meshes(count):
    from torch.distributed.device_mesh import init_device_mesh

    shapes = {2: [(2,), (1, 2)], 3: [(3,)], 4: [(4,), (2, 2)]}[count]
    return [init_device_mesh("cpu", shape) for shape in shapes]


def dtensors(count, seed, fill):
    """Whole tensors, and DTensors of them with random placements."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    dice = random.Random(seed)
    torch.manual_seed(seed)
    wholes, tensors = [], []
    for mesh in meshes(count):
        for _ in range(6):
            shape = [dice.choice([1, 2, 3, 5, 8]) for _ in range(dice.randint(0, 3))]
            choices = [Replicate(), *(Shard(d) for d in range(len(shape)))]
            wholes.append(torch.randn(shape))
            placements = [dice.choice(choices) for _ in range(mesh.ndim)]
            tensors.append(distribute_tensor(wholes[-1] if fill else torch.zeros(shape), mesh, placements))
    return wholes, tensors


def save_dtensors(rank, folder, count, seed):
    wholes, tensors = dtensors(count, seed, True)
    with penstock.CheckpointStore(folder, ranks=penstock.Ranks.torch(), rank_wait_s=30) as store:
        first = store.save({"t": tensors, "again": tensors[0]}, step=1)
        again = store.save({"t": tensors, "again": tensors[0]}, step=2)
        assert again.linked_shards == again.shards, "each part is written by the same rank again"
        assert first.tensor_bytes == sum(one.nbytes for one in wholes)
    return wholes


def load_dtensors(rank, folder, count, seed, wholes):
    _, tensors = dtensors(count, seed, False)
    # The same number of tensors, of the saved shapes, cut by this layout.
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    dice = random.Random(seed)
    targets = []
    for i, one in enumerate(wholes):
        mesh = tensors[i % len(tensors)].device_mesh
        choices = [Replicate(), *(Shard(d) for d in range(one.dim()))]
        targets.append(distribute_tensor(torch.zeros_like(one), mesh, [dice.choice(choices) for _ in range(mesh.ndim)]))
    state = {"t": targets, "again": targets[0]}
    loaded = penstock.CheckpointStore(folder).load(into=state)
    assert all(a is b for a, b in zip(loaded["t"], targets, strict=True))
    return [whole(one) for one in targets]


@pytest.mark.parametrize(("count", "others", "seed"), [(2, 4, 1), (4, 3, 2), (3, 2, 3), (4, 4, 4)])
def test_dtensors_of_any_layout_are_saved_and_loaded(tmp_path, count, others, seed):
    wholes = run_ranks(count, tmp_path / "a", save_dtensors, str(tmp_path / "s"), count, seed)[0]
    loaded = penstock.CheckpointStore(tmp_path / "s").load()
    assert all(map(torch.equal, loaded["t"], wholes)) and torch.equal(loaded["again"], wholes[0])
    for found in run_ranks(others, tmp_path / "b", load_dtensors, str(tmp_path / "s"), others, seed + 10, wholes):
        assert all(map(torch.equal, found, wholes))


def save_tensor_parallel(rank, folder):
    """FSDP2 over tensor parallel: strided shards."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 8))
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    with penstock.CheckpointStore(folder, ranks=penstock.Ranks.torch(), rank_wait_s=30) as store:
        store.save(model.state_dict(), step=1)
    wholes = of_everything(whole, dict(model.state_dict()))
    for one in model.parameters():
        torch.nn.init.zeros_(one)
    penstock.CheckpointStore(folder).load(into=model.state_dict())
    return wholes, of_everything(whole, dict(model.state_dict()))


def test_fsdp2_over_tensor_parallel(tmp_path):
    for saved, loaded in run_ranks(4, tmp_path / "r", save_tensor_parallel, str(tmp_path / "s")):
        assert same(saved, loaded)
    assert same(dict(penstock.CheckpointStore(tmp_path / "s").load()), saved)


def save_beside(rank, folder, kind):
    """A mesh of two dimensions of which the DTensors have one: the other one has replicas."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 8))
    if kind == "tp":
        parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    else:
        fully_shard(model, mesh=mesh["dp"])
    with penstock.CheckpointStore(folder, ranks=penstock.Ranks.torch(), rank_wait_s=30) as store:
        store.save(model.state_dict(), step=1)
        assert store.save(model.state_dict(), step=2).linked_shards > 1
    return of_everything(whole, dict(model.state_dict()))


@pytest.mark.parametrize("kind", ["tp", "fsdp"])
def test_replicas_beside_the_mesh_of_a_tensor_are_written_once(tmp_path, kind):
    saved = run_ranks(4, tmp_path / "r", save_beside, str(tmp_path / "s"), kind)
    store = penstock.CheckpointStore(tmp_path / "s")
    for info in store:
        assert all(same(dict(store.load(generation=info.generation)), one) for one in saved)
        assert info.tensor_bytes == sum(one.nbytes for one in saved[0].values())


def save_other_keys(rank, folder):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, distribute_tensor

    mesh = init_device_mesh("cpu", (2,))
    state = {"mine": penstock.Slice(torch.ones(2), (2,), (0,))} if rank else {}
    for i in range(6):
        state[f"w{i}"] = distribute_tensor(torch.full((4,), float(i)), mesh, [Replicate()])
    with penstock.CheckpointStore(folder, ranks=penstock.Ranks.torch()) as store:
        store.save({"model": state}, step=1)
        return store.load()["model"]


def test_ranks_with_other_keys_agree_on_who_writes_a_replica(tmp_path):
    for found in run_ranks(2, tmp_path / "r", save_other_keys, str(tmp_path / "s")):
        assert found["mine"].tolist() == [1, 1] and all(found[f"w{i}"].tolist() == [i] * 4 for i in range(6))


def save_partial(rank, folder):
    from torch.distributed.tensor import DTensor, Partial

    sums = DTensor.from_local(torch.ones(4), meshes(2)[0], [Partial()])
    with penstock.CheckpointStore(folder, ranks=penstock.Ranks.torch(), rank_wait_s=30) as store:
        with pytest.raises(ValueError, match=r"state\['grad'\]: a DTensor .*P.* holds sums that are not made yet"):
            store.save({"grad": sums}, step=1)
        return len(store)


def test_sums_that_are_not_made_yet_are_refused(tmp_path):
    assert run_ranks(2, tmp_path / "r", save_partial, str(tmp_path / "s")) == [0, 0]


# ---- the mailbox


def count_messages(rank, folder):
    import torch.distributed as dist

    ranks = penstock.Ranks.torch()

    def forbidden(*_, **__):
        raise AssertionError("a collective operation")

    for name in ("all_reduce", "all_gather", "all_gather_object", "broadcast", "broadcast_object_list", "barrier"):
        setattr(dist, name, forbidden)
        setattr(dist.distributed_c10d, name, forbidden)
    with penstock.CheckpointStore(folder, ranks=ranks, rank_wait_s=30) as store:
        for step in range(3):
            store.save({"n": step}, step=step)
    time.sleep(0.2 if rank == 0 else 0)
    if rank == 0:
        with ranks._mailbox._client() as client:
            return client.num_keys()


def test_a_save_needs_no_collective_operation_and_leaves_no_key(tmp_path):
    keys = run_ranks(3, tmp_path / "r", count_messages, str(tmp_path / "s"))[0]
    assert keys <= 1  # TCPStore's own


# ---- ranks that fail


def save_on(rank, folder, started):
    """Saves again and again; what the first error says."""
    ranks = penstock.Ranks.torch()
    part = penstock.Slice(torch.full((1 << 18,), float(rank)), [3 << 18], [rank << 18])
    store = penstock.CheckpointStore(folder, ranks=ranks, rank_wait_s=2, keep=3)
    end = time.monotonic() + 40
    for step in itertools.count():
        try:
            store.save({"w": part}, step=step)
        except (OSError, ValueError) as error:
            return step, str(error)
        except KeyboardInterrupt:
            return step, "KeyboardInterrupt"
        if step == 2:
            with open(f"{started}-{rank}", "w"):
                pass
        if time.monotonic() > end:
            return step, "nothing happened"


def wait_for(paths):
    end = time.monotonic() + 60
    while not all(map(os.path.exists, paths)):
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("victim", "number"), [(1, signal.SIGKILL), (0, signal.SIGKILL), (2, signal.SIGSTOP), (1, signal.SIGINT)]
)
def test_a_rank_that_dies_stops_or_is_interrupted_ends_the_save_on_all(tmp_path, victim, number):
    started = str(tmp_path / "started")
    dice = random.Random(victim * 100 + number)
    with RankProcesses(3, tmp_path / "r", save_on, str(tmp_path / "s"), started) as ranks:
        wait_for([f"{started}-{rank}" for rank in range(3)])
        time.sleep(dice.random() * 0.05)
        ranks.send(0, signal.SIGSTOP)  # the mailbox is there: all wait
        time.sleep(0.5)
        ranks.send(0, signal.SIGCONT)
        ranks.send(victim, number)
        if number == signal.SIGSTOP:
            time.sleep(7)  # twice the limit, and more: for the end of one save, and in the next
            ranks.send(victim, signal.SIGCONT)
        results = ranks.results()
    said = [one for rank, one in enumerate(results) if rank != victim or number != signal.SIGKILL]
    assert not any(isinstance(one, Failed) for one in said), said
    # All heard of the failure at the same save, or at the one before it that had been committed.
    steps = {step for step, _ in said}
    assert max(steps) - min(steps) <= 1, said
    assert not any("nothing happened" in text for _, text in said), said
    if victim == 1:
        assert any("rank 1 of 3" in text for _, text in said), said
    store = penstock.CheckpointStore(tmp_path / "s")
    infos = [info for info in store if not info.problem]
    assert infos and infos[-1].step >= min(steps) - 1
    expected = torch.arange(3.0).repeat_interleave(1 << 18)
    assert all(torch.equal(store.load(generation=info.generation)["w"], expected) for info in infos)
    assert not any(store.open(info.generation).verify() for info in infos)


def save_no_boxes(rank, folder):
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = meshes(2)[0]
    odd = distribute_tensor(torch.arange(16.0).view(2, 8), mesh, [Shard(1)]).view(16)
    strided = type(odd.placements[0]).__name__ == "_StridedShard"
    with penstock.CheckpointStore(folder, ranks=penstock.Ranks.torch(), rank_wait_s=30) as store:
        with (
            pytest.raises(ValueError, match=r"state\['w'\]: a DTensor with the placements .* that are no boxes")
            if strided
            else (contextlib.nullcontext())
        ):
            store.save({"w": odd}, step=1)
        store.save({"w": torch.arange(16.0)}, step=2)
    if strided:
        with pytest.raises(ValueError, match=r"into\['w'\]: a DTensor with the placements .* that are no boxes"):
            store_of(folder).load(into={"w": odd})
    return strided


def store_of(folder):
    return penstock.CheckpointStore(folder)


def test_dtensors_whose_parts_are_no_boxes_are_refused(tmp_path):
    assert len(set(run_ranks(2, tmp_path / "r", save_no_boxes, str(tmp_path / "s")))) == 1


def time_of_saves(rank, folder):
    ranks = penstock.Ranks.torch()
    seconds = []
    with penstock.CheckpointStore(folder, ranks=ranks, rank_wait_s=30) as store:
        for step in range(4):
            began = time.monotonic()
            store.save_async({"n": torch.ones(4)}, step=step).result()
            seconds.append(time.monotonic() - began)
    return seconds, len(ranks._mailbox._pool)


def test_background_saves_keep_their_connections(tmp_path):
    for seconds, clients in run_ranks(2, tmp_path / "r", time_of_saves, str(tmp_path / "s")):
        assert clients <= 2, "each call of a thread that is not Python's made one more"
        assert min(seconds) < 2


def save_until_it_fails(rank, folder, started):
    part = penstock.Slice(torch.full((4,), float(rank)), [12], [4 * rank])
    store = penstock.CheckpointStore(folder, ranks=penstock.Ranks.torch(), rank_wait_s=3)
    for step in range(100_000):
        try:
            store.save({"w": part}, step=step)
        except OSError as error:
            return step, str(error)
        if step == 2:
            with open(f"{started}-{rank}", "w"):
                pass


def test_a_rank_0_that_answers_no_more_ends_the_saves_of_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock._store.ranks._CALL_MAX", timedelta(seconds=2))
    started = str(tmp_path / "started")
    with RankProcesses(3, tmp_path / "r", save_until_it_fails, str(tmp_path / "s"), started) as ranks:
        wait_for([f"{started}-{rank}" for rank in range(3)])
        ranks.send(0, signal.SIGSTOP)  # as a machine that stops, or a network that is cut: nothing is closed
        assert ranks.pipes[1].poll(30) and ranks.pipes[2].poll(30)
        ranks.send(0, signal.SIGCONT)
        results = ranks.results()
    assert all("is gone" in text or "was renamed" in text for _, text in results[1:]), results


def save_through_a_pause(rank, folder, started):
    import torch.distributed as dist

    part = penstock.Slice(torch.full((4,), float(rank)), [12], [4 * rank])
    store = penstock.CheckpointStore(folder, ranks=penstock.Ranks.torch(), rank_wait_s=1)
    said = []
    for step in range(12):
        if step == 3:
            with open(f"{started}-{rank}", "w"):
                pass
            time.sleep(0 if rank else 2)  # it is stopped now, and the others wait for it
        try:
            said.append(store.save({"w": part}, step=step).step)
        except OSError as error:
            said.append(str(error))
        dist.barrier()
        time.sleep(0.3)
    return said


def test_ranks_whose_mailbox_did_not_answer_for_long_save_again(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock._store.ranks._CALL_MAX", timedelta(seconds=1))
    monkeypatch.setattr("penstock._store.ranks._AGAIN_S", 1)
    started = str(tmp_path / "started")
    with RankProcesses(3, tmp_path / "r", save_through_a_pause, str(tmp_path / "s"), started) as ranks:
        wait_for([f"{started}-{rank}" for rank in range(3)])
        ranks.send(0, signal.SIGSTOP)
        time.sleep(5)
        ranks.send(0, signal.SIGCONT)
        results = ranks.results()
    assert [said[-1] for said in results] == [11] * 3, results
    for said in results:  # and they agree on each save
        assert [isinstance(one, int) for one in said] == [isinstance(one, int) for one in results[0]], results


def rank_0_leaves(rank, folder):
    began = time.monotonic()
    ranks = penstock.Ranks.torch()
    if rank == 0:
        return 0
    store = penstock.CheckpointStore(folder, ranks=ranks, rank_wait_s=4)
    for save in (store.save, lambda *a, **k: store.save_async(*a, **k).result()):
        with pytest.raises(OSError):
            save({"n": 1}, step=1)
    return time.monotonic() - began


def test_the_others_hear_at_once_that_rank_0_has_ended(tmp_path):
    assert max(run_ranks(3, tmp_path / "r", rank_0_leaves, str(tmp_path / "s"))) < 25
