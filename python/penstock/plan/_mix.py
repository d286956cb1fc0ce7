# SPDX-License-Identifier: Apache-2.0
"""Several jobs on one storage."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from penstock._base.arguments import got, named
from penstock.plan._answer import Answer
from penstock.plan._ask import ask, text, word

_FILE_BYTES_MAX = 16 << 20


@dataclass(frozen=True)
class Job:
    """A job of mix(). None means the default. Numbers may be texts with units: "2450GB", "2h".

    kind: "train" or "evaluation" (model or samples_per_second and bytes_per_sample, accelerators, utilisation; length;
        every), "checkpoint" (bytes, every, within), "restore" and "inference" (bytes, within, copies, every),
        "preparation" (bytes that are read, write_bytes, within, every).
    within: seconds that a burst may take. every: seconds from one to the next; None: once. start: of the first."""

    kind: str
    name: str | None = None
    model: str | None = None
    preset: str | None = None
    accelerator: str | None = None
    accelerators: float | str | None = None
    utilisation: float | str | None = None
    samples_per_second: float | str | None = None
    bytes_per_sample: float | str | None = None
    bytes: float | str | None = None
    write_bytes: float | str | None = None
    copies: float | str | None = None
    start: float | str | None = None
    length: float | str | None = None
    every: float | str | None = None
    within: float | str | None = None


@named
def mix(jobs: Any, *, length: float | str | None = None, title: str | None = None) -> Answer:
    """The sum of the reads and writes of several jobs on one storage: the peak, the mean, percentiles by time, and the
    curve over time.

        penstock.plan.mix([
            penstock.plan.Job("train", model="resnet50", accelerators=64),
            penstock.plan.Job("checkpoint", bytes="2450GB", every="2h", within="6min"),
        ], length="4h")

    jobs: Job objects or mappings of their members; or a mapping {"title": ..., "length": ..., "jobs": [...]}; or the
        path of a file with such a mapping: .json, or .yaml and .yml (with PyYAML).
    length: the simulated time, by default 24 hours.
    Raises ValueError with the name of the job. Thread-safe."""
    document = _document(jobs)
    if text("mix", "title", title) is not None:
        document["title"] = title
    return ask("mix", {"jobs": json.dumps(document), "length": length})


def _document(jobs: Any) -> dict[str, Any]:
    if isinstance(jobs, (str, os.PathLike)):
        found = read(jobs)
        if not isinstance(found, (Mapping, list)) or (isinstance(found, Mapping) and "jobs" not in found):
            raise ValueError(
                f"plan mix: {os.fsdecode(os.fspath(jobs))!r}: expected a mapping with 'jobs', or a list of jobs, "
                f"got {got(found)}"
            )
        jobs = found
    if isinstance(jobs, Mapping):
        out = {_name(key): value for key, value in jobs.items()}
        rows = out.get("jobs")
    else:
        out, rows = {}, jobs
    if isinstance(rows, (str, bytes, Mapping)) or not isinstance(rows, Iterable):
        raise TypeError(f"plan mix: jobs: expected Job or mappings, or the path of a file, got {got(rows)}")
    if "length" in out:
        out["length"] = word("mix", "length", out["length"])
    if "title" in out:
        out["title"] = text("mix", "title", out["title"])
    out["jobs"] = [_job(number, row) for number, row in enumerate(rows, 1)]
    return out


def _job(number: int, job: Any) -> dict[str, str]:
    verb = f"mix: job {number}"
    if isinstance(job, Job):
        job = {field.name: getattr(job, field.name) for field in fields(job)}
    if not isinstance(job, Mapping):
        raise TypeError(f"plan {verb}: expected a Job or a mapping, got {got(job)}")
    return {_name(name): word(verb, _name(name), value) for name, value in job.items() if value is not None}


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError(f"plan mix: expected names of members as str, got {got(name)}")
    return name


def read(path: Any) -> Any:
    """The document of a file of jobs."""
    name = os.fspath(path)
    suffix = Path(os.fsdecode(name)).suffix.lower()
    with open(name, "rb") as file:
        found = file.read(_FILE_BYTES_MAX + 1)
    if len(found) > _FILE_BYTES_MAX:
        raise ValueError(f"plan mix: {os.fsdecode(name)!r}: longer than 16 MiB; expected a small file of jobs")
    return _yaml(name, found) if suffix in (".yaml", ".yml") else _json(name, found)


def _json(name: Any, found: bytes) -> Any:
    try:
        return json.loads(found, object_pairs_hook=_members)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"plan mix: {os.fsdecode(name)!r}: expected JSON: {error}") from error


def _members(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """The members of an object; ValueError if one is repeated."""
    out: dict[Any, Any] = {}
    for key, value in pairs:
        if key in out:
            raise ValueError(f"{got(key)} comes twice in one mapping")
        out[key] = value
    return out


def _yaml(name: Any, found: bytes) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise ImportError(
            f"plan mix: {os.fsdecode(name)!r}: YAML needs PyYAML: pip install pyyaml, or write the jobs in JSON"
        ) from error

    class Loader(yaml.SafeLoader):
        """Refuses repeated members; SafeLoader would use the last one."""

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            if isinstance(node, yaml.MappingNode):
                keys = [self.construct_object(key, deep=True) for key, _ in node.value]
                _members([(key, None) for key in keys if isinstance(key, str) and key != "<<"])
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(found, Loader)  # noqa: S506 (a SafeLoader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ValueError(f"plan mix: {os.fsdecode(name)!r}: expected YAML: {error}") from error


def json_of_yaml(path: str) -> str:
    """Converts YAML to JSON for the command line, whose program reads JSON."""
    return json.dumps(_document(path))
