# SPDX-License-Identifier: Apache-2.0
"""An unmodified DeepSpeed on Penstock's engine: install() and uninstall().

It changes these places of DeepSpeed, all in memory; uninstall() restores all of them:

1. The caches that the builders look up before they compile: OpBuilder._loaded_ops, sys._deepspeed_pin_memory_op_module.
2. load() and is_compatible() of the four builder classes, in place, so that modules that imported them are covered.
3. If the accelerator has only a placeholder for one of the four (the CPU has no UtilsBuilder and no GDSBuilder), the
   name is rebound in DeepSpeed and in every module that has imported it.
4. deepspeed.ops.__compatible_ops__, at once or when DeepSpeed first fills it. Without a compiler, deepspeed_shm_comm is
   False there too: DeepSpeed would compile it for any process group, and fail.
5. deepspeed.io.FastFileWriter, in every module that has imported it.

Objects that DeepSpeed made earlier do not change: a handle of its own op remains one.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import shutil
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, MutableMapping
from pathlib import Path
from types import ModuleType
from typing import Any

from penstock import _deepnvme_hook as _hook
from penstock.deepnvme import _builders

TESTED_VERSIONS = ("0.19.8",)
"""Versions of DeepSpeed that the test suite runs. Any other gets a warning, and an error where a place is missing."""

VARIABLE = "PENSTOCK_DEEPNVME"
"""Set to 1 in the environment, every Python process does as if it began with install()."""

_PTH = "penstock_deepnvme.pth"
_OPS = "deepspeed.ops.op_builder"
# The builder, and the file of deepspeed.ops.op_builder with the class for all accelerators.
_BUILDERS = {
    "AsyncIOBuilder": "async_io",
    "GDSBuilder": "gds",
    "UtilsBuilder": "utils",
    "PinMemoryBuilder": "pin_memory",
}
_PIN_CACHE = "_deepspeed_pin_memory_op_module"
_SHM = "deepspeed_shm_comm"
_MISSING = object()

_lock = threading.RLock()
_patches: _Patches | None = None
_patched: ModuleType | None = None  # the DeepSpeed that has the patches
_variable_before: Any = _MISSING  # the value of VARIABLE before install() set it


class InstallError(RuntimeError):
    """This DeepSpeed lacks a place that install() must change; the message names it. Nothing was changed."""


def install() -> None:
    """Makes DeepSpeed use Penstock: now if it is already imported, else when it is imported.

    From then on all parts of DeepSpeed that read or write files through its async_io op use Penstock: ZeRO-Infinity,
    ZeRO-Inference, FastFileWriter, ds_io. Nothing is compiled, and libaio is not needed.

    Child processes are covered too, however they are started: PENSTOCK_DEEPNVME=1 is put into os.environ, and
    penstock_deepnvme.pth, which is next to the package, reads it. A second call does nothing.

    Raises InstallError if DeepSpeed lacks a place that must be changed. If it is imported later, that import raises it.
    Warns if the version of DeepSpeed is not one of TESTED_VERSIONS. Thread-safe.
    """
    global _variable_before
    with _lock:
        module = sys.modules.get(_hook.PACKAGE)
        if getattr(getattr(module, "__spec__", None), "_initializing", False):
            raise InstallError(
                "penstock.deepnvme.install: DeepSpeed is being imported at this moment; call install() before "
                "`import deepspeed` or after it"
            )
        if module is not None:
            deepspeed_was_imported()
        _hook.arm(deepspeed_was_imported)
        if _variable_before is _MISSING:
            _variable_before = os.environ.get(VARIABLE)
            os.environ[VARIABLE] = "1"
            if not _children_read_pth():
                warnings.warn(
                    f"penstock.deepnvme.install: {_PTH} is in no folder of site-packages that this Python reads, so "
                    "child processes that are not forked will run DeepSpeed's own op. Install Penstock with pip, or "
                    "call install() in each child",
                    RuntimeWarning,
                    stacklevel=2,
                )


def uninstall() -> None:
    """Undoes install(), in DeepSpeed and in os.environ. Does nothing without install().

    Handles and tensors that were made meanwhile are still those of Penstock and continue to work. Thread-safe.
    """
    global _patched, _patches, _variable_before
    with _lock:
        _hook.disarm()
        if _patches is not None:
            _patches.undo()
            _patches = _patched = None
        if _variable_before is not _MISSING:
            if _variable_before is None:
                os.environ.pop(VARIABLE, None)
            else:
                os.environ[VARIABLE] = _variable_before
            _variable_before = _MISSING


def installed() -> bool:
    """Whether DeepSpeed uses Penstock in this process, or will when it is imported."""
    return _patches is not None or _hook.armed()


def deepspeed_was_imported() -> None:
    """Patches DeepSpeed once, when it has been imported. Called by the hook and by install().

    If a program removes DeepSpeed from sys.modules and imports it again, the new one is patched too. The patches are
    undone in the opposite order.
    """
    global _patched, _patches
    with _lock:
        module = sys.modules.get(_hook.PACKAGE)
        if _patches is not None and module is _patched:
            return
        earlier, _patches = _patches, None
        try:
            _patches = _put_under_deepspeed()
        except BaseException:
            _patches = earlier
            raise
        _patched = module
        if earlier is not None:
            _patches.before(earlier)


def _children_read_pth() -> bool:
    return any(Path(folder or ".", _PTH).is_file() for folder in sys.path)


# ---- the places ------------------------------------------------------------------------------------------------------


class _Patches:
    """A record of changes. They are undone in reverse order."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def on_undo(self, call: Callable[[], None]) -> None:
        self._undo.append(call)

    def undo(self) -> None:
        while self._undo:
            self._undo.pop()()

    def before(self, earlier: _Patches) -> None:
        self._undo.insert(0, earlier.undo)

    def attribute(self, owner: Any, name: str, value: Any) -> None:
        before = vars(owner).get(name, _MISSING)
        setattr(owner, name, value)
        self.on_undo(lambda: delattr(owner, name) if before is _MISSING else setattr(owner, name, before))

    def item(self, mapping: MutableMapping[str, Any], key: str, value: Any) -> None:
        before = mapping.get(key, _MISSING)
        mapping[key] = value

        def back() -> None:
            if before is _MISSING:
                mapping.pop(key, None)
            else:
                mapping[key] = before

        self.on_undo(back)

    def rebind(self, original: Any, ours: Any, name: str | None = None) -> None:
        """Rebinds `original` (under `name`, if given) to `ours` in every module. Undoing rebinds every `ours` to
        `original`, also in modules that were imported meanwhile."""
        _bind_anew(original, ours, name)
        self.on_undo(lambda: _bind_anew(ours, original, None))


def _bind_anew(before: Any, after: Any, name: str | None) -> None:
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if not isinstance(names, dict):
            continue
        for key, value in list(names.items()):
            if value is before and name in (None, key):
                names[key] = after


def _place(owner: Any, name: str) -> Any:
    """Returns owner.name, or raises an error that names it; owner may be the name of a module."""
    try:
        holder = importlib.import_module(owner) if isinstance(owner, str) else owner
        return getattr(holder, name)
    except (ImportError, AttributeError) as error:
        where = owner if isinstance(owner, str) else getattr(owner, "__name__", type(owner).__name__)
        raise InstallError(
            f"penstock.deepnvme.install: DeepSpeed {_version()} has no {where}.{name} ({error}), needed to put it "
            f"on Penstock; tested: {', '.join(TESTED_VERSIONS)}. Install one of these, or leave install() away"
        ) from error


def _version() -> str:
    return getattr(sys.modules.get(_hook.PACKAGE), "__version__", "(of unknown version)")


def _put_under_deepspeed() -> _Patches:
    patches = _Patches()
    try:
        _patch_caches(patches)
        substitutes = _patch_builders(patches)
        if substitutes:
            _patch_accelerator(patches, substitutes)
        _patch_compatible_ops(patches)
        _patch_writer(patches)
    except BaseException:
        patches.undo()
        raise
    if _version() not in TESTED_VERSIONS:
        warnings.warn(
            f"penstock.deepnvme.install: DeepSpeed {_version()} is not one of those that Penstock is tested with "
            f"({', '.join(TESTED_VERSIONS)}); every place that is needed is there, so it runs on Penstock now",
            RuntimeWarning,
            stacklevel=3,
        )
    return patches


def _has_pinning() -> bool:
    """Whether this DeepSpeed has a pin_memory op; older versions have none."""
    return importlib.util.find_spec(f"{_OPS}.pin_memory") is not None


def _names() -> Iterable[str]:
    return (name for name in _BUILDERS if name != "PinMemoryBuilder" or _has_pinning())


def _patch_caches(patches: _Patches) -> None:
    loaded = _place(_place(f"{_OPS}.builder", "OpBuilder"), "_loaded_ops")
    for name in _names():
        builder = getattr(_builders, name)()
        patches.item(loaded, builder.NAME, builder.load())
    patches.attribute(sys, _PIN_CACHE, _builders.PinMemoryBuilder().load())


def _patch_builders(patches: _Patches) -> dict[str, type]:
    """Patches the four builders. Returns the classes that replace placeholders of the accelerator, by name."""
    substitutes = {}
    for name in _names():
        ours = getattr(_builders, name)
        real = _place(f"{_OPS}.{_BUILDERS[name]}", name)
        public = _place(_OPS, name)
        is_placeholder = getattr(public, "NAME", None) != ours.NAME
        for builder in {real} if is_placeholder else {real, public}:
            patches.attribute(builder, "load", _load(ours))
            patches.attribute(builder, "is_compatible", _is_compatible(ours))
        if is_placeholder:
            # Uses a new class, so that undoing finds it wherever it was imported.
            substitutes[name] = type(name, (real,), {"__module__": real.__module__, "__doc__": ours.__doc__})
            patches.rebind(public, substitutes[name], name)
    return substitutes


def _load(ours: type) -> Callable[..., Any]:
    def load(self: Any, verbose: bool = False) -> Any:
        return ours().load(verbose=verbose)

    return load


def _is_compatible(ours: type) -> Callable[..., bool]:
    def is_compatible(self: Any, verbose: bool = False) -> bool:
        return ours().is_compatible(verbose=verbose)

    return is_compatible


def _patch_accelerator(patches: _Patches, substitutes: dict[str, type]) -> None:
    accelerator = _place("deepspeed.accelerator", "get_accelerator")()
    get = _place(accelerator, "get_op_builder")
    create = _place(accelerator, "create_op_builder")

    @functools.wraps(get)
    def get_op_builder(class_name: str) -> Any:
        return substitutes[class_name] if class_name in substitutes else get(class_name)

    @functools.wraps(create)
    def create_op_builder(class_name: str) -> Any:
        return substitutes[class_name]() if class_name in substitutes else create(class_name)

    patches.attribute(accelerator, "get_op_builder", get_op_builder)
    patches.attribute(accelerator, "create_op_builder", create_op_builder)


def _patch_compatible_ops(patches: _Patches) -> None:
    ops = importlib.import_module("deepspeed.ops")

    def answers() -> dict[str, bool]:
        """Asks as late as possible, because asking for a GPU loads its driver."""
        builders = [getattr(_builders, name)() for name in _names()]
        found = {builder.NAME: builder.is_compatible() for builder in builders}
        if not _can_compile() and not _is_prebuilt(_SHM):
            found[_SHM] = False
        return found

    filled = vars(ops).get("__compatible_ops__")
    if filled is not None:
        for name, answer in answers().items():
            patches.item(filled, name, answer)
        return
    probe = _place(ops, "_probe_compatible_ops")

    @functools.wraps(probe)
    def probe_compatible_ops() -> dict[str, bool]:
        return {**probe(), **answers()}

    # uninstall() clears DeepSpeed's cache of our answers; it is filled again on demand.
    patches.on_undo(lambda: vars(ops).pop("__compatible_ops__", None))
    patches.attribute(ops, "_probe_compatible_ops", probe_compatible_ops)


def _can_compile() -> bool:
    return shutil.which(os.environ.get("CXX", "c++").split()[0]) is not None


def _is_prebuilt(op: str) -> bool:
    return bool(_place("deepspeed.git_version_info", "installed_ops").get(op, False))


def _patch_writer(patches: _Patches) -> None:
    if importlib.util.find_spec("deepspeed.io") is None:
        return  # older versions have no writer to replace
    from penstock.deepnvme._fast_file_writer import FastFileWriter  # on demand, as in the package

    theirs = _place("deepspeed.io", "FastFileWriter")
    base = _place("deepspeed.io.base_file_writer", "BaseFileWriter")
    names = {"__module__": theirs.__module__, "__doc__": FastFileWriter.__doc__}
    patches.rebind(theirs, type("FastFileWriter", (FastFileWriter, base), names))
