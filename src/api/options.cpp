// SPDX-License-Identifier: Apache-2.0
#include "api/options.hpp"

#include "base/align.hpp"
#include "base/environment.hpp"
#include "engine/aio/aio_backend.hpp"
#include "engine/posix/posix_backend.hpp"
#include "engine/uring/uring_backend.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace penstock::api {

namespace {

// The largest request that the kernel takes, less a block.
constexpr std::uint64_t kBlockBytesMax = std::uint64_t{1} << 30;
constexpr std::uint64_t kBlockBytesStep = 64 * base::kKiB;

// Memory for slots: about what is in flight, for each block of it may need one.
constexpr std::uint32_t kSlotsMax = 32;

base::Result<void> in_range(const char* name, std::uint64_t value, std::uint64_t min,
                            std::uint64_t max) {
    if (value >= min && value <= max) {
        return {};
    }
    return base::fail(base::error(
        ErrorCode::kInvalidArgument, "options",
        fmt::format("{} is {}; it takes a number from {} to {}", name, value, min, max)));
}

base::Result<BackendKind> backend_named(const std::string& name) {
    if (name == "auto") {
        return BackendKind::kAuto;
    }
    if (name == "uring" || name == "io_uring") {
        return BackendKind::kUring;
    }
    if (name == "aio" || name == "libaio") {
        return BackendKind::kAio;
    }
    if (name == "posix") {
        return BackendKind::kPosix;
    }
    return base::fail(base::error(
        ErrorCode::kInvalidArgument, "options",
        fmt::format(
            "the environment variable PENSTOCK_BACKEND is '{}'; it takes auto, uring, aio or "
            "posix",
            name)));
}

engine::BackendEntry uring_entry() {
    return {
        "io_uring",
        [](const engine::BackendOptions& options) { return engine::make_uring_backend(options); },
        true};
}

engine::BackendEntry aio_entry() {
    return {"libaio",
            [](const engine::BackendOptions& options) { return engine::make_aio_backend(options); },
            true};
}

engine::BackendEntry posix_entry() {
    return {"posix", [](const engine::BackendOptions& options) {
                return engine::make_posix_backend(options);
            }};
}

base::Result<void> is_step(const char* name, std::uint64_t block_bytes) {
    if (block_bytes % kBlockBytesStep == 0) {
        return {};
    }
    return base::fail(
        base::error(ErrorCode::kInvalidArgument, "options",
                    fmt::format("{} is {}; it takes a multiple of {} (such as 1MiB, which is "
                                "1048576; 1MB is 1000000)",
                                name, block_bytes, kBlockBytesStep)));
}

}  // namespace

base::Result<engine::CoreOptions> core_options(const EngineOptions& options) {
    if (options.backend > BackendKind::kPosix) {
        return base::fail(
            base::error(ErrorCode::kInvalidArgument, "options",
                        "there is no such backend; it takes kAuto, kUring, kAio and kPosix"));
    }
    PENSTOCK_CHECK(in_range("block_bytes", options.block_bytes, kBlockBytesStep, kBlockBytesMax));
    PENSTOCK_CHECK(is_step("block_bytes", options.block_bytes));
    PENSTOCK_CHECK(in_range("queue_depth", options.queue_depth, 1, 4096));
    PENSTOCK_CHECK(in_range("channels", options.channels, 1, 64));
    PENSTOCK_CHECK(in_range("copy_threads", options.copy_threads, 1, 64));
    PENSTOCK_CHECK(in_range("in_flight_bytes", options.in_flight_bytes, 4096, UINT64_MAX));
    PENSTOCK_CHECK(in_range("background_bytes", options.background_bytes, 4096, UINT64_MAX));

    engine::CoreOptions core;
    core.domain.channels = options.channels;
    core.domain.copy_threads = options.copy_threads;
    engine::ChannelOptions& channel = core.domain.channel;
    channel.depth = options.queue_depth;
    channel.block_bytes = options.block_bytes;
    channel.in_flight_bytes = options.in_flight_bytes;
    channel.background_bytes = options.background_bytes;
    channel.background_block_bytes = std::min(channel.background_block_bytes, options.block_bytes);
    channel.slots.large_bytes = options.block_bytes;
    channel.slots.large_count = static_cast<std::uint32_t>(
        std::clamp<std::uint64_t>(options.in_flight_bytes / options.block_bytes, 2, kSlotsMax));
    channel.slots.small_count = options.queue_depth;
    core.inline_bytes_max =
        options.backend == BackendKind::kAuto
            ? std::min<std::uint64_t>(options.inline_bytes_max, options.block_bytes)
            : 0;
    core.transfers_max = options.transfers_max;
    return core;
}

base::Result<EngineOptions> options_from_environment() {
    EngineOptions options;
    if (const auto name = base::environment_text("BACKEND")) {
        PENSTOCK_TRY(kind, backend_named(*name));
        options.backend = kind;
    }
    const auto read = [](const char* name, auto& value, std::uint64_t min,
                         std::uint64_t max) -> base::Result<void> {
        PENSTOCK_TRY(number, base::environment_bytes(name, value, min, max));
        value = static_cast<std::remove_reference_t<decltype(value)>>(number);
        return {};
    };
    PENSTOCK_CHECK(read("BLOCK_BYTES", options.block_bytes, kBlockBytesStep, kBlockBytesMax));
    PENSTOCK_CHECK(is_step("the environment variable PENSTOCK_BLOCK_BYTES", options.block_bytes));
    PENSTOCK_CHECK(read("QUEUE_DEPTH", options.queue_depth, 1, 4096));
    PENSTOCK_CHECK(read("IN_FLIGHT_BYTES", options.in_flight_bytes, 4096, INT64_MAX));
    PENSTOCK_CHECK(read("CHANNELS", options.channels, 1, 64));
    PENSTOCK_CHECK(read("COPY_THREADS", options.copy_threads, 1, 64));
    PENSTOCK_CHECK(read("INLINE_BYTES_MAX", options.inline_bytes_max, 0, INT64_MAX));
    PENSTOCK_CHECK(read("TRANSFERS_MAX", options.transfers_max, 0, UINT32_MAX));
    PENSTOCK_CHECK(read("BACKGROUND_BYTES", options.background_bytes, 4096, INT64_MAX));
    return options;
}

std::vector<engine::BackendEntry> backends_for(BackendKind kind) {
    switch (kind) {
        case BackendKind::kUring:
            return {uring_entry()};
        case BackendKind::kAio:
            return {aio_entry()};
        case BackendKind::kPosix:
            return {posix_entry()};
        case BackendKind::kAuto:
            break;
    }
    return {uring_entry(), aio_entry(), posix_entry()};
}

}  // namespace penstock::api
