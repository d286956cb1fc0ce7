# SPDX-License-Identifier: Apache-2.0
"""fio as the peer: which of its engines (and, for new files, of its ways to allocate) that is, is settled by warm-up
runs: the best one by the bar's own metric."""

from __future__ import annotations

import functools
import itertools
import shutil

from penstock._measure import fio

from benchmarks import huge_pages, processes
from benchmarks.places import CannotRun, Place
from benchmarks.samples import Sample

ENGINES = ("io_uring", "libaio")


@functools.cache
def version() -> str:
    if not shutil.which("fio"):
        raise CannotRun("the peer fio is not installed: apt-get install fio")
    return processes.run(["fio", "--version"]).stdout.strip()


class Fio:
    """`words` are `read|write|randread|randwrite` and fio options as key=value; `a|b` lists ways to choose from."""

    def __init__(self, words: list[str]) -> None:
        self._kind = words[0]
        options = dict(word.partition("=")[::2] for word in words[1:])
        options.setdefault("ioengine", "|".join(ENGINES))
        self._without_huge = ""
        if options.get("iomem") == "huge":
            self._without_huge = huge_pages.why_not()
            options["iomem"] = "malloc" if self._without_huge else "shmhuge"
        keys = list(options)
        self.variants = [
            dict(zip(keys, values)) for values in itertools.product(*(options[key].split("|") for key in keys))
        ]
        self.variant = self.variants[0]

    @property
    def name(self) -> str:
        told = {key: value for key, value in self.variant.items() if "|" in self._choices(key)}
        words = [f"fio {self._kind}", *(f"{key}={value}" for key, value in told.items())]
        if "iomem" in self.variant:
            words.append(f"without huge pages: {self._without_huge}" if self._without_huge else "huge pages")
        return " ".join(words)

    def _choices(self, key: str) -> str:
        return "|".join(sorted({variant[key] for variant in self.variants}))

    def version(self) -> str:
        return version()

    def run(self, place: Place) -> Sample:
        version()
        options = {key: place.fill(value) for key, value in self.variant.items()}
        command = fio.command(self._kind, invalidate=0, **options)
        try:
            with huge_pages.lent(options.get("iomem") == "shmhuge"):
                done = processes.run(command, cgroup=place.cgroup)
        finally:
            place.remove_new()
        return sample(done.stdout, self._kind, command, done.peak_memory_kib)


def sample(text: str, way: str, command: list[str], peak_memory_kib: int) -> Sample:
    try:
        return Sample(**fio.figures(text, way), peak_memory_kib=peak_memory_kib, command=command)
    except ValueError as error:
        raise processes.RunFailed(f"{' '.join(command)}: {error}") from error
