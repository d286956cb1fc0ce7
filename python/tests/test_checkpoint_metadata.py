# SPDX-License-Identifier: Apache-2.0
"""The metadata of checkpoints, and the best of them by a number in it."""

import math
import os
import warnings

import penstock
import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")


@pytest.fixture
def store(tmp_path):
    with penstock.CheckpointStore(tmp_path / "store") as made:
        yield made


def test_metadata(store):
    given = {"run": "7", "é": "", "loss": 0.25, "epoch": -3, "big": 2**63 - 1, "done": True, "best": None, "one": 1.0}
    info = store.save({"a": 1}, metadata=given)
    pending = store.save_async(
        {"a": 2}, 2, metadata={"loss": torch.tensor(0.5), "n": numpy.int32(4), "b": numpy.bool_(True)}
    )
    for found in (info, store.list()[0], store.open(info.generation).info, store.open(info.generation)):
        assert found.metadata == given
        assert [type(value) for value in found.metadata.values()] == [type(value) for value in given.values()]
    assert pending.result().metadata == store.latest().metadata == {"loss": 0.5, "n": 4, "b": True}
    assert store.save({"a": 1}).metadata == {}
    for special in (math.inf, -math.inf, math.nan):
        store.save({"a": 1}, metadata={"x": special})
        assert repr(store.latest().metadata["x"]) == repr(special)


def test_metadata_that_is_not_plain_or_too_large_is_refused_at_the_call(store):
    for save in (store.save, store.save_async):
        for wrong in ([1], {"x": [1]}, {"x": torch.ones(2)}, {"x": 1j}, {1: "x"}, {"x": b"x"}):
            with pytest.raises(TypeError, match="metadata: expected"):
                save({"a": 1}, metadata=wrong)
        too_much = {"x": "y" * (1 << 20)}
        for wrong, words in (({"x": 1 << 63}, "64 bits"), (too_much, "1048577 bytes"), ({"x": "\ud800"}, "UTF-8")):
            with pytest.raises(ValueError, match=f"metadata.*{words}"):
                save({"a": 1}, metadata=wrong)
    assert len(store) == 0
    store.save({"a": 1}, metadata={"x": "y" * ((1 << 20) - 1)})


# ---- the best


def test_the_best(store):
    assert store.best("loss") is None and store.best("loss", 3) == []
    for step, loss in enumerate([0.5, 0.25, math.nan, 2, None, "0.1", 0.25, math.inf]):
        store.save({"a": step}, step, metadata={"loss": loss})
    store.save({"a": 1})
    assert store.best("loss").step == 6
    assert [info.step for info in store.best("loss", k=9)] == [6, 1, 0, 3, 7]
    assert [info.step for info in store.best("loss", 2, mode="max")] == [7, 3]
    os.remove(os.path.join(store.best("loss").path, "manifest.json"))
    assert store.best("loss").step == 1
    for call in (lambda: store.best("los"), lambda: store.best("Loss", 2), lambda: store.best("los", mode="max")):
        with pytest.raises(ValueError, match=r"best.*has '(los|Loss)' in its metadata; did you mean 'loss'\?"):
            call()
    assert store.best("accuracy") is None and store.best("accuracy", 2) == []
    # Text, None and NaN have the name: nothing was mistyped.
    store.save({"a": 1}, metadata={"lost": "x"})
    assert store.best("lost") is None
    with pytest.raises(ValueError, match=r"best: metric: .*best\(\"loss\"\)"):
        store.best()
    for wrong in ({"k": 0}, {"mode": "least"}):
        with pytest.raises(ValueError, match=f"best: {next(iter(wrong))}: expected"):
            store.best("loss", **wrong)


@pytest.mark.parametrize(("mode", "kept"), [("min", [1, 2, 4, 7, 8]), ("max", [0, 2, 5, 7, 8])])
def test_the_best_are_kept(tmp_path, mode, kept):
    how = {"keep": 2, "keep_best": 2, "metric": "loss", "mode": mode, "read_back": False}  # or one more may stay
    with penstock.CheckpointStore(tmp_path / "s", **how) as store:
        for step, loss in enumerate([9, 1, 5, 4, 2, 8, math.nan, 6, 7]):
            store.save({"w": torch.full((9,), float(step))}, step, pinned=step == 2, metadata={"loss": loss})
        assert [info.step for info in store] == kept
        assert [info.step for info in store.best(k=2)] == ([1, 4] if mode == "min" else [0, 5])
        assert store.load(kept[0])["w"][0] == kept[0]
    # Another store knows them by their manifests.
    with penstock.CheckpointStore(tmp_path / "s", keep_best=1, metric="loss", mode=mode) as store:
        store.save({"w": torch.zeros(1)}, 9, metadata={"loss": 5})
        assert [info.step for info in store] == [kept[0], 2, 9]


def test_wrong_arguments_are_named(tmp_path):
    for arguments, error, words in (
        ({"keep_best": 0}, ValueError, "keep_best: expected 1 to"),
        ({"keep_best": 1}, ValueError, "keep_best: give metric="),
        ({"metric": 3}, TypeError, "metric: expected a name"),
        ({"metric": "loss", "mode": "least"}, ValueError, "mode: expected 'min' or 'max'"),
    ):
        with pytest.raises(error, match=words):
            penstock.CheckpointStore(tmp_path / "c", **arguments)


def test_a_name_that_is_nearly_the_metric_is_warned_of(tmp_path):
    with penstock.CheckpointStore(tmp_path / "c", keep_best=1, metric="los") as store:
        with pytest.warns(RuntimeWarning, match="it has 'loss', and the store's metric is 'los'") as caught:
            store.save({}, metadata={"loss": 1.0})
        assert caught[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            store.save({}, metadata={"los": 1.0, "loss": 2.0})
            store.save({}, metadata={"accuracy": 1.0})
            store.save({})
