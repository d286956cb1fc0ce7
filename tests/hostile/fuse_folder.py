# SPDX-License-Identifier: Apache-2.0
"""A folder served again through FUSE, with what some mounts lack or do: fuse_folder.py LOWER MOUNT LACKS
LACKS: norename, nosync, nosyncdir, nochmod, sequential (writes at the end alone), shortread, joined by commas.
Reads are direct_io. It speaks the protocol of /dev/fuse (linux/fuse.h) itself. Root; it ends with the mount."""

import contextlib
import ctypes
import errno
import os
import stat
import struct
import sys

LOWER, MOUNT, LACKS = sys.argv[1], sys.argv[2], set(sys.argv[3].split(","))
MAX_WRITE = 128 << 10
DIRECT_IO = 1


class Served:
    def __init__(self):
        self.paths = {1: LOWER}
        self.numbers = {LOWER: 1}
        self.ends = {}  # of open files, for "sequential"

    def path(self, node, name=None):
        return self.paths[node] if name is None else os.path.join(self.paths[node], name.rstrip(b"\0").decode())

    def attributes(self, status):
        times = [divmod(t, 10**9) for t in (status.st_atime_ns, status.st_mtime_ns, status.st_ctime_ns)]
        return struct.pack(
            "<6Q10I",
            *(status.st_ino, status.st_size, status.st_blocks, *(t[0] for t in times), *(t[1] for t in times)),
            *(status.st_mode, status.st_nlink, status.st_uid, status.st_gid, 0, 4096, 0),
        )

    def entry(self, path):
        status = os.lstat(path)
        node = self.numbers.setdefault(path, len(self.paths) + 1)
        self.paths[node] = path
        return struct.pack("<4Q2I", node, 0, 0, 0, 0, 0) + self.attributes(status)

    def opened(self, fd):
        self.ends[fd] = 0
        return struct.pack("<Q2I", fd, DIRECT_IO, 0)

    def lookup(self, node, data):
        return self.entry(self.path(node, data))

    def getattr(self, node, data):
        return struct.pack("<Q2I", 0, 0, 0) + self.attributes(os.lstat(self.path(node)))

    def setattr(self, node, data):
        valid, _, _, size = struct.unpack_from("<2I2Q", data)
        mode = struct.unpack_from("<I", data, 68)[0]
        if valid & 1:
            if "nochmod" in LACKS:
                raise OSError(errno.EPERM, "")
            os.chmod(self.path(node), stat.S_IMODE(mode))
        if valid & 8:
            os.truncate(self.path(node), size)
        return self.getattr(node, data)

    def mkdir(self, node, data):
        os.mkdir(self.path(node, data[8:]))
        return self.entry(self.path(node, data[8:]))

    def unlink(self, node, data):
        os.unlink(self.path(node, data))
        self.numbers.pop(self.path(node, data), None)

    def rmdir(self, node, data):
        os.rmdir(self.path(node, data))
        self.numbers.pop(self.path(node, data), None)

    def rename(self, node, data, names=8):
        if "norename" in LACKS:
            raise OSError(errno.ENOSYS, "")
        old, new = data[names:].rstrip(b"\0").split(b"\0")
        from_path, to_path = self.path(node, old), self.path(struct.unpack_from("<Q", data)[0], new)
        os.rename(from_path, to_path)
        for path in [p for p in self.numbers if p == from_path or p.startswith(from_path + "/")]:
            number = self.numbers.pop(path)
            self.paths[number] = to_path + path[len(from_path) :]
            self.numbers[self.paths[number]] = number

    def rename2(self, node, data):
        return self.rename(node, data, 16)

    def link(self, node, data):
        os.link(self.path(struct.unpack_from("<Q", data)[0]), self.path(node, data[8:]))
        return self.entry(self.path(node, data[8:]))

    def open(self, node, data):
        flags = struct.unpack_from("<I", data)[0] & ~(os.O_DIRECT | os.O_NOFOLLOW)
        return self.opened(os.open(self.path(node), flags))

    def create(self, node, data):
        path = self.path(node, data[16:])
        flags, mode = struct.unpack_from("<2I", data)
        fd = os.open(path, (flags | os.O_CREAT) & ~(os.O_DIRECT | os.O_NOFOLLOW), mode)
        return self.entry(path) + self.opened(fd)

    def read(self, node, data):
        fd, offset, size = struct.unpack_from("<2QI", data)
        if "shortread" in LACKS and size > 4096:
            size = min(size, 4096 * (1 + offset // 4096 % 3))
        return os.pread(fd, size, offset)

    def write(self, node, data):
        fd, offset, size = struct.unpack_from("<2QI", data)
        if "sequential" in LACKS and offset != self.ends[fd]:
            raise OSError(errno.EINVAL, "")
        size = os.pwrite(fd, data[40 : 40 + size], offset)
        self.ends[fd] = offset + size
        return struct.pack("<2I", size, 0)

    def statfs(self, node, data):
        s = os.statvfs(LOWER)
        counts = (s.f_blocks, s.f_bfree, s.f_bavail, s.f_files, s.f_ffree)
        return struct.pack("<5Q4I24x", *counts, s.f_bsize, s.f_namemax, s.f_frsize, 0)

    def flush(self, node, data):
        pass

    def release(self, node, data):
        os.close(struct.unpack_from("<Q", data)[0])

    def fsync(self, node, data):
        if "nosync" in LACKS:
            raise OSError(errno.EINVAL, "")

    def fsyncdir(self, node, data):
        if "nosyncdir" in LACKS:
            raise OSError(errno.EINVAL, "")

    def opendir(self, node, data):
        return struct.pack("<Q2I", 0, 0, 0)

    def readdir(self, node, data):
        _, offset, size = struct.unpack_from("<2QI", data)
        out = b""
        for i, name in enumerate([".", "..", *sorted(os.listdir(self.path(node)))]):
            raw = name.encode()
            row = struct.pack("<2Q2I", i + 1, i + 1, len(raw), 0) + raw
            row += bytes(-len(row) % 8)
            if i >= offset and len(out) + len(row) <= size:
                out += row
            elif i >= offset:
                break
        return out

    def releasedir(self, node, data):
        pass


CALLS = {
    **{1: "lookup", 3: "getattr", 4: "setattr", 9: "mkdir", 10: "unlink", 11: "rmdir", 12: "rename", 13: "link"},
    **{14: "open", 15: "read", 16: "write", 17: "statfs", 18: "release", 20: "fsync", 25: "flush", 27: "opendir"},
    **{28: "readdir", 29: "releasedir", 30: "fsyncdir", 35: "create", 45: "rename2"},
}
INIT, NO_REPLY = 26, (2, 36, 42)


def main():
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,default_permissions".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"penstock", MOUNT.encode(), b"fuse", 0, options) != 0:
        sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")
    served = Served()
    while True:
        try:
            request = os.read(device, MAX_WRITE + 65536)
        except OSError as error:
            if error.errno == errno.ENODEV:  # unmounted
                return
            continue
        _, code, unique, node = struct.unpack_from("<2I2Q", request)
        if code in NO_REPLY:
            continue
        failed, reply = 0, b""
        try:
            if code == INIT:
                reply = struct.pack("<4I2H2I2H8I", 7, 31, 1 << 17, 0, 16, 12, MAX_WRITE, 1, 32, 0, *[0] * 8)
            elif code in CALLS:
                reply = getattr(served, CALLS[code])(node, request[40:]) or b""
            else:
                failed = errno.ENOSYS
        except OSError as error:
            failed = error.errno
        head = struct.pack("<IiQ", 16 + (0 if failed else len(reply)), -failed, unique)
        with contextlib.suppress(OSError):  # nobody waits for it any more
            os.write(device, head + (b"" if failed else reply))


main()
