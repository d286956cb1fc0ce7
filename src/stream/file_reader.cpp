// SPDX-License-Identifier: Apache-2.0
#include "stream/file_reader.hpp"

#include "base/align.hpp"
#include "base/assert.hpp"
#include "base/raise.hpp"
#include "base/wait_slice.hpp"
#include "format/zip/crc32.hpp"
#include "stream/progress_clock.hpp"
#include "stream/pump.hpp"
#include "stream/read_helpers.hpp"

#include <algorithm>
#include <exception>
#include <memory>
#include <memory_resource>
#include <numeric>
#include <utility>
#include <vector>

namespace penstock::stream {

namespace {

constexpr std::uint64_t kStepBytes = 16 * base::kMiB;
// Steps of little are short: one is summed while the next is read.
constexpr std::uint64_t kLittleBytes = 64 * base::kMiB;
constexpr std::uint64_t kLittleStepBytes = 4 * base::kMiB;
constexpr std::uint64_t kWindowBytes = 128 * base::kMiB;
constexpr std::uint64_t kGapBytesMax = 64 * base::kKiB;
// Limit on the memory that all gaps are read into; further gaps are not read.
constexpr std::uint64_t kGapsBytesMax = 16 * base::kMiB;
constexpr std::size_t kWindowSteps = 32;
// Up to so much, a pump and threads of its own cost more than the reading, and up to so much copy
// threads more than they gain.
constexpr std::uint64_t kAloneBytesMax = 4 * base::kMiB;
constexpr std::uint64_t kCopiedBytesMax = 16 * base::kMiB;

class StepMaker {
public:
    StepMaker(std::span<const Wanted> wanted, bool fresh)
        : wanted_(wanted),
          fresh_(fresh),
          step_bytes_(total(wanted) <= kLittleBytes ? kLittleStepBytes : kStepBytes) {}

    void run(bool verify, ReadSteps& out, std::pmr::memory_resource& gaps) {
        std::vector<std::size_t> order(wanted_.size());
        std::iota(order.begin(), order.end(), std::size_t{0});
        std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
            return wanted_[a].offset < wanted_[b].offset;
        });
        const Wanted* before = nullptr;
        for (const std::size_t i : order) {
            const Wanted& w = wanted_[i];
            if (w.into.bytes == 0) {
                continue;
            }
            if (before != nullptr) {
                add_gap(*before, w, out, gaps);
            }
            const std::size_t first = out.pieces.size();
            if (verify) {
                add_pieces(i, out);
            }
            add(w.offset, w.into, out, first);
            before = &w;
        }
    }

private:
    static std::uint64_t total(std::span<const Wanted> wanted) {
        return std::accumulate(
            wanted.begin(), wanted.end(), std::uint64_t{0},
            [](std::uint64_t sum, const Wanted& w) { return sum + w.into.bytes; });
    }

    void add_pieces(std::size_t i, ReadSteps& out) {
        const Wanted& w = wanted_[i];
        if (w.sums.empty() && w.crc == 0) {
            return;
        }
        const std::uint64_t piece_bytes = w.sums.empty() ? kCrcPieceBytes : w.piece_bytes;
        for (std::uint64_t at = 0; at < w.into.bytes; at += piece_bytes) {
            out.pieces.push_back(
                {i, at, std::min<std::uint64_t>(piece_bytes, w.into.bytes - at), 0, 0});
        }
    }

    void add_gap(const Wanted& before, const Wanted& next, ReadSteps& out,
                 std::pmr::memory_resource& gaps) {
        const std::uint64_t end = before.offset + before.into.bytes;
        if (next.offset <= end || next.offset - end > kGapBytesMax) {
            return;
        }
        const std::uint64_t bytes = next.offset - end;
        std::byte* memory = before.into.data + before.into.bytes;
        const bool alike = before.into.kind == MemoryKind::kHost &&
                           next.into.kind == MemoryKind::kHost && next.into.data > memory &&
                           static_cast<std::uint64_t>(next.into.data - memory) == bytes;
        if (!fresh_ || !alike) {
            if (gap_bytes_ + bytes > kGapsBytesMax) {
                return;
            }
            gap_bytes_ += bytes;
            memory = static_cast<std::byte*>(gaps.allocate(bytes, 1));
        }
        add(end, {memory, bytes}, out, out.pieces.size());
    }

    // Cuts steps at multiples of their size in the file, so that aligned extents stay aligned.
    // Pieces from `piece` on end in the steps that are added here.
    void add(std::uint64_t offset, const Memory& memory, ReadSteps& out, std::size_t piece) const {
        const std::uint64_t bytes = memory.bytes;
        std::uint64_t done = 0;
        while (done < bytes) {
            if (out.steps.empty() || out.steps.back().bytes >= step_bytes_) {
                out.steps.emplace_back();
            }
            const std::uint64_t at = offset + done;
            const std::uint64_t room = base::align_down(at, step_bytes_) + step_bytes_ - at;
            const std::uint64_t part = std::min(bytes - done, room);
            ReadSteps::Step& step = out.steps.back();
            step.extents.push_back({at, {memory.data + done, part, memory.kind, memory.device}, 0});
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
    const std::uint64_t step_bytes_;
    std::uint64_t gap_bytes_ = 0;
};

// One queue: the steps in their order, each as soon as its memory is faulted in.
class StepReader final : public PumpSource {
public:
    StepReader(Engine& engine, const File& file, std::span<const Wanted> wanted, ReadSteps& steps,
               const ReadFileOptions& options, ProgressClock& progress)
        : file_(file),
          cache_(options.cache),
          steps_(steps.steps),
          may_run_(steps.bytes() <= kCopiedBytesMax),
          progress_(progress),
          pump_(engine, progress, {kWindowBytes, kWindowSteps}),
          helpers_(wanted, steps, options.fresh && !options.faulted_in, [this] { pump_.wake(); }) {}

    void run() {
        pump_.run(*this, 1);
        PENSTOCK_ASSERT(next_ == steps_.size());  // what nobody read would pass for data
    }

private:
    struct Unit : PumpUnit {
        std::size_t step = 0;
    };

    PumpUnitPtr next(std::size_t /*queue*/) override {
        if (next_ == steps_.size() || !helpers_.touched(next_)) {
            return nullptr;
        }
        auto unit = std::make_unique<Unit>();
        unit->request.files = {file_};
        unit->request.extents = steps_[next_].extents;
        unit->request.options.cache = cache_;
        unit->bytes = steps_[next_].bytes;
        unit->may_run = may_run_;
        unit->step = next_++;
        helpers_.submitted(next_);
        return unit;
    }

    void ended(PumpUnitPtr unit, Transfer transfer) override {
        transfer.wait();
        progress_.add(unit->bytes);
        helpers_.arrived(static_cast<Unit&>(*unit).step);
    }

    OwnWork own_work() override {
        if (helpers_.help()) {
            return OwnWork::kDid;
        }
        // A step whose memory is being faulted in by a helper is still to come.
        const bool over = next_ == steps_.size() && helpers_.finished();
        return over ? OwnWork::kOver : OwnWork::kNone;
    }

    const File& file_;
    const CachePolicy cache_;
    const std::vector<ReadSteps::Step>& steps_;
    const bool may_run_;
    ProgressClock& progress_;
    std::size_t next_ = 0;
    Pump pump_;
    ReadHelpers helpers_;  // after the pump, which they wake
};

bool is_small(const ReadSteps& steps) {
    const auto is_of_host = [](const Extent& e) { return e.memory.kind == MemoryKind::kHost; };
    return steps.steps.size() == 1 && steps.bytes() <= kAloneBytesMax &&
           std::all_of(steps.steps[0].extents.begin(), steps.steps[0].extents.end(), is_of_host);
}

// Reads and sums on this thread, which copies what the page cache has.
void read_alone(Engine& engine, const File& file, std::span<const Wanted> wanted, ReadSteps& steps,
                const ReadFileOptions& options, ProgressClock& clock) {
    TransferRequest request;
    request.files = {file};
    request.extents = std::move(steps.steps[0].extents);
    request.options.cache = options.cache;
    std::optional<Transfer> transfer = engine.try_run(request);
    for (; !transfer; transfer = engine.try_run(request)) {
        engine.wait_for_room(base::kWaitSlice);  // other callers use all transfers
        clock.tick();
    }
    while (!transfer->wait_for(base::kWaitSlice)) {
        try {
            clock.tick();
        } catch (...) {
            transfer->cancel();
            try {
                transfer->wait();              // the device may write to the memory until then
            } catch (const std::exception&) {  // it was cancelled
            }
            throw;
        }
    }
    for (ReadPiece& piece : steps.pieces) {
        const Wanted& w = wanted[piece.wanted];
        piece.found = sum_of(w, {w.into.data + piece.begin, piece.bytes});
    }
    clock.add(steps.steps[0].bytes);
    clock.tick(true);
}

// Combines the CRC of a stretch from those of its pieces, which are contiguous.
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
            return WrongSum{number, w.offset, w.into.bytes, w.crc, crc};
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
        if (is_small(steps)) {
            read_alone(engine, file, wanted, steps, options, clock);
        } else {
            StepReader(engine, file, wanted, steps, options, clock).run();
        }
    }
    return compare(wanted, steps.pieces);
}

std::optional<WrongSum> check_sums(std::span<const Wanted> wanted) {
    std::pmr::monotonic_buffer_resource gaps;
    ReadSteps steps;
    StepMaker(wanted, false).run(true, steps, gaps);
    ReadHelpers helpers(wanted, steps, false, [] {});
    helpers.all_arrived();
    helpers.finish();
    return compare(wanted, steps.pieces);
}

}  // namespace penstock::stream
