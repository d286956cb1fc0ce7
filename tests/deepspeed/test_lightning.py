# SPDX-License-Identifier: Apache-2.0
"""The plugins of docs/lightning.md with Trainer: the files that are there, and what a resume takes, as with Lightning's
own plugin."""

import pathlib
import re
import sys

import pytest

torch = pytest.importorskip("torch")
lightning = pytest.importorskip("lightning")
from lightning.pytorch.callbacks import Callback, ModelCheckpoint  # noqa: E402

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "lightning.md"
DATA = torch.utils.data.DataLoader(torch.arange(512.0).view(64, 8), batch_size=16)


@pytest.fixture
def plugins(tmp_path, monkeypatch):
    """The classes of the page, by name; None: Lightning's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("penstock_io", "background_io"):
        found = re.search(rf"```python\n(# {name}\.py\n.*?)```", PAGE.read_text(), re.DOTALL)
        (tmp_path / f"{name}.py").write_text(found[1])
        sys.modules.pop(name, None)
    from background_io import BackgroundIO
    from penstock_io import PenstockIO

    yield {"penstock": [PenstockIO], "background": [BackgroundIO], "stock": []}
    BackgroundIO().teardown()


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


def test_a_checkpoint_of_lightning_with_objects_is_resumed_if_it_is_trusted(plugins):
    first = trainer(1, plugins["stock"])
    first.fit(Model(where=pathlib.Path("/data")), DATA)
    first.save_checkpoint("stock.ckpt")
    resumed = trainer(2, plugins["penstock"])
    with pytest.raises(OSError, match=r"PosixPath.*weights_only=False"):
        resumed.fit(Model(), DATA, ckpt_path="stock.ckpt")
    resumed.fit(Model(), DATA, ckpt_path="stock.ckpt", weights_only=False)
    assert resumed.global_step == 8
