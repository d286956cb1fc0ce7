# SPDX-License-Identifier: Apache-2.0
"""A save that is killed as it enters its k-th system call that changes files: what is there is the old state or the new
one, whole, and the next save works and takes away what was left."""

import os
import shutil
import signal

import pytest
import scenes
from pool import LEVEL, Folder
from scenes import sampled

MOST = {"quick": 5, "ci": 15, "all": 1 << 30}[LEVEL]


def ask(pool, scene, **arguments):
    answer = pool.server().ask(scene, limit_s=30, **arguments)
    errors = [value for kind, value in answer["rows"] if kind == "error"]
    assert not answer["hung"] and not errors, "".join(errors) + answer["said"]
    return answer


def run_kills(pool, name):
    """Defects of one verb, and how many kills left the old state, and how many the new one."""
    defects, newest = [], {"old": 0, "new": 0}
    with Folder() as folder:
        pristine, work = os.path.join(folder, "pristine"), os.path.join(folder, "work")
        for path in (pristine, work):
            os.mkdir(path)
            shutil.copystat(folder, path)
            os.chown(path, os.stat(folder).st_uid, os.stat(folder).st_gid)
        prepared = ask(pool, "prepare_kill", name=name, folder=pristine)
        assert prepared["status"] == 0
        begun = fresh(folder)
        whole = ask(pool, "killed", kill_at=0, name=name, folder=begun)
        assert whole["status"] == 0 and whole["calls"] > 3, whole
        count = whole["calls"]
        ask_after(pool, name, begun, "it was not killed", defects, newest, whole=True)
        # The last ones are about the commit.
        for k in sorted({*sampled(count, MOST, len(name)), *range(count - 2, count + 1)}):
            begun = fresh(folder)
            answer = ask(pool, "killed", kill_at=k, name=name, folder=begun)
            was_killed = os.WIFSIGNALED(answer["status"]) and os.WTERMSIG(answer["status"]) == signal.SIGKILL
            if not was_killed and answer["status"] != 0:
                defects.append(f"killed at call {k}: wait status {answer['status']}\n{answer['said']}")
                continue
            ask_after(pool, name, begun, f"killed at call {k} of {count}", defects, newest, whole=not was_killed)
    return defects, newest


def ask_after(pool, name, folder, where, defects, newest, whole):
    answer = pool.server().ask("after_kill", limit_s=30, name=name, folder=folder, whole=whole)
    said = dict(row for row in answer["rows"] if row[0] in ("newest", "error"))
    if answer["status"] != 0:
        defects.append(f"{where}: {said.get('error')}\n{answer['said']}")
    else:
        newest[said["newest"]] += 1


def fresh(folder):
    work = os.path.join(folder, "work")
    shutil.rmtree(work)
    shutil.copytree(os.path.join(folder, "pristine"), work)
    for at, folders, files in os.walk(work):
        for name in (".", *folders, *files):
            os.chown(os.path.join(at, name), os.stat(folder).st_uid, os.stat(folder).st_gid)
    return work


@pytest.fixture(scope="module", autouse=True)
def ahead(request, pool):
    for item in request.session.items:
        if item.module.__name__ == __name__:
            name = item.callspec.params["name"]
            pool.begin(("killed", name), run_kills, name)


@pytest.mark.parametrize("name", scenes.KILLED)
def test_killed(pool, name):
    defects, newest = pool.result(("killed", name), run_kills, name)
    print(newest)
    assert not defects, "\n".join(defects)
    assert newest["old"] and newest["new"], f"the kills fell on one side of the commit only: {newest}"
