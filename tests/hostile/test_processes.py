# SPDX-License-Identifier: Apache-2.0
"""Processes that end or fork while others work, over every row of the table."""

import pytest
import scenes
from pool import LEVEL, Folder

EXIT_S = 10  # of which a second is the interpreter's own
# A sample for each level but the last; what the others do is made of the same verbs.
QUICK = ("read", "write_async", "File", "save", "CheckpointStore.save_async", "deepnvme.aio_handle.async_pread")
ROWS = [
    name
    for name, row in sorted(scenes.ROWS.items())
    if not row.alone and not row.main_thread and (LEVEL != "quick" or name in QUICK)
]


def run_scene(pool, scene, row):
    with Folder() as folder:
        return pool.server().ask(scene, limit_s=EXIT_S, row=row, folder=folder)


def check(answer):
    defects = [value for kind, value in answer["rows"] if kind in ("defect", "error")]
    assert not answer["hung"], f"not over after {EXIT_S} s\n{answer['said']}"
    wrong = "\n".join(map(str, defects))
    assert answer["status"] == 0 and not defects, f"wait status {answer['status']}\n{wrong}\n{answer['said']}"


@pytest.fixture(scope="module", autouse=True)
def ahead(request, pool):
    for item in request.session.items:
        if item.module.__name__ == __name__ and "name" in getattr(item, "fixturenames", ()):
            scene, name = item.originalname.removeprefix("test_"), item.callspec.params["name"]
            pool.begin((scene, name), run_scene, scene, name)


@pytest.mark.parametrize("name", ROWS)
def test_exit_with_threads(pool, name):
    check(pool.result(("exit_with_threads", name), run_scene, "exit_with_threads", name))


@pytest.mark.parametrize("name", ROWS)
def test_fork_with_threads(pool, name):
    check(pool.result(("fork_with_threads", name), run_scene, "fork_with_threads", name))


@pytest.mark.parametrize("scene", ["several_stores", "clock_goes_back", "locks_that_guard_nothing", "cut_mapping"])
def test_scene(pool, scene):
    with Folder() as folder:
        check(pool.server().ask(scene, limit_s=60, folder=folder))
