# SPDX-License-Identifier: Apache-2.0
"""Python adapts what C++ does: the part of the package that every program runs stays small."""

from sources import ROOT

# Whole programs of their own: DeepNVMe's interface, that of safetensors, reports, measurements, and models.
OTHERS = ("deepnvme", "report", "_measure", "safetensors", "weights")
LINES_MAX = 3440


def test_the_package_has_no_more_lines():
    package = ROOT / "python" / "penstock"
    files = [path for path in package.rglob("*.py") if path.relative_to(package).parts[0] not in OTHERS]
    lines = {path.name: len(path.read_text().splitlines()) for path in files}
    assert lines["_load.py"] and sum(lines.values()) <= LINES_MAX, lines
