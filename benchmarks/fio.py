# SPDX-License-Identifier: Apache-2.0
"""fio as the peer: direct I/O, its own job figures.

CPU seconds are those of fio's job (`usr_cpu`, `sys_cpu` of `job_runtime`), not of its process, which burns four times
as much around a short job. Which of its engines (and, for new files, of its ways to allocate) is the peer is settled by
warm-up runs: the best one by the bar's own metric.
"""

from __future__ import annotations

import functools
import itertools
import json
import shutil

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
        command = ["fio", "--name=job", f"--rw={self._kind}", "--direct=1", "--output-format=json"]
        command += ["--eta=never", "--invalidate=0"]
        command += [f"--{key}={value}" for key, value in options.items()]
        try:
            with huge_pages.lent(options.get("iomem") == "shmhuge"):
                done = processes.run(command, cgroup=place.cgroup)
        finally:
            place.remove_new()
        return sample(done.stdout, "read" if "read" in self._kind else "write", command, done.peak_memory_kib)


def sample(text: str, way: str, command: list[str], peak_memory_kib: int) -> Sample:
    """fio's JSON (warnings may stand before it) as a sample."""
    try:
        job = json.loads(text[text.index("{") :])["jobs"][0]
        figures = job[way]
        cpu_s = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1000
        if job.get("error"):
            raise processes.RunFailed(f"{' '.join(command)}: job error {job['error']}")
        return Sample(
            seconds=figures["runtime"] / 1000,
            bytes=figures["io_bytes"],
            operations=figures["total_ios"],
            cpu_s=cpu_s,
            p50_us=figures["clat_ns"].get("percentile", {}).get("50.000000", 0) / 1000 or None,
            peak_memory_kib=peak_memory_kib,
            command=command,
        )
    except (ValueError, KeyError, IndexError) as error:
        raise processes.RunFailed(f"{' '.join(command)}: not fio's JSON ({error!r}): {text[:300]!r}") from error
