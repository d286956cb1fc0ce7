// SPDX-License-Identifier: Apache-2.0
// What every backend of the kernel owes the channel (engine/backend.hpp), as parametrised tests. A
// test program includes this once and instantiates `BackendConformance` with its makers.
#pragma once

#include "engine/backend.hpp"
#include "os/local_file_system.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace penstock::engine {

struct BackendCase {
    std::string name;
    BackendFactory make;

    friend void PrintTo(const BackendCase& self, std::ostream* out) { *out << self.name; }
};

inline std::string name_of(const testing::TestParamInfo<BackendCase>& info) {
    return info.param.name;
}

inline constexpr base::Nanos kMillisecond = 1'000'000;
inline constexpr base::Nanos kSecond = 1'000 * kMillisecond;

/// Page-aligned bytes.
class TestMemory {
public:
    explicit TestMemory(std::size_t bytes)
        : bytes_(bytes),
          data_(static_cast<std::byte*>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096))) {
        std::memset(data_.get(), 0xEE, bytes);
    }
    [[nodiscard]] std::byte* data() const { return data_.get(); }
    [[nodiscard]] std::size_t size() const { return bytes_; }
    /// Bytes that differ from those of every other seed and place.
    void fill(std::uint64_t seed) const {
        std::mt19937_64 random(seed);
        for (std::size_t i = 0; i < bytes_; i += 8) {
            const std::uint64_t word = random();
            std::memcpy(data_.get() + i, &word, std::min<std::size_t>(8, bytes_ - i));
        }
    }

private:
    struct Free {
        void operator()(std::byte* p) const { std::free(p); }
    };
    std::size_t bytes_;
    std::unique_ptr<std::byte, Free> data_;
};

class BackendConformance : public testing::TestWithParam<BackendCase> {
protected:
    void SetUp() override {
        std::string pattern = testing::TempDir() + "penstock-backend-XXXXXX";
        ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
        folder_ = pattern;
        file_ = open_file("data", Access::kReadWrite);
        backend_ = make(kDepth);
        ASSERT_NE(backend_, nullptr);
    }
    void TearDown() override {
        backend_.reset();
        file_.reset();
        std::filesystem::remove_all(folder_);
    }

    [[nodiscard]] static std::unique_ptr<Backend> make(std::uint32_t depth) {
        auto made = GetParam().make(BackendOptions{depth});
        if (!made) {
            ADD_FAILURE() << made.error().describe();
            return nullptr;
        }
        return std::move(*made);
    }
    [[nodiscard]] std::shared_ptr<os::File> open_file(const char* name, Access access) const {
        FileOptions options;
        options.access = access;
        options.create = access != Access::kRead;
        auto opened = os::local_file_system()->open(folder_ + "/" + name, options);
        if (!opened) {
            ADD_FAILURE() << opened.error().describe();
            return nullptr;
        }
        return *opened;
    }
    [[nodiscard]] os::IoPath direct() const {
        return file_->geometry().direct ? os::IoPath::kDirect : os::IoPath::kBuffered;
    }

    static void set(Request& request, Op op, os::File& file, os::IoPath io, std::uint64_t offset,
                    std::vector<std::pair<std::byte*, std::size_t>> pieces) {
        request.op = op;
        request.file = &file;
        request.io = io;
        request.offset = offset;
        request.result = INT64_MIN;
        std::size_t count = 0;
        for (const auto& [data, bytes] : pieces) {
            request.memory[count++] = {data, bytes};
        }
        request.pieces = std::span(request.memory).first(count);
    }
    /// Enters and reaps until `count` have come back; a sleep is short enough to see a hang.
    [[nodiscard]] static std::vector<Request*> wait_for(Backend& backend, std::size_t count) {
        std::vector<Request*> all;
        const base::SteadyClock clock;
        const base::Nanos end = clock.now() + 20 * kSecond;
        while (all.size() < count && clock.now() < end) {
            backend.enter(1, kSecond);
            std::array<Request*, 7> done{};
            const std::size_t got = backend.reap(done);
            all.insert(all.end(), done.begin(), done.begin() + static_cast<std::ptrdiff_t>(got));
        }
        EXPECT_EQ(all.size(), count);
        return all;
    }
    std::int64_t transfer(Op op, os::IoPath io, std::uint64_t offset, std::byte* data,
                          std::size_t bytes) {
        set(one_, op, *file_, io, offset, {{data, bytes}});
        return transfer(one_);
    }
    std::int64_t transfer(Request& request) {
        backend_->push(request);
        const auto done = wait_for(*backend_, 1);
        return done.size() == 1 && done[0] == &request ? request.result : INT64_MIN;
    }

    static constexpr std::uint32_t kDepth = 32;
    std::string folder_;
    std::shared_ptr<os::File> file_;
    std::unique_ptr<Backend> backend_;
    Request one_;
};

inline std::size_t same_bytes(const TestMemory& a, const TestMemory& b, std::size_t bytes) {
    return std::memcmp(a.data(), b.data(), bytes) == 0;
}

TEST_P(BackendConformance, DirectOfManySizes) {
    for (const std::size_t bytes : {4096UL, 8192UL, 65536UL, 1UL << 20, (1UL << 22) + 4096}) {
        const TestMemory out(bytes);
        const TestMemory in(bytes);
        out.fill(bytes);
        ASSERT_EQ(transfer(Op::kWrite, direct(), 2 * bytes, out.data(), bytes),
                  static_cast<std::int64_t>(bytes));
        ASSERT_EQ(transfer(Op::kRead, direct(), 2 * bytes, in.data(), bytes),
                  static_cast<std::int64_t>(bytes));
        EXPECT_TRUE(same_bytes(out, in, bytes)) << bytes;
    }
}

TEST_P(BackendConformance, BufferedOfAnySize) {
    std::uint64_t offset = 3;
    for (const std::size_t bytes : {1UL, 2UL, 511UL, 4095UL, 4097UL, 100'001UL}) {
        const TestMemory out(bytes);
        const TestMemory in(bytes);
        out.fill(bytes);
        ASSERT_EQ(transfer(Op::kWrite, os::IoPath::kBuffered, offset, out.data(), bytes),
                  static_cast<std::int64_t>(bytes));
        ASSERT_EQ(transfer(Op::kRead, os::IoPath::kBuffered, offset, in.data(), bytes),
                  static_cast<std::int64_t>(bytes));
        EXPECT_TRUE(same_bytes(out, in, bytes)) << bytes;
        offset += bytes;
    }
}

TEST_P(BackendConformance, GathersAndScattersPieces) {
    for (const std::size_t count : {2UL, 3UL, kPiecesMax}) {
        const std::size_t bytes = count * 4096;
        const TestMemory out(bytes);
        const TestMemory in(bytes);
        out.fill(count);
        std::vector<std::pair<std::byte*, std::size_t>> from;
        std::vector<std::pair<std::byte*, std::size_t>> to;
        for (std::size_t i = 0; i < count; ++i) {
            from.emplace_back(out.data() + i * 4096, 4096);
            to.emplace_back(in.data() + (count - 1 - i) * 4096, 4096);  // backwards
        }
        Request request;
        set(request, Op::kWrite, *file_, direct(), 0, from);
        ASSERT_EQ(transfer(request), static_cast<std::int64_t>(bytes));
        set(request, Op::kRead, *file_, direct(), 0, to);
        ASSERT_EQ(transfer(request), static_cast<std::int64_t>(bytes));
        for (std::size_t i = 0; i < count; ++i) {
            EXPECT_EQ(std::memcmp(from[i].first, to[i].first, 4096), 0) << i;
        }
    }
}

TEST_P(BackendConformance, EndOfFileIsShortThenZero) {
    const TestMemory out(8192);
    const TestMemory in(65536);
    out.fill(1);
    ASSERT_EQ(transfer(Op::kWrite, direct(), 0, out.data(), 8192), 8192);
    EXPECT_EQ(transfer(Op::kRead, direct(), 4096, in.data(), 65536), 4096);
    EXPECT_EQ(std::memcmp(in.data(), out.data() + 4096, 4096), 0);
    // (Behind the end the kernel may clear what lies inside the request.)
    EXPECT_EQ(transfer(Op::kRead, direct(), 8192, in.data(), 4096), 0);
    EXPECT_EQ(transfer(Op::kRead, direct(), 1UL << 40, in.data(), 4096), 0);
}

TEST_P(BackendConformance, RefusalsAreResults) {
    const TestMemory memory(8192);
    ASSERT_EQ(transfer(Op::kWrite, direct(), 0, memory.data(), 8192), 8192);
    if (file_->geometry().direct) {
        EXPECT_EQ(transfer(Op::kRead, direct(), 100, memory.data(), 4096), -EINVAL);
        EXPECT_EQ(transfer(Op::kRead, direct(), 0, memory.data() + 1, 4096), -EINVAL);
    }
    const auto read_only = open_file("data", Access::kRead);
    Request request;
    set(request, Op::kWrite, *read_only, direct(), 0, {{memory.data(), 4096}});
    EXPECT_EQ(transfer(request), -EBADF);
    ASSERT_TRUE(read_only->close());
    set(request, Op::kRead, *read_only, direct(), 0, {{memory.data(), 4096}});
    EXPECT_EQ(transfer(request), -EBADF);
    // A bad address is refused too, and whatever failed has harmed nobody else.
    set(request, Op::kRead, *file_, direct(), 0, {{reinterpret_cast<std::byte*>(4096), 4096}});
    EXPECT_EQ(transfer(request), -EFAULT);
    EXPECT_EQ(transfer(Op::kRead, direct(), 0, memory.data(), 8192), 8192);
}

TEST_P(BackendConformance, RefusedOnesAmongGoodOnes) {
    const TestMemory memory(kDepth * 4096);
    ASSERT_EQ(transfer(Op::kWrite, direct(), 0, memory.data(), kDepth * 4096), kDepth * 4096);
    const auto read_only = open_file("data", Access::kRead);
    std::vector<Request> requests(kDepth);
    for (std::uint32_t i = 0; i < kDepth; ++i) {
        const bool bad = i % 3 == 0;
        set(requests[i], bad ? Op::kWrite : Op::kRead, bad ? *read_only : *file_, direct(),
            i * 4096, {{memory.data() + i * 4096, 4096}});
        backend_->push(requests[i]);
    }
    ASSERT_EQ(wait_for(*backend_, kDepth).size(), kDepth);
    for (std::uint32_t i = 0; i < kDepth; ++i) {
        EXPECT_EQ(requests[i].result, i % 3 == 0 ? -EBADF : 4096) << i;
    }
}

TEST_P(BackendConformance, KeepsDepthFullAndGivesEachBackOnce) {
    constexpr std::size_t kBytes = 4096;
    constexpr std::uint32_t kRounds = 20;
    const TestMemory out(kDepth * kBytes);
    const TestMemory in(kDepth * kBytes);
    out.fill(9);
    ASSERT_EQ(transfer(Op::kWrite, direct(), 0, out.data(), out.size()),
              static_cast<std::int64_t>(out.size()));
    std::vector<Request> requests(kDepth);
    std::vector<std::uint32_t> rounds(kDepth, 0);
    const auto start = [&](std::uint32_t i) {
        std::memset(in.data() + i * kBytes, 0, kBytes);
        set(requests[i], Op::kRead, *file_, direct(), i * kBytes,
            {{in.data() + i * kBytes, kBytes}});
        backend_->push(requests[i]);
    };
    for (std::uint32_t i = 0; i < kDepth; ++i) {
        start(i);
    }
    std::uint32_t out_now = kDepth;
    while (out_now > 0) {
        backend_->enter(std::min(out_now, 4U), 10 * kSecond);
        std::array<Request*, 5> done{};
        const std::size_t got = backend_->reap(done);
        ASSERT_GT(got, 0U);
        for (std::size_t k = 0; k < got; ++k) {
            const auto i = static_cast<std::uint32_t>(done[k] - requests.data());
            ASSERT_EQ(done[k]->result, static_cast<std::int64_t>(kBytes));
            done[k]->result = INT64_MIN;
            ASSERT_EQ(std::memcmp(in.data() + i * kBytes, out.data() + i * kBytes, kBytes), 0);
            --out_now;
            if (++rounds[i] < kRounds) {
                start(i);
                ++out_now;
            }
        }
    }
    EXPECT_EQ(rounds, std::vector<std::uint32_t>(kDepth, kRounds));
    std::array<Request*, 4> none{};
    backend_->enter(0, 0);
    EXPECT_EQ(backend_->reap(none), 0U);
}

TEST_P(BackendConformance, WaitsForSeveral) {
    const TestMemory memory(kDepth * 4096);
    ASSERT_EQ(transfer(Op::kWrite, direct(), 0, memory.data(), kDepth * 4096), kDepth * 4096);
    std::vector<Request> requests(8);
    for (std::size_t i = 0; i < requests.size(); ++i) {
        set(requests[i], Op::kRead, *file_, direct(), i * 4096, {{memory.data() + i * 4096, 4096}});
        backend_->push(requests[i]);
    }
    backend_->enter(8, 10 * kSecond);
    std::array<Request*, 16> done{};
    EXPECT_EQ(backend_->reap(done), 8U);
}

TEST_P(BackendConformance, TimeoutIsRespectedTimed) {
    const base::SteadyClock clock;
    base::Nanos start = clock.now();
    backend_->enter(1, 50 * kMillisecond);
    EXPECT_GE(clock.now() - start, 49 * kMillisecond);
    EXPECT_LT(clock.now() - start, 5 * kSecond);
    start = clock.now();
    backend_->enter(1, 0);
    backend_->enter(0, base::kForever);
    backend_->enter(0, 0);
    EXPECT_LT(clock.now() - start, kSecond);
    // A limit also bounds the wait for several of which one is there.
    const TestMemory memory(4096);
    set(one_, Op::kWrite, *file_, direct(), 0, {{memory.data(), 4096}});
    backend_->push(one_);
    start = clock.now();
    backend_->enter(2, 200 * kMillisecond);
    EXPECT_LT(clock.now() - start, 5 * kSecond);
    EXPECT_EQ(wait_for(*backend_, 1).size(), 1U);
}

TEST_P(BackendConformance, DoesNothingWhenThereIsNothing) {
    const TestMemory memory(4096);
    ASSERT_EQ(transfer(Op::kWrite, direct(), 0, memory.data(), 4096), 4096);
    const std::uint64_t before = backend_->system_calls();
    for (int i = 0; i < 100; ++i) {
        backend_->enter(0, 0);
        std::array<Request*, 4> done{};
        EXPECT_EQ(backend_->reap(done), 0U);
    }
    EXPECT_EQ(backend_->system_calls(), before);
}

TEST_P(BackendConformance, WakeBeforeEnterEndsIt) {
    const base::SteadyClock clock;
    for (int i = 0; i < 100; ++i) {
        const base::Nanos start = clock.now();
        backend_->wake();
        backend_->wake();
        backend_->enter(0, 0);  // this is no sleep
        std::array<Request*, 4> done{};
        EXPECT_EQ(backend_->reap(done), 0U);
        backend_->enter(1, 30 * kSecond);
        ASSERT_LT(clock.now() - start, 10 * kSecond) << i;
    }
    // They are used up now.
    const base::Nanos start = clock.now();
    backend_->enter(1, 50 * kMillisecond);
    EXPECT_GE(clock.now() - start, 49 * kMillisecond);
}

TEST_P(BackendConformance, WakeBetweenEnterAndReapEndsTheNext) {
    const TestMemory memory(4096);
    const base::SteadyClock clock;
    for (int i = 0; i < 100; ++i) {
        set(one_, Op::kWrite, *file_, direct(), 0, {{memory.data(), 4096}});
        backend_->push(one_);
        backend_->enter(1, 10 * kSecond);
        backend_->wake();
        std::array<Request*, 4> done{};
        ASSERT_EQ(backend_->reap(done), 1U);
        const base::Nanos start = clock.now();
        backend_->enter(1, 30 * kSecond);
        ASSERT_LT(clock.now() - start, 10 * kSecond) << i;
    }
}

TEST_P(BackendConformance, WakeDuringEnterIsNeverLost) {
    // Ping-pong: the other side waits for the answer to each wake-up, so one that is lost is a
    // stall.
    constexpr std::uint32_t kRounds = 5'000;
    std::atomic<std::uint32_t> asked{0};
    std::atomic<std::uint32_t> answered{0};
    std::atomic<bool> stop{false};
    std::thread other([&] {
        for (std::uint32_t i = 1; i <= kRounds && !stop; ++i) {
            asked.store(i);
            backend_->wake();
            if (i % 16 == 0) {
                backend_->wake();
            }
            while (answered.load() < i && !stop) {
                std::this_thread::yield();
            }
        }
    });
    const TestMemory memory(4096);
    const base::SteadyClock clock;
    bool in_flight = false;
    base::Nanos longest = 0;
    while (answered.load() < kRounds && longest < 20 * kSecond) {
        if (!in_flight && answered.load() % 8 == 0) {
            set(one_, Op::kWrite, *file_, direct(), 0, {{memory.data(), 4096}});
            backend_->push(one_);
            in_flight = true;
        }
        const base::Nanos start = clock.now();
        backend_->enter(1, 30 * kSecond);
        longest = std::max(longest, clock.now() - start);
        answered.store(asked.load());
        std::array<Request*, 4> done{};
        in_flight = in_flight && backend_->reap(done) == 0;
    }
    stop = true;
    other.join();
    EXPECT_LT(longest, 20 * kSecond);
    EXPECT_EQ(answered.load(), kRounds);
    if (in_flight) {
        EXPECT_EQ(wait_for(*backend_, 1).size(), 1U);
    }
}

TEST_P(BackendConformance, SleepsForeverUntilWoken) {
    const base::SteadyClock clock;
    for (const std::uint32_t want : {1U, 4U}) {
        const base::Nanos start = clock.now();
        std::thread other([&] {
            std::this_thread::sleep_for(std::chrono::milliseconds(30));
            backend_->wake();
        });
        backend_->enter(want, base::kForever);
        EXPECT_GE(clock.now() - start, 20 * kMillisecond);
        other.join();
    }
}

TEST_P(BackendConformance, EndsCleanInAnyState) {
    for (int i = 0; i < 5; ++i) {
        auto idle = make(4);
        auto entered = make(4);
        entered->enter(0, 0);
        auto armed = make(4);
        armed->enter(1, kMillisecond);
        auto woken = make(4);
        woken->enter(1, kMillisecond);
        woken->wake();
    }
}

TEST_P(BackendConformance, ChildOfForkForgetsAndParentGoesOn) {
    constexpr std::size_t kBytes = 65536;
    const TestMemory out(8 * kBytes);
    const TestMemory in(8 * kBytes);
    out.fill(4);
    ASSERT_EQ(transfer(Op::kWrite, direct(), 0, out.data(), out.size()),
              static_cast<std::int64_t>(out.size()));
    backend_->enter(1, kMillisecond);  // a wake-up is armed
    std::vector<Request> requests(8);
    for (std::size_t i = 0; i < requests.size(); ++i) {
        set(requests[i], Op::kRead, *file_, direct(), i * kBytes,
            {{in.data() + i * kBytes, kBytes}});
        backend_->push(requests[i]);
    }
    backend_->enter(0, 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        backend_->abandon_after_fork();
        backend_.reset();
        int status = 0;
#ifndef PENSTOCK_TSAN  // which allows no thread in such a child
        backend_ = make(kDepth);
        const TestMemory own(kBytes);
        if (backend_ == nullptr || transfer(Op::kRead, direct(), 0, own.data(), kBytes) != kBytes ||
            std::memcmp(own.data(), out.data(), kBytes) != 0) {
            status = 1;
        }
        backend_.reset();
#endif
        ::_exit(status);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    EXPECT_EQ(wait_for(*backend_, 8).size(), 8U);
    EXPECT_TRUE(same_bytes(out, in, out.size()));
    backend_->wake();
    backend_->enter(1, base::kForever);
}

TEST_P(BackendConformance, RandomTrafficEqualsAModel) {
    constexpr std::size_t kBlocks = 64;
    std::mt19937 random(17);
    std::vector<std::byte> model(kBlocks * 4096);
    const TestMemory memory(kBlocks * 4096);
    std::memset(memory.data(), 0, memory.size());
    ASSERT_EQ(transfer(Op::kWrite, direct(), 0, memory.data(), memory.size()),
              static_cast<std::int64_t>(memory.size()));
    std::vector<Request> requests(kDepth);
    for (int round = 0; round < 40; ++round) {
        // Each request has two blocks of its own; a random half of them is written.
        for (std::uint32_t i = 0; i < kDepth; ++i) {
            std::byte* place = memory.data() + i * 8192;
            const bool write = random() % 2 == 0;
            std::memset(place, write ? static_cast<int>(random() & 0xFF) : 0xEE, 8192);
            if (write) {
                std::memcpy(model.data() + i * 8192, place, 8192);
            }
            set(requests[i], write ? Op::kWrite : Op::kRead, *file_, direct(), i * 8192,
                random() % 2 == 0 ? std::vector<std::pair<std::byte*, std::size_t>>{{place, 8192}}
                                  : std::vector<std::pair<std::byte*, std::size_t>>{
                                        {place, 4096}, {place + 4096, 4096}});
            backend_->push(requests[i]);
            if (random() % 8 == 0) {
                backend_->enter(0, 0);
            }
        }
        for (Request* done : wait_for(*backend_, kDepth)) {
            ASSERT_EQ(done->result, 8192);
        }
        ASSERT_EQ(std::memcmp(memory.data(), model.data(), model.size()), 0) << round;
    }
}

TEST_P(BackendConformance, RefusesADepthThatCannotBe) {
    const auto made = GetParam().make(BackendOptions{0});
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().code, ErrorCode::kInvalidArgument);
}

}  // namespace penstock::engine
