# SPDX-License-Identifier: Apache-2.0
"""The section of `penstock tune --json`: the tried settings, their results, the choice, and the text to paste."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass

from penstock.report import _figures as figures
from penstock.report._bench import Sample, read_sample, targets_of, where
from penstock.report._common import command_text, environment_table, interval, interval_text
from penstock.report._model import Chart, Part, Section, Table, Text, row
from penstock.report._read import Document, Field
from penstock.report._units import figure_text, rate_text, size_text

_VERDICTS = {
    "better": "faster than the defaults",
    "no_difference": "no difference found: the defaults are as good as anything tried",
    "not_shown": "no difference shown: the rate swings too much to tell more apart in this time",
}


@dataclass
class Settings:
    block_bytes: int
    depth: int
    channels: int
    backend: str

    @property
    def name(self) -> str:
        more = [f"{self.channels} channels"] if self.channels > 1 else []
        more += [self.backend] if self.backend != "auto" else []
        return ", ".join([f"{size_text(self.block_bytes)} x {self.depth}", *more])


@dataclass
class Tried:
    """One setting, reads or writes."""

    rw: str
    settings: Settings
    defaults: bool
    samples: list[Sample]
    ratio: tuple[float, float, float]

    @property
    def bytes_per_s(self) -> float:
        return statistics.median(sample.bytes_per_s for sample in self.samples)


def _settings(found: Field) -> Settings:
    return Settings(
        block_bytes=found.need("block_bytes").whole(1),
        depth=found.need("depth").whole(1),
        channels=found.need("channels").whole(1),
        backend=found.need("backend").text(),
    )


def _tried(found: Field) -> Tried | None:
    samples = [read_sample(sample) for sample in found.need("samples").items()]
    if not samples:
        return None
    ratio = found.need("ratio_to_defaults")
    # A setting without a complete round has no ratio.
    ends = interval(ratio) if ratio.get("mean") else (0.0, 0.0, 0.0)
    return Tried(found.need("rw").text(), _settings(found), found.need("defaults").flag(), samples, ends)


def _known(verdict: Field) -> Text:
    kind = verdict.need("verdict").text()
    told = _VERDICTS.get(kind, kind)
    text = f"{verdict.need('goal').text()}: {told}."
    ratio = verdict.get("ratio_to_defaults")
    rounds = verdict.need("rounds").whole()
    if ratio and ratio.get("mean") and rounds > 1:
        rival = _settings(verdict.need("best_rival")).name
        text += f" {rival} gives {interval_text(interval(ratio))} times the defaults, 95 %, over {rounds} rounds."
    return Text(text)


def _charts(rw: str, tried: list[Tried]) -> list[Part]:
    parts: list[Part] = []
    cells: dict[tuple[int, int], float] = {}
    for one in tried:
        key = (one.settings.block_bytes, one.settings.depth)
        cells[key] = max(one.bytes_per_s, cells.get(key, 0.0))
    if len(cells) > 1:
        parts.append(
            Chart(
                f"Bandwidth by block size and depth: {rw}",
                "Medians in GB/s of what was tried, the best of those that differ in channels or backend alone; "
                "blank fields were not tried, because the search stops when it knows. Darker is faster, and the "
                "colours begin at 0.",
                figures.heat_map(cells),
                height=240 + 40 * len({block for block, _ in cells}),
            )
        )
    others = sorted((t for t in tried if not t.defaults and t.ratio[0] > 0), key=lambda t: -t.ratio[0])
    if others:
        rows = [figures.Ratio(t.settings.name, *t.ratio, limits=[], hover=f"{len(t.samples)} slices") for t in others]
        parts.append(
            Chart(
                f"Settings / defaults: {rw}",
                "Bytes a second divided by those of the defaults in the same rounds; right of 1 is faster. A whisker "
                "(95 %) that crosses 1 shows no difference. The best of many is high by chance too, which is why the "
                "verdict above rests on fresh runs of their own.",
                figures.ratios(rows, "ratio to the defaults (logarithmic)"),
                height=140 + 30 * len(rows),
            )
        )
    return parts


def _table(tried: list[Tried]) -> Table:
    rows = [
        row(
            one.settings.name + (" (the defaults)" if one.defaults else ""),
            one.rw,
            rate_text(one.bytes_per_s),
            "1" if one.defaults else interval_text(one.ratio) if one.ratio[0] else "-",
            figure_text(statistics.median(sample.cpu_s_per_gib for sample in one.samples)),
            str(len(one.samples)),
        )
        for one in sorted(tried, key=lambda one: (one.rw, not one.defaults, -one.bytes_per_s))
    ]
    head = ["settings", "test", "GB/s", "to the defaults", "CPU s/GiB", "slices"]
    return Table("What was tried", head, rows, "Block size x depth; medians of the slices.", numbers_from=2)


def _paste(title: str, found: Field | None) -> list[Part]:
    return [Text(json.dumps(found.value, indent=2)[:4000], title, code=True)] if found else []


def section(document: Document) -> Section:
    """The section of one file. ReportError."""
    root = document.root
    tune = root.need("tune")
    tried = [one for job in root.need("jobs").items() if (one := _tried(job))]
    folders = ", ".join(map(where, targets_of(root)))
    parts: list[Part] = [_known(verdict) for verdict in tune.need("verdicts").items()]
    choice = _settings(tune.need("choice"))
    parts.append(Text(f"Chosen: {choice.name}, after {tune.need('seconds').number():.0f} s."))
    parts.append(Text(command_text(root), "Command", code=True))
    for rw in dict.fromkeys(one.rw for one in tried):
        parts += _charts(rw, [one for one in tried if one.rw == rw])
    parts.append(_table(tried))
    parts += _paste("Options file for Penstock", tune.get("options"))
    parts += _paste("For a DeepSpeed configuration", tune.get("deepspeed"))
    parts.append(environment_table(root.need("environment"), *targets_of(root), root.get("engine")))
    return Section(f"tune of {folders}", document.path, parts)
