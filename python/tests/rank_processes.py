# SPDX-License-Identifier: Apache-2.0
"""Ranks as processes: forked, so that torch is imported once, and joined by gloo."""

import multiprocessing
import os
import pickle
import signal
import sys
import time
import traceback

import torch

FORK = multiprocessing.get_context("fork")


class Failed(Exception):
    """What a rank raised, as text."""


def _run(rank, count, folder, function, arguments, pipe):
    torch.set_num_threads(1)
    import torch.distributed as dist

    try:
        dist.init_process_group(
            "gloo", store=dist.FileStore(f"{folder}/rendezvous", count), rank=rank, world_size=count
        )
        result = (True, function(rank, *arguments))
    except BaseException as error:
        result = (False, f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
    pipe.send_bytes(pickle.dumps(result))
    pipe.close()
    sys.stdout.flush()
    os._exit(0)  # the process group ends with it: a rank that was killed would be waited for


class RankProcesses:
    """`count` ranks that run function(rank, *arguments). They are ended at the end of a with block."""

    def __init__(self, count, folder, function, *arguments):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "rendezvous").unlink(missing_ok=True)
        self.pipes, self.processes = [], []
        for rank in range(count):
            ours, theirs = FORK.Pipe(duplex=False)
            process = FORK.Process(target=_run, args=(rank, count, folder, function, arguments, theirs))
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            if process.is_alive():
                process.kill()
            process.join()

    def send(self, rank, number):
        os.kill(self.processes[rank].pid, number)

    def kill(self, rank):
        self.send(rank, signal.SIGKILL)

    def results(self, timeout=60):
        """The result of each rank, or what it raised as Failed; None for one that was killed."""
        end, out = time.monotonic() + timeout, []
        for rank, pipe in enumerate(self.pipes):
            assert pipe.poll(max(0, end - time.monotonic())), f"rank {rank} did not end in {timeout} s"
            try:
                good, value = pickle.loads(pipe.recv_bytes())
            except EOFError:
                good, value = True, None
            out.append(value if good else Failed(value))
        return out


def run_ranks(count, folder, function, *arguments, timeout=60):
    """The results of function(rank, *arguments) on `count` ranks. Raises what the first rank raised."""
    with RankProcesses(count, folder, function, *arguments) as ranks:
        results = ranks.results(timeout)
    for result in results:
        if isinstance(result, Failed):
            raise result
    return results
