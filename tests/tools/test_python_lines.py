# SPDX-License-Identifier: Apache-2.0
"""Python adapts what C++ does: each part of the package has a limit of lines, and the core stays small."""

import ast

import check_imports
from sources import ROOT

# What each part has today. A part that grows says why here; one that shrinks takes its limit along.
LIMITS = {
    "penstock": 152,  # __init__.py
    "__main__": 56,
    "_deepnvme_hook": 71,
    "_base": 1266,
    "_state": 2502,  # slices.py: which part of a tensor a DTensor, a ShardedTensor, a Slice is, and who writes it
    "_store": 1281,  # ranks.py: the mailbox of ranks in a TCPStore of torch; sigterm.py: a stop of all ranks
    "_measure": 2962,
    "dcp": 856,  # torch's calls, its StorageWriter and StorageReader, and install()
    "deepnvme": 3195,
    "features": 2153,
    "lightning": 123,
    "plan": 1076,
    "report": 2596,
    "safetensors": 626,
    "weights": 3291,
}
# Of the parts that every program imports: _base, _state, _store.
CORE_MAX = 5049


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


def lines_of_parts(root):
    parts = {}
    for module, path in check_imports.modules(root).items():
        part = check_imports.part_of(module)
        parts[part] = parts.get(part, 0) + lines_of(path)
    return parts


def longer(parts):
    """What is over a limit, or has none."""
    found = {part: f"{lines} lines, {LIMITS.get(part)} allowed" for part, lines in parts.items()}
    return {part: text for part, text in found.items() if parts[part] > LIMITS.get(part, 0)}


def test_no_part_has_more_lines():
    parts = lines_of_parts(ROOT)
    assert parts.keys() == LIMITS.keys() == check_imports.PARTS.keys()
    assert longer(parts) == {}
    assert sum(parts[part] for part in check_imports.CORE) <= CORE_MAX


def test_a_line_more_is_found_and_an_overload_does_not_count(tmp_path):
    lightning = tmp_path / "python" / "penstock" / "lightning.py"
    lightning.parent.mkdir(parents=True)
    lightning.write_text("pass\n" * LIMITS["lightning"] + "@overload\ndef f(): ...\n")
    (lightning.parent / "new.py").write_text("pass\n")
    assert longer(lines_of_parts(tmp_path)) == {"new": "1 lines, None allowed"}
    lightning.write_text(lightning.read_text() + "pass\n")
    assert longer(lines_of_parts(tmp_path))["lightning"] == "124 lines, 123 allowed"
