// SPDX-License-Identifier: Apache-2.0
// What every test of behaviour stands on: an engine on each backend in turn, a folder on ext4 (loop
// mounted over memory where that can be had, else in the folder for temporary files), and memory
// that knows which of its bytes may change.
#pragma once

#include "suite/fake_driver.hpp"
#include "support/error_of.hpp"
#include "support/test_engine.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace penstock::suite {

using support::EngineKind;
using support::error_of;
using support::FakeSetup;
using support::get_bytes;
using support::pattern;
using support::put_bytes;
using support::request_of;
using support::TestEngine;
using support::TransferPtr;

/// A folder for this process, made before the first thread of an engine.
[[nodiscard]] const std::string& scratch_folder();

/// Memory that a test hands out piece by piece, with gaps at odd places between the pieces. What
/// was read into it is told by expect(); check() finds every byte that changed without that.
class Arena {
public:
    explicit Arena(std::size_t bytes, std::uint64_t seed = 1)
        : memory_(pattern(bytes, seed)), expected_(memory_) {}
    /// Memory of a GPU: its pieces are to be told by host_of().
    Arena(std::size_t bytes, std::uint64_t seed, std::int32_t gpu);

    /// `align` of the address; the piece before ends at least `gap` bytes before it.
    [[nodiscard]] std::span<std::byte> take(std::size_t bytes, std::size_t align = 1,
                                            std::size_t gap = 64);
    /// The same as memory of the place where the arena is.
    [[nodiscard]] Memory take_memory(std::size_t bytes, std::size_t align = 1,
                                     std::size_t gap = 64);
    /// The host has there what the arena was made with at such an address.
    [[nodiscard]] const std::byte* host_of(const Memory& memory) const;
    /// These bytes of a piece are to hold `data`.
    void expect(const std::byte* at, std::span<const std::byte> data);
    /// Anything goes here from now on.
    void forget(std::span<const std::byte> piece);
    /// "" or the first byte that is not as it should be.
    [[nodiscard]] std::string check() const;

private:
    std::vector<std::byte> memory_;
    std::vector<std::byte> expected_;
    std::unique_ptr<DeviceBytes> device_;
    std::size_t used_ = 0;
};

class EveryBackend : public ::testing::TestWithParam<EngineKind> {
protected:
    /// Skips by name where this machine refuses the backend.
    void SetUp() override;
    void TearDown() override;

    [[nodiscard]] bool fake() const { return GetParam() == EngineKind::kFake; }
    /// Another engine than engine(); on the fake one a disk of its own.
    [[nodiscard]] std::unique_ptr<TestEngine> make(EngineOptions options = {},
                                                   const FakeSetup& setup = {}) const {
        return TestEngine::make(GetParam(), options, setup);
    }
    /// Makes engine() with other options; before its first use.
    void use(EngineOptions options, const FakeSetup& setup = {}) { engine_ = make(options, setup); }
    [[nodiscard]] TestEngine& engine() const { return *engine_; }

    [[nodiscard]] std::string path(const std::string& name) const {
        return fake() ? "/" + name : folder_ + "/" + name;
    }
    /// The page cache has bytes that were written without the engine: the forced backends read them
    /// from the device all the same, the best of them from where they are.
    [[nodiscard]] CachePolicy policy() const {
        return fake() || GetParam() == EngineKind::kAuto ? CachePolicy::kAuto
                                                         : CachePolicy::kDirect;
    }
    [[nodiscard]] File open(const std::string& name, bool truncate = false) const {
        return engine_->files().open(path(name), {.access = Access::kReadWrite,
                                                  .create = true,
                                                  .truncate = truncate,
                                                  .cache = policy()});
    }
    /// An open file with these bytes in it.
    [[nodiscard]] File with_bytes(const std::string& name, std::span<const std::byte> data) const {
        File file = open(name, true);
        put_bytes(file, 0, data);
        return file;
    }

private:
    std::string folder_;
    std::unique_ptr<TestEngine> engine_;
};

[[nodiscard]] inline auto every_kind() {
    return ::testing::Values(EngineKind::kUring, EngineKind::kAio, EngineKind::kPosix,
                             EngineKind::kAuto, EngineKind::kFake);
}
[[nodiscard]] inline auto kernel_kinds() {
    return ::testing::Values(EngineKind::kUring, EngineKind::kAio, EngineKind::kPosix,
                             EngineKind::kAuto);
}
[[nodiscard]] inline std::string kind_name(const ::testing::TestParamInfo<EngineKind>& info) {
    return support::name_of(info.param);
}

}  // namespace penstock::suite
