# SPDX-License-Identifier: Apache-2.0
"""Mistakes that people make: the message names what came, what is expected and what to do, and is short."""

import functools
import io
import os
import subprocess
import sys
import threading
import time
import zipfile

import numpy
import penstock
import pytest

MESSAGE_MAX = 500
STATE = {"a": numpy.arange(4.0)}


def message_of(call, kind=Exception):
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


# ---- folders of a store


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_store_makes_the_parents_of_its_folders(tmp_path, asynchronous):
    with penstock.CheckpointStore([tmp_path / "runs" / "exp1" / "a", tmp_path / "runs" / "exp1" / "b"]) as store:
        assert store.latest() is None and not (tmp_path / "runs").exists()
        saved = store.save_async(STATE).result() if asynchronous else store.save(STATE)
        assert saved.generation == 1
        assert numpy.array_equal(store.load()["a"], STATE["a"])


def test_several_processes_make_the_same_parents(tmp_path):
    code = "import numpy, penstock, sys; penstock.CheckpointStore(sys.argv[1]).save({'a': numpy.zeros(3)})"
    runs = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "runs" / "exp" / str(i))], stderr=subprocess.PIPE)
        for i in range(3)
    ]
    for run in runs:
        assert run.communicate()[1] == b"" and run.returncode == 0


def test_a_store_in_a_file_fails_in_the_constructor(tmp_path):
    (tmp_path / "file").write_bytes(b"x")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        message = message_of(lambda path=path: penstock.CheckpointStore(path), NotADirectoryError)
        assert str(tmp_path / "file") in message and "folder" in message


def test_a_second_store_on_a_folder_is_told_at_once(tmp_path):
    first = penstock.CheckpointStore(tmp_path / "store")
    first.save(STATE)
    second = penstock.CheckpointStore(tmp_path / "store", lock_wait_s=60)
    assert second.latest().generation == 1  # reading needs no lock
    for call in (lambda: second.save(STATE), lambda: second.save_async(STATE).result()):
        begun = time.monotonic()
        message = message_of(call, BlockingIOError)
        assert time.monotonic() - begun < 30
        assert "this process" in message and "close()" in message and str(tmp_path / "store") in message
    with penstock.CheckpointStore(tmp_path / "other") as other:
        other.save(STATE)
    first.close()
    assert second.save(STATE).generation == 2
    second.close()


def test_a_store_of_another_process_is_waited_for(tmp_path):
    code = """
import numpy, penstock, sys, time
store = penstock.CheckpointStore(sys.argv[1])
store.save({"a": numpy.zeros(3)})
print("saved", flush=True)
time.sleep(1)
store.close()
"""
    other = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "store")], stdout=subprocess.PIPE)
    assert other.stdout.readline() == b"saved\n"
    with penstock.CheckpointStore(tmp_path / "store", lock_wait_s=60) as store:
        assert store.save(STATE).generation == 2
    other.communicate()


def test_several_stores_and_threads_in_one_process(tmp_path):
    wrong = []

    def work(i):
        try:
            with penstock.CheckpointStore(tmp_path / str(i)) as store:
                for _ in range(3):
                    store.save(STATE)
        except Exception as error:  # for the main thread
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# ---- values in messages


class Long:
    def __repr__(self):
        return "x" * 1_000_000


def long_values():
    return [Long(), "y" * 1_000_000, ["z"] * 100_000, {i: "v" for i in range(100_000)}, 10**5000, (Long(),)]


def calls_with(value, folder):
    """Everything that says in a message what it was given."""
    file = folder / "x.pt"
    store = penstock.CheckpointStore(folder / "st")
    return {
        "store.save step": lambda: store.save(STATE, value),
        "store.save metadata": lambda: store.save(STATE, metadata=value),
        "store.save metadata key": lambda: store.save(STATE, metadata={"k": value} if value else value),
        "store.save_async step": lambda: store.save_async(STATE, value),
        "store.load generation": lambda: store.load(generation=value),
        "store.load step": lambda: store.load(step=value),
        "store.pin": lambda: store.pin(value),
        "store.wait": lambda: store.wait(value),
        "keep": lambda: penstock.CheckpointStore(folder / "st2", keep=value),
        "lock_wait_s": lambda: penstock.CheckpointStore(folder / "st2", lock_wait_s=value),
        "save pickle_module": lambda: penstock.save({}, file, pickle_module=value),
        "save pickle_protocol": lambda: penstock.save({}, file, pickle_protocol=value),
        "save shard_bytes": lambda: penstock.save({}, file, shard_bytes=value),
        "save progress": lambda: penstock.save({}, file, progress=value),
        "save metadata": lambda: penstock.save({}, folder / "x.safetensors", metadata=value),
        "load pickle_module": lambda: penstock.load(file, pickle_module=value),
        "load weights_only": lambda: penstock.load(file, weights_only=value),
        "load mmap": lambda: penstock.load(file, mmap=value),
        "load slice": lambda: penstock.load(file, names={"a": value}),
        "load names": lambda: penstock.load(file, names=[value]),
        "read offset": lambda: penstock.read(file, bytearray(4), value),
        "read priority": lambda: penstock.read(file, bytearray(4), priority=value),
        "read allow_short": lambda: penstock.read(file, bytearray(4), allow_short=value),
        "read block_bytes": lambda: penstock.read(file, bytearray(4), block_bytes=value),
        "engine backend": lambda: penstock.Engine(backend=value),
        "engine block_bytes": lambda: penstock.Engine(block_bytes=value),
        "file mode": lambda: penstock.File(file, value),
        "file cache": lambda: penstock.File(file, cache=value),
        "empty dtype": lambda: penstock.empty(3, value),
        "empty shape": lambda: penstock.empty(value),
        "depth limit": lambda: penstock.DepthLimit(value),
        "step overlap": lambda: penstock.StepOverlap(store, on_error=value),
        "unknown keyword": lambda: penstock.Engine(queue_dept=value),
    }


def test_no_message_holds_all_of_a_value(tmp_path):
    torch = pytest.importorskip("torch")
    penstock.save({"a": torch.zeros(3)}, tmp_path / "x.pt")
    refused = set()
    for value in long_values():
        for name, call in calls_with(value, tmp_path).items():
            try:
                call()
            except (TypeError, ValueError, KeyError, OSError, AttributeError, OverflowError, MemoryError) as error:
                assert len(str(error)) < 2 * MESSAGE_MAX, (name, type(value), str(error)[:200])
                refused.add(name)
    assert refused >= set(calls_with(0, tmp_path)) - {"save progress"}


def test_swapped_arguments_of_save(tmp_path):
    torch = pytest.importorskip("torch")
    with penstock.CheckpointStore(tmp_path / "store") as store:
        for call in (store.save, store.save_async):
            message = message_of(lambda call=call: call(5, {"a": torch.arange(1000)}), TypeError)
            assert f"{call.__name__}(state, step)" in message and len(message) < 200


# ---- what is no checkpoint of ours


def test_load_of_folders(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    store = tmp_path / "store"
    with penstock.CheckpointStore(store) as made:
        made.save(STATE, step=5)
    for load in (penstock.load, penstock.inspect):
        message = message_of(lambda load=load: load(store), IsADirectoryError)
        assert f"CheckpointStore({str(store)!r}).load()" in message
        message = message_of(lambda load=load: load(store / "00000001-step-5"), IsADirectoryError)
        assert f"Checkpoint({str(store / '00000001-step-5')!r}).load()" in message
        (tmp_path / "hub").mkdir(exist_ok=True)
        (tmp_path / "hub" / "model.safetensors.index.json").write_text("{}")
        message = message_of(lambda load=load: load(tmp_path / "hub"), IsADirectoryError)
        assert str(tmp_path / "hub" / "model.safetensors.index.json") in message
        monkeypatch.chdir(tmp_path)
        assert "'.' is a folder" in message_of(lambda load=load: load("."), IsADirectoryError)
    assert numpy.array_equal(penstock.CheckpointStore(store).load()["a"], STATE["a"])
    assert numpy.array_equal(penstock.Checkpoint(store / "00000001-step-5").load()["a"], STATE["a"])


def other_files():
    npy, npz, archive = io.BytesIO(), io.BytesIO(), io.BytesIO()
    numpy.save(npy, numpy.zeros(3))
    numpy.savez_compressed(npz, a=numpy.zeros(3))
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("word/document.xml", "<x/>")
    return [
        (npy.getvalue(), "numpy.load"),
        (npz.getvalue(), "numpy.load"),
        (archive.getvalue(), "zip"),
        (b"GGUF\x03\0\0\0" + bytes(100), "GGUF"),
        (b"\x89HDF\r\n\x1a\n" + bytes(100), "HDF5"),
        (b"\x1f\x8b\x08\0" + bytes(100), "gzip"),
        (b"\x28\xb5\x2f\xfd" + bytes(100), "zstd"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n", "git lfs pull"),
        (b"<!DOCTYPE html><html></html>", "web page"),
        (b'{"a": 1}', "JSON"),
        (b"hello", "text"),
        (b"PAR1" + bytes(50), "Parquet"),
        (b"", "empty"),
        (b"\0\0\x80?\0\0\0@" * 10, "00 00 80 3f"),
        (b"\x7fELF" + bytes(60), "program"),
    ]


@pytest.mark.parametrize("name", ["x.pt", "x"])
@pytest.mark.parametrize(("content", "word"), [pytest.param(*row, id=row[1]) for row in other_files()])
def test_what_is_neither_pt_nor_safetensors_is_named(tmp_path, name, content, word):
    pytest.importorskip("torch")
    path = tmp_path / name
    path.write_bytes(content)
    for load, file in ((penstock.load, path), (penstock.inspect, path), (penstock.load, io.BytesIO(content))):
        call = functools.partial(load, file)
        is_not_as_named = word == "00 00 80 3f" and str(file).endswith(".pt")
        kind = penstock.Damaged if word == "empty" or is_not_as_named else penstock.Unsupported
        message = message_of(call, kind)
        assert word in message and "read safetensors" not in message and len(message) < MESSAGE_MAX, message


def test_a_damaged_safetensors_is_still_one(tmp_path):
    pytest.importorskip("torch")
    path = tmp_path / "x.safetensors"
    for content in (b"", b"\x10\0\0\0\0\0\0\0{", b"\xff" * 50):
        path.write_bytes(content)
        assert "safetensors" in message_of(lambda: penstock.load(path), penstock.Damaged)
    path.write_bytes(other_files()[0][0])
    assert "numpy.load" in message_of(lambda: penstock.load(path), penstock.Unsupported)


# ---- the rest


@pytest.mark.parametrize(
    "call",
    [
        lambda: penstock.load("s3://bucket/x.pt"),
        lambda: penstock.read("s3://bucket/x.pt", bytearray(3)),
        lambda: penstock.File("https://host/x"),
        lambda: penstock.load("hf://a/model.safetensors.index.json"),
        lambda: penstock.save({}, "gs://bucket/x.pt"),
    ],
)
def test_urls(call):
    pytest.importorskip("torch")
    message = message_of(call, FileNotFoundError)
    assert "://" in message and "local" in message


def test_save_into_what_is_not_there_and_into_a_folder(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    for save in (penstock.save, lambda *arguments: penstock.save_async(*arguments).result()):
        message = message_of(lambda save=save: save({}, tmp_path / "a" / "b" / "c.pt"), FileNotFoundError)
        assert f"'{tmp_path / 'a' / 'b'}'" in message and ".tmp" not in message and "folder" in message
        monkeypatch.chdir(tmp_path)
        assert "it is a folder" in message_of(lambda save=save: save({}, "."), ValueError)


def test_names_that_are_nearly_right(tmp_path):
    torch = pytest.importorskip("torch")
    state = {"model": {"weight": torch.zeros(3), "bias": torch.zeros(1)}, "step": 3}
    penstock.save(state, tmp_path / "x.pt")
    store = penstock.CheckpointStore(tmp_path / "store")
    store.save(state)
    checkpoint = store.open(1)
    for load in (lambda names: penstock.load(tmp_path / "x.pt", names=names), lambda names: store.load(names=names)):
        assert "did you mean 'model.weight'" in message_of(lambda load=load: load("model.wieght"), KeyError)
        assert "did you mean 'model'" in message_of(lambda load=load: load("modle"), KeyError)
        message = message_of(lambda load=load: load("q"), KeyError)
        assert "did you mean" not in message
    store.close()
    assert "did you mean 'model.weight'" in message_of(lambda: checkpoint["model.weigth"], KeyError)


def test_data_that_is_no_data_is_named_first(tmp_path):
    message = message_of(lambda: penstock.write(tmp_path / "g", (x for x in [b"1", b"2"]), [0, 1]), TypeError)
    assert "data" in message and "generator" in message and "list" in message


def test_a_file_without_positions():
    message = message_of(lambda: penstock.write("/proc/version", b"123"), OSError)
    assert "no offsets" in message or "permission" in message.lower()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: penstock.Engine(queue_dept=3), ["Engine()", "'queue_dept'", "did you mean 'queue_depth'"]),
        (lambda: penstock.Engine(3), ["Engine()", "positional", "queue_depth"]),
        (lambda: penstock.read("a.bin"), ["read()", "'into'", "missing"]),
        (lambda: penstock.read(), ["read()", "'file'", "missing"]),
        (lambda: penstock.read("a", b"1", ofset=3), ["read()", "'ofset'", "did you mean 'offset'"]),
        (lambda: penstock.write("a", b"1", 0, True), ["write()", "positional", "sync"]),
        (lambda: penstock.write("a", b"1", file=3), ["write()", "'file'", "twice"]),
        (lambda: penstock.File("a", mod="r"), ["File()", "'mod'", "did you mean 'mode'"]),
        (lambda: penstock.File(), ["File()", "'path'", "missing"]),
        (lambda: penstock.empty(), ["empty()", "'shape'", "missing"]),
        (lambda: penstock.default_engine(3), ["default_engine()", "no arguments"]),
        (lambda: penstock.default_engine().drain(timeouts=1), ["drain()", "'timeouts'", "'timeout'"]),
    ],
)
def test_arguments_that_the_call_does_not_have(call, words):
    message = message_of(call, TypeError)
    assert all(word in message for word in words), message
    assert (
        "incompatible" not in message
        and "os.PathLike" not in message
        and "\n" not in message
        and len(message) < MESSAGE_MAX
    )


# ---- names that are no text


def test_paths_that_are_not_utf8(tmp_path):
    torch = pytest.importorskip("torch")
    folder = tmp_path / os.fsdecode(b"\xff\xfe")
    folder.mkdir()
    state = {"a": torch.arange(3.0)}
    with penstock.CheckpointStore(folder / "store") as store:
        saved = store.save(state)
        assert torch.equal(store.load()["a"], state["a"]) and saved.path == str(folder / "store" / "00000001-step-0")
    for name in ("x.pt", "x.safetensors", "x.safetensors.index.json", os.fsdecode(b"\xff.pt")):
        penstock.save(state, folder / name)
        assert torch.equal(penstock.load(folder / name)["a"], state["a"])
    # A name that JSON cannot hold is refused before anything is written.
    before = sorted(os.listdir(folder))
    message = message_of(lambda: penstock.save(state, folder / os.fsdecode(b"\xff.safetensors.index.json")), ValueError)
    assert "UTF-8" in message and sorted(os.listdir(folder)) == before
    message = message_of(lambda: penstock.CheckpointStore([tmp_path / "one", folder / "two"]), ValueError)
    assert "UTF-8" in message and not (tmp_path / "one").exists()
