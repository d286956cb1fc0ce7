// SPDX-License-Identifier: Apache-2.0
// The loop that a specialist writes for random rows: one io_uring, its file and its memory
// registered, submitted and reaped in batches. A peer: nothing of the library is in it.
#include "jobs.hpp"

#include <fcntl.h>
#include <liburing.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace penstock::benchmarks {

namespace {

constexpr unsigned kDepth = 128;
constexpr unsigned kBatch = 16;
constexpr std::uint64_t kWindow = 4096;  // places, taken in turns

void or_throw(int result, const char* what) {
    if (result < 0) {
        throw CannotRun(std::string(what) + ": " + std::strerror(-result));
    }
}

void read_rows(io_uring& ring, const std::vector<std::uint64_t>& ids, std::byte* memory,
               std::uint64_t block) {
    std::size_t sent = 0;
    std::size_t done = 0;
    while (done < ids.size()) {
        for (; sent < ids.size() && sent - done < kDepth; ++sent) {
            io_uring_sqe* entry = io_uring_get_sqe(&ring);
            if (entry == nullptr) {
                break;
            }
            io_uring_prep_read_fixed(entry, 0, memory + sent % kWindow * block,
                                     static_cast<unsigned>(block), ids[sent] * block, 0);
            entry->flags |= IOSQE_FIXED_FILE;
        }
        const auto wanted = std::min<std::size_t>(kBatch, ids.size() - done);
        or_throw(io_uring_submit_and_wait(&ring, static_cast<unsigned>(wanted)), "io_uring_enter");
        unsigned head = 0;
        unsigned count = 0;
        io_uring_cqe* cqe = nullptr;
        io_uring_for_each_cqe(&ring, head, cqe) {
            if (cqe->res != static_cast<int>(block)) {
                throw std::runtime_error("a row came short: " + std::to_string(cqe->res));
            }
            ++count;
        }
        io_uring_cq_advance(&ring, count);
        done += count;
    }
}

}  // namespace

void uring_rows(const Arguments& arguments, Figures& figures) {
    const std::string path = arguments.text("path");
    const std::uint64_t block = arguments.number("block");
    const int fd = open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
    or_throw(fd < 0 ? -errno : 0, path.c_str());
    const std::uint64_t rows = File(path).size() / block;
    Random random;
    std::vector<std::uint64_t> ids(arguments.number("count"));
    for (std::uint64_t& id : ids) {
        id = random.below(rows);
    }
    const Memory memory(kWindow * block);
    io_uring ring{};
    io_uring_params params{};
    params.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
    or_throw(io_uring_queue_init_params(kDepth, &ring, &params), "io_uring_setup");
    or_throw(io_uring_register_files(&ring, &fd, 1), "the file is not registered");
    const iovec piece{memory.data(), kWindow * block};
    or_throw(io_uring_register_buffers(&ring, &piece, 1), "the memory is not registered");
    Meter meter;
    meter.start();
    read_rows(ring, ids, memory.data(), block);
    meter.stop();
    meter.report(figures, ids.size() * block, ids.size());
    io_uring_queue_exit(&ring);
    close(fd);
}

}  // namespace penstock::benchmarks
