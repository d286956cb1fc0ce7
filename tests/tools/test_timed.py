# SPDX-License-Identifier: Apache-2.0
"""A test that compares a time with less than ten seconds says that its verdict depends on time. A longer limit tells an
end from a hang, also on a busy machine."""

import re

import pytest
from sources import ROOT, files

HANG_S = 10
CLOCK = r"(?:\b(?:now|seconds|perf_counter|process_time|monotonic)\(\) - |\btook\b|\belapsed|\bstall\b)"
LIMIT = re.compile(
    r"(?P<ms>[\d']+) ?ms\b|milliseconds\((?P<ms2>[\d']+)\)|(?P<s>[\d.']+) ?s\b|seconds\((?P<s2>[\d.']+)\)"
    r"|(?P<ns>[\d']+) \* kMillisecond|(?P<ks>\d*) ?\*? ?kSecond|< (?P<plain>[\d.]+)\b|, (?P<arg>[\d.]+)\)"
)


def limit_s(text):
    """The limit that a comparison names, in seconds; None where it is a variable."""
    found = LIMIT.search(text)
    if not found:
        return None
    kind = found.lastgroup
    number = float(found[kind].replace("'", "") or 1)
    return number / 1000 if kind in ("ms", "ms2", "ns") else number


def timed_tests(text, cpp):
    """(line number, name or marker of its test, the comparison) of each comparison of a time with a short limit."""
    test = ""
    for number, line in enumerate(text.splitlines(), 1):
        if cpp and (begun := re.match(r"TEST\w*\(\w+, (\w+)\)", line)):
            test = begun[1]
        elif not cpp and line.startswith(("@", "def ")):
            test = (test if test.startswith("@") else "") + line
        compares = re.search(r"(?:EXPECT|ASSERT)_L[TE]\((.*)", line) if cpp else re.search(r"\bassert (.*<.*)", line)
        if compares and re.search(CLOCK, compares[1]):
            limit = limit_s(compares[1])
            if limit is not None and limit < HANG_S:
                yield number, test, line.strip()


def test_what_compares_a_short_time_is_marked():
    wrong, seen = [], 0
    for path in files():
        if "tests" not in path.parts or path.suffix not in (".cpp", ".hpp", ".py") or path.parts[1] in ("gpu", "tools"):
            continue
        # Those of a simulation have a clock of their own, and programs for a real GPU have no runner here.
        if path.parts[1] == "simulation" or path.parts[:3] == ("python", "tests", "gpu"):
            continue
        for number, test, line in timed_tests((ROOT / path).read_text(), path.suffix != ".py"):
            seen += 1
            if not test.endswith("Timed") and "pytest.mark.timed" not in test:
                wrong.append(f"{path}:{number}: {line}")
    assert seen > 4
    assert not wrong, "Timed at the end of the name, or @pytest.mark.timed:\n" + "\n".join(wrong)


@pytest.mark.parametrize(
    "line, cpp, limit",
    [
        ("    EXPECT_LT(took, 20s);", True, None),
        ("    EXPECT_LT(took, std::chrono::milliseconds(1500));", True, 1.5),
        ("    EXPECT_LT(Clock::now() - begin, 1500ms);", True, 1.5),
        ("    EXPECT_LT(clock.now() - start, 5 * kSecond);", True, 5),
        ("    EXPECT_LT(clock.now() - start, kSecond);", True, 1),
        ("    EXPECT_LT(seconds() - begin, 3);  // 0.2 without sanitizers", True, 3),
        ("    EXPECT_LT(count, 3);", True, None),
        ("    assert time.monotonic() - begun < 5", False, 5),
        ("    assert time.monotonic() - begun < 30", False, None),
        ("    assert took[INDEX] < 4 * took['m'] + 0.5, took", False, 4),
    ],
)
def test_comparisons_of_time_are_known(line, cpp, limit):
    found = [limit_s(text) for _, _, text in timed_tests(line, cpp)]
    assert found == ([] if limit is None else [limit])
