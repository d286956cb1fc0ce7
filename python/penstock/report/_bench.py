# SPDX-License-Identifier: Apache-2.0
"""The section of `penstock bench --json`."""

from __future__ import annotations

import math
import os
import statistics
from dataclasses import dataclass, field

from penstock.report import _figures as figures
from penstock.report._common import command_text, environment_table, interval
from penstock.report._model import Chart, Part, Section, Table, Text, row
from penstock.report._read import Document, Field
from penstock.report._units import count_text, figure_text, rate_text, size_text, time_text

_KINDS = ("read", "write", "randread", "randwrite")
_CURVES_SHOWN = 4
_IOPS_BELOW = 64 << 10  # smaller blocks are shown in operations
_PAIRS_MIN = 3  # an interval of fewer pairs is meaningless
_BUCKET = 8 / 9  # begin of a bucket divided by its end: eight an octave


@dataclass
class Sample:
    bytes_per_s: float
    operations_per_s: float
    cpu_s_per_gib: float
    percentiles_ns: dict[str, float]
    histogram: list[tuple[float, float]]  # (upper bound in nanoseconds, blocks)


@dataclass
class Job:
    rw: str
    block_bytes: int
    depth: int
    paths: list[str]  # its targets: one, or several concurrent ones
    sides: dict[str, list[Sample]] = field(default_factory=dict)
    ratio: tuple[float, float, float] | None = None  # mean, low, high

    @property
    def name(self) -> str:
        return f"{self.rw} {size_text(self.block_bytes)} x {self.depth}"

    def median(self, side: str, what: str = "bytes_per_s") -> float | None:
        samples = self.sides.get(side)
        return statistics.median(getattr(sample, what) for sample in samples) if samples else None


@dataclass
class Bench:
    """The contents of a file of bench, parsed."""

    document: Document
    jobs: list[Job]
    paths: list[str]
    names: dict[str, str]  # path -> the given argument
    limits: dict[str, float]  # "read" and "write": limits of the device in bytes a second

    @property
    def together(self) -> list[Job]:
        """The jobs on all targets together, which most pictures show."""
        return [job for job in self.jobs if len(job.paths) == len(self.paths)]

    @property
    def sides(self) -> list[str]:
        found = dict.fromkeys(side for job in self.jobs for side in job.sides)
        return sorted(found, key=lambda side: side != "penstock")


def targets_of(root: Field) -> list[Field]:
    """The files or devices that were measured: `targets`, or `target` if there is only one."""
    several = root.get("targets")
    return several.some() if several else [root.need("target")]


def where(target: Field) -> str:
    """The given folder, file or device."""
    path = target.need("path").text()
    scratch = target.get("scratch")
    return os.path.dirname(path) if scratch and scratch.flag() else path


def read_sample(found: Field) -> Sample:
    latency = found.get("latency_ns")
    percentiles = {}
    histogram = []
    if latency:
        for key in ("p50", "p99", "p99.9"):
            value = latency.get(key)
            if value:
                percentiles[key] = value.number()
        for pair in (latency.get("histogram") or Field(found.file, "", [])).items():
            histogram.append(pair.pair())
    return Sample(
        bytes_per_s=found.need("bytes_per_s").number(),
        operations_per_s=found.need("operations_per_s").number(),
        cpu_s_per_gib=found.need("cpu_s_per_gib").number(),
        percentiles_ns=percentiles,
        histogram=sorted(histogram),
    )


def _job(found: Field, all_paths: list[str]) -> Job:
    paths = found.get("paths")
    job = Job(
        rw=found.need("rw").text(),
        block_bytes=found.need("block_bytes").whole(1),
        depth=found.need("depth").whole(1),
        paths=[path.text() for path in paths.some()] if paths else all_paths,
    )
    for sample in found.need("samples").items():
        job.sides.setdefault(sample.need("side").text(), []).append(read_sample(sample))
    ratio = found.get("ratio")
    if ratio:
        job.ratio = interval(ratio)
        if min(map(len, job.sides.values()), default=0) < _PAIRS_MIN:
            job.ratio = (job.ratio[0], 0.0, math.inf)
    return job


def read(document: Document) -> Bench:
    """Parses and checks the file. ReportError."""
    root = document.root
    targets = targets_of(root)
    gpu = root.get("gpu")
    of_gpu = ""
    if gpu:
        of_gpu = f" (FAKE GPU {gpu.need('number').whole(0)})" if gpu.need("fake").flag() else " (memory of a GPU)"
    names = {target.need("path").text(): where(target) + of_gpu for target in targets}
    paths = list(names)
    limits: dict[str, float] = {}
    for target in targets:
        limit = target.get("limit")
        for kind in ("read", "write"):
            value = limit.get(f"{kind}_bytes_per_s") if limit else None
            # 0 or absent means no limit. If one folder has none, their sum has none.
            limits[kind] = limits.get(kind, 0.0) + ((value.number() if value else 0.0) or math.inf)
    known = {kind: limit for kind, limit in limits.items() if math.isfinite(limit)}
    return Bench(document, [_job(job, paths) for job in root.need("jobs").items()], paths, names, known)


def _limit_of(bench: Bench, job: Job) -> float | None:
    return bench.limits.get("write" if "write" in job.rw else "read")


def _spread(jobs: list[Job], sides: list[str], what: str, unit: float) -> list[figures.Series]:
    """The median of each side with its minimum and maximum."""
    series = []
    for index, side in enumerate(sides):
        spans = [sorted(getattr(s, what) / unit for s in job.sides.get(side, [])) for job in jobs]
        series.append(
            figures.Series(
                side,
                [statistics.median(span) if span else None for span in spans],
                [span[0] if span else None for span in spans],
                [span[-1] if span else None for span in spans],
                (figures.OURS, figures.PEER)[index % 2],
            )
        )
    return series


def _operations(bench: Bench) -> Chart | None:
    """A chart of small blocks: their bars would be invisible next to those of large blocks."""
    jobs = [job for job in bench.together if job.block_bytes < _IOPS_BELOW]
    if not jobs:
        return None
    return Chart(
        "Operations a second, small blocks",
        "Height: median of the runs; whiskers: the slowest and the fastest run. Higher is better.",
        figures.bars(
            [job.name for job in jobs], _spread(jobs, bench.sides, "operations_per_s", 1), "operations a second"
        ),
    )


def _bandwidth(bench: Bench) -> Chart | None:
    jobs = [job for job in bench.together if job.block_bytes >= _IOPS_BELOW]
    if not jobs:
        return None
    names, series = [job.name for job in jobs], _spread(jobs, bench.sides, "bytes_per_s", 1e9)
    lines = []
    if bench.limits:
        limits = [_limit_of(bench, job) for job in jobs]
        lines.append(figures.Line("limit set for the device", [None if v is None else v / 1e9 for v in limits]))
    return Chart(
        "Bandwidth of each test",
        "Height: median of the runs, 10⁹ bytes a second; whiskers: the slowest and the fastest run. Bars whose "
        "whiskers overlap are not distinguished by this measurement. fio on the same file, where it was asked for, is "
        "the ceiling of "
        "what this device gave in the same minutes" + ("; the dark marks are the limit set for it." if lines else "."),
        figures.bars(names, series, "GB/s", lines),
    )


def _heat_maps(bench: Bench) -> list[Chart]:
    charts = []
    for rw in sorted({job.rw for job in bench.together}, key=lambda rw: (_KINDS.index(rw) if rw in _KINDS else 9, rw)):
        rates = {
            (side, job.block_bytes, job.depth): value
            for side in bench.sides
            for job in bench.together
            if job.rw == rw and (value := job.median(side)) is not None
        }
        for side in bench.sides:
            cells = {(block, depth): rate for (by, block, depth), rate in rates.items() if by == side}
            blocks = len({block for block, _ in cells})
            if blocks > 1 and len({depth for _, depth in cells}) > 1:
                charts.append(
                    Chart(
                        f"Bandwidth by block size and depth: {rw}" + (f", {side}" if len(bench.sides) > 1 else ""),
                        "Each field is the median in GB/s; darker is faster, and the colours begin at 0. Where a whole "
                        "corner has one colour, the smallest block and depth in it give all that there is.",
                        figures.heat_map(cells, max(rates.values())),
                        height=180 + 44 * blocks,
                    )
                )
    return charts


def curve_points(samples: list[Sample]) -> tuple[list[tuple[float, float]], bool]:
    """(nanoseconds, share that took longer) of all runs together, and whether these are only a few percentiles."""
    counts: dict[float, float] = {}
    for sample in samples:
        for upper, count in sample.histogram:
            counts[upper] = counts.get(upper, 0.0) + count
    total = sum(counts.values())
    if total > 0:
        left = total
        points = [(min(counts) * _BUCKET, 1.0)]  # the begin of the first bucket
        for upper, count in sorted(counts.items()):
            left -= count
            points.append((upper, max(left, 0.0) / total))
        return [point for point in points if point[1] > 0], False
    shares = {"p50": 0.5, "p99": 0.01, "p99.9": 0.001}
    found = []
    for key, share in shares.items():
        values = [sample.percentiles_ns[key] for sample in samples if sample.percentiles_ns.get(key)]
        if values:
            found.append((statistics.median(values), share))
    return found, True


def _latency(bench: Bench) -> Chart | None:
    curves = []
    for index, job in enumerate(bench.together):
        for side, samples in job.sides.items():
            points, marked = curve_points(samples)
            if points:
                colour = figures.COLOURS[index % len(figures.COLOURS)]
                hidden = index >= _CURVES_SHOWN
                name = f"{job.name}, {side}"
                curves.append(figures.Curve(name, points, colour, side != "penstock", marked, hidden))
    if not curves:
        return None
    return Chart(
        "Latency distribution",
        "A point at 1 % and 3 ms says: one block in a hundred took longer than 3 ms. The further left and the "
        "steeper, the better; a long foot to the right is the tail that makes training steps wait. Solid: Penstock, "
        "dashed: fio. A click on a name shows or hides its curve.",
        figures.latency(curves),
        height=460 + 22 * (len(curves) // 3),
    )


def _cpu(bench: Bench) -> Chart:
    series = [
        figures.Series(
            side,
            [job.median(side, "cpu_s_per_gib") for job in bench.together],
            colour=(figures.OURS, figures.PEER)[index % 2],
        )
        for index, side in enumerate(bench.sides)
    ]
    return Chart(
        "CPU seconds a GiB",
        "Processor seconds, user and system, that moving 2³⁰ bytes takes: less is better. Times GiB/s it is the "
        "number of processors that are busy with I/O.",
        figures.bars([job.name for job in bench.together], series, "CPU s/GiB"),
    )


def _ratio(bench: Bench) -> Chart | None:
    rows = [figures.Ratio(job.name, *job.ratio, limits=[]) for job in bench.together if job.ratio]
    if not rows:
        return None
    return Chart(
        "Penstock / fio",
        "Bytes a second of Penstock divided by those of fio, run by run; right of 1 Penstock is faster. The whisker is "
        "the 95 % interval: where it crosses 1, no difference is shown. A dot without a whisker has fewer than three "
        "pairs of runs, of which there is no interval.",
        figures.ratios(rows, "Penstock / fio (logarithmic)"),
        height=140 + 34 * len(rows),
    )


def _folders(bench: Bench) -> Chart | None:
    """A chart of several folders: each alone, and all concurrently."""
    if len(bench.paths) < 2 or not bench.together:
        return None
    rates: dict[tuple[str, str], float] = {}
    for job in bench.jobs:
        rate = job.median("penstock")
        if rate is not None:
            rates[job.name, "all" if len(job.paths) > 1 else job.paths[0]] = rate / 1e9
    names = [job.name for job in bench.together]
    series = [
        figures.Series(
            f"{bench.names[path]}, alone",
            [rates.get((name, path)) for name in names],
            colour=figures.COLOURS[index % 8],
        )
        for index, path in enumerate(bench.paths)
    ]
    sums = [sum(rates.get((name, path), 0.0) for path in bench.paths) for name in names]
    series.append(figures.Series("all at once", [rates.get((name, "all")) for name in names], colour="#1f2328"))
    return Chart(
        "Each folder alone, and all at once",
        "Folders on devices of one kind should be equally high alone. All at once should reach the dark mark, which "
        "is the sum of each alone; the slowest sets the pace, for every transfer has as many bytes of each.",
        figures.bars(names, series, "GB/s", [figures.Line("sum of each alone", list(sums))]),
    )


def verdict(bench: Bench) -> str:
    """The best rates, and which side is faster, in a sentence."""
    told = []
    for kind, verb in (("read", "reads"), ("write", "writes")):
        rates = [rate for job in bench.together if kind in job.rw and (rate := job.median("penstock"))]
        told += [f"{verb} up to {rate_text(max(rates))} GB/s"] if rates else []
    text = f"Penstock {' and '.join(told)}." if told else ""
    ratios = [job.ratio for job in bench.together if job.ratio]
    if ratios:
        faster, slower = sum(low > 1 for _, low, _ in ratios), sum(high < 1 for _, _, high in ratios)
        text += f" Compared with fio, of {len(ratios)} tests: faster in {faster}, slower in {slower}, "
        text += f"no difference shown in {len(ratios) - faster - slower}."
    return text.strip()


def _percentile(samples: list[Sample], key: str) -> str:
    values = [sample.percentiles_ns[key] for sample in samples if sample.percentiles_ns.get(key)]
    return time_text(statistics.median(values)) if values else "-"


def _table(bench: Bench) -> Table:
    rows = []
    for job in bench.jobs:
        for side, samples in job.sides.items():
            latencies = [_percentile(samples, key) for key in ("p50", "p99", "p99.9")]
            rates = [sample.bytes_per_s for sample in samples]
            middle = statistics.median(rates)
            spread = f"±{100 * (max(rates) - min(rates)) / 2 / middle:.1f} %" if len(rates) > 1 and middle else "-"
            folder = "all at once" if len(job.paths) > 1 else bench.names.get(job.paths[0], "")
            rows.append(
                row(
                    *([folder] if len(bench.paths) > 1 else []),
                    job.rw,
                    size_text(job.block_bytes),
                    str(job.depth),
                    side,
                    rate_text(middle),
                    count_text(statistics.median(sample.operations_per_s for sample in samples)),
                    *latencies,
                    figure_text(statistics.median(sample.cpu_s_per_gib for sample in samples)),
                    spread,
                )
            )
    head = [
        *(["folder"] if len(bench.paths) > 1 else []),
        "test",
        "block",
        "depth",
        "by",
        "GB/s",
        "IOPS",
        "p50",
        "p99",
        "p99.9",
        "CPU s/GiB",
        "runs",
    ]
    return Table("All figures", head, rows, "Medians of the runs; “runs” is half their range.", numbers_from=2)


def section(document: Document) -> Section:
    """The section of one file. ReportError."""
    bench = read(document)
    parts: list[Part] = [Text(verdict(bench)), Text(command_text(document.root), "Command", code=True)]
    if not bench.jobs:
        parts.append(Text("The run was ended before its first row: there is nothing to draw."))
    else:
        parts += [chart for chart in (_bandwidth(bench), _operations(bench)) if chart]
        parts += _heat_maps(bench)
        parts += [chart for chart in (_ratio(bench), _folders(bench), _latency(bench)) if chart]
        parts += [_cpu(bench), _table(bench)]
    root = document.root
    parts.append(environment_table(root.need("environment"), *targets_of(root), root.get("engine")))
    return Section(f"bench of {', '.join(bench.names.values())}", document.path, parts)
