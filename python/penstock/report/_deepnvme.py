# SPDX-License-Identifier: Apache-2.0
"""The sections of `penstock ds_io --json` and `penstock ds_nvme_tune --json`."""

from __future__ import annotations

import json
import statistics

from penstock.report import _figures as figures
from penstock.report._common import command_text, environment_table
from penstock.report._model import Chart, Part, Section, Table, Text, row
from penstock.report._read import Document, Field
from penstock.report._units import figure_text, rate_text, size_text


def ds_io(document: Document) -> Section:
    """Folders and their sum, and every repetition. ReportError."""
    found = document.root.need("ds_io")
    op = found.need("op").text()
    io_bytes = found.need("io_bytes").whole(1)
    folders = [(f.need("path").text(), f.need("bytes_per_s").number()) for f in found.need("folders").items()]
    values: list[float | None] = [rate / 1e9 for _, rate in folders]
    names = [path for path, _ in folders]
    total = found.need("bytes_per_s").number()
    chart = Chart(
        "Bandwidth of each folder and of all together",
        "10⁹ bytes a second (ds_io itself prints 2³⁰). “All” counts the time that the processes waited for each other.",
        figures.bars([*names, "all"], [figures.Series(op, [*values, total / 1e9])], "GB/s"),
    )
    groups = []
    warmup = found.need("warmup_loops").whole()
    for number, process in enumerate(found.need("processes").items()):
        rates = [io_bytes / s.number() / 1e9 for s in process.need("seconds").items() if s.number() > 0]
        groups.append((f"{number}: {process.need('folder').text()}", [(op, rates[warmup:] or rates)]))
    repetitions = Chart(
        "Every repetition",
        "A dot a repetition, the warm-up left out. Dots far apart mean a device that swings.",
        figures.runs(groups, "GB/s", None),
    )
    settings = [
        row("engine", found.need("engine").text()),
        row("bytes a repetition", size_text(io_bytes)),
        row("block size", size_text(found.need("block_bytes").whole(1))),
        row("depth", str(found.need("depth").whole(1))),
        row("fsync in the figures", "yes" if found.need("fsync").flag() else "no"),
        row("GB/s, all", rate_text(total)),
        row("CPU s/GiB", figure_text(found.need("cpu_s_per_gib").number())),
    ]
    parts: list[Part] = [
        Text(command_text(document.root), "Command", code=True),
        chart,
        repetitions,
        Table("Figures", ["what", "value"], settings),
        environment_table(document.root.need("environment"), document.root.get("engine")),
    ]
    return Section(f"ds_io {op} in {', '.join(names)}", document.path, parts)


def _rate(setting: Field, operation: str) -> float | None:
    rates = setting.need("bytes_per_s").get(operation)
    values = [rate.number() for rate in rates.items()] if rates else []
    return statistics.median(values) if values else None


def ds_nvme_tune(document: Document) -> Section:
    """Block size by depth for each operation, the choice, and its certainty. ReportError."""
    found = document.root.need("ds_nvme_tune")
    settings = list(found.need("settings").items())
    operations = [operation.text() for operation in found.need("operations").items()]
    parts: list[Part] = [Text(command_text(document.root), "Command", code=True)]
    for operation in operations:
        cells: dict[tuple[int, int], float] = {}
        for setting in settings:
            key = (setting.need("block_size").whole(1), setting.need("queue_depth").whole(1))
            rate = _rate(setting, operation)
            if rate is not None:
                cells[key] = max(rate, cells.get(key, 0.0))
        parts.append(
            Chart(
                f"Bandwidth by block size and depth: {operation}",
                "Medians over the rounds in GB/s (10⁹ bytes a second), the best of the settings that share block "
                "size and depth; darker is faster, and the colours begin at 0.",
                figures.heat_map(cells),
                height=240 + 44 * len({block for block, _ in cells}),
            )
        )
    parts.append(Text(f"How sure: {found.need('verdict').text()}."))
    best = {key: value.value for key, value in found.need("best").pairs()}
    parts.append(Text(json.dumps({"aio": best}, indent=3)[:4000], "For a DeepSpeed configuration", code=True))
    parts.append(environment_table(document.root.need("environment")))
    where = ", ".join(folder.text() for folder in found.need("folders").items())
    return Section(f"ds_nvme_tune in {where}", document.path, parts)
