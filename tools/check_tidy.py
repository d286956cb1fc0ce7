#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What no compiler checks: licence lines, lengths, words, what a library must not do, and the layout.

    tools/check_tidy.py [--root DIR] [--no-layout] [--fix]

The rules on text are in RULES, one entry each, with the reason that is printed. The layout is clang-format's (14) for
C++ and ruff's for Python; --fix applies both. Exit status 1 when something is wrong.
"""

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from sources import CPP, ROOT, cpp_files, files  # noqa: E402

SPDX = "SPDX-License-Identifier: Apache-2.0"
CODE = CPP + (".py", ".sh", ".cmake")
LINE_MAX = {**dict.fromkeys(CPP, 100), ".sh": 140}
LINE_MAX_OTHER = 120
FILE_LINES_MAX = 600


def in_library(path):
    return path.parts[0] == "src" and path.suffix in CPP and path.parts[1] != "cli"


def is_header(path):
    return path.suffix in (".hpp", ".h", ".cuh")


def is_text(path):
    return (
        path.name != "LICENSE" and path.parts[:2] != ("fuzz", "corpus") and path.suffix not in (".png", ".svg", ".bin")
    )


def is_written_by_hand(path):
    """docs/status.md and docs/bars.json are made of what ran."""
    return is_text(path) and path.as_posix() not in ("docs/status.md", "docs/bars.json")


def is_page(path):
    """A page for people. docs/status.md is made from the rows of promises.toml, which have readers of their own."""
    return path.suffix == ".md" and path.parent.name in ("", "docs", "internals") and path.name != "status.md"


# (which files, pattern, what to say); the letters in brackets keep this file from matching itself.
RULES = [
    (
        is_text,
        r"\b(TOD[O]|FIXM[E]|XX[X]|HAC[K])\b",
        "finish it, or open an issue and say why it stands as it does",
    ),
    (
        is_text,
        r"(?<![\w.-])/(?:hom[e]|roo[t]|wor[k])/",
        "a path of one machine means nothing on another",
    ),
    (
        in_library,
        r"\b(std::c(out|err|log)\b|f?printf\(|puts\()",
        "a library does not print; return an Error that says it",
    ),
    (
        in_library,
        r"(?<![\w.:>])(std::|::)?(_?exit|_Exit|quick_exit|abort|terminate)\(",
        "a library does not end its user's process; return an Error, or PENSTOCK_ASSERT for a mistake of ours",
    ),
    (
        in_library,
        r"#\s*include\s*<cassert>",
        "assert() is off in release builds; PENSTOCK_ASSERT stays on",
    ),
    (
        in_library,
        r"\b(secure_)?getenv\(",
        "the environment is read in base/environment and nowhere else",
    ),
    (is_header, r"^\s*using namespace ", "a header must not bring names into the files that include it"),
    (
        is_page,
        r"(?i)\b(cures?|somebody|beside|for ever|lets? go|(?:is|are|was|were) told"
        r"|behind (?:the|its|your|their) (?:\w+'s )?back)\b",
        "a word that readers do not search for; write fix, the caller, next to or compared with, "
        "forever, release, reported, concurrently",
    ),
    (
        is_written_by_hand,
        r"(?i)\b(ane[w]|men[d](?:s|ed)?|whoeve[r]|besid[e] [a-z]\w*|(?:is|are) none o[f]|(?:so it|there) is non[e]"
        r"|tol[d] apart|one tol[d])\b",
        "a phrase that readers stumble over; write again, fix, the caller, next to, is not one of, has no, differs",
    ),
]
EXCEPT = {
    # The end of a failed assertion.
    "src/base/assert.cpp": (r"printf", r"exit"),
    "src/base/environment.cpp": (r"getenv",),
}


def check_text(path, text):
    """(line, reason) of what is wrong in one file."""
    lines = text.splitlines()
    name = path.as_posix()
    if path.suffix in CODE or path.name == "CMakeLists.txt":
        head = lines[:2] if lines and lines[0].startswith("#!") else lines[:1]
        if lines and not any(SPDX in line for line in head):
            yield 1, f"the first line (after #!) is: {SPDX}"
        longest = LINE_MAX.get(path.suffix, LINE_MAX_OTHER)
        for number, line in enumerate(lines, 1):
            if len(line) > longest:
                yield number, f"{len(line)} columns; at most {longest}"
        if path.suffix in CPP + (".py",) and len(lines) > FILE_LINES_MAX:
            yield (
                len(lines),
                f"{len(lines)} lines; past {FILE_LINES_MAX} a file holds more than one idea",
            )
    if path.suffix in (".hpp", ".cuh") and "#pragma once" not in lines:
        yield 1, "a header has #pragma once"
    for applies, pattern, reason in RULES:
        if not applies(path) or any(word in pattern for word in EXCEPT.get(name, ())):
            continue
        for number, line in enumerate(lines, 1):
            # Comments may name what a library must not do.
            match = re.search(pattern, line.split("//")[0] if applies is in_library else line)
            if match:
                yield number, f"'{match.group(0).strip()}': {reason}"
    if text and not text.endswith("\n"):
        yield len(lines), "the last line has no end"


# A comment begins with its subject or a verb, not with a question word. Few may: "Where" can be the right one.
QUESTION_SHARE_MAX = 0.005
COMMENT = re.compile(r"\s*(?:///?<?|#)\s+(\S.*)")
COMMENT_AFTER_CODE = re.compile(r"\s(?:///<|//|#)\s+([A-Z].*)")
QUESTION = re.compile(r"(?:What|Who|Of|Where)\b")


def comments(lines):
    """(line, text) of the first line of each comment block, and of each comment after code."""
    inside = False
    for number, line in enumerate(lines, 1):
        whole = COMMENT.match(line)
        after = None if whole else COMMENT_AFTER_CODE.search(line)
        if after or (whole and not inside):
            yield number, (whole or after).group(1)
        inside = whole is not None


def check_comments(texts):
    """(path, line, reason) of comments that begin with a question word, when they are too many of all."""
    blocks = [(path, *comment) for path, text in texts for comment in comments(text.splitlines())]
    questions = [(path, line) for path, line, text in blocks if QUESTION.match(text)]
    if len(questions) > QUESTION_SHARE_MAX * len(blocks):
        reason = f"begin with the subject or a verb: {len(questions)} of {len(blocks)} comments do not"
        yield from ((path, line, reason) for path, line in questions)


def violations(root):
    commented = []
    for path in files(root):
        if not is_text(path):
            continue
        try:
            text = (root / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if path.suffix in CPP + (".py",):
            commented.append((path, text))
        for line, reason in check_text(path, text):
            yield path, line, reason
    yield from check_comments(commented)


def ruff():
    beside = Path(sys.executable).with_name("ruff")
    return str(beside) if beside.exists() else shutil.which("ruff")


def layout(root, fix):
    """0 when clang-format and ruff have nothing to change (or changed it)."""
    status = 0
    cpp = [str(p) for p in cpp_files(root)]
    formatter = shutil.which("clang-format-14")
    if formatter is None:
        print("clang-format-14 is not here: apt-get install clang-format-14")
        status = 1
    elif cpp:
        mode = ["-i"] if fix else ["--dry-run", "-Werror", "--ferror-limit=1"]
        run = subprocess.run([formatter, "--style=file", *mode, *cpp], cwd=root, capture_output=True, text=True)
        wrong = sorted(set(re.findall(r"^(\S+?):\d+:\d+: error", run.stderr, re.MULTILINE)))
        if run.returncode:
            print("\n".join(f"{name}: clang-format would change it" for name in wrong) or run.stderr)
            print("`make format` fixes the layout")
            status = 1
    if ruff() is None:
        print("ruff is not here: `make setup` brings it")
        return 1
    checks = [["format"], ["check", "--fix"]] if fix else [["format", "--check"], ["check"]]
    for arguments in checks:
        run = subprocess.run([ruff(), *arguments, "-q", "--no-cache", "."], cwd=root)
        status = status or run.returncode
    return status


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--no-layout", action="store_true", help="only the rules on text")
    parser.add_argument("--fix", action="store_true", help="apply the layout instead of checking it")
    args = parser.parse_args()
    found = 0
    for path, line, reason in violations(args.root):
        found += 1
        print(f"{path}:{line}: {reason}")
    status = 0 if args.no_layout else layout(args.root, args.fix)
    return 1 if found or status else 0


if __name__ == "__main__":
    sys.exit(main())
