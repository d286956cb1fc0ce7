# SPDX-License-Identifier: Apache-2.0
"""Objects that a state holds as pickles. The caller chooses that at the save, and again at the load."""

from __future__ import annotations

import pickle
from typing import Any

from penstock import _core
from penstock._base import log as _log


class Pickled:
    """An object that a state cannot hold (a Path, a dataclass, a function), as a pickle.

        penstock.save(state, "run.pt", default=penstock.Pickled)       # pickles each such object of the state
        state = penstock.load("run.pt", pickle=True)                   # makes the objects again

    Unpickling an object can run any code. So load() gives a Pickled in its place, unless pickle=True says that the file
    is trusted. Everything else in the state is loaded. A Pickled can be saved again, unchanged. torch.load makes the
    objects with weights_only=False, and refuses them with True.

    type: the class or function that makes it ("pathlib.PosixPath"), according to the pickle. data: the pickle. Each
    object is pickled separately: two of them share nothing when they come back.

    Each pickle is loaded once when it is made. pickle.PicklingError for an object whose pickle cannot be loaded."""

    __slots__ = ("data",)

    def __init__(self, obj: Any) -> None:
        self.data: bytes = pickle.dumps(obj, protocol=4)
        try:
            pickle.loads(self.data)
        except MemoryError:
            raise
        except Exception as error:
            raise pickle.PicklingError(
                f"Pickled: a {type(obj).__module__}.{type(obj).__qualname__} can be pickled, and its pickle cannot be "
                f"loaded: {type(error).__name__}: {error}; give a default= function that returns another value for it"
            ) from error

    @classmethod
    def _of(cls, data: bytes) -> Pickled:
        made = cls.__new__(cls)
        made.data = data
        return made

    @property
    def type(self) -> str:
        return _core._checkpoint.pickled_type(self.data)

    def load(self) -> Any:
        """Unpickles the object. This can run any code: use it only for trusted files. Raises pickle.UnpicklingError if
        the object cannot be made, for example if its class is missing."""
        try:
            return pickle.loads(self.data)
        except MemoryError:
            raise
        except Exception as error:
            raise pickle.UnpicklingError(
                f"load: a pickled {self.type} cannot be made: {type(error).__name__}: {error}; import or install what "
                "it is of, or load without pickle=True, which gives a penstock.Pickled in its place"
            ) from error

    def __repr__(self) -> str:
        return f"<penstock.Pickled {self.type}, {len(self.data)} bytes>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pickled) and self.data == other.data

    def __hash__(self) -> int:
        return hash(self.data)


def unpickler(allowed: bool) -> Any:
    """A function that makes an object from the bytes of a pickle."""
    return (lambda data: Pickled._of(data).load()) if allowed else Pickled._of


def warn(source: Any) -> None:
    """Warns of objects that were not unpickled."""
    places = source.pickled()
    if places:
        shown = ", ".join(places[:8]) + (", ..." if len(places) > 8 else "")
        message = (
            f"load: '{source.path}': pickled, and given as penstock.Pickled: {shown}; load with pickle=True makes the "
            "objects, and runs what the pickles say: only where the file is trusted"
        )
        _log.logger.warning(message)
        _log.warn(message)
