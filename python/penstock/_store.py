# SPDX-License-Identifier: Apache-2.0
"""CheckpointStore and Checkpoint: numbered checkpoints in a folder. The compiled part has the bytes, the order of a
commit and the lock (docs/checkpoint.md); here are torch, NumPy, and signals."""

from __future__ import annotations

import errno
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock import _arguments, _core, _into, _load, _log, _state
from penstock._errors import Unsupported, from_core
from penstock._progress import Progress, reporter
from penstock._sigterm import SaveOnSigterm

_COUNT_MAX = (1 << 32) - 1
_WAIT_MAX_S = 1e9  # 30 years


# ---- one checkpoint

# Name, memory, begin and end of what is wanted or None for all, strides of the memory in bytes or None.
_ReadRow = tuple[str, Any, Any, Any, Any]


def _read(core: Any, rows: list[_ReadRow], progress: Any = None) -> int:
    read: int = core.read([row for row in rows if row[1].nbytes], True, progress)
    return read


class CheckpointTensor:
    """A tensor of a checkpoint. Nothing of it is read before it is indexed:

        checkpoint["layer.0.weight"][10:20]     # these rows, and at most one chunk (256 KiB) at each end
        checkpoint["layer.0.weight"][...]       # all of it

    The result is a torch tensor where torch is installed, else a NumPy array, in memory of its own. Indices are
    integers, slices and `...`; along other dimensions than the first whatever lies between is read too."""

    def __init__(self, core: Any, row: tuple[str, str, list[int], int, int]) -> None:
        self._core = core  # and not the Checkpoint, which has this tensor: its files close with their last user
        self.name, self._type, shape, self.nbytes, self.changed_generation = row
        self.shape = tuple(shape)
        self.dtype: str = _state._TORCH.get(self._type, self._type)

    def __repr__(self) -> str:
        return f"<penstock.CheckpointTensor {self.name!r} {self.dtype} {self.shape}>"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a tensor without dimensions")
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        made, row, after = self._plan(index)
        _read(self._core, [row])
        return made[after] if after else made

    def _plan(self, index: Any) -> tuple[Any, _ReadRow, tuple[Any, ...]]:
        """Memory for what is read, what is to be read, and what is then taken of it."""
        begin, end, after = self._box(index if isinstance(index, tuple) else (index,))
        made = _new_array([e - b for b, e in zip(begin, end, strict=True)], self.dtype, self.name)
        return made, (self.name, made, begin, end, None), after

    def _box(self, index: tuple[Any, ...]) -> tuple[list[int], list[int], tuple[Any, ...]]:
        """The smallest box that holds what is asked for, and what is then taken of it."""
        index = self._spread(index)
        begin, end, after = [], [], []
        for dimension, (extent, wanted) in enumerate(zip(self.shape, index, strict=True)):
            if isinstance(wanted, slice):
                first, last, step = wanted.indices(extent)
                if step < 1:
                    raise ValueError(f"{self.name}: a step of {step} in dimension {dimension}; it has to be 1 or more")
                begin.append(min(first, max(first, last)))
                end.append(max(first, last))
                after.append(slice(None, None, step))
                continue
            try:
                place = wanted.__index__()
            except AttributeError:
                raise TypeError(
                    f"{self.name}: an index is an integer, a slice or ..., got {type(wanted).__name__}"
                ) from None
            if not -extent <= place < extent:
                raise IndexError(f"{self.name}: index {place} of dimension {dimension}, which has {extent}")
            begin.append(place % extent)
            end.append(place % extent + 1)
            after.append(0)
        return begin, end, tuple(after)

    def _spread(self, index: tuple[Any, ...]) -> tuple[Any, ...]:
        dots = [i for i, wanted in enumerate(index) if wanted is Ellipsis]
        if len(dots) > 1:
            raise IndexError(f"{self.name}: more than one '...'")
        missing = len(self.shape) - (len(index) - len(dots))
        if missing < 0:
            raise IndexError(f"{self.name}: {len(index) - len(dots)} indices, and it has {len(self.shape)} dimensions")
        at = dots[0] if dots else len(index)
        return (*index[:at], *[slice(None)] * missing, *index[at + 1 :])


def _new_array(shape: Sequence[int], dtype: str, name: str) -> Any:
    torch = _state.torch_or_none()
    if torch is not None:
        if not hasattr(torch, dtype):
            raise Unsupported(f"{name}: torch {torch.__version__} has no {dtype}")
        return torch.empty(tuple(shape), dtype=getattr(torch, dtype))
    return _core.empty(tuple(shape), dtype=dtype, pinned=False).numpy()


def _fresh(sizes: list[int]) -> list[Any]:
    """Storages of these sizes, in huge pages. Large ones begin on pages, as they do in their files."""
    stretches, at = [], 0
    for size in sizes:
        align = 4096 if size >= 4096 else 64
        at = -(-at // align) * align
        stretches.append((at, size))
        at += size
    memory = _core._format.FreshMemory(stretches)
    return [_load.storage_over(*memory.part(i), size) for i, size in enumerate(sizes)]


@dataclass(frozen=True)
class CheckpointProblem:
    """A problem found by verify(). path: the file. tensor: its name, or "". offset: bytes into the file, or None."""

    path: str
    tensor: str
    offset: int | None
    message: str


class Checkpoint(Mapping[str, CheckpointTensor]):
    """One checkpoint, opened for reading: a mapping of names to CheckpointTensors. It stays readable when a store
    deletes it meanwhile. Safe to use from several threads.

    Its files are open until close(), the end of a `with` block, or until nothing refers to it and its CheckpointTensors
    any more. What load() and indexing gave has memory of its own.

    path: its folder; a store is not needed. cache: as in penstock.load(). Raises penstock.Damaged for a manifest that
    is not sound."""

    def __init__(self, path: str | os.PathLike[str], *, cache: str = "auto") -> None:
        self._take(_core._checkpoint.Checkpoint(os.fsdecode(path), cache))

    @classmethod
    def _of(cls, opened: Any) -> Checkpoint:
        made = cls.__new__(cls)
        made._take(opened)
        return made

    def _take(self, opened: Any) -> None:
        self._core = opened
        self._tensors = {row[0]: CheckpointTensor(opened, row) for row in opened.tensors()}

    def __repr__(self) -> str:
        return f"<penstock.Checkpoint of {self.info.path!r}, {len(self)} tensors>"

    @property
    def info(self) -> _core.CheckpointInfo:
        return self._core.info

    @property
    def metadata(self) -> dict[str, str]:
        return dict(self._core.metadata())

    def __getitem__(self, name: str) -> CheckpointTensor:
        try:
            return self._tensors[name]
        except KeyError:
            lacking = _core._format.lacking(name, list(self._tensors))
            raise KeyError(f"'{self.info.path}' has {lacking}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def close(self) -> None:
        """Closes its files. What needs them raises ValueError afterwards (load(), verify(), indexing a tensor); names,
        shapes, info and metadata stay. Calling it again is fine."""
        self._core.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def verify(self, progress: Progress = False) -> list[CheckpointProblem]:
        """Reads everything from the device, whatever is in the page cache, and checks it against its checksums. Empty:
        all is as it was saved."""
        return [CheckpointProblem(*row) for row in self._core.verify(reporter(progress, "verify"))]

    def load(
        self,
        map_location: Any = None,
        *,
        into: Any = None,
        names: str | Iterable[str] | Mapping[str, Any] | None = None,
        device: Any = None,
        dtype: Any = None,
        progress: Progress = False,
    ) -> Any:
        """The state, as it was saved; every chunk is checked. See CheckpointStore.load()."""
        report = reporter(progress, "load")
        map_location = _state.placing("load", map_location, device)
        dtype = _state.float_name("load", dtype, into)
        skeleton = self._core.skeleton()
        if names is not None:
            names = _arguments.texts("load", "names", names)
            asked = [names] if isinstance(names, str) else list(names)
            one = isinstance(names, str)
            whole = isinstance(names, Mapping) or one and names in self._tensors
            part = None if whole else skeleton.part(asked, one, self.info.path)
            if part is None:
                if into is not None:
                    raise ValueError(
                        "load: into: names: expected the name of a part of the state, got those of tensors"
                    )
                found = self._load_names(names, map_location, dtype, report)
                return found.get(names, found) if isinstance(names, str) else found
            skeleton = part
        kinds = None if dtype is None else skeleton.set_types(dtype)
        sources = skeleton.sources
        # A state of NumPy data alone needs no torch.
        if into is not None and (sources or _state.torch_or_none()):
            return self._fill(skeleton, into, report)
        arrays = [] if into is None else _into.arrays(self._without_data(skeleton)[0], self.info.path, into)
        if not sources:
            return _into.filled(_state._objects(skeleton, [], self.info.path), arrays, {}, {})
        storages = self._storages(skeleton, [], report)
        made = _load.storages_as(kinds or [None] * len(sources), storages, dtype)
        located = [
            _state._located(storage, location, map_location, self.info.path)
            for storage, (_, _, location) in zip(made, sources, strict=True)
        ]
        return _state._objects(skeleton, located, self.info.path)

    def _storages(self, skeleton: Any, rows: list[_ReadRow], report: Any, there: Mapping[int, Any] = {}) -> list[Any]:
        """Storages of the state in fresh memory, but for those that are `there`. rows: what is read with them."""
        sources = skeleton.sources
        fresh = _fresh([0 if i in there else size for i, (_, size, _) in enumerate(sources)])
        torch = _state._torch()
        storages = []
        for i, (name, _, _) in enumerate(sources):
            storages.append(there[i] if i in there else fresh[i])
            if i not in there:
                rows.append((name, torch.empty(0, dtype=torch.uint8).set_(storages[i]), None, None, None))
        _read(self._core, rows, report)
        return storages

    def _fill(self, skeleton: Any, into: Any, report: Any) -> Any:
        """load() into tensors that exist: nothing but their elements is written."""
        state, numbers = self._without_data(skeleton)
        stored = {name: (tensor.dtype, tensor.shape) for name, tensor in self._tensors.items()}
        plan = _into.Plan(into, self.info.path, skeleton, state, numbers, stored)
        arrays = _into.arrays(state, self.info.path, into)
        try:
            storages = self._storages(skeleton, plan.rows, report, plan.there)
        finally:
            _into.touched(plan.filled)
        state = _state._objects(skeleton, storages, self.info.path)
        by_place, done = plan.finish(state)
        return _into.filled(state, arrays, by_place, done)

    def _load_names(self, names: Any, map_location: Any, dtype: str | None, report: Any) -> dict[str, Any]:
        """By their names in the state, or in the shards where those are others. Of a strided tensor the storage is read
        whole."""
        skeleton, found = self._views()
        asked = [names] if isinstance(names, str) else list(names)
        there = {name for name, _, _ in found}
        found += [(name, f"[{name!r}]", None) for name in asked if name in self._tensors and name not in there]
        out, rows, after, views = {}, [], {}, {}
        for i, index in _load.chosen(found, names, self.info.path).items():
            name, _, view = found[i]
            stored = name if view is None else self._stored_as(skeleton, view)
            if stored is not None:
                out[name], row, after[name] = self[stored]._plan(... if index is None else index)
            else:
                source, size, _ = skeleton.sources[skeleton.numbers[view.untyped_storage()._cdata]]
                views[name] = _load.sliced(view, index, name)
                out[name] = _new_array([size], "uint8", name)
                row = (source, out[name], None, None, None)
            rows.append(row)
        _read(self._core, rows, report)
        for name, made in out.items():
            if name in views:
                out[name] = _load.view_of(made.untyped_storage(), views[name]).clone()
            elif after[name]:
                out[name] = made[after[name]]
            if dtype is not None:
                out[name] = _load.converted(out[name], dtype)
        if map_location is None:
            return out
        torch = _state._torch()
        for name, tensor in out.items():
            storage = _state._located(tensor.untyped_storage(), "cpu", map_location, self.info.path)
            there = torch.empty(0, dtype=tensor.dtype, device=storage.device)
            out[name] = there.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
        return out

    def _views(self) -> tuple[_Skeleton, list[_into.Row]]:
        """The tensors of the state, without their data."""
        skeleton = self._core.skeleton()
        if not skeleton.sources:
            return _Skeleton([], {}), []
        state, numbers = self._without_data(skeleton)
        return _Skeleton(skeleton.sources, numbers), list(_into.tensors(state))

    def _without_data(self, skeleton: Any) -> tuple[Any, dict[int, int]]:
        return _load.without_data(skeleton, (size for _, size, _ in skeleton.sources), self.info.path)

    def _stored_as(self, skeleton: _Skeleton, view: Any) -> str | None:
        """The tensor of a shard that is this one, if it lies there as it is."""
        name, size, _ = skeleton.sources[skeleton.numbers[view.untyped_storage()._cdata]]
        stored = self._tensors.get(name)
        is_all = view.is_contiguous() and view.nbytes == size and not view.is_conj() and not view.is_neg()
        alike = stored is not None and (f"torch.{stored.dtype}", stored.shape) == (str(view.dtype), tuple(view.shape))
        return name if is_all and alike else None


@dataclass(frozen=True)
class _Skeleton:
    """sources: name in the shards, bytes and place of each storage. numbers: which one a storage of the skeleton is."""

    sources: list[tuple[str, int, str]]
    numbers: dict[int, int]


# ---- the store


class CheckpointStore:
    """Numbered checkpoints in a folder, each of them whole and durable, or not there.

        store = penstock.CheckpointStore("checkpoints", keep=3)
        store.save({"model": model.state_dict(), "step": step}, step=step)      # durable when it returns
        pending = store.save_async(state, step=step)                            # when the tensors may change
        state = store.load()                                                    # of the newest that is sound

    A checkpoint is a folder of safetensors files with a manifest of checksums; stock readers read it. One process
    writes at a time (a lock, from the first save to close()); any number read.

    folder: where; or several, over whose devices the files are spread by speed, the first has the manifests. Made
        by the first save, with its parents, when it is not there.
    keep: newest checkpoints that are kept (None: all); keep_every: and every n-th beyond that (None: none).
    shard_bytes: of a file, about.
    checksums: of every chunk; without them nothing can be verified.
    incremental: files whose tensors did not change are linked, not written.
    host_memory: bytes that copies of save_async() may take; None: half of what this process may have.
    lock_wait_s: seconds that a save waits for another process that writes here. Another CheckpointStore of this
        process that writes here is not waited for: BlockingIOError.
    cache: of reads, as in penstock.load().

    Safe to use from several threads; saves go one after another."""

    def __init__(
        self,
        folder: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        keep: int | None = None,
        keep_every: int | None = None,
        shard_bytes: int | str = 256 << 20,
        checksums: bool = True,
        incremental: bool = True,
        host_memory: int | str | None = None,
        lock_wait_s: float = 10,
        cache: str = "auto",
    ) -> None:
        one = isinstance(folder, (str, bytes)) or hasattr(folder, "__fspath__")
        if not one and not isinstance(folder, Iterable):
            raise TypeError(f"CheckpointStore: folder: got {type(folder).__name__}; give a path, or several")
        folders = [os.path.abspath(os.fsdecode(f)) for f in ([folder] if one else folder)]  # type: ignore[list-item]
        if not folders:
            raise ValueError("CheckpointStore: folder: none was given; give one, or several")
        for name, value in (("keep", keep), ("keep_every", keep_every)):
            if value is not None:
                _arguments.whole("CheckpointStore", name, value, 1, _COUNT_MAX)
        shard_bytes = _arguments.size("CheckpointStore", "shard_bytes", shard_bytes, 1)
        if host_memory is not None:
            host_memory = _arguments.size("CheckpointStore", "host_memory", host_memory, 1)
        lock_wait_s = min(_arguments.seconds("CheckpointStore", "lock_wait_s", lock_wait_s), _WAIT_MAX_S)
        self._store = _core._checkpoint.Store(
            folders,
            keep=keep or 0,
            keep_every=keep_every or 0,
            shard_bytes=shard_bytes,
            checksums=checksums,
            incremental=incremental,
            host_memory=host_memory or _core._async.default_host_memory(),
            lock_wait_ms=round(lock_wait_s * 1000),
            cache=cache,
        )
        self._folders = folders

    def __repr__(self) -> str:
        return f"<penstock.CheckpointStore in {self._folders[0]!r}>"

    @property
    def folders(self) -> list[str]:
        return list(self._folders)

    def save(
        self,
        state: Any,
        step: int = 0,
        *,
        pinned: bool = False,
        metadata: dict[str, str] | None = None,
        default: Callable[[Any], Any] | None = None,
        progress: Progress = False,
    ) -> _core.CheckpointInfo:
        """Saves a state. When it returns the checkpoint survives a power failure, and older ones were deleted as `keep`
        says; when it raises, everything is as it was.

        state: as penstock.save() takes it; NumPy-only states need no torch. The tensors must not change meanwhile.
        step: the caller's own number. pinned: kept whatever `keep` says. metadata: strings, for people and tools.
        default: called with each object that a state cannot hold, as in penstock.save().
        progress: True, or called with (done, total) in bytes about ten times a second.

        Raises TypeError naming the place in the state for what cannot be saved, penstock.Error (an OSError) for what
        the system refuses, and first what an earlier save_async() failed with when nobody asked for its result."""
        step, rows = _arguments.step("save", step, state), _arguments.strings("save", "metadata", metadata)
        _state.check_default("save", default)
        began = time.perf_counter()
        with _state.named_in(state):
            info = self._store.save(state, step, bool(pinned), rows, default, reporter(progress, "save"))
        _log.saved(info, began)
        return info

    def save_async(
        self,
        state: Any,
        step: int = 0,
        *,
        pinned: bool = False,
        metadata: dict[str, str] | None = None,
        copy: bool = True,
        default: Callable[[Any], Any] | None = None,
        progress: Progress = False,
    ) -> _core.PendingSave[_core.CheckpointInfo]:
        """save() that returns when training may change the tensors again; `result()` of what it gives is the
        CheckpointInfo. The rest as for penstock.save_async(): `copy`, the budget, failures."""
        step, rows = _arguments.step("save_async", step, state), _arguments.strings("save_async", "metadata", metadata)
        _state.check_default("save_async", default)
        report = reporter(progress, "save")
        with _state.named_in(state):
            pending = self._store.save_async(state, step, bool(pinned), rows, default, bool(copy), report)
        _log.watch(pending, f"step {step}")
        return pending

    def _begin(
        self, state: Any, step: int, unchanging: list[tuple[int, int]]
    ) -> _core.PendingSave[_core.CheckpointInfo]:
        """save_async() that copies everything but the memory at `unchanging`: (address, bytes)."""
        with _state.named_in(state):
            return self._store.save_async(
                state, _arguments.step("save", step, state), False, [], None, unchanging, None
            )

    def latest(self) -> _core.CheckpointInfo | None:
        """The newest checkpoint whose manifest is sound and whose files are there, or None. Of newer ones that were
        passed over a RuntimeWarning says why."""
        return self._store.latest(self._skipped)

    def list(self) -> list[_core.CheckpointInfo]:
        """All checkpoints, oldest first; those with a `problem` included."""
        return self._store.list()

    def __iter__(self) -> Iterator[_core.CheckpointInfo]:
        """The checkpoints that list() has."""
        return iter(self.list())

    def __len__(self) -> int:
        return len(self.list())

    def __contains__(self, step: object) -> bool:
        """Whether there is a checkpoint of a step that is not known to be damaged; or a CheckpointInfo, still there."""
        key = "step" if isinstance(step, int) else "generation"
        return any(not info.problem and getattr(info, key) == getattr(step, key, step) for info in self)

    def __bool__(self) -> bool:
        return True  # also where it has no checkpoint yet

    @staticmethod
    def _skipped(path: str, why: str, stacklevel: int = 3) -> None:
        message = f"penstock: checkpoint '{path}' was passed over: {why}"
        _log.logger.warning("checkpoint '%s' was passed over: %s", path, why)
        warnings.warn(message, RuntimeWarning, stacklevel=stacklevel)

    def open(self, generation: int) -> Checkpoint:
        """A checkpoint for reading: its tensors, and slices of them."""
        return Checkpoint._of(self._store.open(_arguments.whole("open", "generation", generation)))

    def load(
        self,
        step: int | None = None,
        *,
        generation: int | None = None,
        map_location: Any = None,
        into: Any = None,
        names: str | Iterable[str] | Mapping[str, Any] | None = None,
        device: Any = None,
        dtype: Any = None,
        progress: Progress = False,
    ) -> Any:
        """A state, as it was saved; every chunk is checked.

        step, generation: which checkpoint (of several of one step the newest); neither: the newest that is sound. One
            that turns out to be damaged is passed over with a RuntimeWarning that says why.
        map_location: as in torch.load.
        into: a state whose tensors are filled in place, their elements and nothing else; what comes back is the state
            as saved with these tensors in it. Each tensor of it has to be in the checkpoint, with its type and shape.
        names: what is wanted of the state, as in penstock.load(). device, dtype: likewise.

        Raises penstock.Damaged naming file and tensor, KeyError for a name, FileNotFoundError where none is sound. What
        the machine lacks (open files, memory, a permission) is raised as it is, and so is what the system says (a disk
        that cannot be read) where no checkpoint can be used."""
        names = None if names is None else _arguments.texts("load", "names", names)
        arguments = {"into": into, "names": names, "device": device, "dtype": dtype, "progress": progress}
        if generation is not None:
            if step is not None:
                raise ValueError("load: generation or step, not both")
            with self.open(generation) as checkpoint:
                return checkpoint.load(map_location, **arguments)
        if step is not None:
            step = _arguments.whole("load", "step", step)
        loaded, reasons = [], []

        def use(opened: Any) -> None:
            with Checkpoint._of(opened) as checkpoint:
                loaded.append(checkpoint.load(map_location, **arguments))

        def passed_over(path: str, why: str) -> None:
            reasons.append(f"'{os.path.basename(path)}': {why}")
            self._skipped(path, why, stacklevel=4)

        self._store.open_newest(step, use, passed_over)
        if loaded:
            return loaded[0]
        which = "no checkpoint" if step is None else f"no checkpoint of step {step}{self._steps_for_message(step)}"
        why = (f", but {'; '.join(reasons)}" if reasons else "") + "; list() names those that are there"
        raise from_core(
            2, f"load: there is {which} in '{self._folders[0]}' that can be used{why}", errno.ENOENT, "load",
            self._folders[0], None,
        )  # fmt: skip

    def _steps_for_message(self, step: int) -> str:
        infos = [info for info in self if not info.problem]
        steps = [str(number) for number in sorted({info.step for info in infos})]
        same = [f" (generation={step} is of step {info.step})" for info in infos if info.generation == step]
        return f"; there are {', '.join(['...'] * (len(steps) > 10) + steps[-10:])}{''.join(same)}" if steps else ""

    def pin(self, generation: int, pinned: bool = True) -> None:
        """Keeps a checkpoint whatever `keep` says, durably; pinned=False: not any more."""
        self._store.pin(_arguments.whole("pin", "generation", generation), bool(pinned))

    def remove(self, generation: int) -> None:
        """Deletes a checkpoint. ValueError for the newest that is whole."""
        self._store.remove(_arguments.whole("remove", "generation", generation))

    def collect(self) -> int:
        """Takes away what a killed process left unfinished (save() does it by itself). Bytes freed."""
        return self._store.collect()

    def wait(self, timeout: float | None = None) -> bool:
        """Until no save is in flight. False after `timeout` seconds."""
        return self._store.wait(-1 if timeout is None else _arguments.seconds("wait", "timeout", timeout))

    def close(self) -> None:
        """Finishes the saves that are in flight and lets the lock go. Calling it again is fine."""
        self._store.close()

    def __enter__(self) -> CheckpointStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def save_on_sigterm(
        self, get_state: Callable[[], Any], *, exit_code: int = 143, pinned: bool = False
    ) -> SaveOnSigterm:
        """When the process is told to end (SIGTERM), saves once more at the next step boundary, and leaves.

            with store.save_on_sigterm(lambda: training.state()) as guard:
                for step in range(steps):
                    train(step)
                    guard.step_end(step)

        get_state: called with nothing at the step boundary; gives the state. exit_code: of SystemExit."""
        return SaveOnSigterm(self, get_state, exit_code, pinned)
