// SPDX-License-Identifier: Apache-2.0
// The loop of GraphBolt's on-disk arrays, from its description: a peer. No code of DGL is here.
#include "jobs.hpp"

#include <fcntl.h>
#include <liburing.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace penstock::benchmarks {

namespace {

constexpr unsigned kGroup = 512;
constexpr std::uint64_t kBlock = 4096;  // st_blksize, whatever the device's own block is

void or_throw(int result, const char* what) {
    if (result < 0) {
        throw CannotRun(std::string(what) + ": " + std::strerror(-result));
    }
}

class Group {
public:
    Group(int fd, std::uint64_t row, std::byte* bounce)
        : fd_(fd), row_(row), slot_((row + 2 * kBlock - 2) / kBlock * kBlock), bounce_(bounce) {
        or_throw(io_uring_queue_init(kGroup, &ring_, 0), "io_uring_setup");
    }
    Group(const Group&) = delete;
    Group& operator=(const Group&) = delete;
    ~Group() { io_uring_queue_exit(&ring_); }

    /// Bytes of the bounce buffer.
    [[nodiscard]] static std::uint64_t bytes(std::uint64_t row) {
        return (row + 2 * kBlock - 2) / kBlock * kBlock * kGroup;
    }

    void read(const std::uint64_t* ids, unsigned count, std::byte* out) {
        for (unsigned i = 0; i < count; ++i) {
            const std::uint64_t begin = ids[i] * row_ / kBlock * kBlock;
            const std::uint64_t end = ((ids[i] + 1) * row_ + kBlock - 1) / kBlock * kBlock;
            io_uring_sqe* entry = io_uring_get_sqe(&ring_);
            io_uring_prep_read(entry, fd_, bounce_ + i * slot_, static_cast<unsigned>(end - begin),
                               begin);
        }
        or_throw(io_uring_submit(&ring_), "io_uring_enter");
        io_uring_cqe* cqe = nullptr;
        or_throw(io_uring_wait_cqe_nr(&ring_, &cqe, count), "io_uring_enter");
        for (unsigned i = 0; i < count; ++i) {
            or_throw(io_uring_peek_cqe(&ring_, &cqe), "a completion is missing");
            or_throw(cqe->res, "a read failed");
            io_uring_cqe_seen(&ring_, cqe);
        }
        for (unsigned i = 0; i < count; ++i) {
            std::memcpy(out + i * row_, bounce_ + i * slot_ + ids[i] * row_ % kBlock, row_);
        }
    }

private:
    int fd_;
    std::uint64_t row_;
    std::uint64_t slot_;
    std::byte* bounce_;
    io_uring ring_{};
};

}  // namespace

void graphbolt_rows(const Arguments& arguments, Figures& figures) {
    constexpr std::uint64_t kWindow = 4096;
    const std::string path = arguments.text("path");
    const std::uint64_t row = arguments.number("row");
    const int fd = open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
    or_throw(fd < 0 ? -errno : 0, path.c_str());
    const std::vector<std::uint64_t> ids =
        row_numbers(File(path).size() / row, arguments.number("count"), true);
    const Memory bounce(Group::bytes(row));
    const Memory out(kWindow * row);
    Group group(fd, row, bounce.data());
    Meter meter;
    meter.start();
    for (std::uint64_t begin = 0; begin < ids.size(); begin += kGroup) {
        const auto some =
            static_cast<unsigned>(std::min<std::uint64_t>(kGroup, ids.size() - begin));
        group.read(ids.data() + begin, some, out.data() + begin % kWindow * row);
    }
    meter.stop();
    meter.report(figures, ids.size() * row, ids.size());
    close(fd);
}

}  // namespace penstock::benchmarks
