# SPDX-License-Identifier: Apache-2.0
"""penstock.lightning with Trainer: the files that are there, and what a resume takes, as with Lightning's
own plugin."""

import errno
import os
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
lightning = pytest.importorskip("lightning")
from lightning.pytorch.callbacks import Callback, ModelCheckpoint  # noqa: E402
from penstock.lightning import AsyncCheckpointIO, CheckpointIO  # noqa: E402

DATA = torch.utils.data.DataLoader(torch.arange(512.0).view(64, 8), batch_size=16)


@pytest.fixture
def plugins(tmp_path, monkeypatch):
    """The classes by name; none: Lightning's own."""
    monkeypatch.chdir(tmp_path)
    yield {"penstock": [CheckpointIO], "background": [AsyncCheckpointIO], "stock": []}
    AsyncCheckpointIO().teardown()


class Model(lightning.LightningModule):
    def __init__(self, accuracies=(0.9, 0.1, 0.2, 0.3), where=None):
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(8, 1)
        self.register_buffer("large", torch.zeros(4_000_000))  # a save in the background takes a while

    def training_step(self, batch, _):
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())

    def on_train_epoch_end(self):
        self.log("accuracy", self.hparams.accuracies[self.current_epoch])
        self.log("loss", 1.0 - self.current_epoch / 10)


def trainer(epochs, plugin, callbacks=()):
    return lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        plugins=[made() for made in plugin],
        callbacks=list(callbacks),
        enable_checkpointing=bool(callbacks),
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


@pytest.mark.parametrize("accuracies", [(0.9, 0.1, 0.2, 0.3), (0.1, 0.2, 0.3, 0.4)])
def test_two_callbacks_keep_their_best_in_one_folder(plugins, accuracies):
    files = {}
    for name in ("stock", "penstock"):
        best = ModelCheckpoint(name, monitor="accuracy", mode="max")
        lowest = ModelCheckpoint(name, monitor="loss")
        trainer(4, plugins[name], [best, lowest]).fit(Model(accuracies), DATA)
        for callback in (best, lowest):
            kept = torch.load(callback.best_model_path)
            assert kept["epoch"] == (3 if callback is lowest else accuracies.index(max(accuracies)))
        files[name] = sorted(path.name for path in pathlib.Path(name).iterdir())
    assert files["penstock"] == files["stock"]


@pytest.mark.parametrize("name", ["penstock", "background"])
def test_another_trainer_resumes_from_the_newest_save(plugins, name):
    path = "x.ckpt"  # no folder
    for epochs in (2, 3):
        first = trainer(epochs, plugins[name])
        first.fit(Model(), DATA, ckpt_path=path if epochs > 2 else None)
        first.save_checkpoint(path)
    resumed = trainer(4, plugins[name])
    begun = []
    model = Model()
    model.on_train_start = lambda: begun.append(resumed.global_step)
    resumed.fit(model, DATA, ckpt_path=path)
    assert begun == [12] and resumed.global_step == 16


def test_a_file_is_there_when_the_save_has_returned(plugins):
    made = trainer(1, plugins["penstock"])
    model = Model()
    made.fit(model, DATA)
    made.save_checkpoint("some/folders/final.ckpt")
    again = Model.load_from_checkpoint("some/folders/final.ckpt")
    assert torch.equal(again.layer.weight, model.layer.weight)


@pytest.mark.parametrize("name", ["penstock", "background"])
def test_files_that_somebody_removed_do_not_end_training(plugins, name):
    class Cleaner(Callback):
        def on_train_epoch_start(self, *_):
            for path in pathlib.Path("c").glob("*.ckpt"):
                path.unlink()

    made = trainer(3, plugins[name], [Cleaner(), ModelCheckpoint("c")])
    made.fit(Model(), DATA)
    made.strategy.checkpoint_io.teardown()
    assert [path.name for path in pathlib.Path("c").iterdir()] == ["epoch=2-step=12.ckpt"]
    folder = pathlib.Path("folder.ckpt")
    folder.mkdir()
    made.strategy.checkpoint_io.remove_checkpoint(folder)
    assert not folder.exists()


def test_a_checkpoint_that_cannot_be_removed_stops_no_training(plugins, monkeypatch):
    removed, kept = os.remove, []

    def remove(path, *args, **kwargs):
        if "epoch=0" in str(path):
            kept.append(path)
            raise PermissionError(errno.EPERM, "immutable", path)
        return removed(path, *args, **kwargs)

    monkeypatch.setattr(os, "remove", remove)
    made = trainer(3, plugins["penstock"], [ModelCheckpoint("c")])
    with pytest.warns(RuntimeWarning, match="epoch=0.*could not be removed.*immutable"):
        made.fit(Model(), DATA)
    assert len(kept) == 1
    assert sorted(path.name[:7] for path in pathlib.Path("c").iterdir()) == ["epoch=0", "epoch=2"]


def test_a_checkpoint_of_lightning_with_objects_is_resumed_if_it_is_trusted(plugins):
    first = trainer(1, plugins["stock"])
    first.fit(Model(where=pathlib.Path("/data")), DATA)
    first.save_checkpoint("stock.ckpt")
    resumed = trainer(2, plugins["penstock"])
    with pytest.raises(OSError, match=r"PosixPath.*weights_only=False"):
        resumed.fit(Model(), DATA, ckpt_path="stock.ckpt")
    resumed.fit(Model(), DATA, ckpt_path="stock.ckpt", weights_only=False)
    assert resumed.global_step == 8


def test_objects_of_other_classes_are_saved_as_the_user_says(plugins):
    plugin = [lambda: CheckpointIO(default=str)]
    first = trainer(1, plugin)
    first.fit(Model(where=pathlib.Path("/data")), DATA)
    first.save_checkpoint("plain.ckpt")
    assert torch.load("plain.ckpt")["hyper_parameters"]["where"] == "/data"
    resumed = trainer(2, plugin)
    resumed.fit(Model(where="/data"), DATA, ckpt_path="plain.ckpt")
    assert resumed.global_step == 8


@pytest.mark.parametrize("name", ["penstock", "background"])
def test_what_the_plugin_cannot_do_is_said_before_anything_is_written(plugins, tmp_path, name):
    (plugin,) = (made() for made in plugins[name])
    with pytest.raises(TypeError, match="storage_options"):
        plugin.save_checkpoint({}, "a.ckpt", {"anything": 1})
    with pytest.raises(ValueError, match="not a path on this machine"):
        plugin.save_checkpoint({}, "s3://bucket/a.ckpt")
    with pytest.raises(TypeError, match="default"):
        type(plugin)(default=3)
    with pytest.raises(TypeError, match="did you mean 'default'"):
        type(plugin)(defualt=str)
    assert list(tmp_path.iterdir()) == []


def test_the_error_of_a_save_in_the_background_is_of_the_next_call(plugins, tmp_path):
    plugin = AsyncCheckpointIO()
    (tmp_path / "taken.ckpt").mkdir()
    plugin.save_checkpoint({"w": torch.ones(3)}, "taken.ckpt")
    with pytest.raises(ValueError, match=r"taken.ckpt': it is a folder"):
        plugin.teardown()
    plugin.save_checkpoint({"w": torch.ones(3)}, "next.ckpt")
    assert plugin.load_checkpoint("next.ckpt")["w"].sum() == 3


def test_fit_raises_what_its_last_save_failed_with(plugins, tmp_path):
    class Last(Callback):
        def on_train_end(self, trainer, *_):
            trainer.save_checkpoint("taken.ckpt")

    (tmp_path / "taken.ckpt").mkdir()
    with pytest.raises(ValueError, match=r"taken.ckpt': it is a folder"):
        trainer(1, plugins["background"], [Last()]).fit(Model(), DATA)


def test_a_link_to_a_folder_is_removed_and_the_folder_stays(plugins, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link.ckpt").symlink_to("folder")
    CheckpointIO().remove_checkpoint("link.ckpt")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize("imports", ["pytorch_lightning", "pytorch_lightning, lightning.pytorch"])
def test_the_older_name_of_the_package_is_taken_where_it_is_used(tmp_path, imports):
    """Its Trainer takes children of its own class. A folder stands for the package, which is not installed."""
    folder = tmp_path / "pytorch_lightning" / "plugins"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    (folder / "__init__.py").touch()
    (folder / "io.py").write_text("class CheckpointIO: pass\n")
    program = (
        f"import {imports}; import penstock.lightning as m; print(*(c.__module__ for c in m.CheckpointIO.__bases__))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    bases = done.stdout.split()
    assert "pytorch_lightning.plugins.io" in bases, done.stderr
    assert any(base.startswith("lightning") for base in bases) == ("lightning.pytorch" in imports)
