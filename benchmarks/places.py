# SPDX-License-Identifier: Apache-2.0
"""Where a bar is measured.

    throttled  ext4 on a loop device over a file in tmpfs, its rate set by the block-I/O control group: for bars near 1.
               Never the raw loop device: there io_uring is charged twice. A row with `devices = N` gets N such
               devices, each with the rate.
    loop       the same without the rate: CPU seconds, copies, bars from 1.3 on
    disk       a folder on the machine's own disk, which may swing by 2x: bars far from 1
    gpu        the same where a GPU is, and rows of `tmpfs = true` in a folder on tmpfs; on the fake driver (by
               LD_LIBRARY_PATH) the lines say gpu(FAKE), and a file has 256 MiB at most
    model, count, memory    no storage to set up

`throttled` and `loop` need root. A place that cannot be had raises CannotRun, which says what to do.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import cleanup

GIB = 1 << 30
FILE_BYTES = GIB
_COUNTED_FILE_BYTES = GIB // 4
_FAKE_FILE_BYTES = GIB // 4
_IMAGE_BYTES = 3 * GIB
_DEVICE_FILE_BYTES = GIB // 4
_DEVICE_IMAGE_BYTES = GIB // 2
_TMPFS_MAGIC = "tmpfs"


class CannotRun(Exception):
    """The bar cannot be measured here; the text says why and what to do."""


@dataclass
class Place:
    """A folder to work in, and the control group (if any) that a measured process must be in."""

    name: str
    folder: Path | None = None
    cgroup: Path | None = None
    about: dict[str, Any] = field(default_factory=dict)
    file_bytes: int = field(default_factory=lambda: FILE_BYTES)
    devices: list[Path] = field(default_factory=list)
    _made: int = 0

    def fill(self, text: str) -> str:
        """Replaces {file}, {bytes}, {files}, {new} and {dir} in a command line.

        {file} is laid out on first use (1 GiB, or what the row says) and has {bytes}; {files} are one a device, with
        commas between.
        """
        text = text.replace("{bytes}", str(self.file_bytes))
        if "{files}" in text:
            text = text.replace("{files}", ",".join(str(path) for path in self.device_files()))
        if "{file}" in text:
            text = text.replace("{file}", str(self.data_file()))
        if "{new}" in text:
            self._made += 1
            text = text.replace("{new}", str(self._folder() / f"new-{self._made}"))
        if "{dir}" in text:
            text = text.replace("{dir}", str(self._folder()))
        return text

    def remove_new(self) -> None:
        """Removes what a run made under {new}, so that the next one finds the same free space."""
        if self.folder and self._made:
            with contextlib.suppress(FileNotFoundError):
                (self.folder / f"new-{self._made}").unlink()

    def device_files(self) -> list[Path]:
        """A file of 256 MiB (less where the places are small) on each of the devices."""
        size = min(self.file_bytes, _DEVICE_FILE_BYTES)
        files = [folder / "data" for folder in self.devices]
        for path in files:
            if not path.exists() or path.stat().st_size < size:
                _lay_out(path, size)
        return files

    def data_file(self) -> Path:
        path = self._folder() / "data"
        if not path.exists() or path.stat().st_size < self.file_bytes:
            _lay_out(path, self.file_bytes)
        return path

    def _folder(self) -> Path:
        if self.folder is None:
            raise CannotRun(f"place {self.name} has no storage, yet the row asks for a file there")
        return self.folder


def _lay_out(path: Path, size: int) -> None:
    """Random bytes by direct writes: no hole, no unwritten extent, nothing left in the page cache. On tmpfs, which has
    nothing else, the page cache is the place."""
    chunk = mmap.mmap(-1, 4 << 20)
    chunk.write(os.urandom(len(chunk)))
    flags = os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags if _on_tmpfs(path.parent) else flags | os.O_DIRECT, 0o600)
    except OSError as error:
        raise CannotRun(
            f"{path.parent} takes no direct I/O ({error.strerror}): give another folder by --dir"
        ) from error
    try:
        os.posix_fallocate(descriptor, 0, size)
        for offset in range(0, size, len(chunk)):
            os.pwrite(descriptor, chunk, offset)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CannotRun(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")


def _need_root(place: str) -> None:
    if os.geteuid() != 0:
        raise CannotRun(
            f"place {place} mounts a loop device and needs root: run as root (sudo -E python -m benchmarks ...)"
        )
    for tool in ("mkfs.ext4", "mount", "umount"):
        if not shutil.which(tool):
            raise CannotRun(f"place {place} needs {tool}: apt-get install e2fsprogs mount")


def _available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def _about_mount(folder: Path) -> dict[str, Any]:
    mount = [
        mount
        for mount in cleanup.mounts()
        if str(folder).startswith(mount["at"].rstrip("/") + "/") or mount["at"] == str(folder)
    ]
    best = max(mount, key=lambda candidate: len(candidate["at"]), default=None)
    if best is None:
        return {}
    return {
        "device": best["source"],
        "device_number": best["device"],
        "file_system": best["type"],
        "mount_options": best["options"],
    }


def _fill_holes(image: Path) -> None:
    """With zeros, as they read: the first write gives a page of tmpfs its memory, and of a virtual machine the host's.
    fallocate() does neither."""
    zeros = bytes(4 << 20)
    with image.open("r+b", buffering=0) as file:
        size = image.stat().st_size
        hole = os.lseek(file.fileno(), 0, os.SEEK_HOLE)
        while hole < size:
            hole += os.pwrite(
                file.fileno(), zeros[: min(_next_data(file.fileno(), hole, size) - hole, len(zeros))], hole
            )
            hole = os.lseek(file.fileno(), hole, os.SEEK_HOLE) if hole < size else size


def _next_data(descriptor: int, offset: int, size: int) -> int:
    try:
        return os.lseek(descriptor, offset, os.SEEK_DATA)
    except OSError:  # nothing but a hole
        return size


@contextlib.contextmanager
def loop_disk(parent: Path, name: str, image_bytes: int) -> Iterator[Path]:
    """A folder on ext4 on a loop device over a file of `image_bytes` in tmpfs, which has all its memory from the start:
    no first use of a block costs more than the next."""
    _need_root("loop")
    if _available_bytes() < image_bytes + GIB:
        raise CannotRun(f"place loop wants {(image_bytes + GIB) / GIB:.1f} GiB of free memory for its tmpfs")
    base = parent / cleanup.own_name()
    memory, root = base / f"{name}-memory", base / f"{name}-ext4"
    try:
        for folder in (base, memory, root):
            folder.mkdir(exist_ok=True)
        base.chmod(0o700)
        _run("mount", "-t", "tmpfs", "-o", f"size={image_bytes + (64 << 20)}", "penstock-bench", str(memory))
        image = memory / "image"
        with image.open("wb") as file:
            file.truncate(image_bytes)
        # Lazy initialisation would have the kernel write in the background for the first minutes.
        _run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", str(image))
        _fill_holes(image)  # only now: mkfs discards
        _run("mount", "-t", "ext4", "-o", "loop,noatime", str(image), str(root))
        yield root
    finally:
        cleanup.remove_folder(root)
        cleanup.remove_folder(memory)
        with contextlib.suppress(OSError):
            base.rmdir()  # the last of them


def _device_of(folder: Path) -> str:
    status = folder.stat()
    return f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"


@contextlib.contextmanager
def rate_group(folders: list[Path], rate: Mapping[str, int]) -> Iterator[Path]:
    """A control group whose processes reach each device under `folders` at `rate` = {bps, iops} and no faster."""
    devices = [_device_of(folder) for folder in folders]
    roots = {mount["at"]: mount["type"] for mount in cleanup.mounts() if Path(mount["at"]) in cleanup.cgroup_roots()}
    version1 = [at for at, kind in roots.items() if kind == "cgroup"]
    version2 = [at for at, kind in roots.items() if kind == "cgroup2" and _has_io(Path(at))]
    if not version1 and not version2:
        raise CannotRun("no control group limits block I/O here: needs cgroup v1 'blkio' or v2 'io', writable by root")
    group = Path((version1 or version2)[0]) / cleanup.own_name()
    try:
        group.mkdir(exist_ok=True)
        for device in devices:
            if version1:
                for key, figure in rate.items():
                    for way in ("read", "write"):
                        limit = group / f"blkio.throttle.{way}_{key}_device"
                        limit.write_text(f"{device} {figure}", encoding="ascii")
            else:
                limits = " ".join(f"{way}{key}={figure}" for key, figure in rate.items() for way in "rw")
                (group / "io.max").write_text(f"{device} {limits}", encoding="ascii")
        yield group
    except OSError as error:
        raise CannotRun(f"control group {group}: {error}") from error
    finally:
        cleanup.remove_cgroup(group)


def _has_io(root: Path) -> bool:
    """Whether groups below `root` can have an `io` controller; hands it down where that is all it takes."""
    with contextlib.suppress(OSError):
        if "io" not in (root / "cgroup.controllers").read_text(encoding="ascii").split():
            return False
        if "io" not in (root / "cgroup.subtree_control").read_text(encoding="ascii").split():
            (root / "cgroup.subtree_control").write_text("+io", encoding="ascii")
        return True
    return False


_ASK_FOR_GPU = """
import penstock
report = penstock.gpus()
print("1" if report else "0", report.gpus[0].name if report else report.reason, sep="\\n")
"""


def gpu_name() -> str:
    """The name of GPU 0. In a process of its own: CUDA that was begun here would work in no program that is forked."""
    done = subprocess.run([sys.executable, "-c", _ASK_FOR_GPU], capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    if done.returncode != 0 or len(lines) < 2:
        raise CannotRun(f"penstock.gpus() failed: {done.stderr.strip()[-500:]}")
    if lines[0] != "1":
        raise CannotRun(f"no GPU: {lines[1]}")
    return lines[1]


def tmpfs_parents() -> list[Path]:
    """Where rows of `tmpfs = true` find one."""
    return [Path("/dev/shm"), Path(tempfile.gettempdir()).resolve()]


def _on_tmpfs(folder: Path) -> bool:
    return bool(_about_mount(folder.resolve()).get("file_system") == _TMPFS_MAGIC)


@contextlib.contextmanager
def _own_folder(parent: Path) -> Iterator[Path]:
    folder = parent / cleanup.own_name()
    try:
        folder.mkdir(exist_ok=True)
        yield folder
    finally:
        cleanup.remove_folder(folder)


@contextlib.contextmanager
def tmpfs_folder(parents: list[Path], file_bytes: int) -> Iterator[Path]:
    """A folder of our own on the first tmpfs of `parents` that has room for the file. The programs want as much memory
    again."""
    free = {parent: shutil.disk_usage(parent).free for parent in parents if parent.is_dir() and _on_tmpfs(parent)}
    parent = next((parent for parent, room in free.items() if room >= file_bytes + (64 << 20)), None)
    size = file_bytes >> 20
    if parent is None:
        rooms = ", ".join(f"{parent} has {room >> 20} MiB" for parent, room in free.items()) or "there is no tmpfs"
        raise CannotRun(f"no tmpfs with {size} MiB free ({rooms}): docker run --shm-size={size + 1024}m")
    if _available_bytes() < 2 * file_bytes + GIB:
        raise CannotRun(f"{size} MiB on tmpfs and as much for the programs want {2 * size + 1024} MiB of free memory")
    with _own_folder(parent) as folder:
        yield folder


@contextlib.contextmanager
def disk_folder(parent: Path, refused: tuple[str, ...] = (_TMPFS_MAGIC, "ramfs", "overlay")) -> Iterator[Path]:
    """A folder of our own on the machine's disk."""
    if not parent.is_dir():
        raise CannotRun(f"{parent} is not a folder: give one on the disk to be measured by --dir")
    kind = _about_mount(parent.resolve()).get("file_system")
    if kind in refused:
        raise CannotRun(f"{parent} is on {kind}, not on a disk: give a folder on one by --dir")
    free = shutil.disk_usage(parent).free
    if free < 4 * GIB:
        raise CannotRun(f"{parent} has {free >> 20} MiB free; 4096 MiB are wanted: give another folder by --dir")
    with _own_folder(parent) as folder:
        yield folder


class Places:
    """Makes places when a bar asks for them; keeps the loop device from bar to bar, for laying it out costs seconds."""

    def __init__(self, scratch: Path, disk: Path) -> None:
        self._scratch = scratch
        self._disk = disk
        self._stack = contextlib.ExitStack()
        self._folders: dict[str, Path] = {}
        self._devices: list[Path] = []

    def __enter__(self) -> Places:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _folder(self, kind: str) -> Path:
        if kind not in self._folders:
            if kind == "loop":
                maker = loop_disk(self._scratch, "loop", _IMAGE_BYTES)
            elif kind == "gpu":  # often in a container, whose overlay takes direct I/O
                maker = disk_folder(self._disk, (_TMPFS_MAGIC, "ramfs"))
            else:
                maker = disk_folder(self._disk)
            self._folders[kind] = self._stack.enter_context(maker)
        return self._folders[kind]

    def _device_folders(self, count: int) -> list[Path]:
        while len(self._devices) < count:
            maker = loop_disk(self._scratch, f"device-{len(self._devices)}", _DEVICE_IMAGE_BYTES)
            self._devices.append(self._stack.enter_context(maker))
        return self._devices[:count]

    @contextlib.contextmanager
    def _own_folders(self, count: int, image_gib: int) -> Iterator[list[Path]]:
        """Loop disks of this bar alone, gone after it: what is kept for all is too small for it."""
        with contextlib.ExitStack() as stack:
            makers = [loop_disk(self._scratch, f"own-{index}", image_gib * GIB) for index in range(count)]
            yield [stack.enter_context(maker) for maker in makers]

    @contextlib.contextmanager
    def _loop_folders(self, devices: int, image_gib: int) -> Iterator[list[Path]]:
        if image_gib:
            with self._own_folders(max(1, devices), image_gib) as folders:
                yield folders
        else:
            yield self._device_folders(devices) if devices else [self._folder("loop")]

    @contextlib.contextmanager
    def _gpu_place(self, file_gib: int, tmpfs: bool) -> Iterator[Place]:
        gpu = gpu_name()
        fake = "fake" in gpu.lower()
        file_bytes = _FAKE_FILE_BYTES if fake else file_gib * GIB or FILE_BYTES
        with contextlib.ExitStack() as stack:
            if tmpfs:
                folder = stack.enter_context(tmpfs_folder(tmpfs_parents(), file_bytes))
            else:
                folder = self._folder("gpu")
                wanted = file_bytes + GIB
                if not (folder / "data").exists() and shutil.disk_usage(folder).free < wanted:
                    raise CannotRun(f"{folder.parent} has no {wanted >> 20} MiB free: give another folder by --dir")
            facts = {**_about_mount(folder), "gpu": gpu, "fake_gpu": fake}
            yield Place("gpu", folder, None, facts, file_bytes)

    @contextlib.contextmanager
    def open(
        self,
        name: str,
        rate: Mapping[str, int],
        devices: int = 0,
        image_gib: int = 0,
        file_gib: int = 0,
        tmpfs: bool = False,
    ) -> Iterator[Place]:
        """`devices`: of place `throttled`, more than the one; their files are {files}. `image_gib`: loop devices of
        that size for this bar alone; their {file} has `file_gib`, or is not laid out. Of place `gpu`, {file} has
        `file_gib` and lies on the disk or on `tmpfs`."""
        if name in ("model", "memory"):
            yield Place(name)
        elif name == "gpu":
            with self._gpu_place(file_gib, tmpfs) as place:
                yield place
        elif name == "count":  # no device is measured, but a fast one has fewer turns that find nothing
            with contextlib.ExitStack() as stack:
                if image_gib and os.geteuid() == 0:
                    folder = stack.enter_context(self._own_folders(1, image_gib))[0]
                else:
                    folder = self._folder("loop" if os.geteuid() == 0 else "disk")
                yield Place(name, folder, None, _about_mount(folder), _COUNTED_FILE_BYTES)
        elif name == "disk":
            folder = self._folder("disk")
            yield Place(name, folder, None, _about_mount(folder))
        else:
            with self._loop_folders(devices, image_gib) as folders:
                about: dict[str, Any] = {**_about_mount(folders[0]), "backing": "a file in tmpfs"}
                place = Place(name, folders[0], None, about, file_gib * GIB or FILE_BYTES, folders if devices else [])
                if name == "loop":
                    yield place
                    return
                place.about |= {"rate": dict(rate), **({"devices": devices} if devices else {})}
                if devices:
                    place.device_files()  # before the rate is set
                elif file_gib or not image_gib:
                    place.data_file()
                with rate_group(folders, rate) as group:
                    place.cgroup = group
                    yield place
