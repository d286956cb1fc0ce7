# SPDX-License-Identifier: Apache-2.0
"""penstock.FeatureStore: tables of a feature file, open for gathers."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from penstock import _core
from penstock._base import arguments as _arguments, gathered as _gathered
from penstock._base.errors import Damaged
from penstock._base.progress import Progress, reporter
from penstock.features._table import Device, FeatureTable

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from penstock._base.types import Path, Stream

_Out = TypeVar("_Out")
Policy = Literal["window", "static", "clock", "s3fifo"]


def _number_of(device: Any) -> int:
    """The CUDA number of "cuda:1", 1 or torch.device("cuda", 1); "cuda" is 0."""
    if isinstance(device, int) and not isinstance(device, bool):
        number = device
    else:
        found = re.fullmatch(r"cuda(?::([0-9]{1,9}))?", str(device))
        number = -1 if found is None else int(found[1] or 0)
    if not 0 <= number < 1 << 31:
        raise ValueError(
            f"FeatureStore: device: got {_arguments.shown(device)}; expected 'cuda:0' or another GPU of CUDA"
        )
    return number


@dataclass(frozen=True)
class FeatureStats:
    """Counts since a store was opened; those of memory are for this process.

    gathers: calls. rows, nbytes: requested by them. rows_hit: rows that came from memory; rows_on_gpu: of these, from
    the memory of the GPU that they went to. rows_read, bytes_read: from the files; a row that is repeated in a gather
    counts twice. Engine.stats() has the bytes that the devices moved.
    memory_bytes: limit for rows and the tables of the cache; device_bytes: for memory of GPUs. slots: rows that fit.
    admitted: rows that were read and kept; passed_by: read and not kept; evicted; preloaded: hot rows. hints: batches
    that were accepted; hints_used: of these, those that were gathered; hints_refused: too many outstanding, or too
    large; hints_dropped: not gathered in time.
    """

    gathers: int
    rows: int
    nbytes: int
    rows_hit: int
    rows_on_gpu: int
    rows_read: int
    bytes_read: int
    memory_bytes: int
    device_bytes: int
    slots: int
    admitted: int
    passed_by: int
    evicted: int
    preloaded: int
    hints: int
    hints_used: int
    hints_refused: int
    hints_dropped: int


def _ram_bytes(ram: int | str | None) -> int | str | None:
    """None: kRamIfSmall."""
    if isinstance(ram, str):
        if ram == "small":
            return None
        if ram == "auto":
            return _core.available_memory_bytes() // 2
    return 0 if ram is None else ram


class FeatureStore:
    """Tables of rows that are larger than memory, open for gathers: `store["paper"].gather(ids)`.

    path: a feature file (see write()), or a `.npy`, which is read in place, as one table with the name of the file.

        penstock.FeatureStore.write("igb.features", {"paper": papers, "author": authors})
        store = penstock.FeatureStore.open("igb.features")
        rows = store["paper"].gather(ids)
        both = store.gather({"paper": ids, "author": others})

    ram: bytes ("4GiB") for rows that stay in memory; the tables share them in the ratio of their sizes. "small": as
        many as all rows take, if that is at most a sixteenth of the memory that the process may still take now;
        blocking gathers then also read some rows that they were not asked for, until all are there. Otherwise, for a
        `.npy`, and with `hot` or `device_memory`, no row stays. "auto": as many as all rows take, but at most half of
        that memory. None: no row stays. Each process has its own memory, also each worker of a DataLoader. describe()
        says what was chosen.
    policy: which rows stay: "window" (rows that hints name, the soonest first, then the most used ones), "static" (hot
        rows, and the first ones that were read), "clock", "s3fifo".
    hot: ids that are read into memory now, the most used first, as far as they fit (first into memory of the GPU, if
        there is some); for several tables a dict of names and ids. Needs `ram` or `device_memory`.
    device_memory: bytes ("4GiB") of a GPU for rows that stay there, for gathers into its memory. device: which GPU. The
        policy and the hints then apply to this memory. The first gather into the memory of a GPU pins the rows that
        `ram` keeps.
    verify: compares all rows with their checksums first. This reads the whole file once, from the device, as fast as it
        answers (1 TB at 5 GB/s: 200 seconds), and then raises penstock.Damaged with the table, file, offset and row of
        the first damaged chunk of 1 MiB, or OSError if one cannot be read. False: a gather does not notice damaged
        rows, nor later damage with True. A `.npy` has no checksums: penstock.Unsupported. A store that is unpickled
        does not verify again.
    progress: of `verify`, as in features.verify(). Ctrl-C stops it.

    If the file is replaced while it is open, the old one is still read. A child of fork() may use the store, and a
    pickled one opens its file again; the memory of both is empty at first. Thread-safe. Raises ValueError for a file
    that is no feature file, penstock.Damaged for a truncated, changed or invalid one, OSError for errors of the
    system."""

    @_arguments.named
    def __init__(
        self,
        path: Path,
        ram: int | str | None = "small",
        policy: Policy = "window",
        hot: Any = None,
        device_memory: int | str | None = None,
        device: Device = "cuda:0",
        verify: bool = False,
        progress: Progress = True,
    ) -> None:
        if not isinstance(path, (str, bytes, os.PathLike)):
            raise TypeError(f"FeatureStore: path: expected a path, got {_arguments.got(path)}")
        _arguments.flag("FeatureStore", "verify", verify)
        # Absolute, because a pickled store may be opened where the working folder is another. Without `verify`: it
        # opens the same file, which workers need not all read.
        own = os.path.abspath(_arguments.local_path("FeatureStore", os.fsdecode(path)))
        self._arguments = own, ram, policy, hot, device_memory, device
        if hot is not None and not isinstance(hot, Mapping):
            tables = _core.inspect_features(path)["tables"]
            if len(tables) != 1:
                raise TypeError(
                    f"FeatureStore: hot: expected a dict of tables and ids, for this file has {len(tables)} tables"
                )
            hot = {tables[0]["name"]: hot}
        rows = [(name, _gathered.numbers(ids, named="hot")) for name, ids in (hot or {}).items()]
        number = 0 if device_memory is None else _number_of(device)
        self._opened = _core.FeatureStore(
            path,
            _ram_bytes(ram),
            policy,
            rows,
            0 if device_memory is None else device_memory,
            number,
            bool(verify),
            reporter(progress, "features verify"),
        )
        self._file = self._opened.file()
        self.tables: dict[str, FeatureTable] = {
            one["name"]: FeatureTable(self._opened, index, one, self) for index, one in enumerate(self._file["tables"])
        }

    @classmethod
    @_arguments.named
    def open(
        cls,
        path: Path,
        ram: int | str | None = "small",
        policy: Policy = "window",
        hot: Any = None,
        device_memory: int | str | None = None,
        device: Device = "cuda:0",
        verify: bool = False,
        progress: Progress = True,
    ) -> FeatureStore:
        """The same as FeatureStore(path, ...)."""
        return cls(path, ram, policy, hot, device_memory, device, verify, progress)

    @staticmethod
    @_arguments.named
    def write(
        path: Path, tables: Mapping[str, Any], *, folders: Any = None, sync: bool = True, progress: Progress = True
    ) -> None:
        """Writes a feature file of these tables, completely and durably in one step, or not at all. An existing file at
        `path` is replaced. Blocks; needs about 20 MiB of memory, whatever the size of the tables; Ctrl-C stops it.

        tables: names, each with an array, tensor, Buffer or memmap of shape (rows, ...), the path of a `.npy`, a table
        of another file, or an iterator of such blocks of rows, which may be larger than memory. folders: existing
        folders on several devices, over which the rows are striped; the file at `path` then has only the directory.
        sync: durable when it returns. progress: as in load().
        Raises ValueError and TypeError for rows that differ in dtype or shape, or are not plain numbers; OSError for
        errors of the system."""
        from penstock.features import _writing  # late, for the time of `import penstock`: most programs only read

        _writing.write(path, tables, folders, sync, reporter(progress, "features write"))

    @property
    def path(self) -> str:
        """The path of the file."""
        return self._file["path"]

    @property
    def files(self) -> tuple[str, ...]:
        """The files with the rows; several if they are striped."""
        return self._file["files"]

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return self._file["bytes"]

    def __getitem__(self, name: str) -> FeatureTable:
        table = self.tables.get(name)
        if table is None:
            near = _core.nearest(name, list(self.tables)) if isinstance(name, str) else ""
            hint = f"did you mean '{near}'?" if near else f"expected {', '.join(self.tables) or 'nothing: it is empty'}"
            raise KeyError(f"there is no table {_arguments.shown(name)}; {hint}")
        return table

    def __contains__(self, name: object) -> bool:
        return name in self.tables

    def __iter__(self) -> Iterator[str]:
        return iter(self.tables)

    def __len__(self) -> int:
        return len(self.tables)

    def _rows(self, ids: Any, out: Any, device: Any) -> tuple[list[tuple[int, Any, Any]], Any]:
        """The request for the core, and the memory of the result."""
        if not isinstance(ids, Mapping):
            if len(self.tables) != 1:
                raise TypeError(
                    f"gather: ids: expected a dict of tables and ids, for this file has {len(self.tables)} tables; "
                    "store[name].gather(ids) is for one"
                )
            (table,) = self.tables.values()
            row = table._row(ids, out, device)
            return [row], row[2]
        if out is not None and not isinstance(out, Mapping):
            raise TypeError(f"gather: out: expected a dict, as ids is one, got {_arguments.got(out)}")
        for name in out or ():
            if name not in ids:
                raise KeyError(f"gather: out: it has '{name}', and ids has not")
        rows = {name: self[name]._row(its, None if out is None else out.get(name), device) for name, its in ids.items()}
        return list(rows.values()), {name: row[2] for name, row in rows.items()}

    @overload
    def gather(
        self,
        ids: Mapping[str, torch.Tensor],
        out: None = None,
        device: Device | None = None,
        stream: Stream | None = None,
    ) -> dict[str, torch.Tensor]: ...
    @overload
    def gather(
        self, ids: Mapping[str, Any], out: None = None, *, device: Device, stream: Stream | None = None
    ) -> dict[str, torch.Tensor]: ...
    @overload
    def gather(
        self, ids: Mapping[str, Any], out: None = None, device: None = None, stream: Stream | None = None
    ) -> dict[str, NDArray[Any]]: ...
    @overload
    def gather(
        self, ids: Mapping[str, Any], out: Mapping[str, _Out], device: None = None, stream: Stream | None = None
    ) -> dict[str, _Out]: ...
    @overload
    def gather(
        self, ids: torch.Tensor, out: None = None, device: Device | None = None, stream: Stream | None = None
    ) -> torch.Tensor: ...
    @overload
    def gather(self, ids: Any, out: None = None, *, device: Device, stream: Stream | None = None) -> torch.Tensor: ...
    @overload
    def gather(self, ids: Any, out: None = None, device: None = None, stream: Stream | None = None) -> NDArray[Any]: ...
    @overload
    def gather(self, ids: Any, out: _Out, device: None = None, stream: Stream | None = None) -> _Out: ...
    @_arguments.named
    def gather(self, ids: Any, out: Any = None, device: Any = None, stream: Stream | None = None) -> Any:
        """Rows of several tables in one transfer: `ids` is a dict of names and ids, and so are `out` and the result.
        For a file with one table, `ids` alone also work. As FeatureTable.gather(); all rows for a GPU go to one GPU."""
        rows, result = self._rows(ids, out, device)
        self._opened.gather(rows, stream)
        return result

    @overload
    def gather_async(
        self,
        ids: Mapping[str, torch.Tensor],
        out: None = None,
        device: Device | None = None,
        stream: Stream | None = None,
    ) -> _core.Future[dict[str, torch.Tensor]]: ...
    @overload
    def gather_async(
        self, ids: Mapping[str, Any], out: None = None, *, device: Device, stream: Stream | None = None
    ) -> _core.Future[dict[str, torch.Tensor]]: ...
    @overload
    def gather_async(
        self, ids: Mapping[str, Any], out: None = None, device: None = None, stream: Stream | None = None
    ) -> _core.Future[dict[str, NDArray[Any]]]: ...
    @overload
    def gather_async(
        self, ids: Mapping[str, Any], out: Mapping[str, _Out], device: None = None, stream: Stream | None = None
    ) -> _core.Future[dict[str, _Out]]: ...
    @overload
    def gather_async(
        self, ids: torch.Tensor, out: None = None, device: Device | None = None, stream: Stream | None = None
    ) -> _core.Future[torch.Tensor]: ...
    @overload
    def gather_async(
        self, ids: Any, out: None = None, *, device: Device, stream: Stream | None = None
    ) -> _core.Future[torch.Tensor]: ...
    @overload
    def gather_async(
        self, ids: Any, out: None = None, device: None = None, stream: Stream | None = None
    ) -> _core.Future[NDArray[Any]]: ...
    @overload
    def gather_async(
        self, ids: Any, out: _Out, device: None = None, stream: Stream | None = None
    ) -> _core.Future[_Out]: ...
    @_arguments.named
    def gather_async(
        self, ids: Any, out: Any = None, device: Any = None, stream: Stream | None = None
    ) -> _core.Future[Any]:
        """The same without waiting: returns a penstock.Future, whose result() is that of gather(). Work that is put on
        `stream` after result() finds the rows."""
        rows, result = self._rows(ids, out, device)
        return self._opened.gather_async(rows, result, stream)

    @_arguments.named
    def hint(self, ids: Any) -> bool:
        """FeatureTable.hint() for one table or, with a dict, for several. Returns whether all were accepted."""
        if isinstance(ids, Mapping):
            return all([self[name].hint(its) for name, its in ids.items()])
        if len(self.tables) != 1:
            raise TypeError(
                f"hint: ids: expected a dict of tables and ids, for this file has {len(self.tables)} tables; "
                "store[name].hint(ids) is for one"
            )
        return next(iter(self.tables.values())).hint(ids)

    def drop_hints(self) -> None:
        """Drops all hints, for a loader that begins again."""
        self._opened.drop_hints()

    def stats(self) -> FeatureStats:
        """Counts since it was opened, in this process."""
        return FeatureStats(**self._opened.stats())

    def describe(self) -> str:
        """Which rows stay in memory, and why, for people."""
        return self._opened.describe()

    def close(self) -> None:
        """Closes the store. Later calls raise ValueError; running gathers continue."""
        self._opened.close()

    def __enter__(self) -> FeatureStore:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _store_of, (type(self), self._arguments, self._file["id"])

    def __repr__(self) -> str:
        return f"FeatureStore({self.path!r}, {len(self.tables)} tables)"


def _store_of(made: Any, arguments: tuple[Any, ...], file_id: int) -> FeatureStore:
    """Opens a pickled store again. Its file must be the same one, because the ids of the caller are for that."""
    store: FeatureStore = made(*arguments)
    if store._file["id"] != file_id:
        store.close()
        raise Damaged(
            f"open features {_arguments.shown(store.path)}: the file was replaced after the store that is unpickled "
            "here was opened; open the new file, and pickle that store",
            operation="open features",
            path=store.path,
        )
    return store
