# SPDX-License-Identifier: Apache-2.0
"""Python adapts what C++ does: the part of the package that every program runs stays small."""

import ast

from sources import ROOT

# Whole programs of their own: the interfaces of DeepNVMe, safetensors and Lightning, reports, measurements, models,
# rows, plans. And types, which programs never run.
OTHERS = ("deepnvme", "report", "_measure", "safetensors", "weights", "features", "plan", "lightning.py")
# 3,700 before torch's workers, hooks of modules, devices and children of multiprocessing were adapted; 4,100 before
# load_into() took what shares memory and named what it does not convert, and save() took iterators and lazy mappings;
# 4,300 before calls left torch's modes, and update(); 4,450 before save_async() and stores took iterators.
# 4,490 before its files lay in folders, which have lines of their own.
LINES_MAX = 4517


def lines_of(path):
    """Of a file without its overloads, which only say types."""
    text = path.read_text()
    overloads = (
        node.end_lineno - node.decorator_list[0].lineno + 1
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef)
        and any(isinstance(name, ast.Name) and name.id == "overload" for name in node.decorator_list)
    )
    return len(text.splitlines()) - sum(overloads)


def test_the_package_has_no_more_lines():
    package = ROOT / "python" / "penstock"
    files = [path for path in package.rglob("*.py") if path.relative_to(package).parts[0] not in OTHERS]
    lines = {path: lines_of(path) for path in files if path != package / "_base" / "types.py"}
    assert lines[package / "_state" / "load.py"] and sum(lines.values()) <= LINES_MAX, lines
