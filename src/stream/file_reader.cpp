// SPDX-License-Identifier: Apache-2.0
#include "stream/file_reader.hpp"

#include "base/align.hpp"
#include "base/raise.hpp"
#include "format/crc32.hpp"
#include "stream/progress_clock.hpp"
#include "stream/read_helpers.hpp"
#include "stream/transfer_window.hpp"

#include <algorithm>
#include <chrono>
#include <memory_resource>
#include <numeric>
#include <utility>
#include <vector>

namespace penstock::stream {

namespace {

constexpr std::uint64_t kStepBytes = 16 * base::kMiB;
constexpr std::uint64_t kWindowBytes = 128 * base::kMiB;
constexpr std::uint64_t kGapBytesMax = 64 * base::kKiB;
// Of memory that gaps are read into, all together; further ones are left out.
constexpr std::uint64_t kGapsBytesMax = 16 * base::kMiB;
constexpr std::chrono::milliseconds kSlice{50};

class StepMaker {
public:
    StepMaker(std::span<const Wanted> wanted, bool fresh) : wanted_(wanted), fresh_(fresh) {}

    void run(bool verify, ReadSteps& out, std::pmr::memory_resource& gaps) {
        std::vector<std::size_t> order(wanted_.size());
        std::iota(order.begin(), order.end(), std::size_t{0});
        std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
            return wanted_[a].offset < wanted_[b].offset;
        });
        const Wanted* before = nullptr;
        for (const std::size_t i : order) {
            const Wanted& w = wanted_[i];
            if (w.into.empty()) {
                continue;
            }
            if (before != nullptr) {
                add_gap(*before, w, out, gaps);
            }
            const std::size_t first = out.pieces.size();
            if (verify) {
                add_pieces(i, out);
            }
            add(w.offset, w.into.data(), w.into.size(), out, first);
            before = &w;
        }
    }

private:
    void add_pieces(std::size_t i, ReadSteps& out) {
        const Wanted& w = wanted_[i];
        if (w.sums.empty() && w.crc == 0) {
            return;
        }
        const std::uint64_t piece_bytes = w.sums.empty() ? kCrcPieceBytes : w.piece_bytes;
        for (std::uint64_t at = 0; at < w.into.size(); at += piece_bytes) {
            out.pieces.push_back(
                {i, at, std::min<std::uint64_t>(piece_bytes, w.into.size() - at), 0, 0});
        }
    }

    void add_gap(const Wanted& before, const Wanted& next, ReadSteps& out,
                 std::pmr::memory_resource& gaps) {
        const std::uint64_t end = before.offset + before.into.size();
        if (next.offset <= end || next.offset - end > kGapBytesMax) {
            return;
        }
        const std::uint64_t bytes = next.offset - end;
        std::byte* memory = before.into.data() + before.into.size();
        const bool alike = next.into.data() > memory &&
                           static_cast<std::uint64_t>(next.into.data() - memory) == bytes;
        if (!fresh_ || !alike) {
            if (gap_bytes_ + bytes > kGapsBytesMax) {
                return;
            }
            gap_bytes_ += bytes;
            memory = static_cast<std::byte*>(gaps.allocate(bytes, 1));
        }
        add(end, memory, bytes, out, out.pieces.size());
    }

    // Steps are cut at multiples of their size in the file, so that what is aligned stays so.
    // Pieces from `piece` on end in what is added here.
    static void add(std::uint64_t offset, std::byte* memory, std::uint64_t bytes, ReadSteps& out,
                    std::size_t piece) {
        std::uint64_t done = 0;
        while (done < bytes) {
            if (out.steps.empty() || out.steps.back().bytes >= kStepBytes) {
                out.steps.emplace_back();
            }
            const std::uint64_t at = offset + done;
            const std::uint64_t room = base::align_down(at, kStepBytes) + kStepBytes - at;
            const std::uint64_t part = std::min(bytes - done, room);
            ReadSteps::Step& step = out.steps.back();
            step.extents.push_back({at, part, memory + done, 0});
            step.bytes += part;
            done += part;
            for (; piece < out.pieces.size() &&
                   out.pieces[piece].begin + out.pieces[piece].bytes <= done;
                 ++piece) {
                out.pieces[piece].step = out.steps.size() - 1;
            }
        }
    }

    std::span<const Wanted> wanted_;
    const bool fresh_;
    std::uint64_t gap_bytes_ = 0;
};

void read_steps(Engine& engine, const File& file, const ReadSteps& steps, ReadHelpers& helpers,
                ProgressClock& progress) {
    TransferWindow window(engine, kWindowBytes, progress);
    for (std::size_t i = 0; i < steps.steps.size(); ++i) {
        const ReadSteps::Step& step = steps.steps[i];
        while (!helpers.await_touched(i, kSlice)) {
            progress.tick();
        }
        TransferRequest request;
        request.files = {file};
        request.extents = step.extents;
        window.send(request, step.bytes);
        helpers.submitted(i + 1);
        helpers.arrived(window.arrived());
    }
    while (!window.empty()) {
        window.await_oldest();
        helpers.arrived(window.arrived());
    }
    while (!helpers.await_sums(kSlice)) {
        progress.tick();
    }
    progress.tick(true);
}

// The CRC of a stretch is put together from those of its pieces, which stand one after another.
std::optional<WrongSum> compare(std::span<const Wanted> wanted, std::span<const ReadPiece> pieces) {
    for (std::size_t i = 0; i < pieces.size(); ++i) {
        const Wanted& w = wanted[pieces[i].wanted];
        if (!w.sums.empty()) {
            const std::uint64_t expected = w.sums[pieces[i].begin / w.piece_bytes];
            if (pieces[i].found != expected) {
                return WrongSum{pieces[i].wanted, w.offset + pieces[i].begin, pieces[i].bytes,
                                expected, pieces[i].found};
            }
            continue;
        }
        std::uint32_t crc = 0;
        const std::size_t number = pieces[i].wanted;
        for (; i < pieces.size() && pieces[i].wanted == number; ++i) {
            crc = format::crc32_combine(crc, static_cast<std::uint32_t>(pieces[i].found),
                                        pieces[i].bytes);
        }
        --i;
        if (crc != w.crc) {
            return WrongSum{number, w.offset, w.into.size(), w.crc, crc};
        }
    }
    return std::nullopt;
}

}  // namespace

std::optional<WrongSum> read_file(Engine& engine, const File& file, std::span<const Wanted> wanted,
                                  const ReadFileOptions& options, const Progress& progress) {
    std::pmr::monotonic_buffer_resource gaps;
    ReadSteps steps;
    StepMaker(wanted, options.fresh).run(options.verify, steps, gaps);
    {
        ProgressClock clock(progress, "load", file.path());
        clock.set_total(steps.bytes());
        ReadHelpers helpers(wanted, steps, options.fresh);
        read_steps(engine, file, steps, helpers, clock);
    }
    return compare(wanted, steps.pieces);
}

std::optional<WrongSum> check_sums(std::span<const Wanted> wanted) {
    std::pmr::monotonic_buffer_resource gaps;
    ReadSteps steps;
    StepMaker(wanted, false).run(true, steps, gaps);
    ReadHelpers helpers(wanted, steps, false);
    helpers.arrived(steps.steps.size());
    while (!helpers.await_sums(kSlice)) {
    }
    return compare(wanted, steps.pieces);
}

}  // namespace penstock::stream
