# SPDX-License-Identifier: Apache-2.0
"""Threads and processes of an attack, with a limit on how long they may take."""

import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
import threading
import time
import traceback

from tests.attack.run import Wrong

PATIENCE_S = 40
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)


def die_with_parent():
    """A process that is killed leaves none of its children behind, not even one that saves for ever."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def in_threads(functions, seconds=0):
    """Runs functions, each in a thread, and raises the first exception of one. They end by themselves after `seconds`;
    one that does not is a broken promise."""
    errors = []

    def guarded(function):
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(function,), daemon=True) for function in functions]
    end = time.monotonic() + seconds + PATIENCE_S
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    if errors:
        raise errors[0]
    if any(thread.is_alive() for thread in threads):
        faulthandler.dump_traceback()
        raise Wrong(f"a thread has not ended {PATIENCE_S} s after its time")


class Process:
    """A forked child that runs a function; its exception becomes this process's."""

    def __init__(self, function):
        sys.stdout.flush()
        self._pipe, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._pipe)
            self._run(function, write)
        os.close(write)

    @staticmethod
    def _run(function, write):
        status = 0
        die_with_parent()
        try:
            answer = function()
            text = "" if answer is None else str(answer)
        except Wrong as error:
            status, text = 3, str(error)
        except BaseException as error:
            status, text = 4, "".join(traceback.format_exception(error)).strip()
        with contextlib.suppress(OSError):
            os.write(write, text.encode()[-60_000:])
        os._exit(status)

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def text(self):
        """What it returned, or said; after its end."""
        parts = []
        with contextlib.suppress(OSError):
            while part := os.read(self._pipe, 1 << 16):
                parts.append(part)
        os.close(self._pipe)
        return b"".join(parts).decode(errors="replace")

    def end(self, limit_s=PATIENCE_S):
        """Waits for it, and returns the text that its function returned."""
        end = time.monotonic() + limit_s
        while True:
            pid, raw = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > end:
                os.kill(self.pid, signal.SIGUSR1)  # its stacks
                time.sleep(0.5)
                self.kill()
                os.waitpid(self.pid, 0)
                raise Wrong(f"a forked process has not ended after {limit_s:.0f} s")
            time.sleep(0.002)
        status, text = os.waitstatus_to_exitcode(raw), self.text()
        if status == 3:
            raise Wrong(text)
        if status:
            raise RuntimeError(f"a forked process ended with {status}: {text}")
        return text


def in_processes(functions, limit_s):
    """Runs functions, each in a forked process, and returns what they returned."""
    processes = [Process(function) for function in functions]
    first, texts = None, []
    for process in processes:
        try:
            texts.append(process.end(limit_s))
        except Exception as error:
            first = first or error
    if first:
        raise first
    return texts
