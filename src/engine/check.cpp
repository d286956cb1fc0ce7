// SPDX-License-Identifier: Apache-2.0
#include "engine/check.hpp"

#include "base/align.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <vector>

namespace penstock::engine {

namespace {

// The largest offset that the kernel knows (loff_t).

base::Failure wrong(const TransferSpec& spec, const std::string& message,
                    const std::string& path = {}) {
    return base::fail(base::error(ErrorCode::kInvalidArgument,
                                  spec.op == Op::kRead ? "read" : "write", message, path));
}

// As most are: the message is looked for elsewhere.
bool is_open_for(const TransferSpec& spec) {
    const Access other = spec.op == Op::kRead ? Access::kWrite : Access::kRead;
    return std::all_of(spec.files.begin(), spec.files.end(), [&](const auto& file) {
        return file && !file->info().append && file->info().access != other;
    });
}

base::Result<void> check_access(const TransferSpec& spec) {
    for (const auto& file : spec.files) {
        if (!file) {
            return base::fail(base::error(ErrorCode::kClosed,
                                          spec.op == Op::kRead ? "read" : "write",
                                          "the file is not open; open it first"));
        }
        if (file->info().append) {
            return wrong(spec,
                         "the file is open for appending, where offsets mean nothing; use "
                         "File::append(), or open it with \"w\"",
                         file->info().path);
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

// As most are: the message is looked for elsewhere.
bool is_sound(const Extent& extent, std::size_t file_count) {
    return extent.file < file_count && extent.offset <= kOffsetMax &&
           extent.memory.bytes <= kOffsetMax - extent.offset &&
           (extent.memory.kind == MemoryKind::kHost ||
            (extent.memory.kind == MemoryKind::kDevice && extent.memory.device >= 0)) &&
           (extent.memory.data != nullptr || extent.memory.bytes == 0);
}

base::Failure unsound(const TransferSpec& spec, const Extent& extent, std::uint64_t index,
                      std::size_t file_count) {
    if (extent.file >= file_count) {
        return wrong(spec, fmt::format("extent {} names file {}, and there are {} files", index,
                                       extent.file, file_count));
    }
    if (extent.offset > kOffsetMax || extent.memory.bytes > kOffsetMax - extent.offset) {
        return wrong(spec, fmt::format("extent {} of {} bytes at offset {} ends past the largest "
                                       "offset there is ({})",
                                       index, extent.memory.bytes, extent.offset, kOffsetMax));
    }
    if (extent.memory.kind > MemoryKind::kDevice) {
        return wrong(spec,
                     fmt::format("extent {} has memory of kind {}, and there are host (0) and "
                                 "device (1)",
                                 index, static_cast<int>(extent.memory.kind)));
    }
    if (extent.memory.kind == MemoryKind::kDevice && extent.memory.device < 0) {
        return wrong(spec, fmt::format("extent {} has memory of device {}; devices count from 0",
                                       index, extent.memory.device));
    }
    return wrong(spec, fmt::format("extent {} of {} bytes has no memory (null pointer)", index,
                                   extent.memory.bytes));
}

// Requests of a transfer go in any order and at once, so of two extents that write one byte nobody
// could say which wins. Bytes that two paths or names lead to are not seen.
base::Result<void> check_overlap(const TransferSpec& spec) {
    std::vector<std::uint64_t> order;
    for (std::uint64_t i = 0; i < spec.extents.count(); ++i) {
        if (spec.extents[i].memory.bytes != 0) {
            order.push_back(i);
        }
    }
    std::sort(order.begin(), order.end(), [&](std::uint64_t a, std::uint64_t b) {
        const Extent left = spec.extents[a];
        const Extent right = spec.extents[b];
        return std::tie(left.file, left.offset, a) < std::tie(right.file, right.offset, b);
    });
    for (std::size_t i = 1; i < order.size(); ++i) {
        const Extent before = spec.extents[order[i - 1]];
        const Extent after = spec.extents[order[i]];
        if (before.file == after.file && after.offset < before.offset + before.memory.bytes) {
            const auto [first, second] = std::minmax(order[i - 1], order[i]);
            return wrong(
                spec,
                fmt::format("extents {} and {} both write byte {} of file {}, and which of them "
                            "comes last is not fixed; write each byte once, or make two writes",
                            first, second, after.offset, after.file));
        }
    }
    return {};
}

// Paths are opened with the policy, which checks them.
base::Result<void> check_direct(const TransferSpec& spec) {
    for (const auto& file : spec.files) {
        if (!file->geometry().direct) {
            return base::fail(
                os::not_direct(spec.op == Op::kRead ? "read" : "write", file->info()));
        }
    }
    return {};
}

}  // namespace

base::Result<CheckedTransfer> check_transfer(const TransferSpec& spec) {
    if (!is_open_for(spec)) {
        PENSTOCK_CHECK(check_access(spec));
    }
    const bool writes = spec.op == Op::kWrite;
    if (writes ? spec.options.allow_short : spec.options.sync) {
        return wrong(spec, writes ? "allow_short is for reads" : "sync is for writes");
    }
    if (!spec.paths.empty() && !spec.files.empty()) {
        return wrong(spec, "it has open files and paths as well; give it files or paths");
    }
    if (spec.options.priority > Priority::kBackground) {
        return wrong(spec, "there is no such priority; it takes urgent, normal or background");
    }
    if (spec.options.cache >= CachePolicy::kRequired) {
        if (spec.options.cache > CachePolicy::kRequired) {
            return wrong(spec,
                         "there is no such policy for the page cache; it takes auto, cached, "
                         "direct or required");
        }
        PENSTOCK_CHECK(check_direct(spec));
    }
    const std::size_t file_count = spec.files.size() + spec.paths.size();
    std::uint64_t total = 0;
    bool device_memory = false;
    bool too_many = false;
    bool ascending = true;  // as most lists are; of reads nobody asks
    std::uint32_t file = 0;
    std::uint64_t end = 0;
    for (std::uint64_t i = 0; i < spec.extents.count(); ++i) {
        const bool sound = spec.extents.with(i, [&](const Extent& extent) {
            if (writes && extent.memory.bytes != 0) {
                ascending = ascending &&
                            (extent.file > file || (extent.file == file && extent.offset >= end));
                file = std::max(file, extent.file);
                end = extent.offset + extent.memory.bytes;
            }
            device_memory |= extent.memory.kind != MemoryKind::kHost;
            too_many = __builtin_add_overflow(total, extent.memory.bytes, &total);
            return is_sound(extent, file_count);
        });
        if (!sound) {
            return unsound(spec, spec.extents[i], i, file_count);
        }
        if (too_many) {
            return wrong(spec, "the extents are longer together than 2^64 bytes");
        }
    }
    if (!ascending && !spec.options.allow_overlap) {
        PENSTOCK_CHECK(check_overlap(spec));
    }
    return CheckedTransfer{total, device_memory};
}

}  // namespace penstock::engine
