// SPDX-License-Identifier: Apache-2.0
// One small engine for tests of behaviour, whatever carries its requests: the public Engine on the
// kernel's backends, or the same core on a fake disk (with threads and a real clock). What it
// throws is penstock::Error in both cases.
#pragma once

#include "simulation/fake_disk.hpp"

#include <penstock/penstock.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

namespace penstock::support {

/// kAuto is the best of the kernel's with small blocking transfers inline; the others are forced.
enum class EngineKind : std::uint8_t { kUring, kAio, kPosix, kAuto, kFake };

[[nodiscard]] std::string name_of(EngineKind kind);
std::ostream& operator<<(std::ostream& out, EngineKind kind);

/// The disks of a fake engine; ignored by the others.
struct FakeSetup {
    std::uint32_t disks = 1;  ///< more than one: paths begin with the disk's number, "/1/file"
    simulation::DiskShape shape;
    simulation::DiskModel model;
    std::uint64_t seed = 1;
    bool inline_too = false;  ///< small blocking transfers on the caller's thread
};

/// penstock::Transfer as an interface. Dropping it unawaited lets the transfer go on.
class TestTransfer {
public:
    TestTransfer() = default;
    TestTransfer(const TestTransfer&) = delete;
    TestTransfer& operator=(const TestTransfer&) = delete;
    virtual ~TestTransfer() = default;
    virtual std::uint64_t wait() = 0;
    virtual std::optional<std::uint64_t> wait_for(std::chrono::nanoseconds timeout) = 0;
    [[nodiscard]] virtual bool done() const = 0;
    [[nodiscard]] virtual TransferStatus status() const = 0;
    virtual void cancel() = 0;
    virtual void set_priority(Priority priority) = 0;
    [[nodiscard]] virtual std::uint64_t extent_bytes(std::size_t index) const = 0;
    [[nodiscard]] virtual std::uint64_t total_bytes() const = 0;
    virtual void notify(int eventfd) = 0;
};
using TransferPtr = std::unique_ptr<TestTransfer>;

class TestEngine {
public:
    /// Throws penstock::Error (kUnsupported) where the machine refuses the backend.
    [[nodiscard]] static std::unique_ptr<TestEngine> make(EngineKind kind,
                                                          EngineOptions options = {},
                                                          const FakeSetup& fake = {});
    TestEngine() = default;
    TestEngine(const TestEngine&) = delete;
    TestEngine& operator=(const TestEngine&) = delete;
    virtual ~TestEngine() = default;

    [[nodiscard]] virtual FileSystem files() const = 0;
    [[nodiscard]] virtual TransferPtr submit(TransferRequest request) = 0;
    [[nodiscard]] virtual TransferPtr run(TransferRequest request) = 0;
    virtual bool drain(std::chrono::nanoseconds timeout = std::chrono::nanoseconds::max()) = 0;
    [[nodiscard]] virtual EngineStats stats() const = 0;
    [[nodiscard]] virtual EngineDescription describe() const = 0;
    /// The disk of a fake engine.
    [[nodiscard]] virtual simulation::FakeDisk& disk(std::size_t index = 0) = 0;

    // Blocking short forms.
    std::uint64_t read(const File& file, std::span<std::byte> into, std::uint64_t offset = 0,
                       const TransferOptions& options = {});
    std::uint64_t write(const File& file, std::span<const std::byte> data, std::uint64_t offset = 0,
                        const TransferOptions& options = {});
};

[[nodiscard]] TransferRequest request_of(bool write, const File& file, const void* memory,
                                         std::uint64_t bytes, std::uint64_t offset,
                                         const TransferOptions& options = {});
[[nodiscard]] TransferRequest request_of(bool write, const std::string& path, const void* memory,
                                         std::uint64_t bytes, std::uint64_t offset,
                                         const TransferOptions& options = {});

// The file behind the engine's back, through the page cache (on the fake disk: likewise). They
// throw penstock::Error.
void put_bytes(const File& file, std::uint64_t offset, std::span<const std::byte> data);
[[nodiscard]] std::vector<std::byte> get_bytes(const File& file, std::uint64_t offset,
                                               std::uint64_t bytes);

/// Bytes that differ from place to place and from seed to seed.
[[nodiscard]] std::vector<std::byte> pattern(std::uint64_t bytes, std::uint64_t seed);

}  // namespace penstock::support
