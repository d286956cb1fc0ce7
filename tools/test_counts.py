# SPDX-License-Identifier: Apache-2.0
"""Exact counts of what a test program did: passed, failed, skipped, each by name."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field

DEATH_LINES = 40


@dataclass
class Counts:
    passed: int = 0
    failed: list = field(default_factory=list)  # (name, text)
    skipped: list = field(default_factory=list)  # (name, reason)

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped

    def __str__(self):
        return f"{self.passed} passed, {len(self.failed)} failed, {len(self.skipped)} skipped"


def _indent(text, lines=60):
    return "\n".join(f"    | {line}" for line in text.splitlines()[-lines:])


def _cases(xml):
    try:
        return list(ElementTree.parse(xml).iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return None


def count_gtest(xml, log, program):
    """From the XML; a program that died before writing it is counted from its log, and the test it died in failed."""
    counts = Counts()
    cases = _cases(xml)
    if cases is None:
        return _count_gtest_log(log.read_text(errors="replace") if log.exists() else "", program)
    for case in cases:
        name = f"{program}: {case.get('classname')}.{case.get('name')}"
        failures, skipped = case.findall("failure"), case.find("skipped")
        if failures:
            counts.failed.append((name, _indent("\n".join(f.text or f.get("message", "") for f in failures))))
        elif skipped is not None:
            counts.skipped.append((name, _skip_reason(skipped.get("message", ""))))
        elif case.get("status") == "run":
            counts.passed += 1
    return counts


def _skip_reason(message):
    # GoogleTest puts file and line first.
    return re.sub(r"^\S+:\d+\s*", "", message).strip()


def _count_gtest_log(text, program):
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
            if what != "OK":
                (counts.skipped if what == "SKIPPED" else counts.failed).append((f"{program}: {name}", "see the log"))
    # A sanitizer's report begins with what matters.
    last = "\n".join(lines[begun_at:][:DEATH_LINES] if begun else lines[-DEATH_LINES:])
    counts.failed.append((f"{program}: {begun or 'the program'}", f"the program died in it\n{_indent(last)}"))
    return counts


def count_junit(xml, program):
    counts = Counts()
    cases = _cases(xml)
    for case in cases or []:
        name = f"{program}: {case.get('classname')}.{case.get('name')}"
        bad = [e for tag in ("failure", "error") for e in case.findall(tag)]
        skipped = case.find("skipped")
        if bad:
            counts.failed.append((name, _indent("\n".join(e.text or e.get("message", "") for e in bad))))
        elif skipped is not None:
            counts.skipped.append((name, skipped.get("message", "")))
        else:
            counts.passed += 1
    return counts
