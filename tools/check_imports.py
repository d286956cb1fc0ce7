#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Who may import whom in python/penstock: the parts of docs/architecture.md, section 2, held by a test.

    tools/check_imports.py [--root DIR]

A part is a folder or a file of python/penstock/. The rules:
  1. A part imports itself, the compiled part, and the parts that PARTS names. So the core (_base, _state, _store) knows
     no adapter (deepnvme, safetensors, weights ...) and no tool.
  2. No circle among files. What two files need lies below both.
  3. The folders of the core have no table of contents: their __init__.py import nothing.
Every import counts, also one inside a function (those are for packages that not everybody has, and for what would cost
time at the start), and import_module("penstock.plan._mix"). What only type checkers see does not (if TYPE_CHECKING).
Neither does the __init__.py of a folder where a file of that folder is imported.
Each violation is one line, with the reason. Exit status 1 when there is one.
"""

import argparse
import ast
import sys
from pathlib import Path

TABLE = "penstock"  # __init__.py: it may name everything, and whom it imports may not import it
CORE = ("_base", "_state", "_store")
PARTS = {
    "_base": (),
    "_state": ("_base",),
    "_store": ("_base", "_state"),
    # adapters
    "deepnvme": (*CORE, TABLE, "_deepnvme_hook", "_measure"),  # its commands have the frame of all commands
    "_deepnvme_hook": (),
    "dcp": CORE,
    "features": CORE,
    "lightning": (*CORE, TABLE),
    "plan": CORE,
    "safetensors": CORE,
    "weights": CORE,
    # tools
    "_measure": (*CORE, TABLE, "features"),
    "report": (*CORE, "_measure"),
    "__main__": None,  # everything
    TABLE: None,
}
COMPILED = "_core"


def modules(root):
    """{name: path} of the package's modules."""
    package = root / "python" / "penstock"
    names = {}
    for path in sorted(package.rglob("*.py")):
        parts = ["penstock", *path.relative_to(package).with_suffix("").parts]
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def part_of(module):
    return (module.split(".") + [TABLE])[1]


def _name_of(node):
    """f for f and for a.f; "" for anything else."""
    return getattr(node, "id", getattr(node, "attr", ""))


def _for_type_checkers(node):
    return isinstance(node, ast.If) and _name_of(node.test) == "TYPE_CHECKING"


def _nodes(tree):
    """All nodes but those that only type checkers see."""
    for node in ast.iter_child_nodes(tree):
        if _for_type_checkers(node):
            for other in node.orelse:
                yield other
                yield from _nodes(other)
        else:
            yield node
            yield from _nodes(node)


def imports(module, path, known):
    """{module that it imports: line}."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found = {}
    for node in _nodes(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names = [f"{base}.{alias.name}" for alias in node.names]
            names = [name if name in known or part_of(name) == COMPILED else base for name in names]
        elif isinstance(node, ast.Call) and _name_of(node.func).strip("_") in ("import", "import_module"):
            names = [one.value for one in node.args if isinstance(one, ast.Constant)]
        for name in names:
            if name in known and name != module:
                found.setdefault(name, node.lineno)
    return found


def circles(graph):
    """One circle through each module that is in one, each circle once: [module, ..., the first again]."""
    done, found = set(), []

    def visit(module, way):
        if module in way:
            found.append([*way[way.index(module) :], module])
            return
        if module not in done:
            for other in graph[module]:
                visit(other, [*way, module])
            done.add(module)

    for module in graph:
        visit(module, [])
    return found


def violations(root):
    """(path, line, reason) of each."""
    known = modules(root)
    graph = {module: imports(module, path, known) for module, path in known.items()}
    where = {module: path.relative_to(root) for module, path in known.items()}
    for module in graph:
        part = part_of(module)
        if part not in PARTS:
            yield where[module], 1, f"the part {part} has no row in PARTS (tools/check_imports.py)"
            continue
        for other, line in graph[module].items():
            theirs = part_of(other)
            if PARTS[part] is not None and theirs not in (part, *PARTS[part]):
                may = ", ".join((part, *PARTS[part]))
                yield where[module], line, f"{part} imports {other}; it may import: {may}"
            elif module in (f"penstock.{core}" for core in CORE):
                yield where[module], line, f"this __init__.py imports {other}; those of the core import nothing"
    for circle in circles(graph):
        yield where[circle[0]], graph[circle[0]][circle[1]], f"a circle of imports: {' -> '.join(circle)}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    found = list(violations(parser.parse_args().root))
    for path, line, reason in found:
        print(f"{path}:{line}: {reason}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
