# SPDX-License-Identifier: Apache-2.0
"""Pages of reference, made of what is written in the sources: Python's stubs and docstrings, C++'s public headers.
Nothing is imported and nothing compiled."""

import ast
import re
import textwrap
from functools import lru_cache
from pathlib import Path

# Public ones whose names `import penstock` does not give.
MODULES = ("weights", "features", "features.pyg", "features.gids", "features.graphbolt", "plan", "safetensors")


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


def _titled(nodes):
    """The signature of a call. Of several definitions that with the text has it: the last in a .py, the first in a
    stub."""
    return _signature(next((node for node in nodes if ast.get_docstring(node)), nodes[0]))


def _call(nodes):
    """A call's types and text. Where it has overloads, the types are theirs."""
    shown = [node for node in nodes if _is(node, "overload")] or nodes
    texts = [text for text in map(_text, nodes) if text]
    return [line for node in shown for line in ("", _typed(node))] + ["", *texts]


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
            seen.add(member.name)
            nodes = [n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == member.name]
            title = "The constructor" if member.name == "__init__" else f"`{node.name}.{_titled(nodes)}`"
            lines += ["", f"### {title}", *_call(nodes)]
    return lines


def _indented(begin, text):
    return begin + " ".join(text.split()) if text else ""


def _public(tree):
    """The names of __all__, in its order."""
    (names,) = (n for n in tree.body if isinstance(n, ast.Assign) and getattr(n.targets[0], "id", "") == "__all__")
    return [name for name in ast.literal_eval(names.value) if not name.startswith("_")]


def _imported(tree):
    """{name: module} of what a file imports from the package."""
    return {
        alias.asname or alias.name: node.module.removeprefix("penstock.").replace(".", "/")
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("penstock.")
        for alias in node.names
    }


@lru_cache
def _tree(path):
    return ast.parse(path.read_text())


def _defined(name, path, package, stub):
    """The nodes that define a name which a file has, or imports; several where a call has overloads. ValueError."""
    tree = _tree(path)
    found = [n for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef) and n.name == name]
    if found:
        return found
    module = _imported(tree).get(name)
    if module is None:
        raise ValueError(f"{name} is in an __all__ of penstock, and not defined in {path}")
    folder = package / module
    inside = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    return _defined(name, stub if module == "_core" else inside, package, stub)


def _file_of(package, module):
    """The file of a module, "" for the package."""
    folder = package.joinpath(*module.split("."))
    return folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")


def _definitions(package, stub, module=""):
    """{name: nodes} of what the package, or a module of it, gives. ValueError names what is missing."""
    path = _file_of(package, module)
    return {name: _defined(name, path, package, stub) for name in _public(_tree(path))}


def python_page(package, stub):
    """The page of everything in `penstock.__all__`, and in that of its public modules. `stub` is that of the compiled
    part. ValueError."""
    package, stub = Path(package), Path(stub)
    found = _definitions(package, stub)
    lines = ["# Python reference", "", "Everything that `import penstock` gives, made of its docstrings and types. "]
    lines += ["[penstock in Python](python.md) is the guide.", "", "## Functions", ""]
    functions = [name for name, nodes in found.items() if isinstance(nodes[0], ast.FunctionDef)]
    for name in functions:
        lines += ["", f"### `{_titled(found[name])}`", *_call(found[name])]
    for name, (node, *_) in found.items():
        if name not in functions:
            lines += ["", f"## `{name}`", "", *_class(node)]
    for module in MODULES:
        own = {
            name: nodes
            for name, nodes in _definitions(package, stub, module).items()
            if name not in found or nodes[0] is not found[name][0]  # another of the same name
        }
        lines += _module(module, ast.get_docstring(_tree(_file_of(package, module))), own)
    return "\n".join(lines) + "\n"


def _class(node):
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    return [f"A kind of `{bases}`." if bases else "", "", _text(node), "", *_members(node)]


def _module(module, text, found):
    """The section of a module, one level deeper."""
    lines = ["", f"## penstock.{module}", "", text.split("\n\n")[0]]
    for name, nodes in found.items():
        if isinstance(nodes[0], ast.FunctionDef):
            lines += ["", f"### `{module}.{_titled(nodes)}`", *_call(nodes)]
        else:
            lines += ["", f"### `{module}.{name}`", ""]
            lines += [f"#{line}" if line.startswith("### ") else line for line in _class(nodes[0])]
    return lines


# ---- C++

NAMESPACE = re.compile(r"^namespace (penstock(?:::\w+)?) \{", re.MULTILINE)


def _declarations(text):
    """(comment, declaration) of each that is at the top of namespace penstock, or of one in it, in order."""
    body = text[NAMESPACE.search(text).start() :].split("\n")[1:]
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
        space = NAMESPACE.search(text)
        if space is None:
            continue
        lines += ["", f"## `<penstock/{path.name}>`", ""]
        lines += [f"In `namespace {space[1]}`.", ""] if space[1] != "penstock" else []
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
    return re.sub(r"(?m)(?:^ {4}.*\n?)+", lambda found: _example(found[0], _language(found[0])), text + "\n").strip()


def _language(block):
    """Of an indented block in a comment: code ends as a statement or a block does, a table or a formula does not."""
    last = re.sub(r"\s*//.*", "", block.rstrip().splitlines()[-1])
    if not last.endswith((";", "}")):
        return "text"
    return "json" if block.strip().startswith("{") else "cpp"
