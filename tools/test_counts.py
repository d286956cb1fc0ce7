# SPDX-License-Identifier: Apache-2.0
"""Exact counts of what a test program did: passed, failed, skipped, each by name."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field

DEATH_LINES = 40


@dataclass
class Failure:
    name: str
    text: str  # what is printed
    case: str = None  # how its program or pytest calls the test, where it can be run alone
    raw: str = ""  # all that the test said


@dataclass
class Flaky:
    """A test that failed, and passed when it was run again. It counts as passed."""

    name: str
    seed: str
    runs: int  # until it passed
    log: str


@dataclass
class Counts:
    passed: int = 0
    failed: list = field(default_factory=list)  # of Failure
    skipped: list = field(default_factory=list)  # (name, reason)
    flaky: list = field(default_factory=list)  # of Flaky

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.flaky += other.flaky

    def fail(self, name, text):
        self.failed.append(Failure(name, text))

    def __str__(self):
        return f"{self.passed} passed, {len(self.failed)} failed, {len(self.skipped)} skipped"


def _indent(text, lines=60):
    return "\n".join(f"    | {line}" for line in text.splitlines()[-lines:])


def _cases(xml):
    try:
        return list(ElementTree.parse(xml).iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return None


def count_gtest(xml, log, program, end="died"):
    """From the XML; a program that ended before writing it is counted from its log, and the test that it ended in
    failed. `end` says how: it died, or hung."""
    counts = Counts()
    cases = _cases(xml)
    if cases is None:
        return _count_gtest_log(_text(log), program, end)
    for case in cases:
        name = f"{case.get('classname')}.{case.get('name')}"
        failures, skipped = case.findall("failure"), case.find("skipped")
        if failures:
            raw = "\n".join(f.text or f.get("message", "") for f in failures)
            counts.failed.append(Failure(f"{program}: {name}", _indent(raw), name, raw))
        elif skipped is not None:
            counts.skipped.append((f"{program}: {name}", _skip_reason(skipped.get("message", ""))))
        elif case.get("status") == "run":
            counts.passed += 1
    return counts


def _text(log):
    return log.read_text(errors="replace") if log.exists() else ""


def _skip_reason(message):
    # GoogleTest puts file and line first.
    return re.sub(r"^\S+:\d+\s*", "", message).strip()


def _count_gtest_log(text, program, end):
    counts, begun, begun_at = Counts(), None, 0
    lines = text.splitlines()
    for at, line in enumerate(lines):
        match = re.match(r"\[ *(RUN|OK|FAILED|SKIPPED) *\] ([^\s,]+)", line)
        what, name = match.groups() if match else (None, None)
        if what == "RUN":
            begun, begun_at = name, at + 1
        elif match and name == begun:
            begun = None
            counts.passed += what == "OK"
            if what == "SKIPPED":
                counts.skipped.append((f"{program}: {name}", "see the log"))
            elif what == "FAILED":
                counts.fail(f"{program}: {name}", "see the log")
    # A sanitizer's report begins with what matters.
    last = "\n".join(lines[begun_at:][:DEATH_LINES] if begun else lines[-DEATH_LINES:])
    counts.fail(f"{program}: {begun or 'the program'}", f"the program {end} in it\n{_indent(last)}")
    return counts


def count_junit(xml, log, program, end="died"):
    """From the XML; where pytest ended before writing it, from what `pytest -v` printed."""
    counts = Counts()
    cases = _cases(xml)
    if cases is None:
        return _count_pytest_log(_text(log), program, end)
    for case in cases:
        name = f"{program}: {case.get('classname')}.{case.get('name')}"
        bad = [e for tag in ("failure", "error") for e in case.findall(tag)]
        skipped = case.find("skipped")
        if bad:
            raw = "\n".join(e.text or e.get("message", "") for e in bad)
            counts.failed.append(Failure(name, _indent(raw), _node(case), raw))
        elif skipped is not None:
            counts.skipped.append((name, skipped.get("message", "")))
        else:
            counts.passed += 1
    return counts


def _node(case):
    """How pytest is asked for one test; None for a file that could not be imported."""
    file, module = case.get("file"), case.get("classname") or ""
    if not file or not module:
        return None
    stem = file.removesuffix(".py").replace("/", ".")
    inside = module.removeprefix(stem).strip(".").split(".") if module != stem else []
    return "::".join([file, *filter(None, inside), case.get("name")])


def _count_pytest_log(text, program, end):
    counts, begun, begun_at = Counts(), None, 0
    lines = text.splitlines()
    for at, line in enumerate(lines):
        match = re.match(r"(\S+\.py::[\w:]+(?:\[.*?\](?= |$))?) ?(.*)", line)
        if not match:
            continue
        name, rest = match.groups()
        begun, begun_at = name, at
        ended = re.match("PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS", rest)
        if ended:
            begun = None
            counts.passed += ended[0] == "PASSED"
            if ended[0] == "SKIPPED":
                counts.skipped.append((f"{program}: {name}", "see the log"))
            elif ended[0] in ("FAILED", "ERROR"):
                counts.fail(f"{program}: {name}", "see the log")
    last = "\n".join(lines[begun_at:][:DEATH_LINES] if begun else lines[-DEATH_LINES:])
    counts.fail(f"{program}: {begun or 'pytest'}", f"pytest {end} in it\n{_indent(last)}")
    return counts
