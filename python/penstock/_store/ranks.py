# SPDX-License-Identifier: Apache-2.0
"""Ranks: the processes that save one state together, and the mailbox between them (docs/ranks.md)."""

from __future__ import annotations

import collections
import contextlib
import errno
import os
import queue
import socket
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Protocol

from penstock import _core
from penstock._base import arguments as _arguments

_ADDRESS = "PENSTOCK_RANKS_ADDRESS"
_AGAIN_S = 60.0  # between two looks for a server that was gone: its machine may only have stood still
_CALL_MAX = timedelta(seconds=60)  # for the server to answer
_CONNECT_MAX = timedelta(seconds=5)  # for one more client of a server that was there
_PAUSE_S = 0.0005  # between two looks for a key, at first


class Mailbox(Protocol):
    """What Ranks need of an object of your own. Values are at most some KiB. Its methods are called from several
    threads. What they raise counts as: the mailbox is gone."""

    def put(self, key: str, value: bytes) -> None:
        """Sets the value of a key. It may have one."""

    def get(self, key: str, timeout: float) -> bytes | None:
        """The value of a key, for which it waits up to `timeout` seconds, 0: looks once. None when the time is over.
        Earlier, it is called again."""

    def erase(self, key: str) -> None:
        """Forgets a key, which may not be there."""


class Ranks:
    """The ranks that save to a CheckpointStore together: each writes its part, and one commit decides.

        ranks = penstock.Ranks.torch()                                # after torch.distributed.init_process_group()
        with penstock.CheckpointStore("runs", keep=3, ranks=ranks) as store:
            store.save_async({"model": model.state_dict()}, step=100)  # each rank; DTensors are parts of tensors

    number: of this rank, 0 to count - 1. host: its name in messages; None: that of the machine. mailbox: see Mailbox;
        empty at the start, and given to no other Ranks of this number.
    All ranks open their stores in the same order. Thread-safe."""

    @_arguments.named
    def __init__(self, number: int, count: int, mailbox: Mailbox | None = None, *, host: str | None = None) -> None:
        count = _arguments.whole("Ranks", "count", count, 1, (1 << 32) - 1)
        number = _arguments.whole("Ranks", "number", number, 0, (1 << 32) - 1)
        self._mailbox = mailbox
        self._ranks = _core._checkpoint.Ranks(number, count, socket.gethostname() if host is None else host, mailbox)

    @classmethod
    def single(cls) -> Ranks:
        """The only rank, as a store has it without `ranks`."""
        return cls(0, 1)

    @classmethod
    def torch(cls, group: Any = None, *, address: str | None = None) -> Ranks:
        """The ranks of a process group of torch.distributed (None: the default group). Each of them calls it once.

        They meet in a TCPStore of their own, on rank 0. Its address is broadcast, and after that there is no collective
        operation. address: by which the others reach rank 0's machine; None: $PENSTOCK_RANKS_ADDRESS, or that from
        which it reaches $MASTER_ADDR, or its name. If rank 0 ends, saves that are under way end on the others.
        Raises ValueError without a process group, OSError where the address cannot be reached."""
        import torch.distributed as dist

        if not dist.is_available() or not dist.is_initialized():
            raise ValueError(
                "Ranks.torch: there is no process group; call torch.distributed.init_process_group() first"
            )
        number, count = dist.get_rank(group), dist.get_world_size(group)
        if number < 0:
            raise ValueError("Ranks.torch: this process is not in the group; call it on the ranks of the group alone")
        return cls(number, count, _TorchMailbox.of_group(group, number, address) if count > 1 else None)

    @classmethod
    def of_threads(cls, count: int) -> list[Ranks]:
        """The ranks of one process: each for a thread of its own."""
        out = []
        for one in _core._checkpoint.Ranks.of_threads(_arguments.whole("Ranks.of_threads", "count", count, 1, 1 << 16)):
            out.append(cls.__new__(cls))
            out[-1]._ranks, out[-1]._mailbox = one, None
        return out

    @property
    def number(self) -> int:
        return self._ranks.number

    @property
    def count(self) -> int:
        return self._ranks.count

    @property
    def host(self) -> str:
        return self._ranks.host

    def __repr__(self) -> str:
        return f"<penstock.Ranks: rank {self.number} of {self.count} on {self.host!r}>"


class _TorchMailbox:
    """Keys and values in a TCPStore. A client waits in one call at a time, so each call that runs has one of its own,
    from a pool. (Threads of the compiled part are another thread of Python in each call.)"""

    def __init__(self, address: str, port: int, count: int, server: Any = None) -> None:
        self._address, self._port = address, port
        self._server = server  # of rank 0
        self._pause_max = min(max(count * 0.0002, 0.005), 0.25)  # rank 0 answers some thousand looks a second
        self._pool: collections.deque[Any] = collections.deque()
        self._process = os.getpid()
        self._gone: str | None = None
        self._again = 0.0  # when it is looked for again

    @classmethod
    def of_group(cls, group: Any, number: int, address: str | None) -> _TorchMailbox:
        import torch.distributed as dist

        made, message, count = None, [None], dist.get_world_size(group)
        if number == 0:
            try:
                address = address or os.environ.get(_ADDRESS) or _own_address()
                server = dist.TCPStore(address, 0, is_master=True, wait_for_workers=False, timeout=_CALL_MAX)
                made = cls(address, server.port, count, server)
                message = [(address, server.port)]
            except Exception as error:  # the others wait for the broadcast
                message = [error if isinstance(error, (OSError, ValueError)) else RuntimeError(str(error))]
        dist.broadcast_object_list(message, src=0 if group is None else dist.get_global_rank(group, 0), group=group)
        if isinstance(message[0], Exception):
            raise message[0]
        box = made or cls(*message[0], count)
        box._meet(number, count)
        return box

    def _meet(self, number: int, count: int) -> None:
        """Says now what is wrong with the address. Rank 0 has the server, and must not end before all are connected."""
        if number != 0:
            self._pool.append(self._connect(_CALL_MAX))
            self.put(f"here/{number}", b"")
            return
        for other in range(1, count):
            if self.get(f"here/{other}", _CALL_MAX.total_seconds()) is None:
                raise OSError(
                    errno.ETIMEDOUT, f"Ranks.torch: rank {other} of {count} has not come within {_CALL_MAX}; "
                    f"does it reach this machine as {self._address}? address= or ${_ADDRESS} says another one",
                )  # fmt: skip
            self.erase(f"here/{other}")

    def _connect(self, timeout: timedelta) -> Any:
        """A client whose calls end. TCPStore has no limit of its own on the wait for an answer of a server that has
        stopped, or whose machine has: neither while it connects nor later."""
        import torch.distributed as dist

        made: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()

        def connect() -> None:
            try:
                made.put((dist.TCPStore(self._address, self._port, is_master=False, timeout=timeout), None))
            except Exception as error:
                made.put((None, error))

        try:
            threading.Thread(target=connect, name="penstock-connect", daemon=True).start()
        except RuntimeError:  # Python ends, and starts no threads
            connect()
        client, why = None, "it does not answer"
        with contextlib.suppress(queue.Empty):
            client, error = made.get(timeout=timeout.total_seconds() + 1)
            why = str(error).split("\n")[0]
        if client is None:
            raise OSError(
                errno.EHOSTUNREACH, f"Ranks.torch: rank 0 cannot be reached at {self._address}:{self._port} ({why}); "
                f"give address= or ${_ADDRESS}, by which the other machines reach its machine",
            )  # fmt: skip
        for numeric in {str(row[4][0]).partition("%")[0] for row in socket.getaddrinfo(self._address, None)}:
            _core._checkpoint.Ranks.limit_waits(numeric, self._port, round(_CALL_MAX.total_seconds() * 1000))
        return client

    @contextlib.contextmanager
    def _client(self) -> Iterator[Any]:
        """Raises at once if the server was gone a short time ago: each new connection would be tried for long."""
        if self._process != os.getpid():  # the clients are the parent's
            self._process, self._pool = os.getpid(), collections.deque()
        if self._gone:
            if time.monotonic() < self._again:
                raise ConnectionError(self._gone)
            self._again = time.monotonic() + _AGAIN_S
            self._pool.append(self._connect(_CONNECT_MAX))
            self._gone = None
        try:
            client = self._pool.pop()
        except IndexError:
            client = self._connect(_CONNECT_MAX)
        try:
            yield client
        except Exception as error:
            self._gone, self._again = str(error).split("\n")[0], time.monotonic() + _AGAIN_S
            self._pool.clear()
            raise
        self._pool.append(client)  # not one that was interrupted: its answer is still to come

    def put(self, key: str, value: bytes) -> None:
        with self._client() as store:
            store.set(key, value)

    def get(self, key: str, timeout: float) -> bytes | None:
        # TCPStore.wait() prints warnings whenever its time is over.
        end, pause = time.monotonic() + timeout, _PAUSE_S
        while True:
            with self._client() as store:
                if store.check([key]):
                    return store.get(key)
            left = end - time.monotonic()
            if left <= 0:
                return None
            time.sleep(min(pause, left))
            pause = min(2 * pause, self._pause_max)

    def erase(self, key: str) -> None:
        with self._client() as store:
            store.delete_key(key)


def _own_address() -> str:
    """The address of this machine from which it reaches the one of the group's rendezvous."""
    there = os.environ.get("MASTER_ADDR")
    if there:
        for family, kind, protocol, _, where in socket.getaddrinfo(there, 9, type=socket.SOCK_DGRAM):
            with socket.socket(family, kind, protocol) as probe:
                try:
                    probe.connect(where)  # sends nothing
                    return probe.getsockname()[0]
                except OSError:
                    continue
    return socket.gethostname()
