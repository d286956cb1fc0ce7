# SPDX-License-Identifier: Apache-2.0
"""Each rule of check_tidy fails on a line that breaks it, and on no line that does not."""

from pathlib import Path

import check_tidy
import pytest

CPP_HEAD = "// SPDX-License-Identifier: Apache-2.0\n"


def found(name, text):
    return [reason for _, reason in check_tidy.check_text(Path(name), text)]


@pytest.mark.parametrize(
    "name, line, reason",
    [
        ("src/base/a.cpp", "// " + "TO" + "DO later", "finish it"),
        ("docs/a.md", "see /ho" + "me/someone/penstock", "one machine"),
        ("src/engine/a.cpp", "std::cout << 1;", "does not print"),
        ("src/engine/a.cpp", 'fprintf(stderr, "x");', "does not print"),
        ("src/engine/a.cpp", "std::abort();", "does not end"),
        ("src/engine/a.cpp", "exit(1);", "does not end"),
        ("src/engine/a.cpp", "#include <cassert>", "PENSTOCK_ASSERT"),
        ("src/engine/a.cpp", 'std::getenv("X");', "environment"),
        ("src/base/a.hpp", "using namespace std;", "must not bring names"),
        ("src/base/a.cpp", "int x;" + " " * 100, "columns"),
        ("docs/a.md", "The error is told to the caller.", "do not search for"),
        ("README.md", "Nobody else, for " + "ever", "do not search for"),
        ("src/base/a.cpp", "// Freed by who" + "ever comes last", "stumble over"),
        ("tools/a.py", 'raise ValueError(f"{mode} is none' + ' of r, w")', "stumble over"),
        ("docs/promises.toml", 'what = "A reader be' + 'side the writer"', "stumble over"),
    ],
)
def test_a_broken_rule_is_found(name, line, reason):
    head = CPP_HEAD + ("#pragma once\n" if name.endswith(".hpp") else "")
    text = line + "\n" if name.endswith(".md") else head + line + "\n"
    (only,) = found(name, text)
    assert reason in only


@pytest.mark.parametrize(
    "name, line",
    [
        ("src/cli/a.cpp", "std::cout << 1;"),
        ("tests/base/a_test.cpp", 'std::printf("x");'),
        ("src/engine/a.cpp", "// never exit( or abort( here"),
        ("src/engine/a.cpp", "plan.exit(1);"),
        ("src/engine/a.cpp", "on_exit(1);"),
        ("src/engine/a.cpp", 'format_to("snprintf");'),
        ("docs/a.md", "https://example.org/wo" + "rk/"),
        ("docs/a.md", "Both differ in their size, besides the name."),
        ("docs/status.md", "is told"),
    ],
)
def test_what_is_allowed_is_let_through(name, line):
    head = "" if name.endswith(".md") else CPP_HEAD
    assert found(name, head + line + "\n") == []


def test_heads_lengths_and_ends():
    assert any("SPDX" in reason for reason in found("src/base/a.cpp", "int x;\n"))
    assert found("tools/a.py", "#!/usr/bin/env python3\n# SPDX-License-Identifier: Apache-2.0\n") == []
    assert any("#pragma once" in reason for reason in found("src/base/a.hpp", CPP_HEAD))
    assert any("more than one idea" in reason for reason in found("src/base/a.cpp", CPP_HEAD + "\n" * 600))
    assert any("no end" in reason for reason in found("src/base/a.cpp", CPP_HEAD + "int x;"))


def test_comments_that_begin_with_a_question_word_are_few():
    clean = (Path("src/base/a.cpp"), "// Says why.\n// What follows here is the same block.\nint x;\n" * 400)
    asks = (Path("tools/a.py"), "x = 1  # What it is\n# Of the caller\n# Whatever it is: one block\n")
    assert list(check_tidy.check_comments([clean, asks])) == []
    found = list(check_tidy.check_comments([clean, asks, asks]))
    assert [(path.name, line) for path, line, _ in found] == [("a.py", 1), ("a.py", 2)] * 2
    assert all("4 of 404" in reason for *_, reason in found)
