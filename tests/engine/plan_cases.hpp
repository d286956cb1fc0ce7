// SPDX-License-Identifier: Apache-2.0
// Random extents for tests of the plan, and the properties of every plan: requests tile the extents
// exactly, are what the file's geometry demands, and direct and buffered writes never meet in a
// block.
#pragma once

#include "base/align.hpp"
#include "engine/plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <utility>
#include <vector>

namespace penstock::engine {

using base::is_aligned;

class ShapedFile : public os::File {
public:
    explicit ShapedFile(const os::Geometry& geometry, bool asks_cache = false)
        : os::File(info_with(geometry, asks_cache)) {}
    [[nodiscard]] int descriptor(os::IoPath /*io*/) const override { return -1; }
    std::int64_t read_at(os::IoPath, std::uint64_t, std::span<const iovec>) override { return 0; }
    std::int64_t write_at(os::IoPath, std::uint64_t, std::span<const iovec>) override { return 0; }
    [[nodiscard]] base::Result<std::uint64_t> size() const override { return 0; }
    base::Result<void> truncate(std::uint64_t) override { return {}; }
    base::Result<void> preallocate(std::uint64_t, std::uint64_t) override { return {}; }
    base::Result<void> sync() override { return {}; }
    base::Result<void> close() override { return {}; }

private:
    static os::FileInfo info_with(const os::Geometry& geometry, bool asks_cache) {
        os::FileInfo info;
        info.asks_cache = asks_cache;
        info.geometry = geometry;
        return info;
    }
};

inline os::Geometry direct_geometry(std::uint32_t memory, std::uint32_t read, std::uint32_t write,
                                    std::uint32_t block) {
    os::Geometry geometry;
    geometry.direct = true;
    geometry.memory_align = memory;
    geometry.read_align = read;
    geometry.write_align = write;
    geometry.block_bytes = block;
    return geometry;
}

using OpenFiles = std::vector<std::shared_ptr<os::File>>;

inline std::byte* address(std::uint64_t value) {
    return reinterpret_cast<std::byte*>(value);  // never followed
}

inline std::vector<Draft> all_drafts(Plan& plan, std::uint32_t block_bytes) {
    std::vector<Draft> drafts;
    const auto drain = [&] {
        while (const Draft* draft = plan.peek(block_bytes)) {
            drafts.push_back(*draft);
            plan.pop();
        }
    };
    drain();
    if (plan.has_edges()) {
        plan.start_edges();
        drain();
    }
    return drafts;
}

// The input of one case, from a seed.
struct Case {
    OpenFiles files;
    std::vector<Extent> list;
    std::uint32_t block_bytes = 0;

    explicit Case(std::uint64_t seed) {
        std::mt19937_64 random(seed);
        const auto below = [&](std::uint64_t n) { return random() % n; };
        constexpr std::array<std::uint32_t, 4> kMemory{1, 4, 512, 4096};
        constexpr std::array<std::uint32_t, 3> kDisk{512, 4096, 16384};
        block_bytes = 65536U << below(4);
        for (std::uint64_t f = 0; f <= below(3); ++f) {
            os::Geometry geometry = direct_geometry(kMemory[below(4)], kDisk[below(3)],
                                                    kDisk[below(3)], kDisk[below(3)]);
            geometry.direct = below(5) != 0;
            files.push_back(
                std::make_shared<ShapedFile>(geometry, geometry.direct && seed % 2 == 0));
        }
        std::uint64_t memory = (std::uint64_t{1} << 40) + below(3) * below(4096);
        std::uint64_t offset = below(2) * below(100'000);
        std::uint32_t file = 0;
        const std::uint64_t step = below(2) == 0 ? 1 : 512;
        for (std::uint64_t i = below(40); i-- > 0;) {
            if (below(3) == 0) {
                file = static_cast<std::uint32_t>(below(files.size()));
                offset = below(1U << 22) / step * step;
            }
            if (below(3) == 0) {
                memory += below(10'000) / step * step;
            }
            const std::uint64_t bytes =
                below(8) == 0 ? 0 : below(std::uint64_t{1} << below(22)) / step * step;
            list.push_back({offset, {address(memory), bytes}, file});
            offset += bytes;
            memory += bytes;
        }
    }
};

// Some of a case's extents moved to places near others or over them; listed in the order of the
// files or in any.
inline Extents near_one_another(Case& random, std::mt19937_64& more, bool sorted) {
    for (Extent& extent : random.list) {
        if (more() % 4 == 0) {
            extent.offset = random.list[more() % random.list.size()].offset + more() % 3000;
        }
    }
    Extents extents(random.list);
    if (sorted && extents.count() != 0) {
        extents.sort();
    }
    return extents;
}

inline void check_request(const Draft& draft, Op op, const os::Geometry& geometry,
                          const Extents& extents, std::uint32_t block_bytes) {
    ASSERT_GT(draft.wanted_bytes, 0U);
    ASSERT_LE(draft.bytes, block_bytes);
    ASSERT_LE(draft.skip_bytes + draft.wanted_bytes, draft.bytes);
    const Extent first = extents[draft.at.index];
    ASSERT_EQ(first.offset + draft.at.skip, draft.offset + draft.skip_bytes);
    ASSERT_EQ(draft.io == os::IoPath::kDirect, geometry.direct && !draft.edge && !draft.cached);
    ASSERT_TRUE(draft.extents == 0 || (draft.slot && op == Op::kRead));
    if (op == Op::kWrite || !draft.slot) {
        ASSERT_EQ(draft.skip_bytes, 0U);
        ASSERT_EQ(draft.bytes, draft.wanted_bytes);
    }
    const std::uint64_t align = op == Op::kRead ? geometry.read_align : geometry.write_align;
    const bool on_device = first.memory.kind != MemoryKind::kHost;
    if (draft.io == os::IoPath::kBuffered) {
        ASSERT_EQ(draft.slot, draft.extents != 0 || on_device);
    } else {
        ASSERT_TRUE(is_aligned(draft.offset, align));
        ASSERT_TRUE(is_aligned(draft.bytes, align));
    }
    if (!draft.slot) {
        std::array<iovec, kPiecesMax> pieces{};
        const std::size_t used = gather_pieces(extents, draft.at, draft.bytes, pieces);
        for (std::size_t i = 0; i < used && draft.io == os::IoPath::kDirect; ++i) {
            ASSERT_TRUE(is_aligned(pieces[i].iov_base, geometry.memory_align));
            ASSERT_TRUE(is_aligned(pieces[i].iov_len, align));
        }
    }
}

// Counts, byte range by byte range, how often each extent is covered, by its boundaries.
inline void check_tiling(const std::vector<Draft>& drafts, const Extents& extents) {
    std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint64_t> ranges;  // start -> end
    for (const Draft& draft : drafts) {
        std::uint64_t left = draft.extents == 0 ? draft.wanted_bytes : 0;
        std::uint64_t offset = draft.offset + draft.skip_bytes;
        for (std::uint64_t i = draft.at.index; i < draft.at.index + draft.extents; ++i) {
            const std::uint64_t skip = i == draft.at.index ? draft.at.skip : 0;
            const Extent extent = extents[i];
            if (extent.memory.bytes != skip) {
                ASSERT_EQ(extent.file, draft.file);
                ASSERT_GE(extent.offset + skip, offset);
                ASSERT_TRUE(draft.is_cached_list() ||
                            extent.offset + extent.memory.bytes <= offset + draft.wanted_bytes);
                ASSERT_TRUE(ranges.emplace(std::pair(i, skip), extent.memory.bytes).second);
            }
        }
        for (Position at = draft.at; left != 0; at = {at.index + 1, 0}) {
            const Extent extent = extents[at.index];
            const std::uint64_t bytes = std::min(left, extent.memory.bytes - at.skip);
            if (bytes != 0) {
                ASSERT_EQ(extent.file, draft.file);
                ASSERT_EQ(extent.offset + at.skip, offset) << "pieces of a request must adjoin";
                const bool fresh =
                    ranges.emplace(std::pair(at.index, at.skip), at.skip + bytes).second;
                ASSERT_TRUE(fresh) << "extent " << at.index << " byte " << at.skip << " twice";
            }
            left -= bytes;
            offset += bytes;
        }
    }
    for (std::uint64_t i = 0; i < extents.count(); ++i) {
        std::uint64_t reached = 0;
        for (auto it = ranges.lower_bound({i, 0}); it != ranges.end() && it->first.first == i;
             ++it) {
            ASSERT_EQ(it->first.second, reached) << "gap or overlap in extent " << i;
            reached = it->second;
        }
        ASSERT_EQ(reached, extents[i].memory.bytes) << "extent " << i;
    }
}

// In one run, a block of edge_align() is written directly or through the page cache, never both.
inline void check_lanes_apart(const std::vector<Draft>& drafts, const OpenFiles& files,
                              const Extents& extents) {
    std::vector<std::uint64_t> run_of(extents.count());
    for (std::uint64_t i = 1, last = 0; i < extents.count(); ++i) {
        const Extent before = extents[last];
        const Extent extent = extents[i];
        const bool adjoins =
            extent.memory.bytes == 0 ||
            (before.file == extent.file && before.offset + before.memory.bytes == extent.offset);
        run_of[i] = adjoins ? run_of[last] : i;
        last = extent.memory.bytes == 0 ? last : i;
    }
    std::map<std::pair<std::uint64_t, std::uint64_t>, os::IoPath> lanes;  // (run, block) -> path
    for (const Draft& draft : drafts) {
        const os::Geometry& geometry = files[draft.file]->geometry();
        if (!geometry.direct) {
            continue;
        }
        const std::uint64_t edge = geometry.edge_align();
        for (std::uint64_t b = draft.offset / edge; b * edge < draft.offset + draft.bytes; ++b) {
            const auto [it, fresh] = lanes.emplace(std::pair(run_of[draft.at.index], b), draft.io);
            ASSERT_TRUE(fresh || it->second == draft.io) << "block " << b;
        }
    }
}

// In the page cache: MiB by MiB, all or nothing.
class HalfCachedFile final : public ShapedFile {
public:
    HalfCachedFile(const os::Geometry& geometry, std::uint64_t seed)
        : ShapedFile(geometry), seed_(seed) {
        info_.asks_cache = true;
    }
    [[nodiscard]] bool cached(std::uint64_t offset) const {
        return ((offset >> 20) * 0x9E3779B97F4A7C15U + seed_) >> 62 != 0;
    }
    [[nodiscard]] int cached_pages(std::uint64_t offset, std::uint64_t bytes,
                                   os::CachedPages& found) const override {
        found = {};
        for (std::uint64_t page = offset / 4096; page * 4096 < offset + bytes; ++page) {
            found.pages += cached(page * 4096) ? 1 : 0;
        }
        return 0;
    }

private:
    const std::uint64_t seed_;
};

}  // namespace penstock::engine
