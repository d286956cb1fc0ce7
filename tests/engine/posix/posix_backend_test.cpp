// SPDX-License-Identifier: Apache-2.0
#include "engine/posix/posix_backend.hpp"

#include "support/backend_conformance.hpp"

#include <gmock/gmock.h>

#include <condition_variable>
#include <mutex>

namespace penstock::engine {

namespace {

BackendCase with_threads(std::string name, std::uint32_t threads_max) {
    return {std::move(name), [threads_max](const BackendOptions& options) {
                return make_posix_backend(options, PosixOptions{threads_max});
            }};
}

INSTANTIATE_TEST_SUITE_P(Posix, BackendConformance,
                         testing::Values(with_threads("one_thread", 1),
                                         with_threads("sixteen_threads", 16)),
                         name_of);

// A file without descriptors whose calls last until the test lets them go on.
class GatedFile final : public os::File {
public:
    GatedFile() : File(os::FileInfo{}) {}
    [[nodiscard]] int descriptor(os::IoPath /*io*/) const override { return -1; }
    [[nodiscard]] std::int64_t read_at(os::IoPath /*io*/, std::uint64_t offset,
                                       std::span<const iovec> pieces) override {
        std::unique_lock lock(mutex_);
        ++inside_;
        changed_.notify_all();
        changed_.wait(lock, [this] { return open_; });
        --inside_;
        std::int64_t bytes = 0;
        for (const iovec& piece : pieces) {
            std::memset(piece.iov_base, static_cast<int>(offset), piece.iov_len);
            bytes += static_cast<std::int64_t>(piece.iov_len);
        }
        return bytes;
    }
    [[nodiscard]] std::int64_t write_at(os::IoPath /*io*/, std::uint64_t /*offset*/,
                                        std::span<const iovec> /*pieces*/) override {
        return -ENOSPC;
    }
    [[nodiscard]] base::Result<std::uint64_t> size() const override { return 0; }
    [[nodiscard]] base::Result<void> truncate(std::uint64_t /*bytes*/) override { return {}; }
    [[nodiscard]] base::Result<void> preallocate(std::uint64_t /*offset*/,
                                                 std::uint64_t /*bytes*/) override {
        return {};
    }
    [[nodiscard]] base::Result<void> sync() override { return {}; }
    [[nodiscard]] base::Result<void> close() override { return {}; }

    /// Until `count` calls are inside at once; how many there are when a second is over.
    std::size_t wait_inside(std::size_t count) {
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, std::chrono::seconds(10), [&] { return inside_ >= count; });
        return inside_;
    }
    void open() {
        const std::lock_guard lock(mutex_);
        open_ = true;
        changed_.notify_all();
    }

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::size_t inside_ = 0;
    bool open_ = false;
};

struct Reads {
    Reads(std::size_t count, os::File& file) : requests(count), bytes(count * 16) {
        for (std::size_t i = 0; i < count; ++i) {
            Request& request = requests[i];
            request.file = &file;
            request.offset = i;
            request.memory[0] = {bytes.data() + i * 16, 16};
            request.pieces = std::span(request.memory).first(1);
        }
    }
    std::vector<Request> requests;
    std::vector<unsigned char> bytes;
};

TEST(PosixBackend, WorksOnAFileWithoutDescriptors) {
    GatedFile file;
    file.open();
    PosixBackend backend(BackendOptions{8}, PosixOptions{});
    Reads reads(8, file);
    reads.requests[3].op = Op::kWrite;
    for (Request& request : reads.requests) {
        backend.push(request);
    }
    backend.enter(8, 10 * kSecond);
    std::array<Request*, 8> done{};
    ASSERT_EQ(backend.reap(done), 8U);
    for (std::size_t i = 0; i < 8; ++i) {
        EXPECT_EQ(reads.requests[i].result, i == 3 ? -ENOSPC : 16);
        EXPECT_EQ(reads.bytes[i * 16 + 15], i == 3 ? 0 : i);
    }
    EXPECT_EQ(backend.system_calls(), 8U);
}

TEST(PosixBackend, ThreadsComeWithLoadUpToTheLimit) {
    GatedFile file;
    PosixBackend backend(BackendOptions{32}, PosixOptions{4});
    EXPECT_EQ(backend.threads(), 0U);
    Reads reads(10, file);
    for (std::size_t i = 0; i < 3; ++i) {
        backend.push(reads.requests[i]);
        backend.enter(0, 0);
        EXPECT_EQ(file.wait_inside(i + 1), i + 1);
        EXPECT_EQ(backend.threads(), i + 1);
    }
    for (std::size_t i = 3; i < 10; ++i) {
        backend.push(reads.requests[i]);
    }
    backend.enter(0, 0);
    EXPECT_EQ(file.wait_inside(4), 4U);
    EXPECT_EQ(backend.threads(), 4U);
    // Waiting for more than there is ends with the limit.
    backend.enter(1, kMillisecond);
    file.open();
    std::array<Request*, 16> done{};
    backend.enter(10, 10 * kSecond);
    EXPECT_EQ(backend.reap(done), 10U);
}

TEST(PosixBackend, OneIdleThreadServesOneAfterAnother) {
    GatedFile file;
    file.open();
    PosixBackend backend(BackendOptions{32}, PosixOptions{});
    Reads reads(1, file);
    for (int i = 0; i < 200; ++i) {
        backend.push(reads.requests[0]);
        backend.enter(1, 10 * kSecond);
        std::array<Request*, 1> done{};
        ASSERT_EQ(backend.reap(done), 1U);
    }
    // A thread may not be back at the queue when the next request comes, hence a few; a thread a
    // request would reach the limit of 16.
    EXPECT_LT(backend.threads(), 16U);
}

TEST(PosixBackend, EndsOnlyWhenWhatItTookIsDone) {
    GatedFile file;
    Reads reads(6, file);
    std::thread opener;
    {
        PosixBackend backend(BackendOptions{8}, PosixOptions{2});
        for (Request& request : reads.requests) {
            backend.push(request);
        }
        backend.enter(0, 0);
        EXPECT_EQ(file.wait_inside(2), 2U);
        opener = std::thread([&] {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            file.open();
        });
    }
    opener.join();
    for (const Request& request : reads.requests) {
        EXPECT_EQ(request.result, 16);
    }
}

}  // namespace

}  // namespace penstock::engine
