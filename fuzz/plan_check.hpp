// SPDX-License-Identifier: Apache-2.0
// Bytes from anywhere become a transfer (files with geometries, extents, limits), its plan is run,
// and what it yields is held against what a plan promises. The fuzzer and a test share this.
#pragma once

#include "base/align.hpp"
#include "engine/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace penstock::fuzz {

class PlanCheck {
public:
    explicit PlanCheck(std::span<const std::uint8_t> input) : input_(input) { read_case(); }

    /// "" or the promise that was broken.
    [[nodiscard]] std::string run() {
        engine::Plan plan(extents(), files_, op_, begin_, end_, groups_, group_);
        plan.read_over_gaps(gap_bytes_);
        for (const bool edges : {false, true}) {
            if (edges) {
                if (!plan.has_edges()) {
                    break;
                }
                plan.start_edges();
            }
            while (const engine::Draft* draft = plan.peek(block_bytes_)) {
                const engine::Draft first = *draft;
                const engine::Draft second = *plan.peek(block_bytes_ / 2 + 65536);
                if (first.offset != second.offset || first.bytes != second.bytes) {
                    return "peek() changed its mind";
                }
                if (const std::string wrong = check(first, edges); !wrong.empty()) {
                    return wrong + ": " + text(first);
                }
                plan.pop();
                if (++requests_ > 200'000) {
                    return "it does not end";
                }
            }
        }
        return check_coverage();
    }

private:
    class StubFile final : public os::File {
    public:
        explicit StubFile(const os::Geometry& geometry) : os::File(info_of(geometry)) {}
        [[nodiscard]] int descriptor(os::IoPath /*io*/) const override { return -1; }
        [[nodiscard]] std::int64_t read_at(os::IoPath, std::uint64_t,
                                           std::span<const iovec>) override {
            return -1;
        }
        [[nodiscard]] std::int64_t write_at(os::IoPath, std::uint64_t,
                                            std::span<const iovec>) override {
            return -1;
        }
        [[nodiscard]] base::Result<std::uint64_t> size() const override { return 0; }
        [[nodiscard]] base::Result<void> truncate(std::uint64_t) override { return {}; }
        [[nodiscard]] base::Result<void> preallocate(std::uint64_t, std::uint64_t) override {
            return {};
        }
        [[nodiscard]] base::Result<void> sync() override { return {}; }
        [[nodiscard]] base::Result<void> close() override { return {}; }

    private:
        static os::FileInfo info_of(const os::Geometry& geometry) {
            os::FileInfo info;
            info.access = Access::kReadWrite;
            info.geometry = geometry;
            return info;
        }
    };

    // ---- the case

    std::uint64_t byte() {
        if (at_ == input_.size()) {
            return 0;
        }
        return input_[at_++];
    }
    std::uint64_t number() { return byte() | byte() << 8 | byte() << 16; }
    std::uint32_t align_of(std::uint64_t choice) {
        constexpr std::array<std::uint32_t, 6> kAligns{1, 4, 512, 4096, 16384, 65536};
        return kAligns[choice % kAligns.size()];
    }

    void read_case() {
        op_ = byte() % 2 == 0 ? engine::Op::kRead : engine::Op::kWrite;
        block_bytes_ = static_cast<std::uint32_t>(65536 * (1 + byte() % 16));
        const std::uint64_t file_count = 1 + byte() % 3;
        for (std::uint64_t i = 0; i < file_count; ++i) {
            os::Geometry geometry;
            geometry.direct = byte() % 4 != 0;
            if (geometry.direct) {
                geometry.memory_align = align_of(byte() % 4);
                geometry.read_align = align_of(byte());
                geometry.write_align = align_of(byte());
            }
            geometry.block_bytes = std::max<std::uint32_t>(512, align_of(byte()));
            files_.push_back(std::make_shared<StubFile>(geometry));
            next_.push_back(0);
        }
        read_groups();
        if (byte() % 8 == 0) {
            read_rows();
        } else {
            read_list();
        }
        read_range();
        if (op_ == engine::Op::kRead && byte() % 2 != 0) {
            read_gaps();
        }
    }

    // Reads may overlap, come in any order and be read over gaps.
    void read_gaps() {
        constexpr std::array<std::uint64_t, 4> kGaps{1, 512, 8192, 1 << 20};
        gap_bytes_ = kGaps[byte() % kGaps.size()];
        std::vector<Extent> list;
        for (std::uint64_t i = 0; i < extents().count(); ++i) {
            Extent extent = extents()[i];
            const std::uint64_t choice = byte();
            if (choice % 4 == 1) {
                extent.offset -= std::min(extent.offset, byte() * choice);
            } else if (choice % 16 == 2 && i != 0) {
                extent.offset = list[choice % i].offset;
            }
            list.push_back(extent);
        }
        const std::uint64_t seed = byte();
        for (std::uint64_t i = 1; i < list.size() && seed % 2 != 0; ++i) {
            std::swap(list[i], list[(i * 2654435761U + seed) % (i + 1)]);
        }
        extents_ = std::make_unique<engine::Extents>(std::move(list));
        if (seed % 3 != 0 && extents().count() != 0) {
            extents_->sort();
        }
        read_range();
    }

    void read_groups() {
        if (byte() % 3 == 0) {
            for (std::size_t i = 0; i < files_.size(); ++i) {
                groups_.push_back(static_cast<std::uint32_t>(byte() % 2));
            }
            group_ = static_cast<std::uint32_t>(byte() % 2);
        }
    }

    void read_list() {
        std::vector<Extent> list;
        const std::uint64_t count = byte();
        std::uintptr_t memory = std::uintptr_t{1} << 40;
        for (std::uint64_t i = 0; i < count && at_ < input_.size(); ++i) {
            Extent extent;
            const std::uint64_t shape = byte();
            extent.file = static_cast<std::uint32_t>(byte() % files_.size());
            constexpr std::array<std::uint64_t, 4> kUnits{1, 512, 4096, 65536};
            extent.memory.bytes =
                (shape & 3) == 0 ? byte() % 4 : number() % (kUnits[shape & 3] * 40);
            if ((shape & 4) != 0) {
                extent.memory.bytes = base::align_down(extent.memory.bytes, 4096);
            }
            // Behind the one before in its file: adjoining it, or not. Written ranges never
            // overlap.
            std::uint64_t& next = next_[extent.file];
            if ((shape & 24) != 0) {
                next += (shape & 8) != 0 ? number() : byte();
            }
            if ((shape & 32) != 0) {
                next = base::align_up(next, 4096);
            }
            extent.offset = next + ((shape & 192) == 192 ? std::uint64_t{1} << 42 : 0);
            next += extent.memory.bytes;
            memory += byte();
            if ((shape & 64) != 0) {
                memory = base::align_up(memory, 4096);
            }
            extent.memory.data = reinterpret_cast<std::byte*>(memory);
            memory += extent.memory.bytes;
            list.push_back(extent);
        }
        if (byte() % 4 == 0) {
            std::reverse(list.begin(), list.end());
        }
        extents_ = std::make_unique<engine::Extents>(std::move(list));
    }

    void read_rows() {
        RowTable table;
        table.base = number();
        table.row_bytes = number() % 20'000;
        table.stride_bytes = table.row_bytes + byte();
        auto* const memory = reinterpret_cast<std::byte*>((std::uintptr_t{1} << 40) + byte());
        const std::uint64_t count = byte();
        std::vector<std::uint64_t> ids;
        std::uint64_t id = 0;
        for (std::uint64_t i = 0; i < count; ++i) {
            id += 1 + byte() % 2;
            ids.push_back(id);
        }
        extents_ = std::make_unique<engine::Extents>(*engine::extents_of(
            {.tables = {table}, .ids = ids, .memory = {memory, count * table.row_bytes}}, "read"));
    }

    // A part of the extents, as a channel gets it; written ones are cut where they may be.
    void read_range() {
        begin_ = {0, 0};
        end_ = {extents().count(), 0};
        if (byte() % 4 == 0 && extents().count() > 0) {
            begin_ = cut(byte() % extents().count(), number());
            const engine::Position other = cut(byte() % extents().count(), number());
            if (other > begin_) {
                end_ = other;
            }
        }
    }

    engine::Position cut(std::uint64_t index, std::uint64_t skip) {
        const Extent extent = extents()[index];
        const std::uint64_t edge = files_[extent.file]->geometry().edge_align();
        const std::uint64_t offset =
            base::align_up(extent.offset + skip % (extent.memory.bytes + 1), edge);
        return offset < extent.offset + extent.memory.bytes
                   ? engine::Position{index, offset - extent.offset}
                   : engine::Position{index + 1, 0};
    }

    [[nodiscard]] const engine::Extents& extents() const { return *extents_; }

    // ---- the promises

    std::string check(const engine::Draft& draft, bool edges) {
        if (draft.file >= files_.size() || draft.wanted_bytes == 0) {
            return "it asks for nothing";
        }
        const os::Geometry& geometry = files_[draft.file]->geometry();
        const bool write = op_ == engine::Op::kWrite;
        if (std::uint64_t{draft.skip_bytes} + draft.wanted_bytes > draft.bytes ||
            (!draft.edge && draft.bytes > block_bytes_)) {
            return "larger than a block, or than itself";
        }
        if ((write || !draft.slot) &&
            (draft.skip_bytes != 0 || draft.wanted_bytes != draft.bytes)) {
            return "it moves bytes that nobody asked for";
        }
        if (draft.edge != edges || (draft.edge && !write) ||
            (draft.io == os::IoPath::kBuffered) != (draft.edge || !geometry.direct)) {
            return "a wrong path of I/O";
        }
        if (draft.extents != 0 && (write || !draft.slot || gap_bytes_ == 0)) {
            return "a gap is read over that must not be";
        }
        if (draft.io == os::IoPath::kDirect) {
            const std::uint64_t align = write ? geometry.write_align : geometry.read_align;
            if (!base::is_aligned(draft.offset, align) || !base::is_aligned(draft.bytes, align)) {
                return "not aligned";
            }
        }
        if (!draft.slot) {
            if (std::string wrong = check_memory(draft, geometry); !wrong.empty()) {
                return wrong;
            }
        }
        note_blocks(draft, geometry);
        return draft.extents == 0 ? cover(draft) : cover_over_gaps(draft, geometry);
    }

    std::string check_memory(const engine::Draft& draft, const os::Geometry& geometry) {
        std::array<iovec, engine::kPiecesMax> pieces{};
        const std::size_t used = engine::gather_pieces(extents(), draft.at, draft.bytes, pieces);
        std::uint64_t total = 0;
        for (std::size_t i = 0; i < used; ++i) {
            total += pieces[i].iov_len;
            const std::uint64_t align = draft.io == os::IoPath::kDirect ? geometry.memory_align : 1;
            if (reinterpret_cast<std::uintptr_t>(pieces[i].iov_base) % align != 0 ||
                pieces[i].iov_len % align != 0) {
                return "memory that is not aligned goes straight";
            }
        }
        return total == draft.bytes ? "" : "pieces of another length";
    }

    void note_blocks(const engine::Draft& draft, const os::Geometry& geometry) {
        if (op_ != engine::Op::kWrite || !geometry.direct) {
            return;
        }
        const std::uint64_t edge = geometry.edge_align();
        for (std::uint64_t block = draft.offset / edge;
             block <= (draft.offset + draft.bytes - 1) / edge; ++block) {
            (draft.edge ? buffered_ : direct_).insert({draft.file, block});
        }
    }

    // Marks the wanted bytes; they lie where the request says, in one run, and were not covered
    // yet.
    std::string cover(const engine::Draft& draft) {
        std::uint64_t offset = draft.offset + draft.skip_bytes;
        std::uint64_t left = draft.wanted_bytes;
        for (engine::Position at = draft.at; left != 0; at = {at.index + 1, 0}) {
            if (at.index >= extents().count()) {
                return "it goes on behind the last extent";
            }
            const Extent extent = extents()[at.index];
            const std::uint64_t stop = at.index == end_.index ? end_.skip : extent.memory.bytes;
            if (at.skip >= stop) {
                if (extent.memory.bytes == 0 || at.skip != 0) {
                    continue;
                }
                return "it goes on behind its end";
            }
            const std::uint64_t bytes = std::min(left, stop - at.skip);
            if (extent.file != draft.file || extent.offset + at.skip != offset) {
                return "an extent that lies elsewhere";
            }
            auto& covered = covered_[at.index];
            if (!covered.insert({at.skip, at.skip + bytes}).second) {
                return "covered twice";
            }
            offset += bytes;
            left -= bytes;
        }
        return "";
    }

    // Whole extents, none of them far from those before, from the first wanted byte to the last.
    std::string cover_over_gaps(const engine::Draft& draft, const os::Geometry& geometry) {
        const std::uint64_t gap =
            std::max<std::uint64_t>({gap_bytes_, geometry.read_align, geometry.memory_align});
        const std::uint64_t first = draft.offset + draft.skip_bytes;
        std::uint64_t reached = first;
        for (std::uint64_t i = draft.at.index; i < draft.at.index + draft.extents; ++i) {
            if (i >= end_.index) {
                return "it goes on behind its end";
            }
            const Extent extent = extents()[i];
            const std::uint64_t skip = i == draft.at.index ? draft.at.skip : 0;
            if (extent.memory.bytes == skip) {
                continue;
            }
            if (extent.file != draft.file || extent.offset + skip < first ||
                extent.offset + skip > reached + gap) {
                return "an extent that lies elsewhere";
            }
            reached = std::max(reached, extent.offset + extent.memory.bytes);
            if (!covered_[i].insert({skip, extent.memory.bytes}).second) {
                return "covered twice";
            }
        }
        return reached == first + draft.wanted_bytes ? "" : "it ends elsewhere";
    }

    [[nodiscard]] std::string check_coverage() const {
        for (std::uint64_t i = 0; i < extents().count(); ++i) {
            const Extent extent = extents()[i];
            const bool ours = groups_.empty() || groups_[extent.file] == group_;
            const std::uint64_t first =
                i < begin_.index ? extent.memory.bytes : (i == begin_.index ? begin_.skip : 0);
            const std::uint64_t last =
                i < end_.index ? extent.memory.bytes : (i == end_.index ? end_.skip : 0);
            std::uint64_t next = first;
            const auto found = covered_.find(i);
            if (found != covered_.end()) {
                for (const auto& [from, to] : found->second) {
                    if (from != next) {
                        return fmt::format("extent {}: byte {} is covered after byte {}", i, from,
                                           next);
                    }
                    next = to;
                }
            }
            if (next != (ours ? std::max(first, last) : first)) {
                return fmt::format("extent {} of {} bytes is covered up to {}", i,
                                   extent.memory.bytes, next);
            }
        }
        for (const auto& block : buffered_) {
            if (direct_.contains(block)) {
                return fmt::format("buffered and direct meet in block {} of file {}", block.second,
                                   block.first);
            }
        }
        return "";
    }

    static std::string text(const engine::Draft& draft) {
        return fmt::format(
            "file {} offset {} bytes {} skip {} wanted {} lane {} edge {} slot {} at {}+{} of {} "
            "extents",
            draft.file, draft.offset, draft.bytes, draft.skip_bytes, draft.wanted_bytes,
            static_cast<int>(draft.io), draft.edge, draft.slot, draft.at.index, draft.at.skip,
            draft.extents);
    }

    std::span<const std::uint8_t> input_;
    std::size_t at_ = 0;
    engine::Op op_ = engine::Op::kRead;
    std::uint32_t block_bytes_ = 0;
    std::vector<std::shared_ptr<os::File>> files_;
    std::vector<std::uint64_t> next_;
    std::vector<std::uint32_t> groups_;
    std::uint32_t group_ = 0;
    std::unique_ptr<engine::Extents> extents_;
    engine::Position begin_;
    engine::Position end_;
    std::uint64_t gap_bytes_ = 0;
    std::size_t requests_ = 0;
    std::map<std::uint64_t, std::set<std::pair<std::uint64_t, std::uint64_t>>> covered_;
    std::set<std::pair<std::uint32_t, std::uint64_t>> direct_;
    std::set<std::pair<std::uint32_t, std::uint64_t>> buffered_;
};

}  // namespace penstock::fuzz
