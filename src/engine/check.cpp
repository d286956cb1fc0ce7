// SPDX-License-Identifier: Apache-2.0
#include "engine/check.hpp"

#include "base/align.hpp"

#include <fmt/format.h>

namespace penstock::engine {

namespace {

// The largest offset that the kernel knows (loff_t).
constexpr std::uint64_t kOffsetMax = INT64_MAX;

base::Failure wrong(const TransferSpec& spec, const std::string& message,
                    const std::string& path = {}) {
    return base::fail(base::error(ErrorCode::kInvalidArgument,
                                  spec.op == Op::kRead ? "read" : "write", message, path));
}

base::Result<void> check_access(const TransferSpec& spec) {
    for (const auto& file : spec.files) {
        if (!file) {
            return base::fail(base::error(ErrorCode::kClosed,
                                          spec.op == Op::kRead ? "read" : "write",
                                          "the file is not open; open it first"));
        }
        const Access access = file->info().access;
        if (spec.op == Op::kRead && access == Access::kWrite) {
            return wrong(spec, "the file is open for writing only; open it with \"rw\"",
                         file->info().path);
        }
        if (spec.op == Op::kWrite && access == Access::kRead) {
            return wrong(spec, "the file is open for reading only; open it with \"w\" or \"rw\"",
                         file->info().path);
        }
    }
    return {};
}

base::Result<void> check_extent(const TransferSpec& spec, const Extent& extent, std::uint64_t index,
                                std::size_t file_count) {
    if (extent.file >= file_count) {
        return wrong(spec, fmt::format("extent {} names file {}, and there are {} files", index,
                                       extent.file, file_count));
    }
    const auto end = base::checked_add(extent.offset, extent.bytes);
    if (!end || *end > kOffsetMax) {
        return wrong(spec, fmt::format("extent {} of {} bytes at offset {} ends past the largest "
                                       "offset there is ({})",
                                       index, extent.bytes, extent.offset, kOffsetMax));
    }
    if (extent.memory == nullptr && extent.bytes != 0) {
        return wrong(spec, fmt::format("extent {} of {} bytes has no memory (null pointer)", index,
                                       extent.bytes));
    }
    return {};
}

}  // namespace

base::Result<void> check_transfer(const TransferSpec& spec) {
    PENSTOCK_CHECK(check_access(spec));
    if (spec.op == Op::kRead && spec.sync) {
        return wrong(spec, "sync is for writes");
    }
    if (spec.op == Op::kWrite && spec.allow_short) {
        return wrong(spec, "allow_short is for reads");
    }
    if (!spec.files.empty() && !spec.paths.empty()) {
        return wrong(spec, "it has open files and paths as well; give it files or paths");
    }
    if (spec.priority > Priority::kBackground) {
        return wrong(spec, "there is no such priority; it takes urgent, normal or background");
    }
    if (spec.direct > DirectIo::kOff) {
        return wrong(spec, "there is no such policy of direct I/O; it takes auto, required or off");
    }
    const std::size_t file_count = spec.files.size() + spec.paths.size();
    std::uint64_t total = 0;
    for (std::uint64_t i = 0; i < spec.extents.count(); ++i) {
        const Extent extent = spec.extents[i];
        PENSTOCK_CHECK(check_extent(spec, extent, i, file_count));
        const auto sum = base::checked_add(total, extent.bytes);
        if (!sum) {
            return wrong(spec, "the extents are longer together than 2^64 bytes");
        }
        total = *sum;
    }
    return {};
}

}  // namespace penstock::engine
