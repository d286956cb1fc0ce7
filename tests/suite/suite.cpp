// SPDX-License-Identifier: Apache-2.0
#include "suite/suite.hpp"

#include "support/loop_mount.hpp"
#include "support/same_bytes.hpp"
#include "support/temp_folder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <stdexcept>

namespace penstock::suite {

namespace {

struct Scratch {
    std::optional<support::LoopMount> mount;
    std::optional<support::TempFolder> folder;
    std::string path;
};
std::optional<Scratch> scratch;

// Mounted on the main thread before any test, taken down after the last.
class ScratchEnvironment final : public ::testing::Environment {
public:
    void SetUp() override {
        scratch.emplace();
        auto mount = support::LoopMount::make({.bytes = std::uint64_t{768} << 20});
        if (mount) {
            scratch->mount.emplace(std::move(*mount));
            scratch->path = scratch->mount->path();
        } else {
            scratch->folder.emplace();
            scratch->path = scratch->folder->path();
        }
    }
    void TearDown() override { scratch.reset(); }
};

[[maybe_unused]] ::testing::Environment* const environment =
    ::testing::AddGlobalTestEnvironment(new ScratchEnvironment);

}  // namespace

const std::string& scratch_folder() {
    return scratch->path;
}

std::span<std::byte> Arena::take(std::size_t bytes, std::size_t align, std::size_t gap) {
    used_ += gap;
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data() + used_);
    used_ += (align - address % align) % align;
    if (used_ + bytes > memory_.size()) {
        throw std::length_error("the arena is too small for this test");
    }
    const std::span<std::byte> piece(memory_.data() + used_, bytes);
    used_ += bytes;
    return piece;
}

Arena::Arena(std::size_t bytes, std::uint64_t seed, std::int32_t gpu) : Arena(bytes, seed) {
    device_ = std::make_unique<DeviceBytes>(gpu, memory_);
}

Memory Arena::take_memory(std::size_t bytes, std::size_t align, std::size_t gap) {
    const std::span<std::byte> piece = take(bytes, align, gap);
    if (!device_) {
        return piece;
    }
    return {device_->data() + (piece.data() - memory_.data()), bytes, MemoryKind::kDevice,
            device_->gpu()};
}

const std::byte* Arena::host_of(const Memory& memory) const {
    return device_ ? memory_.data() + (memory.data - device_->data()) : memory.data;
}

void Arena::expect(const std::byte* at, std::span<const std::byte> data) {
    if (!data.empty()) {
        std::memcpy(expected_.data() + (at - memory_.data()), data.data(), data.size());
    }
}

void Arena::forget(std::span<const std::byte> piece) {
    expect(piece.data(), piece);
}

std::string Arena::check() const {
    const std::vector<std::byte> found = device_ ? device_->look() : std::vector<std::byte>();
    const std::vector<std::byte>& now = device_ ? found : memory_;
    if (support::same_bytes(now, expected_)) {
        return "";
    }
    const auto differ = std::mismatch(now.begin(), now.end(), expected_.begin());
    return fmt::format("byte {} of the arena is {:#04x} and should be {:#04x}",
                       differ.first - now.begin(), std::to_integer<int>(*differ.first),
                       std::to_integer<int>(*differ.second));
}

void EveryBackend::SetUp() {
    const auto refused = error_of([this] {
        engine_ = make();
        return 0;
    });
    if (refused && refused->reason() == ErrorCode::kUnsupported) {
        GTEST_SKIP() << refused->what();
    }
    ASSERT_FALSE(refused) << refused->what();
    static int number = 0;
    folder_ = scratch_folder() + "/" + std::to_string(number++);
    std::filesystem::create_directory(folder_);
}

void EveryBackend::TearDown() {
    engine_.reset();
    if (!folder_.empty()) {
        std::filesystem::remove_all(folder_);
    }
}

}  // namespace penstock::suite
