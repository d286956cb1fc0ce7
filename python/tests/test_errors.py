# SPDX-License-Identifier: Apache-2.0
"""What the system refuses: once, with operation, path, offset and errno, and the engine goes on working for others."""

import errno
import os
import pickle
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import penstock
import pytest


def test_a_file_that_is_not_there(engine, tmp_path):
    path = str(tmp_path / "absent")
    with pytest.raises(FileNotFoundError) as caught:
        engine.read(path, bytearray(1))
    error = caught.value
    assert isinstance(error, penstock.Error)
    assert (error.errno, error.filename, error.path, error.operation) == (errno.ENOENT, path, path, "open")
    assert path in str(error) and "No such file" in str(error)
    transfer = engine.read_async(path, bytearray(1))
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            transfer.result()
    assert transfer.status == "failed" and transfer.done()


@pytest.mark.parametrize("verb", ["read", "write"])
def test_a_folder(engine, tmp_path, verb):
    with pytest.raises(IsADirectoryError) as caught:
        getattr(engine, verb)(tmp_path, bytearray(1))
    assert caught.value.errno == errno.EISDIR


def test_a_missing_folder(engine, tmp_path):
    with pytest.raises(FileNotFoundError, match="its folder is there"):
        engine.write(tmp_path / "no" / "file", b"x")


def test_a_permission(engine, tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may do everything")
    path = tmp_path / "secret"
    path.write_bytes(b"x")
    path.chmod(0)
    with pytest.raises(PermissionError):
        engine.read(path, bytearray(1))


def test_a_pipe(engine, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(penstock.Unsupported, match="pipe"):
        engine.read(tmp_path / "pipe", bytearray(1))


def test_a_device_without_blocks(engine):
    with pytest.raises(penstock.Unsupported, match="block device"):
        engine.write("/dev/null", b"x")


def test_a_full_disk(tmp_path):
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("mounting a small file system needs root")
    program = """
        import errno, penstock
        engine = penstock.Engine()
        for big in (engine.write, lambda *a: engine.write_async(*a).result()):
            try:
                big("small/file", bytes(4 << 20))
            except penstock.Error as error:
                assert error.errno == errno.ENOSPC and "small/file" in error.path, error
                assert "free some space" in str(error), error
            else:
                raise SystemExit("4 MiB fit into 1 MiB")
        open("small/file", "w").close()
        assert engine.write("small/other", b"x", sync=True) == 1
    """
    (tmp_path / "small").mkdir()
    (tmp_path / "program.py").write_text(textwrap.dedent(program))
    # In a mount namespace of its own, which takes the mount along when it ends.
    mount = 'mount -t tmpfs -o size=1m none small || exit 77; exec "$0" program.py'
    command = ["unshare", "-m", "sh", "-c", mount, sys.executable]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    if run.returncode == 77 or run.stderr.startswith("unshare"):
        pytest.skip(f"no mount here: {run.stderr.strip()}")
    assert run.returncode == 0, run.stderr


def test_a_file_that_shrinks(engine, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(1 << 20))
    with penstock.File(path) as file:
        os.truncate(path, 1000)
        into = bytearray(b"\xaa" * 4096)
        with pytest.raises(penstock.EndOfFile) as caught:
            engine.read(file, into)
        assert "1000" in str(caught.value) and caught.value.path == str(path)
        assert into[1000:] == b"\xaa" * 3096
        assert engine.read(file, bytearray(1000)) == 1000


def test_the_engine_goes_on(engine, tmp_path, pattern):
    data = pattern(1 << 20)
    (tmp_path / "good").write_bytes(data.tobytes())
    bad = [engine.read_async(tmp_path / "absent", bytearray(10)) for _ in range(20)]
    good = [engine.read_async(tmp_path / "good", bytearray(1 << 20)) for _ in range(5)]
    assert [t.result() for t in good] == [1 << 20] * 5
    for transfer in bad:
        with pytest.raises(FileNotFoundError):
            transfer.result()


def test_a_dropped_error_is_raised_by_drain(tmp_path):
    with penstock.Engine() as engine:
        engine.read_async(tmp_path / "absent", bytearray(1))
        with pytest.raises(FileNotFoundError):
            engine.drain()
        assert engine.drain() is True
    other = penstock.Engine()
    other.read_async(tmp_path / "absent", bytearray(1))
    with pytest.raises(FileNotFoundError):
        other.close()
    assert other.drain() if not other.closed else True


def test_descriptors_do_not_leak(engine, tmp_path):
    (tmp_path / "f").write_bytes(b"abc")
    engine.read(tmp_path / "f", bytearray(3))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        engine.read(tmp_path / "f", bytearray(3))
        engine.read_async(tmp_path / "f", bytearray(3)).result()
        with pytest.raises(penstock.EndOfFile):
            engine.read(tmp_path / "f", bytearray(4))
        with pytest.raises(FileNotFoundError):
            engine.read_async(tmp_path / "absent", bytearray(3)).result()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("verb", ["absent", "short"])
def test_errors_travel_between_processes(engine, tmp_path, verb):
    (tmp_path / "short").write_bytes(b"x")
    with pytest.raises(penstock.Error) as caught:
        engine.read(tmp_path / verb, bytearray(10))
    error = pickle.loads(pickle.dumps(caught.value))
    assert type(error) is type(caught.value)
    for name in ("errno", "filename", "operation", "offset"):
        assert getattr(error, name) == getattr(caught.value, name)
    assert str(error) == str(caught.value)
    # torch's DataLoader makes the error again, from its text alone.
    assert "text" in str(type(error)("text"))


def test_the_file_or_the_machine_is_the_reason_as_the_table_says():
    """The table that the tests of C++ read too."""
    import csv

    from penstock._base import errors as _errors

    with open(Path(__file__).parents[2] / "tests" / "base" / "about_the_file.csv") as table:
        rows = list(csv.DictReader(table))
    assert len(rows) >= 30
    for row in rows:
        assert not row["errno_name"] or getattr(errno, row["errno_name"]) == int(row["errno"])
        made = _errors.from_core(int(row["code"]), "words", int(row["errno"]), "open", "file", None)
        about = isinstance(made, penstock.Error) and made.is_about_the_file
        assert about == (row["about_the_file"] == "yes"), row


LIMITS = """
    import resource, sys
    import penstock
    from pathlib import Path

    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit, value = {"RLIMIT_FSIZE": (resource.RLIMIT_FSIZE, 4096), "RLIMIT_AS": (resource.RLIMIT_AS, size)}[sys.argv[1]]
    resource.setrlimit(limit, (value, value))
    try:
        penstock.write("new", bytes(1 << 16))
    except penstock.Error as error:
        print(error)
    """


@pytest.mark.parametrize(("limit", "cure"), [("RLIMIT_FSIZE", "ulimit -f"), ("RLIMIT_AS", "ulimit -v")])
def test_a_limit_of_the_process_is_named(run_script, limit, cure):
    """Python ignores SIGXFSZ. Where no more addresses may be used, no thread starts."""
    assert cure in run_script(LIMITS, limit)
