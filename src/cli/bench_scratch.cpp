// SPDX-License-Identifier: Apache-2.0
#include "cli/bench_scratch.hpp"

#include "base/clock.hpp"
#include "base/units.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

namespace penstock::cli {

namespace {

constexpr std::uint64_t kDefaultBytes = std::uint64_t{1} << 30;
constexpr std::uint64_t kLeastBytes = std::uint64_t{64} << 20;  // when the disk is slow
constexpr base::Nanos kFillNsMax = 5'000'000'000;
constexpr std::uint64_t kFillChunk = std::uint64_t{32} << 20;
constexpr std::uint64_t kSpaceLeft = std::uint64_t{64} << 20;  // what bench leaves to others

Error error(ErrorCode code, int system_errno, const std::string& path, const std::string& message) {
    return {code, system_errno, "bench", path, kNoOffset, message};
}

std::uint64_t largest_block(const BenchOptions& options) {
    std::uint64_t largest = 1 << 20;
    for (const std::uint64_t bytes : options.block_bytes) {
        largest = std::max(largest, bytes);
    }
    return largest;
}

void check_space(const std::string& folder, std::uint64_t bytes) {
    const Space space = FileSystem::local().space(folder);
    if (space.free_bytes >= bytes + kSpaceLeft) {
        return;
    }
    std::string cure = "free some space, or name a folder on another disk";
    if (space.free_bytes >= kSpaceLeft + (1 << 20)) {
        cure += fmt::format(", or choose a smaller file: --size {}MiB",
                            (space.free_bytes - kSpaceLeft) >> 20);
    }
    throw error(
        ErrorCode::kSystem, ENOSPC, folder,
        fmt::format("bench {}: a scratch file of {} was to be made, and {} are free (64 MiB "
                    "are left to others); {}",
                    folder, base::format_bytes(bytes), base::format_bytes(space.free_bytes), cure));
}

// Fills [0, bytes) and stops early when it takes too long and nobody asked for an exact size.
std::uint64_t fill(File& file, std::uint64_t bytes, bool exact, Progress& progress) {
    MemoryPool pool;
    const Buffer buffer = pool.take(std::min(kFillChunk, bytes));
    fill_random(buffer.bytes(), static_cast<std::uint64_t>(::getpid()));
    Engine engine;
    const base::SteadyClock clock;
    const base::Nanos start = clock.now();
    std::uint64_t done = 0;
    while (done < bytes) {
        check_interrupt();
        const std::uint64_t count = std::min(buffer.size(), bytes - done);
        engine.write(file, buffer.bytes().first(count), done);
        done += count;
        const base::Nanos spent = clock.now() - start;
        progress.show(fmt::format(
            "making the scratch file: {} of {}, {}", base::format_bytes(done),
            base::format_bytes(bytes),
            base::format_rate(static_cast<double>(done) * 1e9 / static_cast<double>(spent + 1))));
        if (!exact && spent > kFillNsMax && done >= kLeastBytes) {
            break;
        }
    }
    file.sync();
    return done;
}

Target make_scratch(const BenchOptions& options, Progress& progress) {
    const std::uint64_t wanted = options.size_bytes != 0
                                     ? options.size_bytes
                                     : std::max(kDefaultBytes, 4 * largest_block(options));
    check_space(options.path, wanted);
    Target target;
    const bool slash = options.path.ends_with('/');
    target.path =
        fmt::format("{}{}penstock-bench-{}.tmp", options.path, slash ? "" : "/", ::getpid());
    target.file = File(target.path, {.access = Access::kReadWrite,
                                     .create = true,
                                     .exclusive = true,
                                     .direct = options.direct});
    target.removal = std::make_unique<RemovedBySignal>(target.path);
    check_interrupt();  // a signal between the two lines above would have left the file
    target.ours = true;
    target.bytes = fill(target.file, wanted, options.size_bytes != 0, progress);
    return target;
}

void refuse_writes(const BenchOptions& options, const char* what) {
    for (const Rw rw : options.rws) {
        if (is_write(rw)) {
            throw error(
                ErrorCode::kInvalidArgument, 0, options.path,
                fmt::format("bench {}: --rw {} was asked for on {} that bench did not make, "
                            "and it would destroy what is there; name a folder on the same "
                            "disk instead, and bench makes a scratch file in it",
                            options.path, to_string(rw), what));
        }
    }
}

Target open_existing(const BenchOptions& options, const char* what) {
    refuse_writes(options, what);
    Target target;
    target.path = options.path;
    target.file = File(options.path, {.access = Access::kRead, .direct = options.direct});
    target.bytes = target.file.size();
    if (options.size_bytes != 0) {
        if (options.size_bytes > target.bytes) {
            throw error(ErrorCode::kInvalidArgument, 0, options.path,
                        fmt::format("bench {}: --size {} was asked for, and {} has {} bytes",
                                    options.path, options.size_word, what, target.bytes));
        }
        target.bytes = options.size_bytes;
    }
    return target;
}

}  // namespace

void fill_random(std::span<std::byte> bytes, std::uint64_t seed) {
    std::uint64_t state = seed * 2 + 1;
    std::size_t at = 0;
    while (at < bytes.size()) {
        // splitmix64
        std::uint64_t z = (state += 0x9e3779b97f4a7c15U);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
        z ^= z >> 31;
        const std::size_t count = std::min(sizeof z, bytes.size() - at);
        std::memcpy(bytes.data() + at, &z, count);
        at += count;
    }
}

Target make_target(const BenchOptions& options, Progress& progress) {
    struct stat status {};
    if (::stat(options.path.c_str(), &status) != 0) {
        const int code = errno;
        throw error(
            ErrorCode::kSystem, code, options.path,
            fmt::format("bench {}: {}; name a folder, a file or a block device that is there",
                        options.path, std::strerror(code)));
    }
    if (S_ISDIR(status.st_mode)) {
        return make_scratch(options, progress);
    }
    if (S_ISREG(status.st_mode)) {
        return open_existing(options, "a file");
    }
    if (S_ISBLK(status.st_mode)) {
        return open_existing(options, "a block device");
    }
    throw error(ErrorCode::kInvalidArgument, 0, options.path,
                fmt::format("bench {}: this is no folder, file or block device; name one of these",
                            options.path));
}

}  // namespace penstock::cli
