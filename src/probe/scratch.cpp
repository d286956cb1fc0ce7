// SPDX-License-Identifier: Apache-2.0
#include "probe/scratch.hpp"

#include "base/clock.hpp"
#include "base/text/units.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

namespace penstock::probe {

namespace {

constexpr std::uint64_t kLeastBytes = std::uint64_t{64} << 20;  // on a slow disk
constexpr base::Nanos kFillNsMax = 5'000'000'000;
constexpr std::uint64_t kFillChunk = std::uint64_t{32} << 20;
constexpr std::uint64_t kSpaceLeft = std::uint64_t{64} << 20;  // left free for others

// "<command> <path>: " and the message.
Error error(ErrorCode code, int system_errno, const TargetRequest& request,
            const std::string& message) {
    return {code,
            system_errno,
            request.command,
            request.path,
            kNoOffset,
            fmt::format("{} {}: {}", request.command, request.path, message)};
}

void check_space(const TargetRequest& request, std::uint64_t bytes) {
    const Space space = FileSystem::any().space(request.path);
    if (space.free_bytes >= bytes + kSpaceLeft) {
        return;
    }
    std::string cure = "free some space, or name a folder on another disk";
    if (space.free_bytes >= kSpaceLeft + (1 << 20)) {
        cure += fmt::format(", or choose a smaller file: {} {}MiB", request.size_name,
                            (space.free_bytes - kSpaceLeft) >> 20);
    }
    throw error(ErrorCode::kSystem, ENOSPC, request,
                fmt::format("a scratch file of {} was to be made, and {} are free (64 MiB are left "
                            "to others); {}",
                            base::format_bytes(bytes), base::format_bytes(space.free_bytes), cure));
}

// Fills [0, bytes) and stops early when it takes too long, unless an exact size was requested.
std::uint64_t fill(File& file, std::uint64_t bytes, bool exact, Watch& watch) {
    MemoryPool pool;
    const Buffer buffer = pool.take(std::min(kFillChunk, bytes));
    fill_random(buffer.bytes(), static_cast<std::uint64_t>(::getpid()));
    Engine engine;
    const base::SteadyClock clock;
    const base::Nanos start = clock.now();
    std::uint64_t done = 0;
    while (done < bytes) {
        watch.check();
        const std::uint64_t count = std::min(buffer.size(), bytes - done);
        engine.write(file, buffer.bytes().first(count), done);
        done += count;
        const base::Nanos spent = clock.now() - start;
        watch.filled(file.path(), done, bytes, static_cast<double>(spent + 1) * 1e-9);
        if (!exact && spent > kFillNsMax && done >= kLeastBytes) {
            break;
        }
    }
    file.sync();
    return done;
}

Target make_scratch(const TargetRequest& request, Watch& watch) {
    const std::uint64_t wanted = request.size_bytes != 0
                                     ? request.size_bytes
                                     : std::max(kScratchBytes, 4 * request.block_bytes_max);
    check_space(request, wanted);
    Target target;
    const bool slash = request.path.ends_with('/');
    static std::atomic<std::uint64_t> number = 0;  // threads may measure at the same time
    target.path =
        fmt::format("{}{}penstock-{}-{}{}.tmp", request.path, slash ? "" : "/", request.command,
                    ::getpid(), request.removal ? "" : fmt::format("-{}", ++number));
    target.file = File(
        target.path,
        {.access = Access::kReadWrite, .create = true, .exclusive = true, .cache = request.cache});
    if (request.removal) {
        target.removal = request.removal(target.path);
        watch.check();  // a signal that came before `removal` was set would have left the file
    } else if (::unlink(target.path.c_str()) != 0) {
        const int code = errno;
        throw error(ErrorCode::kSystem, code, request,
                    fmt::format("the name of the scratch file {} cannot be removed: {}",
                                target.path, std::strerror(code)));
    }
    target.ours = true;
    target.bytes = fill(target.file, wanted, request.size_bytes != 0, watch);
    return target;
}

Target open_existing(const TargetRequest& request, const char* what) {
    if (!request.write_words.empty()) {
        throw error(ErrorCode::kInvalidArgument, 0, request,
                    fmt::format("{} was asked for on {} that {} did not make, and it would destroy "
                                "what is there; name a folder on the same disk instead, and {} "
                                "makes a scratch file in it",
                                request.write_words, what, request.command, request.command));
    }
    Target target;
    target.path = request.path;
    target.file = File(request.path, {.access = Access::kRead, .cache = request.cache});
    target.bytes = target.file.size();
    if (request.size_bytes != 0) {
        if (request.size_bytes > target.bytes) {
            throw error(ErrorCode::kInvalidArgument, 0, request,
                        fmt::format("{} {} was asked for, and {} has {} bytes", request.size_name,
                                    base::format_bytes(request.size_bytes), what, target.bytes));
        }
        target.bytes = request.size_bytes;
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

Target make_target(const TargetRequest& request, Watch& watch) {
    struct stat status {};
    if (::stat(request.path.c_str(), &status) != 0) {
        const int code = errno;
        throw error(ErrorCode::kSystem, code, request,
                    fmt::format("{}; name a folder, a file or a block device that is there",
                                std::strerror(code)));
    }
    if (S_ISDIR(status.st_mode)) {
        return make_scratch(request, watch);
    }
    if (S_ISREG(status.st_mode)) {
        return open_existing(request, "a file");
    }
    if (S_ISBLK(status.st_mode)) {
        return open_existing(request, "a block device");
    }
    throw error(ErrorCode::kInvalidArgument, 0, request,
                "this is no folder, file or block device; name one of these");
}

}  // namespace penstock::probe
