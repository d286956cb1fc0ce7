# SPDX-License-Identifier: Apache-2.0
"""The table of public verbs: for each a small call, and a check of what it gives.

A row is a function of a Box; what is under test runs inside `with box.call():`, where faults are put in. Before it the
row prepares, after it the row checks the result. `otherwise` is what has to hold where the call raised instead. All
scenes of this folder run over these rows, and test_table.py fails for a public verb that no row names.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import penstock
import torch
from penstock import deepnvme

SIZE = 200_003  # several device blocks, and an end that is off them
DATA = np.random.default_rng(7).integers(0, 256, SIZE, dtype=np.uint8).tobytes()
OLD = {"a": torch.arange(1000.0), "b": {"c": torch.ones(3, 5), "n": 1}}
NEW = {"a": torch.arange(1000.0) + 1, "b": {"c": torch.zeros(3, 5), "n": 2}}


def alike(state, expected):
    return (
        torch.equal(state["a"], expected["a"])
        and torch.equal(state["b"]["c"], expected["b"]["c"])
        and state["b"]["n"] == expected["b"]["n"]
    )


def flat_of(state):
    """As .safetensors takes it."""
    return {"a": state["a"], "b.c": state["b"]["c"], "n": torch.tensor(state["b"]["n"])}


def nested_of(state):
    """Of either form."""
    return {"a": state["a"], "b": {"c": state["b.c"], "n": int(state["n"])}} if "b.c" in state else state


class Box:
    """A folder that one call of a row works in; the folder is empty again after each call.

    arm, disarm: what happens at the begin and the end of the call under test."""

    def __init__(self, folder, arm=None, disarm=None):
        self.folder = Path(folder)
        self._arm, self._disarm = arm, disarm
        self._count = 0

    def path(self, name="file"):
        self._count += 1
        return str(self.folder / f"{self._count}.{name}")

    def file(self, data=DATA, name="file"):
        path = self.path(name)
        with open(path, "wb") as file:
            file.write(data)
        return path

    @contextlib.contextmanager
    def call(self, otherwise=None):
        if self._arm is not None:
            self._arm()
        try:
            yield
        except BaseException:
            if self._disarm is not None:
                self._disarm()
            if otherwise is not None:
                otherwise()
            raise
        finally:
            if self._disarm is not None:
                self._disarm()


@dataclass(frozen=True)
class Row:
    names: tuple[str, ...]
    run: object
    main_thread: bool = False  # signals
    torch: bool = True  # the call or its check runs torch's code
    alone: bool = False  # changes the process, and is not for several threads at once

    @property
    def name(self):
        return self.names[0]


ROWS: dict[str, Row] = {}


def verb(*names, **options):
    def add(run):
        ROWS[names[0]] = Row(names, run, **options)
        return run

    return add


# Public names without a row, and why. Classes of plain values, exceptions and properties need none.
EXEMPT = {
    "PendingSave": "save_async() makes them",
    "Ranks.torch": "needs a process group; python/tests/test_ranks_torch.py kills and stops its processes",
    "Transfer": "the verbs make them",
    "FileWriter.read": "refuses",
    "FileWriter.readable": "a constant",
    "FileWriter.writable": "a constant",
    "FileWriter.seekable": "a constant",
    "FileWriter.fileno": "raises always",
}
EXEMPT_CLASSES = {
    "CheckpointInfo": "a value",
    "CheckpointProblem": "a value",
    "CuFileReport": "a value",
    "DepthLimit": "a number",
    "DeviceDescription": "a value",
    "GpuDescription": "a value",
    "EngineDescription": "a value",
    "EngineOptions": "a value",
    "EngineStats": "a value",
    "FileInfo": "a value",
    "Gpu": "a value",
    "GpuReport": "a value",
    "Future": "Transfer and PendingSave have its methods",
    "IncompatibleKeys": "a value",
    "LatencyStats": "a value",
    "TensorInfo": "a value",
    "Unread": "load(unread='keep') makes them",
    "deepnvme.FastFileWriterConfig": "a value",
    "deepnvme.gds_handle": "aio_handle's methods, and those that python/tests/gpu calls; the class has a row",
}
SPECIAL = ("__getitem__", "__await__", "__enter__")


def public_verbs():
    """Every public callable: functions, classes (their constructors) and methods; deepnvme's begin with `deepnvme.`"""
    found = set()
    for prefix, module in (("", penstock), ("deepnvme.", deepnvme)):
        for name in module.__all__:
            thing = getattr(module, name)
            if not callable(thing) or (inspect.isclass(thing) and issubclass(thing, BaseException)):
                continue
            found.add(prefix + name)
            if not inspect.isclass(thing) or prefix + name in EXEMPT_CLASSES:
                continue
            for member in dir(thing):
                if (not member.startswith("_") or member in SPECIAL) and callable(getattr(thing, member)):
                    found.add(f"{prefix}{name}.{member}")
    return found


def named_verbs():
    return {name for row in ROWS.values() for name in row.names}


def in_threads(row, folder, count):
    """Runs a row in several threads at once, each in a folder of its own; the errors that they ended with."""
    errors = []

    def run(number):
        try:
            place = Path(folder) / str(number)
            place.mkdir()
            row.run(Box(place))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors
