# SPDX-License-Identifier: Apache-2.0
"""CheckpointStore: numbered checkpoints in a folder. The compiled part has the bytes, the order of a commit and the
lock (docs/checkpoint.md). This module checks arguments and handles signals."""

from __future__ import annotations

import errno
import functools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from penstock import _core
from penstock._base import arguments as _arguments, children as _children, log as _log
from penstock._base.errors import from_core
from penstock._base.modes import untraced
from penstock._base.progress import Progress, reporter
from penstock._state import streamed as _streamed
from penstock._store.checkpoint import Checkpoint
from penstock._store.ranks import Ranks
from penstock._store.sigterm import SaveOnSigterm

if TYPE_CHECKING:
    import torch

    from penstock._base.types import Cache, Changing, Device, Dtype, Index, Into, MapLocation, Names

_COUNT_MAX = (1 << 32) - 1
_MODES = ("min", "max")
_WAIT_MAX_S = 1e9  # 30 years


_Call = TypeVar("_Call", bound=Callable[..., Any])


def _counted(call: _Call) -> _Call:
    """A save or load that counts as this rank's turn whatever it raises: before the compiled part begins one (an
    argument, a state that cannot be saved, Ctrl-C), it ends that of the other ranks."""

    @functools.wraps(call)
    def counted(self: CheckpointStore, *arguments: Any, **keywords: Any) -> Any:
        if getattr(self, "_ranks", 1) == 1:  # also of what has no store: an unknown keyword is reported all the same
            return call(self, *arguments, **keywords)
        self._store.forget_call()
        try:
            return call(self, *arguments, **keywords)
        except BaseException as error:
            if not self._store.has_called():
                self._store.refuse_save(f"{type(error).__name__}: {error}")
            raise

    return untraced(counted)  # type: ignore[return-value]


class CheckpointStore:
    """Numbered checkpoints in a folder. Each one is complete and durable, or does not exist.

        store = penstock.CheckpointStore("checkpoints", keep=3)
        store.save({"model": model.state_dict(), "step": step}, step=step)      # durable when it returns
        pending = store.save_async(state, step=step)                            # returns when the tensors may change
        state = store.load()                                                    # the newest valid checkpoint

    A checkpoint is a folder of safetensors files with a manifest of checksums; stock readers read it. One process
    writes at a time (a lock, from the first save to close()); any number of processes may read.

    folder: a folder, or several on different devices. The files are spread over them by speed; the first has the
        manifests. The first save creates missing folders and their parents.
    keep: number of newest checkpoints to keep (None: all, or with keep_best the newest). Also kept: with keep_every
        every n-th save, whatever its step; with keep_every_steps those whose step n divides (the newest of each step);
        with keep_best those with the best `metric`.
    metric: a name in the metadata of the saves ("loss"). mode: "min" if a lower number is better, or "max".
    shard_bytes: approximate size of a file.
    checksums: of every chunk; without them nothing can be verified.
    incremental: files whose tensors did not change are linked, not written.
    read_back: before the first removal, and then at most after one save in ten, save() reads the new checkpoint and
        checks it. The newest checkpoint that was read whole (so, or by load() or verify()) is never deleted, so up to
        keep + 1 are there. False: no reads, and at most `keep`, for a disk without room.
    host_memory: limit in bytes on the copies of save_async(); None: half of the memory that this process may use.
    lock_wait_s: seconds that a save waits for another process that writes here. If another CheckpointStore of this
        process writes here, BlockingIOError is raised at once.
    cache: for reads, as in penstock.load().
    ranks: the ranks that save together, such as penstock.Ranks.torch(). Each rank calls each save, with the same step,
        and states of one structure. DTensors, Slice and FlatSlice are parts of tensors, which have to tile them. Other
        tensors and values are the same on all ranks, and are written once. A save returns on no rank before the
        checkpoint is durable; what fails on one rank fails on all. load() is one of all ranks, too. Any number of
        processes loads it. `pinned` and `metadata` are rank 0's. Saves and loads are called in one order on all ranks,
        so by one thread at a time.
    rank_wait_s: seconds after which a rank that stands still, or does not call save() or load(), has failed. A slow
        one is waited for.

    Safe to use from several threads; saves run one after another."""

    @_arguments.named
    def __init__(
        self,
        folder: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        keep: int | None = None,
        keep_every: int | None = None,
        keep_every_steps: int | None = None,
        keep_best: int | None = None,
        metric: str | None = None,
        mode: Literal["min", "max"] = "min",
        shard_bytes: int | str = 256 << 20,
        checksums: bool = True,
        incremental: bool = True,
        read_back: bool = True,
        host_memory: int | str | None = None,
        lock_wait_s: float = 10,
        cache: Cache = "auto",
        ranks: Ranks | None = None,
        rank_wait_s: float = 300,
    ) -> None:
        one = isinstance(folder, (str, bytes)) or hasattr(folder, "__fspath__")
        if not one and not isinstance(folder, Iterable):
            raise TypeError(f"CheckpointStore: folder: got {type(folder).__name__}; give a path, or several")
        given = [os.fsdecode(f) for f in ([folder] if one else folder)]  # type: ignore[list-item]
        folders = [os.path.abspath(_arguments.local_path("CheckpointStore", f)) for f in given]
        if not folders:
            raise ValueError("CheckpointStore: folder: none was given; give one, or several")
        for name, value in (("keep", keep), ("keep_every", keep_every), ("keep_best", keep_best)):
            if value is not None:
                _arguments.whole("CheckpointStore", name, value, 1, _COUNT_MAX)
        if keep_every_steps is not None:
            _arguments.whole("CheckpointStore", "keep_every_steps", keep_every_steps, 1)
        if keep_best is not None and metric is None:
            raise ValueError(
                "CheckpointStore: keep_best: give metric= as well, the name in the metadata that is compared"
            )
        self._metric, self._mode = metric, mode
        compared = ("", False) if metric is None else self._compared("CheckpointStore", metric, mode)
        shard_bytes = _arguments.size("CheckpointStore", "shard_bytes", shard_bytes, 1)
        if host_memory is not None:
            host_memory = _arguments.size("CheckpointStore", "host_memory", host_memory, 1)
        if ranks is not None and not isinstance(ranks, Ranks):
            raise TypeError(f"CheckpointStore: ranks: expected penstock.Ranks, got {_arguments.got(ranks)}")
        rank_wait_s = min(_arguments.seconds("CheckpointStore", "rank_wait_s", rank_wait_s), _COUNT_MAX / 1000)
        rank_wait_ms = max(1, int(rank_wait_s * 1000))
        lock_wait_s = min(_arguments.seconds("CheckpointStore", "lock_wait_s", lock_wait_s), _WAIT_MAX_S)
        self._store = _core._checkpoint.Store(
            folders,
            keep=keep or 0,
            keep_every=keep_every or 0,
            keep_every_steps=keep_every_steps or 0,
            keep_best=keep_best or 0,
            metric=compared[0],
            greater_is_better=compared[1],
            shard_bytes=shard_bytes,
            checksums=checksums,
            incremental=incremental,
            read_back=bool(read_back),
            host_memory=host_memory or _core._async.default_host_memory(),
            lock_wait_ms=round(lock_wait_s * 1000),
            cache=cache,
            ranks=None if ranks is None else ranks._ranks,
            rank_wait_ms=rank_wait_ms,
        )
        self._folders, self._group, self._rank_wait_ms = folders, ranks, rank_wait_ms
        self._ranks = 1 if ranks is None else ranks.count

    def __repr__(self) -> str:
        return f"<penstock.CheckpointStore in {self._folders[0]!r}>"

    @property
    def folders(self) -> list[str]:
        return list(self._folders)

    @_counted
    @_arguments.named
    def save(
        self,
        state: Any,
        step: int = 0,
        *,
        pinned: bool = False,
        metadata: Mapping[str, Any] | None = None,
        default: Callable[[Any], Any] | None = None,
        changing: Changing = "raise",
        replicas: Literal["equal", "first"] = "equal",
        progress: Progress = False,
    ) -> _core.CheckpointInfo:
        """Saves a state. When it returns, the checkpoint survives a power failure, and older ones have been deleted as
        `keep` says. When it raises, nothing has changed, unless it raises penstock.Damaged: the new checkpoint was
        read back and is not what was saved. Older ones that are good are then kept.

        state: as for penstock.save(); NumPy-only states need no torch. An iterator of (name, tensor) is read to its end
            first, as by penstock.save_async(), and saved as a dict; its copies must fit into host_memory.
        step: the caller's own number. pinned: the checkpoint is kept whatever `keep` says.
        metadata: a dict of text, numbers, True, False and None, 1 MiB at most, such as {"loss": 0.3}. CheckpointInfo
            has it, and best() compares it. A tensor of one element, or a NumPy scalar, counts as its number.
        default: called with each object that a state cannot hold, as in penstock.save().
        changing: what the save does if a tensor changes while it is written, as in penstock.save(): "raise" or "torn".
        replicas: of several ranks, what the save does with tensors and values that are on several of them: "equal"
            raises ValueError, with their place and two ranks, where they differ (of tensors above 64 KiB, three pieces
            are compared; those of a GPU are not); "first" saves that of the first rank, as for BatchNorm under DDP.
        progress: True, or a function that is called with (done, total) in bytes about ten times a second.

        Raises TypeError with the place in the state for an object that cannot be saved, and penstock.Error (an OSError)
        for errors of the system. The error of an earlier save_async() that was not reported yet is raised first. Of
        several ranks it is a RuntimeWarning after the save."""
        step, rows = _arguments.step("save", step, state), _arguments.metadata("save", metadata, self._metric)
        _arguments.default("save", default)
        report = reporter(progress, "save")
        began = time.perf_counter()
        state = _streamed.collected("save", state, self._store, "", True, changing)
        info = self._store.save(state, step, bool(pinned), rows, default, report, changing, replicas)
        _log.saved(info, began)
        return info

    @_counted
    @_arguments.named
    def save_async(
        self,
        state: Any,
        step: int = 0,
        *,
        pinned: bool = False,
        metadata: Mapping[str, Any] | None = None,
        copy: bool = True,
        default: Callable[[Any], Any] | None = None,
        changing: Changing = "raise",
        replicas: Literal["equal", "first"] = "equal",
        progress: Progress = False,
    ) -> _core.PendingSave[_core.CheckpointInfo]:
        """A save() that returns when training may change the tensors again. `result()` of the returned object gives the
        CheckpointInfo. `copy`, `changing`, the memory budget and failures are as for penstock.save_async(), `replicas`
        as for save(). Of several ranks, the error of an earlier one is raised once this one has begun."""
        step = _arguments.step("save_async", step, state)
        rows = _arguments.metadata("save_async", metadata, self._metric)
        _arguments.default("save_async", default)
        report = reporter(progress, "save")
        _children.watch()
        state = _streamed.collected("save_async", state, self._store, "", copy, changing)
        pending = self._store.save_async(
            state, step, bool(pinned), rows, default, bool(copy), report, changing, replicas
        )
        _log.watch(pending, f"step {step}")
        return pending

    @_counted
    def _begin(
        self, state: Any, step: int, unchanging: list[tuple[int, int]]
    ) -> _core.PendingSave[_core.CheckpointInfo]:
        """save_async() that copies everything but the memory at `unchanging`: (address, bytes)."""
        step = _arguments.step("save", step, state)
        _children.watch()
        state = _streamed.collected("save", state, self._store, "", True, "raise")
        return self._store.save_async(state, step, False, [], None, unchanging, None)

    def latest(self) -> _core.CheckpointInfo | None:
        """The newest checkpoint with a valid manifest and all its files, or None. A RuntimeWarning says why newer ones
        were skipped."""
        return self._store.latest(self._skipped)

    @overload
    def best(
        self, metric: str | None = None, k: None = None, *, mode: Literal["min", "max"] | None = None
    ) -> _core.CheckpointInfo | None: ...
    @overload
    def best(
        self, metric: str | None = None, *, k: int, mode: Literal["min", "max"] | None = None
    ) -> list[_core.CheckpointInfo]: ...
    @_arguments.named
    def best(self, metric: str | None = None, k: int | None = None, *, mode: Any = None) -> Any:
        """The checkpoint with the lowest number of that name in its metadata, or None if no metadata has it. Of equal
        ones the newest. Those with a `problem` or NaN are skipped, with a RuntimeWarning if the system refused one.

        metric: the name; None: that of the store. mode: "max" for the highest number; None: that of the store.
        k: returns a list of at most k, the best first. Raises penstock.Error if none can be read, and ValueError if no
            metadata has the name but one has a similar name ("los" for "loss")."""
        if metric is None and self._metric is None:
            raise ValueError('best: metric: none was given, and the store has none; give a name: best("loss")')
        name, greater = self._compared("best", metric or self._metric, mode or self._mode)
        count = 1 if k is None else _arguments.whole("best", "k", k, 1, _COUNT_MAX)
        found = self._store.best(name, greater, count, self._skipped)
        return found if k is not None else found[0] if found else None

    @staticmethod
    def _compared(verb: str, metric: Any, mode: Any) -> tuple[str, bool]:
        """The name of a metric, and whether a higher number is better."""
        if not isinstance(metric, str) or not metric:
            raise TypeError(f"{verb}: metric: expected a name in the metadata, got {_arguments.got(metric)}")
        if mode not in _MODES:
            raise ValueError(f"{verb}: mode: expected 'min' or 'max', got {_arguments.got(mode)}")
        return metric, mode == "max"

    def list(self) -> list[_core.CheckpointInfo]:
        """All checkpoints, oldest first, including those with a `problem`."""
        return self._store.list()

    def __iter__(self) -> Iterator[_core.CheckpointInfo]:
        """The checkpoints of list()."""
        return iter(self.list())

    def __len__(self) -> int:
        return len(self.list())

    def __contains__(self, step: object) -> bool:
        """Whether there is a checkpoint of this step without a `problem`. Also takes a CheckpointInfo."""
        key = "step" if isinstance(step, int) else "generation"
        return any(not info.problem and getattr(info, key) == getattr(step, key, step) for info in self)

    def __bool__(self) -> bool:
        return True  # also without a checkpoint

    @staticmethod
    def _skipped(path: str, why: str) -> None:
        _log.logger.warning("checkpoint '%s' was passed over: %s", path, why)
        _log.warn(f"checkpoint '{path}' was passed over: {why}")

    @_arguments.named
    def open(self, generation: int) -> Checkpoint:
        """Opens a checkpoint for reading: its tensors, and slices of them."""
        return Checkpoint._of(self._store.open(_arguments.whole("open", "generation", generation)))

    # fmt: off
    @overload
    def load(
        self, step: int | None = None, *, generation: int | None = None, map_location: None = None,
        into: Into, names: Iterable[str] | None = None, device: Device | None = None,
        dtype: None = None, pickle: bool = False, progress: Progress = False,
        per_rank: Literal["own", "list"] = "own",
    ) -> Into: ...
    @overload
    def load(
        self, step: int | None = None, *, generation: int | None = None, map_location: MapLocation | None = None,
        into: None = None, names: Mapping[str, Index | None], device: Device | None = None,
        dtype: Dtype | None = None, pickle: bool = False, progress: Progress = False,
        per_rank: Literal["own", "list"] = "own",
    ) -> dict[str, torch.Tensor]: ...
    @overload
    def load(
        self, step: int | None = None, *, generation: int | None = None, map_location: MapLocation | None = None,
        into: None = None, names: str, device: Device | None = None,
        dtype: Dtype | None = None, pickle: bool = False, progress: Progress = False,
        per_rank: Literal["own", "list"] = "own",
    ) -> Any: ...
    @overload
    def load(
        self, step: int | None = None, *, generation: int | None = None, map_location: MapLocation | None = None,
        into: None = None, names: Names | None = None, device: Device | None = None,
        dtype: Dtype | None = None, pickle: bool = False, progress: Progress = False,
        per_rank: Literal["own", "list"] = "own",
    ) -> dict[str, Any]: ...
    # fmt: on

    @_counted
    @_arguments.named
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
        pickle: bool = False,
        progress: Progress = False,
        per_rank: Literal["own", "list"] = "own",
    ) -> Any:
        """Loads a state as it was saved; every chunk is checked.

        step, generation: which checkpoint (of several with one step the newest). Neither: the newest valid one. A
            checkpoint that is found to be damaged is skipped, with a RuntimeWarning that says why.
        map_location: as in torch.load.
        into: a state whose tensors are filled in place; only their elements are written. The result is the saved state
            with these tensors in it. Each of them has to be in the checkpoint, with the same type and shape.
        names: the wanted parts of the state, as in penstock.load(). device, dtype, pickle: as there.
        per_rank: "own" gives this rank what it saved as a PerRank, and is a ValueError where another number of ranks
            saved; "list" gives a list with the values of all ranks that saved (None where a rank had none).

        With several ranks, each of them calls it, and all load the same checkpoint, which rank 0 names: step and
            generation are the same on all. The other arguments are each rank's own, also the parts in `into`. None is
            filled before all ranks can load what they want. A checkpoint that one rank finds to be damaged is skipped
            by all, and any other error of one is raised on all. Saves in flight finish first. A rank that wants to
            load alone takes open(generation), or a store without ranks.

        Raises penstock.Damaged with file and tensor, KeyError for an unknown name, FileNotFoundError if none is valid.
        Errors of the machine (open files, memory, a permission) are raised as they are. So are errors of the system (a
        disk that cannot be read) if no checkpoint can be used."""
        names = None if names is None else _arguments.texts("load", "names", names)
        how = (map_location, into, names, device, dtype, pickle, progress, per_rank)
        if generation is not None:
            if step is not None:
                raise ValueError(f"load: expected generation or step, got generation={generation!r} and step={step!r}")
            generation = _arguments.whole("load", "generation", generation)
            if self._ranks == 1:
                with self.open(generation) as checkpoint:
                    return checkpoint._load(how)
        step = None if step is None else _arguments.whole("load", "step", step)
        loaded, reasons = None, {}

        def use(opened: Any, ready: Any, moved: Any) -> None:
            nonlocal loaded
            loaded = None  # what was read of one that was passed over
            with Checkpoint._of(opened) as checkpoint:
                loaded = (checkpoint._load(how, () if ready is None else (ready, moved)),)

        def passed_over(path: str, why: str) -> None:
            reasons[os.path.basename(path)] = why
            self._skipped(path, why)

        found = self._store.load(step, generation, use, passed_over)
        if found is not None and loaded is not None:
            return loaded[0]
        if step is not None and reasons and self._ranks == 1:  # the newest raises what is wrong, with file and tensor
            newest = max(reasons, key=lambda name: int(name.split("-")[0]))
            with Checkpoint(os.path.join(self._folders[0], newest)) as checkpoint:
                return checkpoint._load(how)
        which = "no checkpoint" if step is None else f"no checkpoint of step {step}{self._steps_for_message(step)}"
        but = "; ".join(f"'{name}': {why}" for name, why in reasons.items())
        why = (f", but {but}" if but else "") + "; list() names those that are there"
        raise from_core(
            2, f"load: there is {which} in '{self._folders[0]}' that can be used{why}", errno.ENOENT, "load",
            self._folders[0], None,
        )  # fmt: skip

    def _steps_for_message(self, step: int) -> str:
        infos = [info for info in self if not info.problem]
        steps = [str(number) for number in sorted({info.step for info in infos})]
        same = [f" (generation={step} is of step {info.step})" for info in infos if info.generation == step]
        return f"; there are {', '.join(['...'] * (len(steps) > 10) + steps[-10:])}{''.join(same)}" if steps else ""

    @_arguments.named
    def pin(self, generation: int, pinned: bool = True) -> None:
        """Keeps a checkpoint whatever `keep` says, durably. pinned=False undoes it."""
        self._store.pin(_arguments.whole("pin", "generation", generation), bool(pinned))

    @_arguments.named
    def remove(self, generation: int) -> None:
        """Deletes a checkpoint. Raises ValueError for the newest complete one."""
        self._store.remove(_arguments.whole("remove", "generation", generation))

    def collect(self) -> int:
        """Removes unfinished checkpoints of killed processes, as save() does by itself. Returns the bytes freed."""
        return self._store.collect()

    @_arguments.named
    def wait(self, timeout: float | None = None, *, raise_errors: bool = True) -> bool:
        """Waits until no save is in flight. Returns False after `timeout` seconds.

        raise_errors: the error of the first save_async() that failed and was not reported yet is raised, also after
            `timeout` seconds. False: it is left for the next call that raises it."""
        raises = _arguments.flag("wait", "raise_errors", raise_errors)
        done = self._store.wait(-1 if timeout is None else _arguments.seconds("wait", "timeout", timeout))
        if raises:
            self._store.raise_failure()
        return done

    def close(self) -> None:
        """Finishes the saves in flight and releases the lock. Then raises the error of the first save_async() that
        failed and was not reported yet; more of them are a RuntimeWarning each. The store is closed all the same. May
        be called again. The end of a `with` block does the same. If another exception ends the block, all of these
        errors are RuntimeWarnings."""
        self._store.close(True)

    def __enter__(self) -> CheckpointStore:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        self._store.close(kind is None)

    @_arguments.named
    def save_on_sigterm(
        self, get_state: Callable[[], Any], *, exit_code: int = 143, pinned: bool = False
    ) -> SaveOnSigterm:
        """After SIGTERM, saves once more at the next step boundary, and ends the process.

            with store.save_on_sigterm(lambda: training.state()) as guard:
                for step in range(steps):
                    train(step)
                    guard.step_end(step)

        get_state: called without arguments at the step boundary; returns the state. exit_code: of SystemExit.

        The workers of a torch DataLoader that are started inside the block ignore a SIGTERM that their parent did not
        send, while it lives. Other children that are forked inside it have the handler from before the block.

        Several ranks: each of them opens the block and calls step_end() for each step. SIGTERM to any of them, or to
        several, makes all save at the same step and leave: one or two steps later, and 16 to 32 where a step takes some
        ms only. No collective operation and no wait for a rank that is behind. If the loop ends before that step, the
        end of the block saves. There, ranks wait for rank 0."""
        return SaveOnSigterm(self, get_state, exit_code, pinned, self._rank_wait_ms)
