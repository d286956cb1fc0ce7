# SPDX-License-Identifier: Apache-2.0
"""One log, and processes that append to it in every way, one of which is killed: each line is whole, and in the order
of its writer."""

import signal
import subprocess
import sys
import time

_WRITER = """
import sys
path, name, how, count = sys.argv[1:]
count = int(count)
if how == "plain":
    file = open(path, "ab", buffering=0)
    append = file.write
else:
    import penstock
    file = penstock.File(path, "a", buffer=how)
    append = file.append
for i in range(count):
    append(f"{name} {i} {name * (1 + i * 7919 % 3000)}\\n".encode())
file.close()
"""


def test_every_line_of_a_shared_log_is_whole(tmp_path):
    path, count = tmp_path / "log", 400
    ways = {"a": "0", "b": "64KiB", "c": "1", "d": "plain", "k": "10kB"}
    writers = {
        name: subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(path), name, how, str(count if name != "k" else 1 << 30)]
        )
        for name, how in ways.items()
    }
    try:
        while not path.exists() or b"k 100 " not in path.read_bytes():
            assert writers["k"].poll() is None
            time.sleep(0.01)
        writers["k"].kill()
        for name, writer in writers.items():
            assert writer.wait(60) == (-signal.SIGKILL if name == "k" else 0)
    finally:
        for writer in writers.values():
            writer.kill()
            writer.wait()
    seen, torn = dict.fromkeys(ways, 0), []
    for line in path.read_bytes().decode().splitlines():
        name, number, payload = line.split(" ", 2)
        if name == "k" and int(number) == seen[name] and payload != name * (1 + seen[name] * 7919 % 3000):
            line = payload.lstrip("k")  # SIGKILL ends a write(2) between two pages, and another's record follows
            torn.append(line)
            if not line:
                continue
            name, number, payload = line.split(" ", 2)
        assert int(number) == seen[name] and payload == name * (1 + seen[name] * 7919 % 3000)
        seen[name] += 1
    assert seen.pop("k") > 100 and len(torn) <= 1
    assert set(seen.values()) == {count}
