// SPDX-License-Identifier: Apache-2.0
// Gathers into the memory of a GPU, on the fake driver: the rows of a gather on the host, whatever
// is kept in the GPU's memory and pinned on the host, whatever the streams, and after errors.
#include "device/cuda/context.hpp"
#include "device/fake_gpu.hpp"
#include "engine/caller/small_copy.hpp"
#include "support/temp_folder.hpp"
#include "support/test_engine.hpp"
#include "support/text_files.hpp"

#include <penstock/features.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

namespace penstock::features {
namespace {

using device::OnFakeGpu;
using support::pattern;
using test::error_of;
using testing::HasSubstr;

using Bytes = std::vector<std::byte>;
using Ids = std::vector<std::uint64_t>;

struct TableOfTest {
    NewFeatureTable table;
    std::uint64_t row_bytes;
    std::uint64_t rows;
    Bytes data;
};

class DeviceGathers : public OnFakeGpu {
protected:
    void SetUp() override {
        OnFakeGpu::SetUp();
        ASSERT_EQ(driver_->cuCtxPushCurrent(device::primary_context(*driver_, 0).value()),
                  device::cuda::CUDA_SUCCESS);
        for (const auto& [name, dtype, shape, row_bytes, rows] :
             {std::tuple("wide", "F32", 128U, 512U, 900U), std::tuple("odd", "U8", 7U, 7U, 5000U),
              std::tuple("half", "F16", 99U, 198U, 700U),
              std::tuple("long", "F32", 5000U, 20'000U, 40U)}) {
            tables_.push_back(
                {{name, dtype, {shape}}, row_bytes, rows, pattern(row_bytes * rows, rows)});
        }
        write(path_, {});
        std::filesystem::create_directories(folder_ / "a");
        std::filesystem::create_directories(folder_ / "b");
        write(striped_, {.folders = {folder_ / "a", folder_ / "b"}});
    }
    void TearDown() override {
        fake_->calm();
        device::cuda::CUcontext popped = nullptr;
        driver_->cuCtxPopCurrent(&popped);
        OnFakeGpu::TearDown();
    }
    void write(const std::string& path, const FeatureWriterOptions& options) {
        FeatureWriter writer(engine_, path, options);
        for (const TableOfTest& one : tables_) {
            writer.begin_table(one.table);
            writer.append(one.data);
        }
        writer.commit();
    }
    // Some rows come more often than others, and some twice.
    [[nodiscard]] Ids random_ids(std::mt19937_64& random, std::uint32_t table,
                                 std::size_t count) const {
        const std::uint64_t rows = tables_[table].rows;
        Ids ids(count);
        std::generate(ids.begin(), ids.end(),
                      [&] { return std::min(random() % rows, random() % rows); });
        return ids;
    }
    [[nodiscard]] Memory gpu_memory(std::uint64_t bytes) {
        return {reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(device_bytes(bytes))),
                bytes, MemoryKind::kDevice, 0};
    }
    [[nodiscard]] Bytes rows_of(std::uint32_t table, const Ids& ids) const {
        const TableOfTest& one = tables_[table];
        Bytes rows(ids.size() * one.row_bytes);
        for (std::size_t i = 0; i < ids.size(); ++i) {
            std::memcpy(&rows[i * one.row_bytes], &one.data[ids[i] * one.row_bytes], one.row_bytes);
        }
        return rows;
    }
    [[nodiscard]] bool has_rows(const Memory& out, std::uint32_t table, const Ids& ids) {
        return look(reinterpret_cast<std::uintptr_t>(out.data),
                    ids.size() * tables_[table].row_bytes) == rows_of(table, ids);
    }
    [[nodiscard]] device::cuda::CUstream stream() {
        device::cuda::CUstream made = nullptr;
        EXPECT_EQ(driver_->cuStreamCreate(&made, device::cuda::CU_STREAM_NON_BLOCKING),
                  device::cuda::CUDA_SUCCESS);
        return made;
    }
    static StreamHandle handle(device::cuda::CUstream stream) {
        return {reinterpret_cast<std::uintptr_t>(stream), 0};
    }
    void finish(device::cuda::CUstream stream) {
        while (driver_->cuStreamQuery(stream) == device::cuda::CUDA_ERROR_NOT_READY) {
            std::this_thread::yield();
        }
    }
    // Keeps all kernels back, and what follows on this stream, until open() is called.
    class Gate {
    public:
        explicit Gate(device::cuda::CUstream stream) {
            using Launch = device::cuda::CUresult(device::cuda::CUstream, void (*)(void*), void*);
            void* library = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
            auto* launch = reinterpret_cast<Launch*>(::dlsym(library, "cuLaunchHostFunc"));
            // The function may run when the gate is gone.
            auto* const kept = new std::shared_ptr<std::atomic<bool>>(open_);
            const auto wait = [](void* opened) {
                const std::unique_ptr<std::shared_ptr<std::atomic<bool>>> its(
                    static_cast<std::shared_ptr<std::atomic<bool>>*>(opened));
                while (!**its) {
                    std::this_thread::sleep_for(std::chrono::microseconds(100));
                }
            };
            EXPECT_EQ(launch(stream, wait, kept), device::cuda::CUDA_SUCCESS);
        }
        ~Gate() { open(); }
        Gate(const Gate&) = delete;
        Gate& operator=(const Gate&) = delete;
        void open() { *open_ = true; }

    private:
        std::shared_ptr<std::atomic<bool>> open_ = std::make_shared<std::atomic<bool>>(false);
    };

    support::TempFolder folder_;
    std::shared_ptr<Engine> engine_ = std::make_shared<Engine>();
    const std::string path_ = folder_ / "x.features";
    const std::string striped_ = folder_ / "striped.features";
    std::vector<TableOfTest> tables_;
};

// Whatever is kept where: each table, and all of them in one call with the host's memory besides.
TEST_F(DeviceGathers, EqualThoseOfTheHost) {
    std::mt19937_64 random(3);
    Ids most(400);
    std::iota(most.begin(), most.end(), 0);
    const Memory out = gpu_memory(4 << 20);
    for (const std::string& path : {path_, striped_}) {
        for (const auto& [ram, on_gpu, policy] :
             {std::tuple(0, 0, RowPolicy::kWindow), std::tuple(300'000, 0, RowPolicy::kStatic),
              std::tuple(0, 200'000, RowPolicy::kWindow),
              std::tuple(200'000, 200'000, RowPolicy::kClock),
              std::tuple(0, 8 << 20, RowPolicy::kS3Fifo)}) {
            FeatureStoreOptions options{.ram_bytes = static_cast<std::uint64_t>(ram),
                                        .policy = policy};
            options.device_bytes = static_cast<std::uint64_t>(on_gpu);
            if (ram + on_gpu != 0) {
                options.hot = {{"wide", most}, {"odd", most}};
            }
            const FeatureStore store = FeatureStore::open(engine_, path, options);
            EXPECT_EQ(store.stats().device_bytes != 0, on_gpu != 0);
            for (int round = 0; round < 6; ++round) {
                std::vector<Ids> ids;
                std::vector<FeatureRequest> requests;
                std::vector<Memory> outs;
                Memory left = out;
                for (std::uint32_t table = 0; table < tables_.size(); ++table) {
                    ids.push_back(random_ids(random, table, table == 3 ? 15 : 300));
                }
                Bytes on_host(ids[1].size() * tables_[1].row_bytes);
                for (std::uint32_t table = 0; table < tables_.size(); ++table) {
                    const std::uint64_t bytes = ids[table].size() * tables_[table].row_bytes;
                    outs.emplace_back(left.data, bytes, MemoryKind::kDevice, 0);
                    left.data += bytes + 16;
                    requests.push_back({table, ids[table], outs[table]});
                }
                if (round % 2 == 0) {
                    requests.push_back({1, ids[1], on_host});
                    EXPECT_GT(store.gather(requests), 0U);
                    EXPECT_TRUE(on_host == rows_of(1, ids[1]));
                } else {
                    const auto own = stream();
                    FeatureGather gather = store.gather_async(requests, {.stream = handle(own)});
                    gather.wait();
                    finish(own);
                    driver_->cuStreamDestroy(own);
                }
                for (std::uint32_t table = 0; table < tables_.size(); ++table) {
                    ASSERT_TRUE(has_rows(outs[table], table, ids[table]))
                        << path << " ram " << ram << " gpu " << on_gpu << " round " << round
                        << " table " << table;
                }
            }
            const FeatureStats stats = store.stats();
            EXPECT_EQ(stats.rows, stats.rows_hit + stats.rows_read);
            EXPECT_EQ(stats.rows_on_gpu != 0, on_gpu != 0);
            EXPECT_EQ(stats.rows_hit != 0, ram + on_gpu != 0);
        }
    }
}

TEST_F(DeviceGathers, RowsThatAreKeptAreNotReadAgain) {
    const FeatureStore store = FeatureStore::open(engine_, path_, {.device_bytes = 8 << 20});
    std::mt19937_64 random(4);
    const Ids ids = random_ids(random, 0, 500);
    const Memory out = gpu_memory(ids.size() * 512);
    store.gather(0, ids, out);
    const FeatureStats first = store.stats();
    EXPECT_EQ(first.rows_hit, 0U);
    store.gather(0, ids, out);
    const FeatureStats second = store.stats();
    EXPECT_EQ(second.rows_read, first.rows_read);
    EXPECT_EQ(second.rows_on_gpu, ids.size());
    EXPECT_TRUE(has_rows(out, 0, ids));
}

// A slot that a kernel still reads is given to no other row: the kernel of the first gather is
// held back while others come that want all slots, in many orders.
TEST_F(DeviceGathers, NoRowThatAKernelStillReadsGivesWay) {
    for (std::uint64_t seed = 1; seed <= 12; ++seed) {
        FeatureStoreOptions options{.policy = RowPolicy::kClock};
        options.device_bytes = 64 * 544;  // of all tables
        const FeatureStore store = FeatureStore::open(engine_, path_, options);
        Ids first(20);
        std::iota(first.begin(), first.end(), 0);
        const Memory out = gpu_memory(first.size() * 512);
        store.gather(0, first, out);
        const std::uint64_t before = store.stats().rows_on_gpu;
        const auto slow = stream();
        const Memory others = gpu_memory(300 * 512);
        fake_->set_delays(seed, 0);
        Gate gate(slow);
        store.gather(0, first, out, {.stream = handle(slow)});
        ASSERT_GT(store.stats().rows_on_gpu, before);
        std::vector<Ids> wanted;
        std::vector<Memory> outs;
        std::vector<device::cuda::CUstream> streams;  // one each: none waits for another's kernel
        for (std::uint64_t i = 0; i < 3; ++i) {
            wanted.emplace_back(100);
            std::iota(wanted[i].begin(), wanted[i].end(), (i + 1) * 100);
            outs.emplace_back(others.data + i * 100 * 512, 100 * 512, MemoryKind::kDevice, 0);
            streams.push_back(stream());
            store.gather(0, wanted[i], outs[i], {.stream = handle(streams[i])});
        }
        gate.open();
        finish(slow);
        ASSERT_TRUE(has_rows(out, 0, first)) << seed;
        for (std::uint64_t i = 0; i < 3; ++i) {
            finish(streams[i]);
            ASSERT_TRUE(has_rows(outs[i], 0, wanted[i])) << seed;
            driver_->cuStreamDestroy(streams[i]);
        }
        driver_->cuStreamDestroy(slow);
        fake_->calm();
        store.gather(0, first, out);
        ASSERT_TRUE(has_rows(out, 0, first));
        for (std::uint64_t i = 0; i < 3; ++i) {
            store.gather(0, wanted[i], outs[i]);
            ASSERT_TRUE(has_rows(outs[i], 0, wanted[i])) << seed;
        }
    }
}

// With a stream nobody waits for the GPU, and the rows come after what the stream holds.
TEST_F(DeviceGathers, TheOutputIsInTheOrderOfItsStream) {
    const FeatureStore store = FeatureStore::open(engine_, path_, {.device_bytes = 8 << 20});
    const Ids ids{5, 1, 5, 3};
    const Memory out = gpu_memory(ids.size() * 512);
    store.gather(0, ids, out);
    store.gather(0, ids, out);
    ASSERT_EQ(store.stats().rows_on_gpu, ids.size());
    const Bytes old(out.bytes, std::byte{1});
    put(reinterpret_cast<std::uintptr_t>(out.data), old);
    const auto own = stream();
    Gate gate(own);
    store.gather(0, ids, out, {.stream = handle(own)});
    EXPECT_TRUE(look(reinterpret_cast<std::uintptr_t>(out.data), out.bytes) == old);
    FeatureGather waits = store.gather_async(std::vector<FeatureRequest>{{0, ids, out}});
    EXPECT_FALSE(waits.done());
    EXPECT_FALSE(waits.wait_for(std::chrono::milliseconds(2)).has_value());
    gate.open();
    EXPECT_EQ(waits.wait(), out.bytes);
    finish(own);
    EXPECT_TRUE(has_rows(out, 0, ids));
    driver_->cuStreamDestroy(own);
}

TEST_F(DeviceGathers, OfManyThreadsAreRight) {
    FeatureStoreOptions options{.ram_bytes = 60'000, .hot = {{"wide", {1, 2, 3, 4, 5, 6, 7}}}};
    options.device_bytes = 100'000;
    const FeatureStore store = FeatureStore::open(engine_, path_, options);
    std::vector<Memory> outs;
    for (int i = 0; i < 4; ++i) {
        outs.push_back(gpu_memory(200 * 512));
    }
    std::vector<std::thread> threads;
    std::atomic<int> wrong{0};
    for (std::size_t t = 0; t < outs.size(); ++t) {
        threads.emplace_back([&, t] {
            std::mt19937_64 random(t);
            for (int round = 0; round < 15; ++round) {
                const Ids ids = random_ids(random, 0, 200);
                if (round % 3 == 0) {
                    store.hint(0, ids);
                }
                store.gather(0, ids, outs[t]);
                Bytes found(outs[t].bytes);
                const bool seen = fake_->look(reinterpret_cast<std::uintptr_t>(outs[t].data),
                                              found.data(), found.size());
                wrong += seen && found == rows_of(0, ids) ? 0 : 1;
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    EXPECT_EQ(wrong, 0);
    EXPECT_GT(store.stats().rows_on_gpu, 0U);
}

TEST_F(DeviceGathers, RefusalsAreErrorsAndTheNextGatherIsRight) {
    const std::uint64_t pinned = fake_->counters().pinned_bytes_now;
    const std::uint64_t used = fake_->counters().device_bytes_now;
    {
        FeatureStoreOptions options{.ram_bytes = 100'000, .hot = {{"wide", {1, 2, 3}}}};
        fake_->fail("cuMemAlloc", 2, device::cuda::CUDA_ERROR_OUT_OF_MEMORY);
        options.device_bytes = 1 << 20;
        const Error full =
            error_of([&] { static_cast<void>(FeatureStore::open(engine_, path_, options)); });
        EXPECT_EQ(full.reason(), ErrorCode::kOutOfMemory) << full.what();
        EXPECT_EQ(fake_->counters().device_bytes_now, used);
        options.device_bytes = 0;
        const FeatureStore store = FeatureStore::open(engine_, path_, options);
        const Ids ids{1, 2, 3, 700};
        const Memory out = gpu_memory(ids.size() * 512);
        fake_->fail("cuMemHostRegister", 1, device::cuda::CUDA_ERROR_OUT_OF_MEMORY);
        EXPECT_THAT(error_of([&] { store.gather(0, ids, out); }).what(), HasSubstr("pinned"));
        fake_->fail("cuLaunchKernel", 1, device::cuda::CUDA_ERROR_LAUNCH_FAILED);
        EXPECT_THAT(error_of([&] { store.gather(0, ids, out); }).what(),
                    HasSubstr("cuLaunchKernel"));
        store.gather(0, ids, out);
        EXPECT_TRUE(has_rows(out, 0, ids));
        EXPECT_EQ(store.stats().rows_hit, 3U);

        Bytes host(out.bytes);
        const auto refused = [&](Memory memory, const FeatureGatherOptions& more = {}) {
            const Error error = error_of([&] { store.gather(0, ids, memory, more); });
            EXPECT_EQ(error.reason(), ErrorCode::kInvalidArgument) << error.what();
            return std::string(error.what());
        };
        refused({host.data(), host.size(), MemoryKind::kDevice, 0});
        refused({out.data, out.bytes, MemoryKind::kDevice, 3});
        const Memory small = gpu_memory(out.bytes - 512);
        refused({small.data, out.bytes, MemoryKind::kDevice, 0});
        EXPECT_THAT(refused(Memory(host), {.stream = StreamHandle{0, 0}}), HasSubstr("stream"));
        EXPECT_THAT(refused(out, {.stream = StreamHandle{0, 1}}), HasSubstr("GPU 1"));
        refused(out, {.stream = StreamHandle{0x1234'5670, 0}});
        store.gather(0, ids, out);
        EXPECT_TRUE(has_rows(out, 0, ids));
    }
    engine_.reset();
    EXPECT_LE(fake_->counters().pinned_bytes_now, pinned + engine::SmallCopy::kBytes)
        << "something stays pinned, other than the buffer of small copies";
}

TEST_F(DeviceGathers, AChildOfAForkGathersIntoHostMemory) {
    FeatureStoreOptions options{.ram_bytes = 100'000, .hot = {{"wide", {1, 2, 3}}}};
    options.device_bytes = 100'000;
    const FeatureStore store = FeatureStore::open(engine_, path_, options);
    const Ids ids{1, 2, 800};
    const Memory out = gpu_memory(ids.size() * 512);
    FeatureGather before = store.gather_async(std::vector<FeatureRequest>{{0, ids, out}});
    const pid_t child = ::fork();
    if (child == 0) {
        Bytes host(out.bytes);
        store.hint(0, ids);
        store.gather(0, ids, host);
        const Error error = error_of([&] { store.gather(0, ids, out); });
        static_cast<void>(store.stats());
        ::_exit(host == rows_of(0, ids) && error.reason() == ErrorCode::kUnsupported ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    before.wait();
    EXPECT_TRUE(has_rows(out, 0, ids));
}

TEST_F(DeviceGathers, DISABLED_OnTwoGpus) {
    FeatureStoreOptions options{.ram_bytes = 100'000, .hot = {{"wide", {1, 2, 3}}}};
    options.device_bytes = 400'000;
    const FeatureStore store = FeatureStore::open(engine_, path_, options);
    std::mt19937_64 random(9);
    const Ids ids = random_ids(random, 0, 200);
    const Memory on_first = gpu_memory(ids.size() * 512);
    const Memory on_second{
        reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(device_bytes(on_first.bytes, 1))),
        on_first.bytes, MemoryKind::kDevice, 1};
    const std::vector<FeatureRequest> both{{0, ids, on_first}, {0, ids, on_second}};
    for (int round = 0; round < 3; ++round) {
        store.gather(both);
        ASSERT_TRUE(has_rows(on_first, 0, ids));
        ASSERT_TRUE(has_rows(on_second, 0, ids));
    }
    EXPECT_GT(store.stats().rows_on_gpu, 0U);
    EXPECT_EQ(error_of([&] {
                  store.gather(both, {.stream = StreamHandle{0, 0}});
              }).reason(),
              ErrorCode::kInvalidArgument);
}

// A GPU that fails for good is an error of each gather into its memory, and of no other.
TEST_F(DeviceGathers, DISABLED_ABrokenGpuIsAnError) {
    const FeatureStore store = FeatureStore::open(engine_, path_, {.device_bytes = 400'000});
    const Ids ids{1, 2, 3};
    const Memory out = gpu_memory(ids.size() * 512);
    store.gather(0, ids, out);
    const auto own = stream();
    Gate gate(own);
    FeatureGather gather =
        store.gather_async(std::vector<FeatureRequest>{{0, ids, out}}, {.stream = handle(own)});
    fake_->set_broken(device::cuda::CUDA_ERROR_ECC_UNCORRECTABLE);
    gate.open();
    EXPECT_THROW(store.gather(0, ids, out), Error);
    Bytes host(out.bytes);
    store.gather(0, ids, host);
    EXPECT_TRUE(host == rows_of(0, ids));
}

TEST(DeviceGathersAlone, Run) {
    EXPECT_TRUE(device::runs_alone("DeviceGathers.DISABLED_OnTwoGpus", {"FAKE_GPU_DEVICES=2"}));
    EXPECT_TRUE(device::runs_alone("DeviceGathers.DISABLED_ABrokenGpuIsAnError", {}));
}

}  // namespace
}  // namespace penstock::features
