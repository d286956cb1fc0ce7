# SPDX-License-Identifier: Apache-2.0
"""penstock.dcp next to torch.distributed.checkpoint, in one process: what is saved, loaded, refused and left alone."""

import itertools
import os
import re
import subprocess
import sys
import textwrap
import time
from concurrent.futures import Future
from pathlib import Path

import penstock
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch.distributed.checkpoint")
hf_storage = pytest.importorskip("torch.distributed.checkpoint.hf_storage")
import torch.distributed.checkpoint as dcp  # noqa: E402
from penstock import dcp as ours  # noqa: E402
from rank_processes import FORK  # noqa: E402
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner  # noqa: E402

STOCK = (dcp.save, dcp.async_save, dcp.load, dcp.FileSystemWriter, dcp.FileSystemReader)
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is (disabled|unavailable|uninitialized)")


class Model(torch.nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4))
        self.register_buffer("count", torch.tensor(seed))


def trained(seed):
    model = Model(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1 * seed)
    model.net(torch.ones(2, 3)).square().sum().backward()
    optimizer.step()
    return model, optimizer


def state_of(seed):
    model, optimizer = trained(seed)
    extra = {"epoch": seed, "name": f"run {seed}", "list": [1, seed], "none": None, "half": torch.ones(3).half() * seed}
    return {"model": model, "optimizer": optimizer.state_dict(), "extra": extra}


def flat(state):
    state = {key: one.state_dict() if hasattr(one, "state_dict") else one for key, one in state.items()}
    return dcp._nested_dict.flatten_state_dict(state)[0]


def same(a, b):
    a, b = flat(a), flat(b)
    equal = [torch.equal(a[k], b[k]) if isinstance(a[k], torch.Tensor) else a[k] == b[k] for k in a]
    return a.keys() == b.keys() and all(equal)


# ---- what is saved is loaded


def test_a_state_is_loaded_in_place_as_torch_does_it(tmp_path):
    metadata = ours.save(state_of(1), checkpoint_id=tmp_path / "c")
    theirs = dcp.save(state_of(1), checkpoint_id=tmp_path / "stock")
    assert metadata.state_dict_metadata.keys() == theirs.state_dict_metadata.keys()
    for name, row in theirs.state_dict_metadata.items():
        mine = metadata.state_dict_metadata[name]
        assert type(mine) is type(row) and getattr(mine, "size", None) == getattr(row, "size", None)
    assert metadata.planner_data == theirs.planner_data
    state = state_of(2)
    kept, weight = state["extra"]["half"], state["model"].net[0].weight
    assert ours.load(state, checkpoint_id=tmp_path / "c") is None
    assert same(state, state_of(1))
    assert state["extra"]["half"] is kept and state["model"].net[0].weight is weight
    stock = state_of(2)
    dcp.load(stock, checkpoint_id=tmp_path / "stock")
    assert same({"model": stock["model"], "extra": stock["extra"]}, {k: state[k] for k in ("model", "extra")})
    assert not penstock.Checkpoint(tmp_path / "c").verify()


def test_stock_torch_reads_the_folder(tmp_path):
    state = {"model": Model(1).state_dict()}
    ours.save(state, checkpoint_id=tmp_path / "c")
    found = {"model": Model(2).state_dict()}
    dcp.load(found, storage_reader=hf_storage.HuggingFaceStorageReader(str(tmp_path / "c")))
    assert same(found, state)


def test_folders_of_torch_are_read(tmp_path):
    dcp.save(state_of(1), checkpoint_id=tmp_path / "c")
    state = {"model": Model(2), "extra": state_of(2)["extra"]}
    ours.load(state, checkpoint_id=str(tmp_path / "c"))
    assert same(state, {key: state_of(1)[key] for key in state})


def test_what_torch_saved_over_ours_is_read(tmp_path):
    ours.save({"a": torch.ones(2)}, checkpoint_id=tmp_path / "c")
    dcp.save({"a": torch.full((2,), 2.0)}, checkpoint_id=tmp_path / "c")
    state = {"a": torch.zeros(2)}
    ours.load(state, checkpoint_id=tmp_path / "c")
    assert state["a"].tolist() == [2, 2]
    ours.save({"a": torch.full((2,), 3.0)}, checkpoint_id=tmp_path / "c")
    ours.load(state, checkpoint_id=tmp_path / "c")
    assert state["a"].tolist() == [3, 3]
    assert not any(name.endswith((".distcp", ".metadata")) for name in os.listdir(tmp_path / "c"))


def test_only_what_the_state_names_is_loaded(tmp_path):
    ours.save({"a": torch.ones(2), "b": {"c": torch.ones(3), "d": 4}}, checkpoint_id=tmp_path / "c")
    state = {"b": {"c": torch.zeros(3)}}
    ours.load(state, checkpoint_id=tmp_path / "c")
    assert state.keys() == {"b"} and state["b"].keys() == {"c"} and state["b"]["c"].tolist() == [1, 1, 1]


def test_keys_that_are_missing(tmp_path):
    ours.save({"a": torch.ones(2), "n": 1}, checkpoint_id=tmp_path / "c")
    state = {"a": torch.zeros(2), "n": 0, "more": {"x": torch.zeros(1), "y": 5}}
    with pytest.raises(KeyError, match=r"'.*/c' has no .*more\.x.*2 keys of the state .*allow_partial_load=True"):
        ours.load(state, checkpoint_id=tmp_path / "c")
    assert state["a"].tolist() == [0, 0]
    ours.load(state, checkpoint_id=tmp_path / "c", planner=DefaultLoadPlanner(allow_partial_load=True))
    assert state["a"].tolist() == [1, 1] and state["n"] == 1 and state["more"]["y"] == 5


def test_another_shape_or_kind_is_an_error_and_another_type_is_converted(tmp_path):
    ours.save({"a": torch.ones(2), "n": 1}, checkpoint_id=tmp_path / "c")
    with pytest.raises(ValueError, match=r"'a'.* of \[3\], and in .* \[2\]"):
        ours.load({"a": torch.zeros(3)}, checkpoint_id=tmp_path / "c")
    with pytest.raises(ValueError, match="'n' is a tensor, and in .* it is none"):
        ours.load({"n": torch.zeros(3)}, checkpoint_id=tmp_path / "c")
    with pytest.raises(ValueError, match="'a' is a int, and in .* it is a tensor"):
        ours.load({"a": 3}, checkpoint_id=tmp_path / "c")
    state = {"a": torch.zeros(2, dtype=torch.bfloat16)}
    ours.load(state, checkpoint_id=tmp_path / "c")
    assert state["a"].dtype == torch.bfloat16 and state["a"].tolist() == [1, 1]


def test_keys_that_are_no_strings_are_found_again(tmp_path):
    ours.save({"s": {0: {"t": torch.ones(2), "n": 3}}}, checkpoint_id=tmp_path / "c")
    state = {"s": {0: {"t": torch.zeros(2), "n": 0}}}
    ours.load(state, checkpoint_id=tmp_path / "c")
    assert state["s"].keys() == {0} and state["s"][0]["n"] == 3 and state["s"][0]["t"].tolist() == [1, 1]


def test_tensors_in_tuples_have_their_data(tmp_path):
    """Tuples are values to torch's flat keys, and are replaced."""
    made = {
        "deep": {"pair": (torch.ones(2), {"w": torch.full((3,), 2.0).half()}, torch.Size([5]))},
        "list": [(torch.arange(4),)],
    }
    ours.save(made, checkpoint_id=tmp_path / "c")

    def check(state):
        first, second, number = state["deep"]["pair"]
        assert first.tolist() == [1, 1] and second["w"].tolist() == [2, 2, 2] and type(number) is torch.Size
        assert second["w"].dtype == torch.half and state["list"][0][0].tolist() == [0, 1, 2, 3]

    for reader in (None, ours.StorageReader(tmp_path / "c")):
        state = {
            "deep": {"pair": (torch.zeros(2), {"w": torch.zeros(3).half()}, 0)},
            "list": [(torch.zeros(4).long(),)],
        }
        load = ours.load if reader is None else dcp.load
        load(state, checkpoint_id=tmp_path / "c", storage_reader=reader)
        check(state)


def test_other_objects_are_an_error_with_their_key_or_pickled(tmp_path):
    state = {"a": torch.ones(2), "deep": {"path": Path("x")}}
    with pytest.raises(TypeError, match=r"state\['deep'\]\['path'\]"):
        ours.save(state, checkpoint_id=tmp_path / "c")
    assert os.listdir(tmp_path) == []
    ours.save(state, checkpoint_id=tmp_path / "c", default=penstock.Pickled)
    found = {"deep": {"path": None}}
    ours.load(found, checkpoint_id=tmp_path / "c")
    assert isinstance(found["deep"]["path"], penstock.Pickled)
    ours.load(found, checkpoint_id=tmp_path / "c", pickle=True)
    assert found["deep"]["path"] == Path("x")


def test_without_a_path_the_error_is_that_of_torch():
    for call in (ours.save, ours.async_save, ours.load):
        with pytest.raises(RuntimeError, match="`checkpoint_id` must be specified"):
            call({"a": 1})


# ---- in the background


def test_async_save_has_a_copy_and_its_future_the_metadata(tmp_path):
    state = {"a": torch.ones(1000)}
    future = ours.async_save(state, checkpoint_id=tmp_path / "c")
    state["a"].zero_()
    assert isinstance(future, Future)
    assert future.result(30).state_dict_metadata["a"].size == (1000,)
    ours.load(state, checkpoint_id=tmp_path / "c")
    assert state["a"].sum() == 1000


def test_async_saves_to_one_path_follow_one_another(tmp_path):
    futures = [ours.async_save({"a": torch.full((9,), float(i))}, checkpoint_id=tmp_path / "c") for i in range(5)]
    assert [one.exception(30) for one in futures] == [None] * 5
    state = {"a": torch.zeros(9)}
    ours.load(state, checkpoint_id=tmp_path / "c")
    assert state["a"].tolist() == [4] * 9 and os.listdir(tmp_path) == ["c"]


def test_the_failure_of_an_async_save_is_in_its_future(tmp_path):
    (tmp_path / "c").write_text("a file")
    try:
        future = ours.async_save({"a": torch.ones(1)}, checkpoint_id=tmp_path / "c")
    except OSError as error:
        assert "it is a file" in str(error)
    else:
        assert "it is a file" in str(future.exception(30))


def test_stagers_make_the_copy(tmp_path):
    from torch.distributed.checkpoint.staging import BlockingAsyncStager

    class Later(BlockingAsyncStager):
        def stage(self, state):
            future = Future()
            future.set_result(super().stage(state))
            return future

    state = {"a": torch.ones(1000)}
    for stager in (BlockingAsyncStager(), Later()):
        result = ours.async_save(state, checkpoint_id=tmp_path / "c", async_stager=stager)
        if isinstance(stager, Later):
            assert result.staging_completion.done()
            result = result.upload_completion
        assert result.result(30).state_dict_metadata["a"].size == (1000,)
        found = {"a": torch.zeros(1000)}
        ours.load(found, checkpoint_id=tmp_path / "c")
        assert found["a"].sum() == 1000


# ---- one path


def test_what_others_have_in_the_folder_stays(tmp_path):
    (tmp_path / "c" / "logs").mkdir(parents=True)
    (tmp_path / "c" / "meta.pt").write_text("of Lightning")
    (tmp_path / "c" / "logs" / "one").write_text("a line")
    for number in range(3):
        ours.save({"a": torch.full((3,), float(number))}, checkpoint_id=tmp_path / "c")
        assert (tmp_path / "c" / "meta.pt").read_text() == "of Lightning"
        assert (tmp_path / "c" / "logs" / "one").read_text() == "a line"
        assert os.listdir(tmp_path) == ["c"]


def test_the_folder_of_a_store_is_refused(tmp_path):
    with penstock.CheckpointStore(tmp_path / "s") as store:
        store.save({"a": torch.ones(1)}, step=1)
    with pytest.raises(ValueError, match="it is the folder of a CheckpointStore"):
        ours.save({"a": torch.ones(1)}, checkpoint_id=tmp_path / "s")


def test_a_path_is_what_the_system_takes_it_for(tmp_path, monkeypatch):
    (tmp_path / "far" / "inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to("far/inner")
    monkeypatch.chdir(tmp_path)
    ours.save({"n": 1}, checkpoint_id="link/../c")
    state = {"n": 0}
    ours.load(state, checkpoint_id="link/../c")
    assert state["n"] == 1 and os.listdir(tmp_path / "far" / "c") and not (tmp_path / "c").exists()


def test_the_working_folder_of_the_process_is_refused(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path / "run")
    for path in (".", tmp_path / "run", "../run"):
        with pytest.raises(ValueError, match="it is the working folder of this process.*give a folder in it"):
            ours.save({"n": 1}, checkpoint_id=path)
        with pytest.raises(ValueError, match="it is the working folder"):
            ours.async_save({"n": 1}, checkpoint_id=path)
    with pytest.raises(dcp.CheckpointException) as raised:
        dcp.save({"n": 1}, storage_writer=ours.StorageWriter("."))
    assert "it is the working folder" in str(raised.value.failures[0])
    ours.save({"n": 1}, checkpoint_id="c")
    assert os.getcwd() == str(tmp_path / "run") and os.listdir() == ["c"]


def test_the_folder_keeps_its_permissions(tmp_path):
    path = tmp_path / "c"
    for mode in (0o700, 0o2770, 0o755):
        ours.save({"a": torch.ones(3)}, checkpoint_id=path)
        path.chmod(mode)
        ours.save({"a": torch.ones(3)}, checkpoint_id=path)
        assert path.stat().st_mode & 0o7777 == mode


def save_as_another_user(path, pipe):
    torch.set_num_threads(1)
    if os.getuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    try:
        ours.save({"n": 2}, checkpoint_id=path)
        pipe.send("saved")
    except OSError as error:
        pipe.send(str(error))


def test_a_folder_that_cannot_be_moved_ends_the_save_and_stays(tmp_path):
    """To move a folder takes the right to write in it."""
    above = tmp_path / "above"
    (above / "c" / "data").mkdir(parents=True)
    ours.save({"n": 1}, checkpoint_id=above / "c")
    (above / "c" / "data" / "one").write_text("a line")
    (above / "c" / "data").chmod(0o555)
    if os.getuid() == 0:
        for one in (above, above / "c", above / "c" / "data"):
            os.chown(one, 65534, 65534)
        for one in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
            one.chmod(0o755)
    here, there = FORK.Pipe(duplex=False)
    process = FORK.Process(target=save_as_another_user, args=(above / "c", there))
    process.start()
    said = here.recv()
    process.join()
    assert re.search("c/data'.*could not be moved.*give another path", said)
    assert os.listdir(above) == ["c"] and (above / "c" / "data" / "one").read_text() == "a line"
    state = {"n": 0}
    ours.load(state, checkpoint_id=above / "c")
    assert state["n"] == 1


def save_on(path, pipe):
    torch.set_num_threads(1)
    for number in itertools.count(1):
        ours.save({"a": torch.full((1 << 18,), float(number)), "n": number}, checkpoint_id=path)
        pipe.send(number)


def test_a_process_that_is_killed_leaves_the_old_or_the_new_one(tmp_path):
    path = tmp_path / "step-7"
    path.mkdir()
    (path / "meta.pt").write_text("of others")
    for turn in range(12):
        here, there = FORK.Pipe(duplex=False)
        process = FORK.Process(target=save_on, args=(path, there))
        process.start()
        there.close()
        acknowledged = [here.recv() for _ in range(3)]
        time.sleep(0.001 * turn)
        process.kill()
        process.join()
        while True:
            try:
                acknowledged.append(here.recv())
            except EOFError:
                break
        state = {"a": torch.zeros(1 << 18), "n": 0}
        ours.load(state, checkpoint_id=path)
        assert state["n"] - acknowledged[-1] in (0, 1) and bool((state["a"] == state["n"]).all())
        assert (path / "meta.pt").read_text() == "of others"
        assert [name for name in os.listdir(tmp_path) if re.search(r"step-(\d+)", name)] == ["step-7"]
    ours.save({"n": 0}, checkpoint_id=path)
    assert os.listdir(tmp_path) == ["step-7"] and (path / "meta.pt").exists()


def save_many(path, number, pipe):
    torch.set_num_threads(1)
    try:
        for _ in range(15):
            ours.save({"a": torch.full((1000,), float(number)), "n": number}, checkpoint_id=path)
        pipe.send("done")
    except BaseException as error:
        pipe.send(f"{type(error).__name__}: {error}")


def test_processes_that_save_to_one_path_take_turns(tmp_path):
    here, there = FORK.Pipe(duplex=False)
    processes = [FORK.Process(target=save_many, args=(tmp_path / "c", number, there)) for number in range(3)]
    for process in processes:
        process.start()
    seen = 0
    while any(process.is_alive() for process in processes) and not here.poll(0):
        if (tmp_path / "c").exists():
            with penstock.Checkpoint(tmp_path / "c") as checkpoint:
                seen += checkpoint.info.tensors == 1
    assert [here.recv() for _ in processes] == ["done"] * 3
    for process in processes:
        process.join()
    state = {"a": torch.zeros(1000), "n": 9}
    ours.load(state, checkpoint_id=tmp_path / "c")
    assert bool((state["a"] == state["n"]).all()) and os.listdir(tmp_path) == ["c"] and seen


# ---- planners and storage of a program's own


class Doubling(DefaultSavePlanner):
    def transform_object(self, item, value):
        value = super().transform_object(item, value)
        return value * 2 if isinstance(value, torch.Tensor) and value.is_floating_point() else value


class Halving(DefaultLoadPlanner):
    def commit_tensor(self, item, tensor):
        if tensor.is_floating_point():
            tensor.div_(2)


@pytest.mark.parametrize("caching", [False, True])
def test_a_planner_of_ones_own_writes_and_reads_through_our_storage(tmp_path, caching):
    for number in (1, 2, 3):  # plans are cached from the second save on
        planner = Doubling(enable_plan_caching=caching) if caching else Doubling()
        state = state_of(number)
        ours.save(state, storage_writer=ours.StorageWriter(tmp_path / "c"), planner=planner)
    assert penstock.Checkpoint(tmp_path / "c")["extra.half"][...].tolist() == [6, 6, 6]
    found = {"model": Model(9), "extra": state_of(9)["extra"]}
    ours.load(found, storage_reader=ours.StorageReader(tmp_path / "c"), planner=Halving())
    assert found["extra"] | {"half": 0} == state_of(3)["extra"] | {"half": 0}
    assert torch.equal(found["model"].net[0].weight, state_of(3)["model"].net[0].weight)


def test_torch_itself_saves_and_loads_through_our_storage(tmp_path):
    dcp.save(state_of(1), checkpoint_id=tmp_path / "c", storage_writer=ours.StorageWriter())
    assert ours._hand_over.is_ours(tmp_path / "c")
    for load in (dcp.load, ours.load):
        state = {"model": Model(2), "extra": state_of(2)["extra"]}
        load(state, checkpoint_id=tmp_path / "c", storage_reader=ours.StorageReader())
        assert same(state, {key: state_of(1)[key] for key in state})
    ours.save(state_of(3), checkpoint_id=tmp_path / "c")  # and what our own save wrote
    state = {"model": Model(2), "extra": state_of(2)["extra"]}
    dcp.load(state, storage_reader=ours.StorageReader(tmp_path / "c"))
    assert same(state, {key: state_of(3)[key] for key in state})


def test_torch_saves_in_the_background_through_our_storage(tmp_path):
    state = {"a": torch.ones(100), "n": 1}
    result = ours.async_save(state, storage_writer=ours.StorageWriter(tmp_path / "c"), planner=Doubling()).result(30)
    assert "a" in result.state_dict_metadata
    assert penstock.Checkpoint(tmp_path / "c")["a"][...].sum() == 200


def test_a_checkpoint_of_ours_becomes_a_file_of_torch(tmp_path):
    from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

    ours.save(state_of(1), checkpoint_id=tmp_path / "c")
    state = {}
    _load_state_dict(
        state, storage_reader=ours.StorageReader(tmp_path / "c"), planner=_EmptyStateDictLoadPlanner(), no_dist=True
    )
    assert same({"model": state["model"]}, {"model": model_state(1)})


def model_state(seed):
    return trained(seed)[0].state_dict()


class Evil:
    def __reduce__(self):
        return (os.system, ("exit 1",))


def test_pickles_that_could_run_code_are_not_run(tmp_path):
    ours.save({"x": Evil()}, storage_writer=ours.StorageWriter(tmp_path / "c"), planner=Doubling())
    for load in (ours.load, dcp.load):
        # torch's CheckpointException is no Exception
        with pytest.raises(BaseException, match="'x' is a pickle that could run any code; pickle=True runs it"):
            load({"x": 0}, storage_reader=ours.StorageReader(tmp_path / "c"), planner=Halving())
    with pytest.raises(Exception, match="'x' is a pickle that could run any code"):
        ours.load({"x": 0}, checkpoint_id=tmp_path / "c")


# ---- in torch's place


@pytest.fixture
def installed():
    ours.install()
    yield
    ours.uninstall()
    assert STOCK == (dcp.save, dcp.async_save, dcp.load, dcp.FileSystemWriter, dcp.FileSystemReader)


def test_programs_as_accelerate_lightning_and_torchtitan_call_it(tmp_path, installed):
    state = state_of(1)
    # accelerate
    writer = dcp.FileSystemWriter(str(tmp_path / "a"))
    dcp.save(state_dict={"model": state["model"].state_dict()}, storage_writer=writer, planner=DefaultSavePlanner())
    found = {"model": Model(2).state_dict()}
    reader = dcp.FileSystemReader(str(tmp_path / "a"))
    dcp.load(state_dict=found, storage_reader=reader, planner=DefaultLoadPlanner())
    assert same(found, {"model": state["model"].state_dict()})
    # Lightning
    dcp.save(state, checkpoint_id=tmp_path / "l.ckpt")
    torch.save({"epoch": 1}, tmp_path / "l.ckpt" / "meta.pt")
    found = state_of(2)
    dcp.load(found, checkpoint_id=tmp_path / "l.ckpt")
    assert same(found, state) and torch.load(tmp_path / "l.ckpt" / "meta.pt") == {"epoch": 1}
    # torchtitan
    for step in (10, 20):
        dcp.async_save(state, checkpoint_id=str(tmp_path / f"step-{step}")).result(30)
    found = state_of(2)
    dcp.load(found, checkpoint_id=str(tmp_path / "step-20"))
    assert same(found, state)
    for name in os.listdir(tmp_path):
        assert ours._hand_over.is_ours(tmp_path / name), name


def test_what_was_put_in_place_is_torchs_in_every_other_way(tmp_path, installed):
    class Own(dcp.FileSystemWriter):
        pass

    writer = Own(str(tmp_path / "c"), thread_count=2)
    assert isinstance(writer, STOCK[3]) and writer.thread_count == 2
    dcp.save({"a": torch.ones(2)}, storage_writer=writer)
    assert (tmp_path / "c" / ".metadata").exists()
    state = {"a": torch.zeros(2)}
    dcp.load(state, storage_reader=dcp.FileSystemReader(str(tmp_path / "c")))
    assert state["a"].tolist() == [1, 1]


def test_a_program_runs_with_it(tmp_path):
    (tmp_path / "other.py").write_text("import torch.distributed.checkpoint as dcp\nsave = dcp.save\n")
    (tmp_path / "train.py").write_text(
        textwrap.dedent("""
        import sys, torch, other
        import torch.distributed.checkpoint as dcp
        assert __name__ == "__main__" and sys.argv[1:] == ["--to", "out"]
        other.save({"a": torch.ones(2)}, checkpoint_id="out")
        sys.exit(3)
        """)
    )
    command = [sys.executable, "-m", "penstock.dcp", "train.py", "--to", "out"]
    assert subprocess.run(command, cwd=tmp_path, timeout=60).returncode == 3
    assert ours._hand_over.is_ours(tmp_path / "out")


def test_nothing_to_run(capsys):
    from penstock.dcp.__main__ import main

    for arguments, said in (([], "name what to run"), (["--x"], "--x is no option"), (["none.py"], "no such file")):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2 and said in capsys.readouterr().err
    main(["--help"])
    assert "torchrun" in capsys.readouterr().out
