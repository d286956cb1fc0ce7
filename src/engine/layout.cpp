// SPDX-License-Identifier: Apache-2.0
#include "engine/layout.hpp"

#include "base/align.hpp"
#include "engine/depth_limit.hpp"

#include <algorithm>

namespace penstock::engine {

namespace {

std::uint64_t bytes_of_group(const Transfer& transfer, std::uint32_t group) {
    std::uint64_t total = 0;
    for (std::uint64_t i = 0; i < transfer.extents.count(); ++i) {
        const Extent extent = transfer.extents[i];
        total += transfer.groups[extent.file] == group ? extent.bytes : 0;
    }
    return total;
}

// Walks one group's bytes and gives the position at which each further stretch begins.
class Cutter {
public:
    Cutter(const Transfer& transfer, std::uint32_t group) : transfer_(transfer), group_(group) {}

    // The first place at or behind `target` bytes where a run may be cut. Targets only grow.
    Position at(std::uint64_t target) {
        for (; index_ < transfer_.extents.count(); ++index_) {
            const Extent extent = transfer_.extents[index_];
            if (transfer_.groups[extent.file] != group_) {
                continue;
            }
            if (before_ + extent.bytes > target) {
                const std::uint64_t edge = transfer_.files[extent.file]->geometry().edge_align();
                // Behind the target (the extents before had no such place) any place will do.
                const std::uint64_t offset =
                    extent.offset + (target > before_ ? target - before_ : 0);
                const std::uint64_t skip = base::align_up(offset, edge) - extent.offset;
                if (skip < extent.bytes) {
                    return {index_, skip};
                }
                if (transfer_.op == Op::kRead) {  // those may be cut anywhere
                    before_ += extent.bytes;
                    return {++index_, 0};
                }
            }
            before_ += extent.bytes;
        }
        return {index_, 0};
    }

private:
    const Transfer& transfer_;
    const std::uint32_t group_;
    std::uint64_t index_ = 0;
    std::uint64_t before_ = 0;
};

// A request moves whole blocks of the device, whatever its caller thinks a block is.
void round_block(Transfer& transfer) {
    if (transfer.block_bytes == 0) {
        return;
    }
    std::uint64_t align = base::kPageBytes;
    for (const auto& file : transfer.files) {
        const os::Geometry& geometry = file->geometry();
        align = std::max({align, geometry.edge_align(), std::uint64_t{geometry.read_align},
                          std::uint64_t{geometry.memory_align}});
    }
    transfer.block_bytes =
        static_cast<std::uint32_t>(base::align_up(std::uint64_t{transfer.block_bytes}, align));
}

}  // namespace

void lay_out(Transfer& transfer, std::span<Domain* const> domains) {
    if (transfer.total_bytes == 0) {
        return;
    }
    std::size_t count = 0;
    for (Domain* domain : domains) {
        count += domain->channel_count();
    }
    transfer.parts.resize(count);
    round_block(transfer);
    const std::span<const std::uint32_t> groups =
        domains.size() > 1 ? std::span<const std::uint32_t>(transfer.groups)
                           : std::span<const std::uint32_t>();
    const Position end{transfer.extents.count(), 0};
    std::size_t next = 0;
    for (std::uint32_t group = 0; group < domains.size(); ++group) {
        const std::uint32_t channels = domains[group]->channel_count();
        const std::uint64_t bytes = channels > 1 ? bytes_of_group(transfer, group) : 0;
        Cutter cutter(transfer, group);
        Position begin;
        for (std::uint32_t c = 0; c < channels; ++c) {
            const Position stop = c + 1 == channels ? end : cutter.at(bytes / channels * (c + 1));
            Part& part = transfer.parts[next++];
            part.transfer = &transfer;
            part.channel = &domains[group]->channel(c);
            part.seat = transfer.depth_limit ? &transfer.depth_limit->seat(*part.channel, channels)
                                             : nullptr;
            part.plan =
                Plan(transfer.extents, transfer.files, transfer.op, begin, stop, groups, group);
            begin = stop;
        }
    }
}

bool may_extend(const Transfer& transfer, std::uint64_t bytes_min) {
    if (transfer.op != Op::kWrite || transfer.total_bytes < bytes_min) {
        return false;
    }
    for (std::uint64_t i = 0; i < transfer.extents.count(); ++i) {
        const Extent extent = transfer.extents[i];
        if (extent.bytes != 0 &&
            extent.offset + extent.bytes > transfer.files[extent.file]->size_seen() &&
            !transfer.files[extent.file]->info().is_block_device) {
            return true;
        }
    }
    return false;
}

std::vector<FileRange> extending_runs(const Transfer& transfer, std::uint64_t bytes_min) {
    std::vector<FileRange> runs;
    FileRange run;
    const auto close_run = [&] {
        if (run.end - run.begin >= bytes_min && run.end > transfer.files[run.file]->size_seen()) {
            runs.push_back(run);
        }
    };
    for (std::uint64_t i = 0; i < transfer.extents.count(); ++i) {
        const Extent extent = transfer.extents[i];
        if (extent.bytes == 0) {
            continue;
        }
        if (extent.file != run.file || extent.offset != run.end) {
            close_run();
            run = {extent.file, extent.offset, extent.offset};
        }
        run.end += extent.bytes;
    }
    close_run();
    return runs;
}

}  // namespace penstock::engine
