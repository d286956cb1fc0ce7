// SPDX-License-Identifier: Apache-2.0
// The options of the engine, in two tables, of numbers and of words: their names in the
// environment, in an options file and in Python, their allowed values, and their meaning. A new
// option is a member of EngineOptions and a row here.
#pragma once

#include "base/align.hpp"
#include "base/result.hpp"

#include <penstock/engine.hpp>

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <variant>

namespace penstock::api {

struct Option {
    const char* name;
    std::variant<std::uint32_t EngineOptions::*, std::uint64_t EngineOptions::*> member;
    std::uint64_t min;
    std::uint64_t max;
    std::uint64_t step;
    const char* unit;   ///< "bytes": sizes are also read as words ("4MiB")
    const char* about;  ///< the text for help

    [[nodiscard]] bool is_size() const { return std::string_view(unit) == "bytes"; }
    [[nodiscard]] std::uint64_t get(const EngineOptions& options) const {
        return std::visit([&](auto at) { return std::uint64_t{options.*at}; }, member);
    }
    /// Requires that takes(value) is true.
    void set(EngineOptions& options, std::uint64_t value) const {
        std::visit(
            [&](auto at) {
                options.*at = static_cast<std::remove_reference_t<decltype(options.*at)>>(value);
            },
            member);
    }
    [[nodiscard]] bool takes(std::uint64_t value) const {
        return value >= min && value <= max && value % step == 0;
    }
    /// The largest value of the member's type.
    [[nodiscard]] std::uint64_t member_max() const {
        return member.index() == 0 ? std::numeric_limits<std::uint32_t>::max()
                                   : std::numeric_limits<std::uint64_t>::max();
    }
    /// "1 to 4096", "a multiple of 64 KiB from 64 KiB to 1 GiB".
    [[nodiscard]] std::string allowed() const;
};

/// An option that is one of a few words, or a text.
struct WordOption {
    const char* name;
    const char* allowed;  ///< the words, quoted
    const char* about;
    std::string (*get)(const EngineOptions& options);
    /// False for another word.
    bool (*set)(EngineOptions& options, std::string_view word);
};

inline constexpr std::uint64_t kNoMost = std::numeric_limits<std::int64_t>::max();

inline constexpr std::array<Option, 9> kOptions{{
    // The kernel's largest request, less a block, limits a block.
    {"block_bytes", &EngineOptions::block_bytes, 64 * base::kKiB, base::kGiB, 64 * base::kKiB,
     "bytes", "of a request at most"},
    {"queue_depth", &EngineOptions::queue_depth, 1, 4096, 1, "requests",
     "at the device, a channel"},
    {"in_flight_bytes", &EngineOptions::in_flight_bytes, 4096, kNoMost, 1, "bytes",
     "at the device, a channel"},
    {"channels", &EngineOptions::channels, 1, 64, 1, "channels", "a device"},
    {"copy_threads", &EngineOptions::copy_threads, 0, 64, 1, "threads",
     "a device, for copies; 0: as many as processors, 2 to 8"},
    {"inline_bytes_max", &EngineOptions::inline_bytes_max, 0, kNoMost, 1, "bytes",
     "blocking transfers up to this run on the caller's thread"},
    {"transfers_max", &EngineOptions::transfers_max, 0, UINT32_MAX, 1, "transfers",
     "beyond it WouldBlock; 0: no limit"},
    {"background_bytes", &EngineOptions::background_bytes, 4096, kNoMost, 1, "bytes",
     "at the device for the background class"},
    {"gap_bytes", &EngineOptions::gap_bytes, 0, base::kGiB, 1, "bytes",
     "reads: small extents no further apart are one request; 0: only those that adjoin"},
}};

/// "<option>: got <got>; expected <expected>" (kInvalidArgument).
[[nodiscard]] base::Failure refused(std::string_view option, std::string_view got,
                                    std::string_view expected);

/// The words that cache_policy_named() accepts.
inline constexpr const char* kCachePoliciesAllowed = "'auto', 'cached', 'direct' or 'required'";

inline constexpr std::array<WordOption, 4> kWordOptions{{
    {"backend", "'auto', 'io_uring', 'libaio' or 'posix'",
     "'auto': 'io_uring', else 'libaio', else 'posix'",
     [](const EngineOptions& options) { return std::string(name_of(options.backend)); },
     [](EngineOptions& options, std::string_view word) {
         const auto kind = backend_named(word);
         options.backend = kind.value_or(options.backend);
         return kind.has_value();
     }},
    {"cache", kCachePoliciesAllowed,
     "the page cache for reads, where neither the call nor its file says",
     [](const EngineOptions& options) { return std::string(name_of(options.cache)); },
     [](EngineOptions& options, std::string_view word) {
         const auto policy = cache_policy_named(word);
         options.cache = policy.value_or(options.cache);
         return policy.has_value();
     }},
    {"gpu_path", "'auto', 'bounce' or 'cufile'",
     "memory of GPUs: 'auto': by cuFile where that is direct, else through the host",
     [](const EngineOptions& options) { return std::string(name_of(options.gpu_path)); },
     [](EngineOptions& options, std::string_view word) {
         const auto path = gpu_path_named(word);
         options.gpu_path = path.value_or(options.gpu_path);
         return path.has_value();
     }},
    {"tuned_gpu_paths", "pairs with commas between, each as '259:1 0000:3b:00.0 bounce'",
     "what gpu_path='auto' takes for a disk and a GPU, as `penstock tune --device` found it",
     [](const EngineOptions& options) { return text_of(options.tuned_gpu_paths); },
     [](EngineOptions& options, std::string_view word) {
         const auto paths = gpu_paths_in(word);
         options.tuned_gpu_paths = paths.value_or(options.tuned_gpu_paths);
         return paths.has_value();
     }},
}};

}  // namespace penstock::api
