# SPDX-License-Identifier: Apache-2.0
"""Runs cases of the hostile tests, each in a forked child: torch is imported once, and a child that crashes or hangs
costs no more than itself. Started by conftest.py with shim.c in LD_PRELOAD; requests and answers are lines of JSON.

A request names a scene (a function of scenes.py) and its arguments. The child says with progress() what it begins; the
answer has what it reported, how it ended, and what it said last. As root a child becomes nobody first: what deletes may
go astray.
"""

import ctypes
import faulthandler
import json
import os
import select
import signal
import sys
import tempfile
import time
import traceback

import scenes
import shim

PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4
LIBC = ctypes.CDLL(None)
NOBODY = 65534
PARENT = os.getpid()


def become_nobody():
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        LIBC.prctl(PR_SET_DUMPABLE, 1)  # or /proc/self/fd is not its own
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != PARENT:
        os._exit(1)


def child(request, out, err):
    status = 1
    os.dup2(err, 2)
    try:
        become_nobody()
        faulthandler.enable()
        faulthandler.register(signal.SIGUSR1, all_threads=True)

        def progress(kind, value):
            os.write(out, (json.dumps([kind, value]) + "\n").encode())

        leave = getattr(scenes, request["scene"])(progress, **request["arguments"])
        if leave == "interpreter":
            return  # the interpreter ends as it does after a program
        status = 0
    except BaseException:
        os.write(out, (json.dumps(["error", traceback.format_exc()]) + "\n").encode())
    sys.stderr.flush()
    os._exit(status)


def follow(pid, out, limit_s):
    """What the child reports, until it is gone or says nothing for limit_s."""
    rows, rest, hung = [], b"", False
    while True:
        ready, _, _ = select.select([out], [], [], limit_s)
        if not ready:
            hung = True
            os.kill(pid, signal.SIGUSR1)  # where it stands
            time.sleep(0.3)
            os.kill(pid, signal.SIGKILL)
            break
        data = os.read(out, 1 << 16)
        if not data:
            break
        rest += data
        *lines, rest = rest.split(b"\n")
        rows += [json.loads(line) for line in lines]
    return rows, hung


def serve(request):
    """True in the child, when its interpreter is to end."""
    out_read, out_write = os.pipe()
    with tempfile.TemporaryFile() as err:
        began = time.monotonic()
        pid = os.fork()
        if pid == 0:
            os.close(out_read)
            child(request, out_write, err.fileno())
            return True
        os.close(out_write)
        calls = None
        if request.get("kill_at") is not None:
            os.waitpid(pid, os.WUNTRACED)
            status, calls = shim.trace(pid, request["kill_at"])
            rows, hung = follow(pid, out_read, 1)
        else:
            rows, hung = follow(pid, out_read, request["limit_s"])
            status = wait(pid, request["limit_s"])
            hung = hung or status is None
        os.close(out_read)
        err.seek(0)
        said = err.read()[-6000:].decode(errors="replace")
    return {
        "rows": rows, "hung": hung, "status": status, "said": said, "calls": calls, "took_s": time.monotonic() - began,
    }  # fmt: skip


def wait(pid, limit_s):
    """The wait status of a child that has closed its pipe; None when it had to be killed."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        time.sleep(0.002)
    os.kill(pid, signal.SIGUSR1)
    time.sleep(0.3)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def main():
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    scenes.warm_up()
    for line in sys.stdin:
        answer = serve(json.loads(line))
        if answer is True:
            return
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
