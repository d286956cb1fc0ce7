# SPDX-License-Identifier: Apache-2.0
"""A table of a penstock.FeatureStore."""

from __future__ import annotations

import operator
import weakref
from typing import TYPE_CHECKING, Any, TypeVar, Union, overload

from penstock import _core
from penstock._base import arguments as _arguments, gathered as _gathered

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from penstock._base.types import Stream
    from penstock.features._store import FeatureStore

_Out = TypeVar("_Out")
Device = Union[str, int, "torch.device"]


class FeatureTable:
    """A table of a FeatureStore: `store["paper"]`.

    name. files: those with the rows. shape: (rows, *row shape). dtype: a name of torch ("float32"). row_bytes: bytes of
    a row. stride: bytes from row to row. touched_512, touched_4096: mean bytes that a device with blocks of 512 or 4096
    bytes moves for a row. A pickled table opens its file again, with the arguments of the store."""

    def __init__(self, opened: Any, index: int, described: dict[str, Any], store: FeatureStore) -> None:
        self._opened = opened
        self._store = weakref.ref(store)  # weak, because the store refers to this table
        self._remade = store.__reduce__()  # opens it again, should it be gone when this table is pickled
        self._index = index
        self.dtype: str
        self._row_shape: tuple[int, ...]
        self.dtype, self._row_shape = _gathered.as_torch_counts(described["dtype"], tuple(described["row_shape"]))
        self.name: str = described["name"]
        self.files: tuple[str, ...] = store.files
        self.shape: tuple[int, ...] = (described["rows"], *self._row_shape)
        self.row_bytes: int = described["row_bytes"]
        self.stride: int = described["stride_bytes"]
        self.touched_512: float = described["touched_512"]
        self.touched_4096: float = described["touched_4096"]

    def __len__(self) -> int:
        return self.shape[0]

    def __reduce__(self) -> tuple[Any, ...]:
        store = self._store()
        if store is not None:
            return operator.getitem, (store, self.name)
        made, arguments = self._remade
        return _table_of, (made, arguments, self.name)

    def __repr__(self) -> str:
        return f"FeatureTable({self.name!r}, shape={self.shape}, dtype={self.dtype!r})"

    def _row(self, ids: Any, out: Any, device: Any) -> tuple[int, Any, Any]:
        ids = _gathered.numbers(ids)
        if out is None:
            return self._index, ids, _gathered.made_for(ids, self._row_shape, self.dtype, device)
        if device is not None:
            raise TypeError("gather: device: out says where the rows go; give one of them")
        return self._index, ids, _gathered.checked(out, ids, self._row_shape, self.dtype)

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
        """Returns rows: row i of the result is row ids[i] of the table, as in indexing. The result has the shape
        (*ids.shape, *shape[1:]). Blocks.

        ids: integers (int64, int32, uint32, uint64 and shorter ones) of any shape: a torch tensor, a NumPy array, an
        object with DLPack, or a list; strided ones are copied first. out: contiguous writable memory with the dtype and
        shape of the result, or bytes, of the host or of a GPU. It is returned. By default it is a new torch tensor if
        `ids` is one, else a NumPy array. device: "cuda:0" makes a new torch tensor there.
        stream: for rows that go to a GPU. The gather begins after the work that this stream holds, and work that is put
        on it after the call finds the rows. Other streams, and the host, must wait for this stream. The default is
        torch's current stream, the stream that `__cuda_array_interface__` names, or the default stream.
        Raises ValueError with the row if it does not exist, penstock.Error with the row if a read fails; the contents
        of `out` are then undefined. A repeated row is read once. Thread-safe; Ctrl-C cancels."""
        row = self._row(ids, out, device)
        self._opened.gather([row], stream)
        return row[2]

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
        """The same without waiting: returns a penstock.Future, whose result() is the rows. `ids` are used only during
        the call. `out` is kept alive; do not use it until the future is done. Work that is put on `stream` after
        result() finds the rows."""
        row = self._row(ids, out, device)
        return self._opened.gather_async([row], row[2], stream)

    @_arguments.named
    def hint(self, ids: Any) -> bool:
        """Announces rows that will be gathered soon, after the rows of all earlier hints. With the policy "window" they
        stay in memory, or are kept when they are read. Returns False if the hint was not accepted: without memory, with
        another policy, or with too many outstanding. A wrong hint only costs reads. ValueError for an invalid row."""
        if ids is None:
            raise TypeError("hint: ids: expected a tensor, an array or a list of integers, got None")
        return self._opened.hint(self._index, _gathered.numbers(ids))


def _table_of(made: Any, arguments: tuple[Any, ...], name: str) -> FeatureTable:
    """Opens the store again for a table that was pickled without its store."""
    return made(*arguments)[name]
