// SPDX-License-Identifier: Apache-2.0
// Small blocking reads and writes of GPU memory by an open file, which the calling thread makes.
#include "device/mover/small_copies.hpp"

#include "device/fake_gpu.hpp"
#include "support/temp_folder.hpp"

#include <penstock/engine.hpp>
#include <penstock/gpu.hpp>

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>
#include <thread>
#include <vector>

namespace penstock::device {
namespace {

constexpr std::uint64_t kFileBytes = 1 << 20;

class SmallCopies : public OnFakeGpu {
protected:
    void SetUp() override {
        OnFakeGpu::SetUp();
        content_.resize(kFileBytes);
        std::generate(content_.begin(), content_.end(),
                      [&] { return static_cast<std::byte>(random_()); });
        engine_.write(path_, ConstMemory(content_), 0, {.sync = true});
    }
    [[nodiscard]] Memory gpu_memory(std::uint64_t bytes) {
        return device_memory(
            reinterpret_cast<void*>(static_cast<std::uintptr_t>(device_bytes(bytes))), bytes);
    }
    [[nodiscard]] std::vector<std::byte> bytes_of(const Memory& memory) {
        return look(reinterpret_cast<std::uintptr_t>(memory.data), memory.bytes);
    }
    [[nodiscard]] std::vector<std::byte> part(std::uint64_t from, std::uint64_t bytes) const {
        const auto begin = content_.begin() + static_cast<std::ptrdiff_t>(from);
        return {begin, begin + static_cast<std::ptrdiff_t>(bytes)};
    }
    [[nodiscard]] std::uint64_t slot_requests() { return engine_.stats().slot_requests; }

    std::mt19937 random_{7};
    support::TempFolder folder_;
    const std::string path_ = folder_ / "file";
    std::vector<std::byte> content_;
    Engine engine_;
};

TEST_F(SmallCopies, BringTheBytesAndTakeNoSlot) {
    const File file(path_, {.cache = CachePolicy::kDirect});
    const Memory memory = gpu_memory(64 << 10);
    static_cast<void>(engine_.read(file, memory, 0));  // opens the driver, if it is the first
    for (const std::uint64_t bytes : {4096U, 12'288U, 65'536U}) {
        const Memory some(memory.data, bytes, memory.kind, memory.device);
        const std::uint64_t before = slot_requests();
        ASSERT_EQ(engine_.read(file, some, 8192), bytes);
        EXPECT_EQ(slot_requests(), before) << bytes;
        ASSERT_EQ(bytes_of(some), part(8192, bytes));
    }
}

// A transfer asks now and then what is in the page cache.
TEST_F(SmallCopies, AskTheCacheRarely) {
    const File file(path_);
    const Memory memory = gpu_memory(4096);
    const std::uint64_t before = slot_requests();
    for (std::uint64_t i = 0; i < 200; ++i) {
        const std::uint64_t offset = i * 97 % 250 * 4096;
        ASSERT_EQ(engine_.read(file, memory, offset), 4096U);
        ASSERT_EQ(bytes_of(memory), part(offset, 4096));
    }
    EXPECT_LT(slot_requests() - before, 30U);
}

TEST_F(SmallCopies, ComeFromFilesThatAreOpenedForThem) {
    for (const std::uint64_t file_bytes : {kFileBytes, std::uint64_t{20'000}}) {
        const std::string path = folder_ / "small";
        engine_.write(path, ConstMemory(content_.data(), file_bytes));
        ASSERT_EQ(::truncate(path.c_str(), static_cast<off_t>(file_bytes)), 0);
        const Memory memory = gpu_memory(5000);
        static_cast<void>(engine_.read(path, memory, 0));
        const std::uint64_t before = slot_requests();
        for (std::uint64_t i = 0; i < 30; ++i) {
            const std::uint64_t offset = i * 500;
            ASSERT_EQ(engine_.read(path, memory, offset), 5000U);
            ASSERT_EQ(bytes_of(memory), part(offset, 5000));
        }
        EXPECT_EQ(slot_requests(), before) << file_bytes;
        EXPECT_THROW(engine_.read(path, memory, file_bytes - 100), Error);
        EXPECT_THROW(engine_.read(folder_ / "none", memory), Error);
    }
}

TEST_F(SmallCopies, ComeFromTheFileOfTheirExtent) {
    const std::string other = folder_ / "other";
    engine_.write(other, ConstMemory(content_.data() + 7000, 9000));
    const Memory memory = gpu_memory(5000);
    static_cast<void>(engine_.read(path_, memory, 0));
    for (int i = 0; i < 4; ++i) {
        TransferRequest request;
        if (i % 2 == 0) {
            request.paths = {path_, other};
        } else {
            request.files = {File(path_, {.cache = CachePolicy::kCached}),
                             File(other, {.cache = CachePolicy::kDirect})};
        }
        if (i == 3) {
            request.files[0] = File(path_, {.cache = CachePolicy::kDirect});
        }
        request.extents = {{4096, Memory(memory.data, 4096, memory.kind, memory.device), 1}};
        ASSERT_EQ(engine_.run(std::move(request)).wait(), 4096U);
        EXPECT_EQ(bytes_of(Memory(memory.data, 4096, memory.kind, memory.device)),
                  part(11'096, 4096));
    }
}

TEST_F(SmallCopies, OfAnyPlaceAndLengthAreRight) {
    const File file(path_, {.access = Access::kReadWrite});
    for (int i = 0; i < 300; ++i) {
        const std::uint64_t bytes = random_() % 70'000 + 1;
        const std::uint64_t offset = random_() % (kFileBytes - bytes);
        const Memory memory = gpu_memory(bytes);
        ASSERT_EQ(engine_.read(file, memory, offset), bytes);
        ASSERT_EQ(bytes_of(memory), part(offset, bytes)) << offset << " " << bytes;
        const std::uint64_t to = random_() % (kFileBytes - bytes);
        ASSERT_EQ(engine_.write(file, ConstMemory(memory), to), bytes);
        std::copy_n(part(offset, bytes).begin(), bytes,
                    content_.begin() + static_cast<std::ptrdiff_t>(to));
        std::vector<std::byte> back(bytes);
        ASSERT_EQ(engine_.read(file, Memory(back), to), bytes);
        ASSERT_EQ(back, part(to, bytes)) << to << " " << bytes;
    }
    EXPECT_EQ(fake_->counters().unpinned_async_copies, 0U);
}

// The driver is met with each of its calls failing once: all bytes are right, or an error comes,
// and what follows is right.
TEST_F(SmallCopies, WithEachCallOfTheDriverFailingAreRightOrAnError) {
    const File file(path_, {.access = Access::kReadWrite});
    const Memory memory = gpu_memory(4096);
    static_cast<void>(engine_.read(file, memory, 0));
    for (std::uint64_t nth = 1; nth < 40; ++nth) {
        const std::uint64_t offset = nth * 4096;
        fake_->fail("*", nth, cuda::CUDA_ERROR_OUT_OF_MEMORY);
        try {
            ASSERT_EQ(engine_.read(file, memory, offset), 4096U);
            ASSERT_EQ(bytes_of(memory), part(offset, 4096)) << nth;
        } catch (const Error& error) {
            EXPECT_NE(std::string(error.what()), "");
        }
        fake_->calm();
        fake_->fail("*", nth, cuda::CUDA_ERROR_LAUNCH_FAILED);
        try {
            ASSERT_EQ(engine_.write(file, ConstMemory(memory), offset), 4096U);
        } catch (const Error& error) {
            EXPECT_NE(std::string(error.what()), "");
        }
        fake_->calm();
        ASSERT_EQ(engine_.read(file, memory, offset), 4096U);
        ASSERT_EQ(bytes_of(memory), part(offset, 4096)) << nth;
    }
    EXPECT_LE(fake_->counters().pinned_bytes_now, 44U << 20);
}

// A buffer whose copy may still be out is not given back.
TEST_F(SmallCopies, KeepABufferOfWhichTheDriverSaysNothing) {
    const File file(path_, {.cache = CachePolicy::kDirect});
    const Memory memory = gpu_memory(4096);
    static_cast<void>(engine_.read(file, memory, 0));
    static_cast<void>(engine_.read(file, memory, 4096));
    engine_.read_async(file, memory, 0).wait();  // pins the slots of transfers
    const std::uint64_t before = fake_->counters().pinned_bytes_now;
    fake_->fail("cuStreamQuery", 1, cuda::CUDA_ERROR_UNKNOWN);
    fake_->fail("cuEventQuery", 2, cuda::CUDA_ERROR_UNKNOWN);  // the first is about the stream
    ASSERT_EQ(engine_.read(file, memory, 8192), 4096U);
    EXPECT_EQ(bytes_of(memory), part(8192, 4096));
    EXPECT_GE(fake_->counters().pinned_bytes_now, before);
}

TEST_F(SmallCopies, EndAfterTheirCopyAndNotBefore) {
    const File file(path_);
    const Memory memory = gpu_memory(4096);
    static_cast<void>(engine_.read(file, memory, 0));
    fake_->hold(true);
    std::atomic<bool> over{false};
    std::thread reader([&] {
        static_cast<void>(engine_.read(file, memory, 4096));
        over.store(true);
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_FALSE(over.load());
    fake_->hold(false);
    reader.join();
    EXPECT_EQ(bytes_of(memory), part(4096, 4096));
}

TEST_F(SmallCopies, BehindABusyStreamWaitForIt) {
    const File file(path_);
    const Memory memory = gpu_memory(4096);
    static_cast<void>(engine_.read(file, memory, 0));
    BusyStream stream(*driver_);
    std::atomic<bool> over{false};
    std::thread reader([&] {
        static_cast<void>(engine_.read(file, memory, 4096, stream.after()));
        over.store(true);
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_FALSE(over.load());
    EXPECT_EQ(bytes_of(memory), part(0, 4096));
    stream.end();
    reader.join();
    EXPECT_EQ(bytes_of(memory), part(4096, 4096));
}

TEST_F(SmallCopies, OfManyThreadsKeepTheirBytesApart) {
    fake_->set_delays(5, 50);
    const File file(path_);
    constexpr unsigned kThreads = kSmallCopiesMax + 8;
    std::vector<Memory> memories;
    for (unsigned i = 0; i < kThreads; ++i) {
        memories.push_back(gpu_memory(4096));
    }
    std::vector<std::thread> threads;
    std::atomic<int> wrong{0};
    for (unsigned i = 0; i < kThreads; ++i) {
        threads.emplace_back([&, i] {
            for (std::uint64_t round = 0; round < 20; ++round) {
                const std::uint64_t offset = (i * 20 + round) % 250 * 4096;
                engine_.read(file, memories[i], offset);
                wrong += bytes_of(memories[i]) == part(offset, 4096) ? 0 : 1;
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    EXPECT_EQ(wrong.load(), 0);
    EXPECT_LE(fake_->counters().pinned_bytes_max, 42U << 20);
}

}  // namespace
}  // namespace penstock::device
