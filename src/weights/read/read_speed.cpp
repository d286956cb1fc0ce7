// SPDX-License-Identifier: Apache-2.0
#include "weights/read/read_speed.hpp"

#include "base/raise.hpp"

#include <penstock/engine.hpp>
#include <penstock/memory.hpp>
#include <penstock/weights.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace penstock {

namespace weights {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kPieceBytes = 16 << 20;
constexpr std::size_t kDepth = 2;  // pieces of a list at a time

// The next pieces of a list of files.
class Pieces {
public:
    explicit Pieces(std::span<const File> files) {
        for (const File& file : files) {
            if (const std::uint64_t bytes = file.size(); bytes != 0) {
                files_.emplace_back(file, bytes);
            }
        }
        if (files_.empty()) {
            base::raise(base::error(ErrorCode::kInvalidArgument, "measure",
                                    "there is no byte to read",
                                    files.empty() ? std::string() : files[0].path()));
        }
    }
    Transfer read(Engine& engine, std::byte* into) {
        const auto& [file, size] = files_[number_];
        const std::uint64_t offset = offset_;
        const std::uint64_t bytes = std::min(kPieceBytes, size - offset);
        offset_ += bytes;
        if (offset_ == size) {
            offset_ = 0;
            number_ = (number_ + 1) % files_.size();
        }
        return engine.read_async(file, Memory(into, bytes), offset,
                                 {.cache = CachePolicy::kDirect});
    }

private:
    std::vector<std::pair<File, std::uint64_t>> files_;
    std::size_t number_ = 0;
    std::uint64_t offset_ = 0;
};

struct Counted {
    std::uint64_t pieces = 0;
    std::uint64_t bytes = 0;  // of them
    Clock::time_point begin;  // the end of the last piece that was not counted
    Clock::time_point end;

    void add(std::uint64_t more, Clock::time_point counted_from) {
        end = Clock::now();
        if (end < counted_from || begin == Clock::time_point()) {
            begin = end;
        } else {
            ++pieces;
            bytes += more;
        }
    }
    [[nodiscard]] double speed() const {
        const double seconds = std::chrono::duration<double>(end - begin).count();
        return static_cast<double>(bytes) / std::max(seconds, 1e-9);
    }
};

}  // namespace

std::vector<double> measure_speeds(Engine& engine, std::span<const std::vector<File>> lists,
                                   std::chrono::nanoseconds time) {
    std::vector<Pieces> pieces;
    for (const std::vector<File>& list : lists) {
        pieces.emplace_back(list);
    }
    const Region memory = Region::host(lists.size() * kDepth * kPieceBytes, true);
    std::vector<Counted> counted(lists.size());
    std::vector<std::size_t> buffers;  // of each transfer
    TransferGroup group;               // ends before the memory does
    const auto start = [&](std::size_t buffer) {
        buffers.push_back(buffer);
        group.add(pieces[buffer / kDepth].read(engine, memory.data() + buffer * kPieceBytes));
    };
    const Clock::time_point counted_from = Clock::now() + time / 3;
    const Clock::time_point until = Clock::now() + time;
    for (std::size_t buffer = 0; buffer < lists.size() * kDepth; ++buffer) {
        start(buffer);
    }
    while (auto ended = group.wait_any()) {
        const std::size_t buffer = buffers[ended->number];
        Counted& its = counted[buffer / kDepth];
        its.add(ended->transfer.wait(), counted_from);
        if (its.pieces < 2 * kDepth || Clock::now() < until) {
            start(buffer);
        }
    }
    std::vector<double> out;
    for (const Counted& its : counted) {
        out.push_back(its.speed());
    }
    return out;
}

}  // namespace weights

double measure_weight_rate(Engine& engine, const WeightFolders& model,
                           std::chrono::nanoseconds time, const FileSystem& files) {
    std::vector<std::vector<File>> lists;  // of the folders that have a file
    std::vector<std::vector<std::size_t>> having(model.copies.size());
    std::vector<double> sizes(model.copies.size());
    const std::size_t folders = model.copies.empty() ? 0 : model.copies[0].size();
    for (std::size_t folder = 0; folder < folders; ++folder) {
        std::vector<File> list;
        for (std::size_t i = 0; i < model.copies.size(); ++i) {
            if (const std::string& path = model.copies[i][folder]; !path.empty()) {
                list.push_back(files.open(path));
                sizes[i] = static_cast<double>(list.back().size());
                having[i].push_back(lists.size());
            }
        }
        if (!list.empty()) {
            lists.push_back(std::move(list));
        }
    }
    if (lists.empty()) {
        base::raise(base::error(ErrorCode::kInvalidArgument, "measure",
                                "the model has no files; give what inspect_folders() returned"));
    }
    const std::vector<double> speeds = weights::measure_speeds(engine, lists, time);
    double bytes = 0;
    double seconds = 0;
    for (std::size_t i = 0; i < having.size(); ++i) {
        double together = 0;
        for (const std::size_t list : having[i]) {
            together += speeds[list];
        }
        bytes += sizes[i];
        seconds += sizes[i] / together;
    }
    return bytes / seconds;
}

}  // namespace penstock
