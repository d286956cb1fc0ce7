# SPDX-License-Identifier: Apache-2.0
"""Pages of reference, made of what is written in the sources: Python's stubs and docstrings, C++'s public headers.
Nothing is imported and nothing compiled."""

import ast
import re
import textwrap
from pathlib import Path


def _signature(node):
    """`read(file, into, offset=0, ...)`: without types, which follow."""
    names = []
    positional = node.args.posonlyargs + node.args.args
    defaults = [None] * (len(positional) - len(node.args.defaults)) + list(node.args.defaults)
    for argument, default in zip(positional, defaults):
        if argument.arg not in ("self", "cls"):
            names.append(argument.arg + (f"={ast.unparse(default)}" if default else ""))
    if node.args.vararg or node.args.kwonlyargs:
        names.append(f"*{node.args.vararg.arg if node.args.vararg else ''}")
    for argument, default in zip(node.args.kwonlyargs, node.args.kw_defaults):
        names.append(argument.arg + (f"={ast.unparse(default)}" if default else ""))
    return f"{node.name}({', '.join(names)})"


def _typed(node):
    """The definition with its types, an argument a line where it is long."""
    told = f"def {node.name}({ast.unparse(node.args)})"
    told += f" -> {ast.unparse(node.returns)}" if node.returns else ""
    if len(told) > 100:
        arguments = ast.unparse(node.args)
        parts = re.split(r", (?=[^\[\]()]*(?:[\[(][^\[\]()]*[\])][^\[\]()]*)*$)", arguments)
        told = f"def {node.name}(\n    " + ",\n    ".join(parts) + ",\n)"
        told += f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"```python\n{told}\n```"


def _text(node):
    """The docstring. What is indented after a blank line is an example; elsewhere it goes on from the line above."""
    text = re.sub(
        r"(?m)(?<=\n\n)(?:^    .*\n?(?:^\n)?)+", lambda found: _example(found[0]), ast.get_docstring(node) or ""
    )
    return "".join(
        part if part.startswith("```") else re.sub(r"(?m)^ +", "", part)
        for part in re.split(r"(?ms)(^```.*?^```)", text)
    )


def _example(text, language="python"):
    return f"\n```{language}\n" + textwrap.dedent(text).rstrip() + "\n```\n\n"


def _is(node, decorator):
    return any(ast.unparse(one).split(".")[-1] == decorator for one in node.decorator_list)


def _members(node):
    lines = []
    seen = set()
    for member in node.body:
        if not isinstance(member, ast.FunctionDef) or (member.name.startswith("_") and member.name != "__init__"):
            continue
        if _is(member, "setter"):
            continue
        if _is(member, "property"):
            kind = f" → `{ast.unparse(member.returns)}`" if member.returns else ""
            lines.append(f"- `{member.name}`{kind}" + _indented(": ", ast.get_docstring(member)))
            continue
        if member.name not in seen:
            title = "The constructor" if member.name == "__init__" else f"`{node.name}.{_signature(member)}`"
            lines += ["", f"### {title}"]
        seen.add(member.name)
        lines += ["", _typed(member), "", _text(member)]
    return lines


def _indented(begin, text):
    return begin + " ".join(text.split()) if text else ""


def _public(tree):
    """{name: module} of what the package imports to give it away, in the order of __all__."""
    modules = {
        alias.asname or alias.name: node.module.removeprefix("penstock.").replace(".", "/")
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module.startswith("penstock.")
        for alias in node.names
    }
    (names,) = (n for n in tree.body if isinstance(n, ast.Assign) and getattr(n.targets[0], "id", "") == "__all__")
    return {name: modules[name] for name in ast.literal_eval(names.value) if not name.startswith("_")}


def _definitions(package, stub):
    """{name: nodes} of what the package gives; several where a call has overloads. ValueError names what is missing."""
    found = {}
    trees = {}
    for name, module in _public(ast.parse((Path(package) / "__init__.py").read_text())).items():
        folder = Path(package) / module
        inside = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
        path = Path(stub) if module == "_core" else inside
        tree = trees.setdefault(path, ast.parse(path.read_text()))
        found[name] = [n for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef) and n.name == name]
        if not found[name]:
            raise ValueError(f"{name} is in penstock.__all__, and not defined in {path}")
    return found


def python_page(package, stub):
    """The page of everything in `penstock.__all__`. `stub` is that of the compiled part. ValueError."""
    found = _definitions(package, stub)
    lines = ["# Python reference", "", "Everything that `import penstock` gives, made of its docstrings and types. "]
    lines += ["[penstock in Python](python.md) is the guide.", "", "## Functions", ""]
    functions = [name for name, nodes in found.items() if isinstance(nodes[0], ast.FunctionDef)]
    for name in functions:
        lines += ["", f"### `{_signature(found[name][0])}`"]
        for node in found[name]:
            lines += ["", _typed(node), "", _text(node)]
    for name, (node, *_) in found.items():
        if name not in functions:
            bases = ", ".join(ast.unparse(base) for base in node.bases)
            lines += ["", f"## `{name}`", "", f"A kind of `{bases}`." if bases else "", "", _text(node), ""]
            lines += _members(node)
    return "\n".join(lines) + "\n"


# ---- C++


def _declarations(text):
    """(comment, declaration) of each that is at the top of namespace penstock, in order."""
    body = text[text.index("namespace penstock {") :].split("\n")[1:]
    comment, code, depth, found = [], [], 0, []
    for line in body:
        stripped = line.strip()
        if depth == 0 and not code:
            if stripped.startswith("}"):
                break
            if stripped.startswith("///"):
                comment.append(stripped[3:].removeprefix(" "))
                continue
            if not stripped or stripped.startswith(("//", "#")):
                comment = [] if not stripped else comment
                continue
        code.append(line)
        bare = re.sub(r'"(?:\\.|[^"\\])*"|//.*', "", line)
        depth += bare.count("{") + bare.count("(") - bare.count("}") - bare.count(")")
        if depth == 0 and bare.rstrip().endswith((";", "}")):
            found.append((comment, code))
            comment, code = [], []
    return found


def _public_part(code):
    """A class without what is private, and without the bodies that a reader does not need."""
    kept, private = [], False
    for line in code:
        if re.match(r"\s*(private|protected):", line):
            private = True
        elif re.match(r"\s*public:", line):
            private = False
        if not private or line.startswith("}"):
            kept.append(line)
    while len(kept) > 1 and not kept[-2].strip():
        del kept[-2]
    return "\n".join(kept).replace("PENSTOCK_API ", "")


def _name(code):
    line = " ".join(code)
    if found := re.match(
        r"\s*(?:template\s*<[^>]*>\s*)?(?:class|struct|enum class)\s+(?:PENSTOCK_API\s+)?(\w+)(.?)", line
    ):
        return found[1] if found[2] != ";" else None
    if found := re.search(r"(operator\S+|\w+)\s*\(", re.sub(r"\[\[.*?\]\]", "", line)):
        return f"{found[1]}()"
    found = re.search(r"(?:using|constexpr)\s+(?:[\w:]+\s+)*?(\w+)\s*=", line)
    return found[1] if found else None


def cpp_page(include):
    """The page of the public headers. Each class and function with its comment."""
    lines = ["# C++ reference", "", "The public headers. `#include <penstock/penstock.hpp>` has all of them; "]
    lines += ["`find_package(penstock)` and `penstock::penstock` link it.", ""]
    for path in sorted(Path(include).glob("*.hpp")):
        text = path.read_text()
        if "namespace penstock {" not in text:
            continue
        lines += ["", f"## `<penstock/{path.name}>`", ""]
        head = re.match(r"// SPDX[^\n]*\n((?://[^\n]*\n)*)", text)
        said = [line[2:].removeprefix(" ") for line in head[1].splitlines()]
        lines += [_cpp_text(said), ""]
        seen = set()
        for comment, code in _declarations(text):
            name = _name(code)
            if name is None:
                continue
            if name not in seen:
                lines += [f"### `{name}`", ""]
            seen.add(name)
            lines += [_cpp_text(comment), "", "```cpp", _public_part(code), "```", ""]
    return "\n".join(lines) + "\n"


def _cpp_text(lines):
    text = "\n".join(lines)
    return re.sub(r"(?m)(?:^ {4}.*\n?)+", lambda found: _example(found[0], "cpp"), text + "\n").strip()
