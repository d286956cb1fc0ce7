// SPDX-License-Identifier: Apache-2.0
// Copies between the host and GPUs, and checkpoints of memory of GPUs through the public C++ API.
#include "device/cuda/context.hpp"
#include "device/fake_gpu.hpp"
#include "support/temp_folder.hpp"

#include <penstock/checkpoint.hpp>
#include <penstock/engine.hpp>
#include <penstock/gpu.hpp>
#include <penstock/state_file.hpp>

#include <dlfcn.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace penstock::device {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

class GpuCheckpoints : public OnFakeGpu {
protected:
    [[nodiscard]] Bytes random_bytes(std::uint64_t bytes) {
        Bytes made(bytes);
        for (std::byte& byte : made) {
            byte = static_cast<std::byte>(random_());
        }
        return made;
    }
    [[nodiscard]] Memory gpu_memory(std::uint64_t bytes, std::int32_t gpu = 0) {
        return device_memory(
            reinterpret_cast<void*>(static_cast<std::uintptr_t>(device_bytes(bytes, gpu))), bytes);
    }
    [[nodiscard]] Memory on_gpu(const Bytes& bytes, std::int32_t gpu = 0) {
        const Memory made = gpu_memory(bytes.size(), gpu);
        put(reinterpret_cast<std::uintptr_t>(made.data), bytes);
        return made;
    }
    [[nodiscard]] Bytes look(const Memory& memory) {
        return OnFakeGpu::look(reinterpret_cast<std::uintptr_t>(memory.data), memory.bytes);
    }
    [[nodiscard]] static StateTensor tensor(const std::string& name, ConstMemory data,
                                            std::vector<std::uint64_t> shape = {}) {
        if (shape.empty()) {
            shape = {data.bytes};
        }
        return {.name = name, .dtype = "U8", .shape = std::move(shape), .data = data};
    }
    [[nodiscard]] CheckpointStore store(const StoreOptions& options = {}) {
        return {engine_, FileSystem::local(), {folder_.path() + "/store"}, options};
    }
    template <typename Call>
    [[nodiscard]] static std::string error_of(Call call, ErrorCode expected) {
        try {
            call();
        } catch (const Error& error) {
            EXPECT_EQ(error.reason(), expected) << error.what();
            return error.what();
        }
        ADD_FAILURE() << "no error";
        return {};
    }

    support::TempFolder folder_;
    std::shared_ptr<Engine> engine_ = std::make_shared<Engine>();
    std::mt19937 random_{11};
};

TEST_F(GpuCheckpoints, CopiesGoBothWaysAndPinnedOnesWithoutTheCaller) {
    const Bytes data = random_bytes(3'000'001);
    Bytes block(data.size());
    const PinnedMemory pinned(block, 0);
    EXPECT_EQ(pinned.size(), block.size());
    const Memory there = gpu_memory(data.size());
    Bytes host(10);
    const std::array in{MemoryCopy{there, std::span(data)},
                        MemoryCopy{std::span(host), std::span(data).first(10)}};
    copy_memory(in);
    fake_->reset_counters();
    const MemoryCopy out{std::span(block), there};
    copy_memory({&out, 1});
    EXPECT_EQ(block, data);
    EXPECT_TRUE(std::equal(host.begin(), host.end(), data.begin()));
    EXPECT_EQ(fake_->counters().unpinned_async_copies, 0U);
    EXPECT_EQ(fake_->counters().synchronizations, 0U);
    EXPECT_EQ(fake_->counters().streams_made, 0U);  // they are kept from call to call
}

TEST_F(GpuCheckpoints, CopiesAreRefusedBeforeAnyIsMade) {
    Bytes host(64, std::byte{1});
    const Memory there = on_gpu(Bytes(64, std::byte{2}));
    const auto refused = [&](const MemoryCopy& wrong, ErrorCode why) {
        const std::array copies{MemoryCopy{std::span(host), there}, wrong};
        return error_of([&] { copy_memory(copies); }, why);
    };
    EXPECT_THAT(refused({there, there}, ErrorCode::kUnsupported), HasSubstr("one has to be the"));
    EXPECT_THAT(refused({there, std::span(host).first(3)}, ErrorCode::kInvalidArgument),
                HasSubstr("as many on both sides"));
    EXPECT_THAT(refused({{host.data(), 64, MemoryKind::kDevice, 0}, std::span(host)},
                        ErrorCode::kInvalidArgument),
                HasSubstr("no memory of a GPU"));
    EXPECT_EQ(host, Bytes(64, std::byte{1}));
    fake_->fail_copy(1, cuda::CUDA_ERROR_ILLEGAL_ADDRESS);
    const MemoryCopy sound{std::span(host), there};
    EXPECT_THAT(error_of(
                    [&] {
                        copy_memory({&sound, 1});
                    },
                    ErrorCode::kSystem),
                HasSubstr("GPU 0"));
}

TEST_F(GpuCheckpoints, SavesTheBytesThatTheHostWouldHave) {
    const Bytes large = random_bytes(5'000'003);
    const Bytes small = random_bytes(700);
    const State host{.tensors = {tensor("large", std::span(large)),
                                 tensor("small", std::span(small)),
                                 tensor("here", std::span(small))}};
    const State gpu{.tensors = {tensor("large", on_gpu(large)), tensor("small", on_gpu(small)),
                                tensor("here", std::span(small))}};
    const std::string path = folder_.path() + "/a";
    for (const char* suffix : {".safetensors", ".pt"}) {
        save_file(engine_, path + suffix, gpu);
        const LoadedState found = load_file(engine_, path + suffix);
        for (const StateTensor& expected : host.tensors) {  // a file has an order of its own
            const auto same =
                std::ranges::find(found.state.tensors, expected.name, &StateTensor::name);
            ASSERT_NE(same, found.state.tensors.end()) << expected.name;
            EXPECT_TRUE(std::ranges::equal(same->data.span(), expected.data.span()))
                << expected.name << suffix;
        }
    }
    CheckpointStore saves = store({.shard_bytes = 1 << 20});
    saves.save(gpu, {.step = 1});
    const CheckpointInfo same = saves.save(host, {.step = 2});  // so the sums are the host's
    EXPECT_EQ(same.written_bytes, 0U);
    EXPECT_TRUE(saves.open(same.generation).verify().empty());
}

TEST_F(GpuCheckpoints, ReadsStraightToAGpuAndAnyBox) {
    const Bytes data = random_bytes(3000 * 900);
    save_file(engine_, folder_.path() + "/a.safetensors",
              {.tensors = {tensor("x", std::span(data), {3000, 900})}});
    CheckpointStore saves = store();
    const CheckpointInfo info =
        saves.save({.tensors = {tensor("x", std::span(data), {3000, 900})}});
    Checkpoint checkpoint = saves.open(info.generation);
    StateFile file(engine_, folder_.path() + "/a.safetensors");
    using Box = std::pair<std::vector<std::uint64_t>, std::vector<std::uint64_t>>;
    for (const auto& [begin, end] :
         {Box{{}, {}}, Box{{17, 0}, {2900, 900}}, Box{{5, 3}, {2005, 40}}, Box{{7, 1}, {8, 2}}}) {
        const std::uint64_t rows = begin.empty() ? 3000 : end[0] - begin[0];
        const std::uint64_t columns = begin.empty() ? 900 : end[1] - begin[1];
        Bytes expected;
        for (std::uint64_t row = 0; row < rows; ++row) {
            const auto first =
                data.begin() + static_cast<std::ptrdiff_t>(
                                   begin.empty() ? row * 900 : (begin[0] + row) * 900 + begin[1]);
            expected.insert(expected.end(), first, first + static_cast<std::ptrdiff_t>(columns));
        }
        const Memory into = gpu_memory(rows * columns);
        const TensorRead wanted{.name = "x", .into = into, .begin = begin, .end = end};
        checkpoint.read({&wanted, 1});
        EXPECT_EQ(look(into), expected);
        const Memory again = gpu_memory(rows * columns);
        const TensorRead same{.name = "x", .into = again, .begin = begin, .end = end};
        file.read({&same, 1});
        EXPECT_EQ(look(again), expected);
    }
    const TensorRead strided{
        .name = "x", .into = gpu_memory(3000 * 900), .strides_bytes = {1, 3000}};
    EXPECT_THAT(error_of(
                    [&] {
                        checkpoint.read({&strided, 1});
                    },
                    ErrorCode::kUnsupported),
                HasSubstr("strides"));
}

// A stream of the caller's is busy with the last step: the copy that save_async() makes comes
// after.
TEST_F(GpuCheckpoints, TheCopyOfASaveComesAfterTheCallersStream) {
    const Bytes before(1 << 20, std::byte{1});
    const Bytes after(1 << 20, std::byte{2});
    const Memory there = on_gpu(before);
    const Current current(*driver_, primary_context(*driver_, 0).value());
    cuda::CUstream stream = nullptr;
    ASSERT_EQ(driver_->cuStreamCreate(&stream, cuda::CU_STREAM_NON_BLOCKING), cuda::CUDA_SUCCESS);
    std::atomic<bool> busy{true};
    using Launch = cuda::CUresult(cuda::CUstream, void (*)(void*), void*);
    void* const library = ::dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY);
    auto* const launch = reinterpret_cast<Launch*>(::dlsym(library, "cuLaunchHostFunc"));
    ASSERT_EQ(
        launch(
            stream, [](void* flag) { static_cast<std::atomic<bool>*>(flag)->wait(true); }, &busy),
        cuda::CUDA_SUCCESS);
    CheckpointStore saves = store();
    std::thread step([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        put(reinterpret_cast<std::uintptr_t>(there.data), after);
        busy.store(false);
        busy.notify_all();
    });
    const SaveOptions options{
        .streams = {{.handle = reinterpret_cast<std::uintptr_t>(stream), .device = 0}}};
    const PendingSave pending = saves.save_async({.tensors = {tensor("x", there)}}, options);
    step.join();
    put(reinterpret_cast<std::uintptr_t>(there.data), before);
    Bytes found(after.size());
    const TensorRead wanted{.name = "x", .into = std::span(found)};
    saves.open(pending.result().generation).read({&wanted, 1});
    EXPECT_EQ(found, after);
}

TEST_F(GpuCheckpoints, TheBudgetCountsThePinnedCopyWhichIsKept) {
    const Bytes data = random_bytes(3 << 20);
    CheckpointStore saves = store({.host_memory_bytes = 8 << 20});
    const State state{.tensors = {tensor("x", on_gpu(data))}};
    saves.save_async(state).result();
    const std::uint64_t pinned = fake_->counters().pinned_bytes_now;
    EXPECT_GE(pinned, data.size());
    fake_->reset_counters();
    saves.save_async(state, {.step = 1}).result();
    EXPECT_EQ(fake_->counters().pinned_bytes_now, pinned);
    EXPECT_EQ(fake_->counters().unpinned_async_copies, 0U);
    // Memory that cannot be pinned is copied to all the same, and the save says so.
    CheckpointStore other(engine_, FileSystem::local(), {folder_.path() + "/other"});
    fake_->fail("cuMemHostRegister", 1, cuda::CUDA_ERROR_OUT_OF_MEMORY, 1000);
    const PendingSave slow = other.save_async(state);
    EXPECT_THAT(slow.note(), HasSubstr("slower"));
    EXPECT_EQ(slow.result().tensor_bytes, data.size());
    // More than the budget is written from where it is, while the call waits.
    CheckpointStore tight = CheckpointStore(
        engine_, FileSystem::local(), {folder_.path() + "/tight"}, {.host_memory_bytes = 2 << 20});
    fake_->calm();
    const PendingSave waited = tight.save_async(state);
    EXPECT_TRUE(waited.done());
    EXPECT_THAT(waited.note(), HasSubstr("host_memory"));
    EXPECT_TRUE(tight.open(waited.result().generation).verify().empty());
}

TEST_F(GpuCheckpoints, MemoryThatWasFreedIsRefusedByItsName) {
    Memory gone = gpu_memory(4096);
    gone.data += std::uint64_t{1} << 40;
    const State state{.tensors = {tensor("layer.weight", gone)}};
    CheckpointStore saves = store();
    EXPECT_THAT(error_of([&] { saves.save(state); }, ErrorCode::kInvalidArgument),
                HasSubstr("layer.weight"));
    EXPECT_THAT(
        error_of([&] { static_cast<void>(saves.save_async(state)); }, ErrorCode::kInvalidArgument),
        HasSubstr("layer.weight"));
    EXPECT_THAT(error_of([&] { save_file(engine_, folder_.path() + "/a.pt", state); },
                         ErrorCode::kInvalidArgument),
                HasSubstr("layer.weight"));
    EXPECT_FALSE(std::filesystem::exists(folder_.path() + "/a.pt"));
    EXPECT_FALSE(saves.latest().has_value());
}

}  // namespace
}  // namespace penstock::device
