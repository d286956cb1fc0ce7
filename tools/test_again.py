# SPDX-License-Identifier: Apache-2.0
"""Which failures are run again, and which are a finding the first time.

A test that fails is run again alone, at most twice, in the same environment, so with the same seeds. What then passes
is flaky: it is named and counted, and more than FLAKY_MAX in one run fail the run. These are never run again:

- a test that crashed or hung, and every failure of a command that did;
- every failure of a command with a report of a sanitizer anywhere in its log;
- parts with `again=False` in tools/test_parts.py (attacks, hostile tests, power cuts, fuzzing, further seeds), and the
  tests that FINDINGS names: their seeds and states search for what happens rarely;
- a leak, and wrong bytes. A test does not say what it compares, so this reads the text of the failure. A comparison of
  anything but single numbers is a finding, and so is an assertion whose source has one of CONTENT_WORDS or a subscript,
  or whose failure shows bytes. In doubt it is a finding. A test that compares bytes under names that say nothing of it,
  and shows none, is run again all the same; it is then printed as flaky, and a person reads it.
"""

import re

AGAIN_MAX = 2  # runs after the first
FLAKY_MAX = 3  # in one run
RERUNS_MAX = 8  # tests run again in one run: where more fail, the run fails whatever they do

# Programs and tests that search: under other parts, too.
FINDINGS = re.compile(
    r"^simulation_test: |Simulation|Crash|Killed|Kill|Corpus|Fuzz|fuzz|Hostile|hostile|PowerCut|power_cut"
    r"|OutOfMemory|FaultPoints|Faults|Trouble|_crash|_kill|_trouble|test_grammar|attack"
)
SANITIZER = re.compile(
    r"(ERROR|WARNING|SUMMARY|FATAL): (Address|Thread|Leak|Memory|UndefinedBehavior)Sanitizer|: runtime error: "
)
CRASH = re.compile(
    r"SIG(SEGV|ABRT|BUS|ILL|FPE)|Segmentation fault|Aborted|core dumped|Fatal Python error|terminate called"
    r"|stack smashing|double free|Assertion .* failed|assertion failed"
    r"|(exit status|returncode|rc)\W{1,4}-\d|the program died"
)
HANG = re.compile(r"TimeoutExpired|timed out after \d|never came back|hangs?\b|deadlock")
LEAK = re.compile(r"leak|descriptors? (left|open)|/proc/self/fd|still open", re.IGNORECASE)
SEARCH = re.compile(r"Falsifying example|reproduce_failure|hypothesis")

CONTENT_WORDS = re.compile(
    r"data\b|content|bytes\(|equal|same|differ|mismatch|wrong|memcmp|memory\b|pattern|expected|checksum|crc|digest|xxh"
    r"|corrupt|damaged|torn|tensor|array|rows?\b|values?\b|weights?\b|state\b|all\(|==.*\[|\[.*\].*==|\bback\b"
    r"|\bblock\b|\binto\b|\bout\b|read_text|allclose",
    re.IGNORECASE,
)
# Values of bytes and of arrays, as pytest shows them.
CONTENT_VALUES = re.compile(r"\bb['\"]|bytearray\(|tensor\(|array\(|\\x[0-9a-f]{2}|Damaged")


def of_command(status, log_text):
    """Why no failure of a command is run again; None when some may be. A `status` of None: it was stopped."""
    if status is None:
        return "a hang"
    if status < 0 or status > 128:
        return "a crash"
    if SANITIZER.search(log_text):
        return "a sanitizer's report"
    return None


def of_failure(name, text):
    """Why this failure is a finding; None when the test may be run again."""
    if FINDINGS.search(name):
        return "a test that searches for rare failures"
    lines = text.splitlines()
    if any(line.startswith("E  ") for line in lines):
        # pytest shows the whole test: its comments say much that did not happen.
        lines = [line for line in lines if re.match("(E|>)  ", line)]
    told = "\n".join(lines)
    for what, pattern in (
        ("a sanitizer's report", SANITIZER),
        ("a crash", CRASH),
        ("a hang", HANG),
        ("a leak", LEAK),
        ("a failure of a random search", SEARCH),
    ):
        if pattern.search(told) or (what == "a leak" and pattern.search(name)):
            return what
    return "wrong bytes" if _gtest_content(lines) or _pytest_content(lines) else None


def _gtest_content(lines):
    for at, line in enumerate(lines):
        if line.startswith("Expected equality of these values:"):
            # Up to four lines: an operand, and what it is where that is not a number written in the source.
            operands = lines[at + 1 : at + 5]
            if any(not _is_plain_operand(one) for one in operands if one.startswith("  ")):
                return True
        elif line.startswith(("Value of: ", "Expected: (")) and not re.search(r"\) (<|<=|>|>=) \(", line):
            said = line.partition(": ")[2]
            if CONTENT_WORDS.search(said) or "==" in said:
                return True
    return False


def _is_plain_operand(line):
    said = line.strip()
    if said.startswith("Which is: "):
        return re.fullmatch(r"-?[0-9.]+(e[-+]?\d+)?|true|false|[48]-byte object <.*>", said.removeprefix("Which is: "))
    return not (said.startswith(('"', "{")) or "[" in said or CONTENT_WORDS.search(said))


def _pytest_content(lines):
    for line in lines:
        if line.startswith(">") and re.search(r"\bassert\b", line):
            compares = re.sub(r"\bassert\b", "", line)
            if not re.search(r"[^=!<>-](<|<=|>|>=)[^=<>]", compares) and CONTENT_WORDS.search(compares):
                return True
        elif line.startswith("E ") and CONTENT_VALUES.search(line):
            return True
    return False


def seed_of(text):
    """The seed that a failure names, or None."""
    found = re.search(r"\bseeds?\b[ =:#]*(\d+)", text, re.IGNORECASE)
    return f"seed {found[1]}" if found else None
