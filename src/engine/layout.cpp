// SPDX-License-Identifier: Apache-2.0
#include "engine/layout.hpp"

#include "base/align.hpp"
#include "engine/depth_limit.hpp"

#include <algorithm>
#include <span>

namespace penstock::engine {

namespace {

// The first extent of a file from `file` on; files do not go back in the list.
std::uint64_t first_of(const Transfer& transfer, std::uint32_t file) {
    std::uint64_t low = 0;
    std::uint64_t high = transfer.extents.count();
    while (low < high) {
        const std::uint64_t middle = low + (high - low) / 2;
        if (transfer.extents[middle].file < file) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

// The range of the extents of a window's files, possibly with others between them.
ExtentRange extents_of(const Window& window) {
    const Transfer& transfer = *window.transfer;
    if (transfer.paths.size() < 2 || !transfer.in_order) {
        return {0, transfer.extents.count()};
    }
    return {first_of(transfer, window.first_file), first_of(transfer, window.end_file)};
}

// Which of a window's files are of one domain.
class Group {
public:
    Group(const Window& window, std::uint32_t number) : window_(window), number_(number) {}
    [[nodiscard]] bool has(std::uint32_t file) const {
        const auto& groups = window_.transfer->groups;
        return file >= window_.first_file && file < window_.end_file &&
               (groups.empty() || groups[file] == number_);
    }

private:
    const Window& window_;
    const std::uint32_t number_;
};

std::uint64_t bytes_of(const Transfer& transfer, const Group& group, ExtentRange range) {
    std::uint64_t total = 0;
    for (std::uint64_t i = range.begin; i < range.end; ++i) {
        const Extent extent = transfer.extents[i];
        total += group.has(extent.file) ? extent.memory.bytes : 0;
    }
    return total;
}

// Walks one group's bytes and gives the position at which each further stretch begins.
class Cutter {
public:
    Cutter(const Transfer& transfer, const Group& group, ExtentRange range)
        : transfer_(transfer), group_(group), index_(range.begin), end_(range.end) {}

    // The first place at or after `target` bytes where a run may be cut. Targets only grow.
    Position at(std::uint64_t target) {
        for (; index_ < end_; ++index_) {
            const Extent extent = transfer_.extents[index_];
            if (!group_.has(extent.file)) {
                continue;
            }
            if (before_ + extent.memory.bytes > target) {
                const std::uint64_t edge = transfer_.files[extent.file]->geometry().edge_align();
                // Behind the target (the extents before had no such place) any place will do.
                const std::uint64_t offset =
                    extent.offset + (target > before_ ? target - before_ : 0);
                const std::uint64_t skip = base::align_up(offset, edge) - extent.offset;
                if (skip < extent.memory.bytes) {
                    return {index_, skip};
                }
                if (transfer_.op == Op::kRead) {  // those may be cut anywhere
                    before_ += extent.memory.bytes;
                    return {++index_, 0};
                }
            }
            before_ += extent.memory.bytes;
        }
        return {index_, 0};
    }

private:
    const Transfer& transfer_;
    const Group& group_;
    std::uint64_t index_;
    const std::uint64_t end_;
    std::uint64_t before_ = 0;
};

// A request moves whole blocks of the device, whatever its caller thinks a block is.
std::uint32_t rounded_block(const Window& window) {
    const Transfer& transfer = *window.transfer;
    if (transfer.block_bytes == 0) {
        return 0;
    }
    std::uint64_t align = base::kPageBytes;
    for (std::uint32_t i = window.first_file; i < window.end_file; ++i) {
        if (const auto& file = transfer.files[i]) {
            const os::Geometry& geometry = file->geometry();
            align = std::max({align, geometry.edge_align(), std::uint64_t{geometry.read_align},
                              std::uint64_t{geometry.memory_align}});
        }
    }
    return static_cast<std::uint32_t>(base::align_up(std::uint64_t{transfer.block_bytes}, align));
}

}  // namespace

ExtentRange extents_of_file(const Transfer& transfer, std::uint32_t file) {
    return {first_of(transfer, file), first_of(transfer, file + 1)};
}

void lay_out(Window& window) {
    // Parts that come to nothing give back what they took.
    struct Seats {
        std::span<Part> parts;
        ~Seats() {
            for (const Part& part : parts) {
                if (part.seat != nullptr) {
                    part.seat->users.fetch_sub(1, std::memory_order_release);
                }
            }
        }
    };
    Transfer& transfer = *window.transfer;
    const bool over_gaps = transfer.op == Op::kRead && transfer.extents.count() > 1;
    window.parts = {};
    window.parts_on_channels.clear();
    if (transfer.total_bytes == 0) {
        return;
    }
    std::size_t count = 0;
    for (Domain* domain : window.domains) {
        count += domain->channel_count();
    }
    // Adds the parts only when all of them are laid out: a thread that pokes a window looks at
    // them.
    std::vector<Part> parts(count);
    Seats seats{parts};
    const std::uint32_t block_bytes = rounded_block(window);
    const bool all = window.domains.size() == 1 && transfer.paths.size() < 2;
    const std::span<const std::uint32_t> groups =
        all ? std::span<const std::uint32_t>()
            : std::span(transfer.groups)
                  .subspan(window.first_file, window.end_file - window.first_file);
    const ExtentRange range = extents_of(window);
    std::size_t next = 0;
    for (std::uint32_t number = 0; number < window.domains.size(); ++number) {
        Domain& domain = *window.domains[number];
        const std::uint32_t channels = domain.channel_count();
        const Group group(window, number);
        const std::uint64_t bytes = channels > 1 ? bytes_of(transfer, group, range) : 0;
        Cutter cutter(transfer, group, range);
        Position begin{range.begin, 0};
        for (std::uint32_t c = 0; c < channels; ++c) {
            const Position stop =
                c + 1 == channels ? Position{range.end, 0} : cutter.at(bytes / channels * (c + 1));
            Part& part = parts[next++];
            part.transfer = &transfer;
            part.window = &window;
            part.channel = &domain.channel(c);
            part.block_bytes = block_bytes;
            part.seat = transfer.depth_limit ? &transfer.depth_limit->seat(*part.channel, channels)
                                             : nullptr;
            part.plan = Plan(transfer.extents, transfer.files, transfer.op, begin, stop, groups,
                             number, window.first_file);
            if (transfer.allow_short) {
                part.plan.allow_short();
            }
            if (transfer.small_write) {
                part.plan.write_through_cache();
            }
            if (transfer.devices != nullptr) {
                part.plan.expect_devices(part.channel->device_path());
            }
            part.consult_cache(part.channel->counters(), false);
            if (over_gaps) {
                part.plan.read_over_gaps(domain.gap_bytes());
            }
            begin = stop;
        }
    }
    window.parts_on_channels = std::move(parts);
    window.parts = window.parts_on_channels;
    seats.parts = {};
}

bool may_extend(const Transfer& transfer, std::uint64_t bytes_min) {
    if (transfer.op != Op::kWrite || transfer.total_bytes < bytes_min) {
        return false;
    }
    for (std::uint64_t i = 0; i < transfer.extents.count(); ++i) {
        const Extent extent = transfer.extents[i];
        if (extent.memory.bytes != 0 &&
            extent.offset + extent.memory.bytes > transfer.files[extent.file]->size_seen() &&
            !transfer.files[extent.file]->info().is_block_device) {
            return true;
        }
    }
    return false;
}

std::vector<FileRange> extending_runs(const Window& window, std::uint64_t bytes_min) {
    const Transfer& transfer = *window.transfer;
    std::vector<FileRange> runs;
    FileRange run;
    const auto close_run = [&] {
        if (run.end != run.begin && run.end - run.begin >= bytes_min &&
            run.end > transfer.files[run.file]->size_seen()) {
            runs.push_back(run);
        }
    };
    const ExtentRange range = extents_of(window);
    for (std::uint64_t i = range.begin; i < range.end; ++i) {
        const Extent extent = transfer.extents[i];
        if (extent.memory.bytes == 0 || extent.file < window.first_file ||
            extent.file >= window.end_file || !transfer.files[extent.file]) {
            continue;
        }
        if (extent.file != run.file || extent.offset != run.end) {
            close_run();
            run = {extent.file, extent.offset, extent.offset};
        }
        run.end += extent.memory.bytes;
    }
    close_run();
    return runs;
}

}  // namespace penstock::engine
