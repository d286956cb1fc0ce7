# SPDX-License-Identifier: Apache-2.0
"""Each row of the table with the n-th call of each kind failing: right data or a documented exception, in time, and
afterwards no descriptor more, and the same call works."""

import pytest
import scenes
from pool import LEVEL, Folder

CRASHES_MAX = 30  # of one row; then the rest of it would say nothing new
HANGS_MAX = 2
LIMIT_S = 10  # of one case, which takes some milliseconds


def run_row(pool, name, malloc, level=LEVEL):
    """(cases, defects) of one row; a child that crashes or hangs is one defect, and the next goes on after it."""
    defects, cases, after, hangs = [], 0, None, 0
    with Folder() as folder:
        for _ in range(CRASHES_MAX):
            arguments = {"row": name, "folder": folder, "level": level, "malloc": malloc, "after": after}
            answer = pool.server().ask("faults", limit_s=LIMIT_S, **arguments)
            tried = [value for kind, value in answer["rows"] if kind == "try"]
            cases += len(tried)
            defects += [tuple(value) for kind, value in answer["rows"] if kind == "defect"]
            if any(kind == "end" for kind, _ in answer["rows"]):
                return cases, defects
            how = "hangs" if answer["hung"] else f"wait status {answer['status']}"
            errors = "".join(value for kind, value in answer["rows"] if kind == "error")
            where = tried[-1] if tried else None
            defects.append((where, f"{how}\n{errors}{answer['said'][-3000:]}"))
            hangs += answer["hung"] or "NeverEnds" in errors
            if where is None or hangs == HANGS_MAX:
                break
            after = where
            scenes.emptied(folder)
    return cases, defects


ROWS = sorted(scenes.ROWS)


@pytest.fixture(scope="module", autouse=True)
def ahead(request, pool):
    """All rows that are to be tested begin, on all servers."""
    for item in request.session.items:
        if item.module.__name__ == __name__:
            name, malloc = item.callspec.params["name"], item.originalname == "test_allocator"
            pool.begin((name, malloc), run_row, name, malloc)


def check(pool, name, malloc):
    cases, defects = pool.result((name, malloc), run_row, name, malloc)
    print(f"{cases} cases")
    assert not defects, f"{len(defects)} of {cases} cases:\n" + "\n".join(f"{where}: {what}" for where, what in defects)


@pytest.mark.parametrize("name", ROWS)
def test_failing_call(pool, name):
    check(pool, name, False)


@pytest.mark.parametrize("name", ROWS)
def test_allocator(pool, name):
    check(pool, name, True)
