// SPDX-License-Identifier: Apache-2.0
#include "state/writing/file_writer.hpp"

#include "base/align.hpp"
#include "base/path.hpp"
#include "base/planted.hpp"
#include "base/raise.hpp"
#include "state/writing/image_sums.hpp"
#include "state/writing/replace.hpp"
#include "state/writing/write_plan.hpp"
#include "stream/progress_clock.hpp"
#include "stream/pump.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace penstock::state {

namespace {

using format::FileRange;

constexpr std::size_t kWriteWindowRanges = 32;
// Ranges that are summed before there is room to write them: no more, since what is summed just
// before the write shows more of what changes.
constexpr std::size_t kRangesAhead = 2;

// One queue: the ranges that hold no sums, then the others.
class Writer final : public stream::PumpSource {
public:
    Writer(Engine& engine, File& file, FileImage& image, const Progress& progress,
           const stream::Watch& watch)
        : file_(file),
          total_bytes_(image.file().total_bytes()),
          progress_(progress, "save", file.path()),
          pump_(engine, progress_, {kWriteWindowBytes, kWriteWindowRanges}) {
        progress_.set_total(total_bytes_);
        const FileInfo info = file.info();
        const std::uint64_t block_bytes = std::max(
            {base::kPageBytes, std::uint64_t{info.block_bytes}, std::uint64_t{info.write_align}});
        WritePlan plan = write_plan(image, block_bytes);
        ranges_ = std::move(plan.free);
        ranges_.insert(ranges_.end(), plan.waiting.begin(), plan.waiting.end());
        sums_.emplace(image, ranges_, watch, file.path());
    }

    void run() {
        sums_->start([this] { pump_.wake(); });
        pump_.run(*this, 1);
    }

    // The threads end before the pump that they wake, and what is written from after it.
    ~Writer() override { sums_->stop(); }
    Writer(const Writer&) = delete;
    Writer& operator=(const Writer&) = delete;

private:
    struct Range : stream::PumpUnit {
        std::size_t number = 0;
    };

    stream::PumpUnitPtr next(std::size_t /*queue*/) override {
        const std::size_t ahead = std::min(ranges_.size(), next_ + kRangesAhead);
        for (; asked_ < ahead && sums_->has_room(); ++asked_) {
            sums_->ask(asked_);
        }
        if (next_ == asked_) {
            return nullptr;
        }
        while (!sums_->is_ready(next_)) {
            if (!sums_->work()) {
                return nullptr;
            }
        }
        return unit_of(next_++);
    }

    void ended(stream::PumpUnitPtr unit, Transfer transfer) override {
        transfer.wait();
        progress_.add(unit->bytes);
        sums_->ended(static_cast<Range&>(*unit).number);
    }

    stream::OwnWork own_work() override {
        if (sums_->work()) {
            return stream::OwnWork::kDid;
        }
        const bool over = next_ == ranges_.size() && sums_->is_over();
        return over ? stream::OwnWork::kOver : stream::OwnWork::kNone;
    }

    // A small file is written on this thread.
    [[nodiscard]] stream::PumpUnitPtr unit_of(std::size_t number) const {
        auto unit = std::make_unique<Range>();
        unit->number = number;
        unit->bytes = ranges_[number].end - ranges_[number].begin;
        unit->may_run = unit->bytes == total_bytes_;
        unit->request.write = true;
        unit->request.files = {file_};
        unit->request.extents = sums_->extents(number);
        return unit;
    }

    File& file_;
    const std::uint64_t total_bytes_;
    stream::ProgressClock progress_;
    std::vector<FileRange> ranges_;
    std::size_t asked_ = 0;  // next range to be summed
    std::size_t next_ = 0;   // next range to be written
    std::optional<ImageSums> sums_;
    stream::Pump pump_;  // after the sums: its transfers write from their copies
};

[[noreturn]] void raise_full(const std::string& path, std::uint64_t bytes, std::uint64_t free) {
    const std::string missing = bytes > free ? fmt::format("{} bytes are missing", bytes - free)
                                             : "that is not enough for its own records of them";
    base::raise(base::system_error(
        ENOSPC, "preallocate", path, kNoOffset,
        fmt::format("the file needs {} bytes and {} are free: {}; nothing was written. Free room, "
                    "or save elsewhere",
                    bytes, free, missing)));
}

}  // namespace

void make_room(const FileSystem& files, File& file, std::uint64_t bytes) {
    const std::string& path = file.path();
    try {
        if (!file.preallocate(0, bytes)) {
            const std::uint64_t free = files.space(base::folder_of(path)).free_bytes;
            if (free < bytes) {
                raise_full(path, bytes, free);
            }
        }
    } catch (const Error& error) {
        if (error.system_errno() != ENOSPC) {
            throw;
        }
        file.truncate(0);  // a part of it may have been allocated
        raise_full(path, bytes, files.space(base::folder_of(path)).free_bytes);
    }
}

void write_image(Engine& engine, const FileSystem& files, File& file, FileImage& image,
                 const Progress& progress, const stream::Watch& watch) {
    make_room(files, file, image.file().total_bytes());
    Writer(engine, file, image, progress, watch).run();
}

void save_file(Engine& engine, const FileSystem& files, const std::string& path, FileImage& image,
               const Progress& progress, bool sync, const stream::Watch& watch) {
    Replacement replacement(files, path);
    if (base::planted("named_before_written")) {
        replacement.commit(false);
        File named = files.open(path, {.access = Access::kWrite});
        write_image(engine, files, named, image, progress, watch);
        return;
    }
    try {
        write_image(engine, files, replacement.file(), image, progress, watch);
    } catch (const Error& error) {
        throw replacement.explained(error);
    }
    replacement.commit(sync);
}

}  // namespace penstock::state
