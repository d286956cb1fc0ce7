# SPDX-License-Identifier: Apache-2.0
"""Published figures of storage for training and checkpoints, and the question of penstock.plan that gives each: the job
of plan.rows, which python/tests/test_plan_rows.py runs too.

A figure counts as given where ours is within 1 % of it or rounds to its printed digits. EXPLAINED has those that are
not, with the reason; all are figures that do not say what they count.
"""

from dataclasses import dataclass, field

GB = 1e9
UNITS = {GB: "GB/s", 1e6: "MB/s", 2**30: "GiB/s", 1: "samples/s"}


@dataclass
class Row:
    """A published value in `scale` (GB/s: 1e9), as it is printed, and who says it."""

    what: str
    verb: str
    options: dict
    figure: str
    printed: str
    scale: float = GB
    source: str = field(default="", repr=False)
    unit: str = ""

    def ours(self):
        import penstock.plan as plan

        return getattr(plan, self.verb)(**self.options)[self.figure].value / self.scale

    def words(self):
        """The options as words, for the command line."""
        return [(name, str(value)) for name, value in self.options.items()]

    def command(self):
        flags = " ".join(f"--{name.replace('_', '-')} {text}" for name, text in self.words())
        return f"penstock plan {self.verb} {flags}"

    def published(self):
        return f"{self.printed} {self.unit or UNITS[self.scale]}"

    def document(self):
        """The row of docs/plan.md."""
        return f"| {self.what} | {self.published()} | `{self.command()}` |"

    def matches(self, factor=1.0):
        digits = len(self.printed.partition(".")[2])
        ours, published = self.ours() * factor, float(self.printed)
        return abs(ours / published - 1) <= 0.01 or round(ours, digits) == published


def _train(what, model, preset, accelerators, printed, scale=GB, source="", **more):
    options = {"model": model, "preset": preset, "accelerators": accelerators, **more}
    return Row(what, "train", options, "read_bytes_per_second", printed, scale, source)


_TALK = "SNIA, Storage Requirements for AI, 2024"
_LOGS = "MLPerf Training v3.1, NVIDIA's logs of 8 x H100, x bytes of a sample"

# Training, by what MLPerf Training logged.
TRAINING = [
    _train("ResNet-50 on 8 H100", "resnet50", "snia-2024", 8, "6.1", source=_TALK),
    _train("3D U-Net on 8 H100, 16 bits", "unet3d", "snia-2024", 8, "41.0", source=_TALK),
    _train("ResNet-50", "resnet50", "training-3.1", 8, "6.10", source=_LOGS),
    _train("ResNet-50, DLIO's sample", "resnet50", "training-3.1", 8, "6.5", source=_LOGS, bytes_per_sample=114_660),
    _train("3D U-Net, DLIO's sample", "unet3d", "training-3.1", 8, "82", source=_LOGS),
    _train("BERT-Large", "bert", "training-3.1", 8, "19.4", 1e6, source=_LOGS),
    _train("Mask R-CNN", "maskrcnn", "training-3.1", 8, "0.25", source=_LOGS),
    _train("RNN-T, FLAC", "rnnt", "training-3.1", 8, "3.0", source=_LOGS),
    _train("RNN-T, WAV", "rnnt", "training-3.1", 8, "5.4", source=_LOGS, bytes_per_sample="390KB"),
    _train("RetinaNet", "retinanet", "training-3.1", 8, "0.73", source=_LOGS),
    _train("RetinaNet, 300 kB", "retinanet", "training-3.1", 8, "0.68", source=_LOGS, bytes_per_sample="300KB"),
    _train("DLRM, one-hot", "dlrm", "training-3.1", 8, "2.2", source=_LOGS),
    _train("DLRM, multi-hot", "dlrm", "training-3.1", 8, "12.3", source=_LOGS, bytes_per_sample=906),
    _train("Stable Diffusion", "stable-diffusion", "training-3.1", 8, "0.11", source=_LOGS),
    _train("Stable Diffusion, 32 KiB", "stable-diffusion", "training-3.1", 8, "0.03", source=_LOGS,
           bytes_per_sample=32768),
    _train("GPT-3 on 512 H100", "gpt3", "training-3.1", 512, "1.5", 1e6, source=_LOGS),
    Row("FLUX.1 on 72 GB200", "train", {"model": "flux", "preset": "training-5.1", "accelerators": 72},
        "samples_per_second", "4513", 1, "MLPerf Training v5.1"),
]  # fmt: skip

_DLIO = "DLIO and MLPerf Storage, workload files"


def _both(what, model, preset, accelerator, one, eight, **more):
    """Of one accelerator and of eight; "" for none that is printed."""
    for count, printed in ((1, one), (8, eight)):
        if printed:
            name = f"{what}, {count} of {accelerator}"
            yield _train(name, model, preset, count, printed, source=_DLIO, accelerator=accelerator, **more)


# Computing times of DLIO and MLPerf Storage.
STORAGE = [
    *_both("3D U-Net", "unet3d", "storage-2.0", "a100", "1.61", "12.9"),
    *_both("3D U-Net", "unet3d", "storage-2.0", "h100", "3.18", "25.4"),
    *_both("3D U-Net", "unet3d", "storage-3.0", "b200", "6.33", "50.7"),
    *_both("ResNet-50", "resnet50", "storage-2.0", "a100", "0.105", "0.84"),
    *_both("ResNet-50", "resnet50", "storage-2.0", "h100", "0.205", "1.64"),
    *_both("CosmoFlow", "cosmoflow", "storage-1.0", "a100", "0.51", "4.1"),
    *_both("CosmoFlow", "cosmoflow", "storage-1.0", "h100", "0.81", "6.5"),
    *_both("BERT", "bert", "dlio", "v100", "0.0001", ""),
    *_both("DLRM, records of 671 MB", "dlrm", "dlio", "a100", "10.4", ""),
    *_both("RetinaNet", "retinanet", "storage-3.0", "b200", "0.163", "1.3"),
    *_both("RetinaNet", "retinanet", "storage-3.0", "mi355", "0.163", "1.3"),
    *_both("FLUX.1", "flux", "storage-3.0", "b200", "0.077", "0.6"),
    *_both("DLRM, batch of 12,288", "dlrm", "storage-3.0", "b200", "5.2", "42", samples_per_second=32_768_000),
    *_both("DLRM, whole rows", "dlrm", "storage-3.0", "b200", "24.9", "", samples_per_second=32_768_000,
           bytes_per_sample=761),
    # The tool says GiB/s and prints GB/s.
    _train("3D U-Net, in GiB/s", "unet3d", "storage-2.0", 1, "1.50", 2**30, _DLIO, accelerator="a100"),
    _train("3D U-Net, in GiB/s", "unet3d", "storage-2.0", 1, "2.96", 2**30, _DLIO, accelerator="h100"),
    _train("3D U-Net, in GiB/s", "unet3d", "storage-3.0", 1, "5.90", 2**30, _DLIO, accelerator="b200"),
]  # fmt: skip

_SIZES = "SNIA's talk: 14 bytes a parameter, written in 5 % of two hours, read back in five minutes"

# Parameters; GB; GB/s written, read once, read by 16, and by 16 in five hours.
_SNIA = """
3b   42     0.12 0.14 2.24  0.04
7b   98     0.27 0.33 5.2   0.09
13b  182    0.51 0.61 9.7   0.16
33b  462    1.28 1.54 24.6  0.41
70b  980    2.72 3.27 52.3  0.87
140b 1960   5.44 6.53 104.5 1.74
175b 2450   6.81 8.17 130.7 2.18
405b 5670   15.8 18.9 302   5.04
530b 7420   20.6 24.7 396   6.60
1t   14000  38.9 46.7 747   12.4
"""


def _snia(name, size, written, once, by_16, in_hours):
    model = {"model": name}
    copies = {**model, "copies": 16}
    write = {**model, "interval": "2h", "share": "5%"}
    rate = "read_bytes_per_second"
    label = name.upper()
    yield Row(f"{label}, size", "checkpoint", model, "checkpoint_bytes", size, GB, _SIZES, "GB")
    yield Row(f"{label}, written", "checkpoint", write, "write_bytes_per_second", written, GB, _SIZES)
    yield Row(f"{label}, read once", "restore", {**model, "seconds": "5min"}, rate, once, GB, _SIZES)
    yield Row(f"{label}, read by 16", "restore", {**copies, "seconds": "5min"}, rate, by_16, GB, _SIZES)
    yield Row(f"{label}, read by 16 in 5 hours", "restore", {**copies, "seconds": "5h"}, rate, in_hours, GB, _SIZES)


def _dlio_size(name, printed):
    source = "DLIO's llama workloads; MLPerf Storage prints GiB as GB"
    return Row(f"{name}, DLIO's size", "checkpoint", {"model": name}, "checkpoint_bytes", printed, 2**30, source, "GiB")


# Checkpoints.
STATES = [
    *(row for line in _SNIA.split("\n") if line for row in _snia(*line.split())),
    _dlio_size("dlio-llama-8b", "104.7"),
    _dlio_size("dlio-llama-70b", "911"),
    _dlio_size("dlio-llama-405b", "5292"),
    _dlio_size("dlio-llama-1t", "15425"),
]

ROWS = [*TRAINING, *STORAGE, *STATES]

# By what a row says; the reason.
EXPLAINED: dict[str, str] = {}


def off(factor=1.0):
    """Rows that are not given and not explained, with ours."""
    return [f"{row.what}: {row.ours() * factor:.4g}, published {row.printed}" for row in ROWS
            if row.what not in EXPLAINED and not row.matches(factor)]  # fmt: skip


def rows(arguments):
    """Rows that are off. Handicap `mib`: MB are taken for MiB."""
    import penstock

    found = off(2**20 / 1e6 if arguments.get("handicap") == "mib" else 1.0)
    return {"value": len(found), "operations": len(ROWS), "rows": found, "version": penstock.__version__}
