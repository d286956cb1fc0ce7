// SPDX-License-Identifier: Apache-2.0
#include "api/options.hpp"

#include "api/option_table.hpp"
#include "base/environment.hpp"
#include "base/text/units.hpp"
#include "engine/aio/aio_backend.hpp"
#include "engine/posix/posix_backend.hpp"
#include "engine/uring/uring_backend.hpp"

#include <penstock/engine.hpp>
#include <penstock/memory.hpp>

#include <algorithm>
#include <string>

namespace penstock::api {

namespace {

// Memory for slots: about as much as is in flight, because each block of it may need one.
constexpr std::uint32_t kSlotsMax = 32;

// Each core copies some 5 GB/s out of the page cache. More than 8 were not faster on 16 cores with
// as much in flight as the default: 40 GB/s.
constexpr std::uint32_t kCopyThreadsLeast = 2;
constexpr std::uint32_t kCopyThreadsMost = 8;

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

std::string variable_of(const char* option) {
    std::string variable = option;
    std::transform(variable.begin(), variable.end(), variable.begin(),
                   [](char c) { return c == '_' ? c : static_cast<char>(c - 'a' + 'A'); });
    return variable;
}

base::Result<void> take(const WordOption& option, EngineOptions& options) {
    const std::string variable = variable_of(option.name);
    const auto word = base::environment_text(variable.c_str());
    if (word && !option.set(options, *word)) {
        return refused("environment variable PENSTOCK_" + variable, "'" + *word + "'",
                       option.allowed);
    }
    return {};
}

base::Result<void> take(const Option& option, EngineOptions& options) {
    const std::string variable = variable_of(option.name);
    const auto text = base::environment_text(variable.c_str());
    if (!text) {
        return {};
    }
    const auto value = base::parse_bytes(*text);
    if (!value || !option.takes(*value)) {
        return refused("environment variable PENSTOCK_" + variable, "'" + *text + "'",
                       option.allowed());
    }
    option.set(options, *value);
    return {};
}

}  // namespace

base::Result<engine::CoreOptions> core_options(const EngineOptions& options) {
    if (options.backend > BackendKind::kPosix) {
        return refused("backend", std::to_string(static_cast<unsigned>(options.backend)),
                       "kAuto, kUring, kAio or kPosix");
    }
    if (options.cache > CachePolicy::kRequired) {
        return refused("cache", std::to_string(static_cast<unsigned>(options.cache)),
                       "kAuto, kCached, kDirect or kRequired");
    }
    if (options.gpu_path > GpuPath::kCuFile) {
        return refused("gpu_path", std::to_string(static_cast<unsigned>(options.gpu_path)),
                       "kAuto, kBounce or kCuFile");
    }
    for (const TunedGpuPath& pair : options.tuned_gpu_paths) {
        if (pair.path != GpuPath::kBounce && pair.path != GpuPath::kCuFile) {
            return refused("tuned_gpu_paths", text_of({pair}), "kBounce or kCuFile for each pair");
        }
    }
    for (const Option& option : kOptions) {
        if (const std::uint64_t value = option.get(options); !option.takes(value)) {
            return refused(option.name, std::to_string(value), option.allowed());
        }
    }

    engine::CoreOptions core;
    core.domain.channels = options.channels;
    core.domain.copy_threads =
        options.copy_threads != 0
            ? options.copy_threads
            : std::clamp(usable_processors(), kCopyThreadsLeast, kCopyThreadsMost);
    engine::ChannelOptions& channel = core.domain.channel;
    channel.depth = options.queue_depth;
    channel.block_bytes = options.block_bytes;
    channel.in_flight_bytes = options.in_flight_bytes;
    channel.background_bytes = options.background_bytes;
    channel.gap_bytes = options.gap_bytes;
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
    core.cache = options.cache;
    return core;
}

base::Result<EngineOptions> options_from_environment() {
    EngineOptions options;
    for (const WordOption& option : kWordOptions) {
        PENSTOCK_CHECK(take(option, options));
    }
    for (const Option& option : kOptions) {
        PENSTOCK_CHECK(take(option, options));
    }
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
