# SPDX-License-Identifier: Apache-2.0
"""What an attack is given."""

import collections
import contextlib
import random
import struct
import time

LOG_LINES = 12
PROGRESS = struct.Struct("<qqq")  # round, step, operations


class Wrong(Exception):
    """A promise was broken: what an attack looks for."""


class Run:
    """One attack, with its seed. `random` and `numbers` (a Generator of NumPy) are those of the round, or of its step.

    folder: for the files of the attack.
    only: the steps to do, of the one round that is replayed; None: all.
    seconds: stop then, also within a round; None: finish the round."""

    def __init__(self, seed, folder, seconds=None, only=None, progress=None):
        self.seed = seed
        self.folder = folder
        self.round = self.step = -1
        self.operations = 0
        self.counts = collections.Counter()
        self.log = collections.deque(maxlen=LOG_LINES)
        self._only = None if only is None else set(only)
        self._end = None if seconds is None else time.monotonic() + seconds
        self._progress = progress

    def begin(self, number):
        self.round, self.step = number, -1
        self.log.clear()
        self._draw_from(f"{self.seed} {number}")
        self._tell()

    def over(self):
        return self._end is not None and time.monotonic() >= self._end

    def left(self, most):
        """Seconds for a scene with threads or processes that takes `most` when there is time."""
        return most if self._end is None else min(most, max(0.0, self._end - time.monotonic()))

    def steps(self, count):
        """The numbers of the steps to do. Each draws from numbers of its own, so steps can be left out."""
        for step in range(count):
            if self.over():
                return
            if self._only is None or step in self._only:
                self.step = step
                self._draw_from(f"{self.seed} {self.round} {step}")
                self._tell()
                yield step

    def chance(self, share):
        return self.random.random() < share

    def count(self, what, times=1):
        self.counts[what] += times
        self.operations += times

    def note(self, *what):
        """What is done now: the last of these are printed with a failure."""
        self.log.append(f"step {self.step}: " + " ".join(str(part)[:400] for part in what))

    def check(self, holds, text):
        if not holds:
            raise Wrong(text() if callable(text) else text)

    def equal_bytes(self, got, want, what):
        """Two arrays of uint8 of NumPy."""
        import numpy  # children alone import it: the command line runs without

        self.check(len(got) == len(want), lambda: f"{what}: {len(got)} bytes, and {len(want)} are expected")
        if not numpy.array_equal(got, want):
            at = numpy.flatnonzero(got != want)
            first = int(at[0])
            raise Wrong(
                f"wrong bytes in {what}: {len(at)} of {len(want)}, the first at {first} ({int(got[first]):#04x}, "
                f"and {int(want[first]):#04x} is expected), the last at {int(at[-1])}"
            )

    @contextlib.contextmanager
    def never(self, *errors, what):
        """These exceptions, in the block, are a broken promise."""
        try:
            yield
        except errors as error:
            raise Wrong(f"{what}: {type(error).__name__}: {error}") from error

    def _draw_from(self, text):
        self.random = random.Random(text)
        self._numbers = None

    @property
    def numbers(self):
        if self._numbers is None:
            import numpy

            self._numbers = numpy.random.default_rng(self.random.getrandbits(64))
        return self._numbers

    def _tell(self):
        if self._progress is not None:
            self._progress[: PROGRESS.size] = PROGRESS.pack(self.round, self.step, self.operations)
