// SPDX-License-Identifier: Apache-2.0
#include "state/file_writer.hpp"

#include "base/align.hpp"
#include "base/path.hpp"
#include "base/raise.hpp"
#include "state/piece_sums.hpp"
#include "state/replace.hpp"
#include "state/write_plan.hpp"
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

// One lane: the ranges that need no sums, then the others as their sums become known.
class Writer final : public stream::PumpSource {
public:
    Writer(Engine& engine, File& file, FileImage& image, const Progress& progress)
        : file_(file),
          image_(image),
          total_bytes_(image.file().total_bytes()),
          progress_(progress, "save", file.path()),
          set_(image.payloads().size()),
          pump_(engine, progress_, {kWriteWindowBytes, kWriteWindowRanges}) {
        progress_.set_total(total_bytes_);
        const FileInfo info = file.info();
        const std::uint64_t block_bytes = std::max(
            {base::kPageBytes, std::uint64_t{info.block_bytes}, std::uint64_t{info.write_align}});
        plan_ = write_plan(image, block_bytes);
    }

    void run() {
        sums_.emplace(image_, 0, [this] { pump_.wake(); });
        pump_.run(*this, 1);
    }

private:
    stream::PumpUnitPtr next(std::size_t /*lane*/) override {
        if (free_ < plan_.free.size()) {
            const FileRange range = plan_.free[free_++];
            sums_->let(range.end);
            return unit_of(range);
        }
        sums_->let(PieceSums::kAll);
        if (waiting_ == plan_.waiting.size() || !has_sums(plan_.waiting[waiting_])) {
            return nullptr;
        }
        return unit_of(plan_.waiting[waiting_++]);
    }

    void ended(stream::PumpUnitPtr unit, Transfer transfer) override {
        transfer.wait();
        progress_.add(unit->bytes);
    }

    // Makes an awaited sum here if there is no thread for it.
    stream::OwnWork own_work() override {
        if (std::exchange(awaiting_, false) && !sums_->has_threads()) {
            return stream::OwnWork::kDid;
        }
        const bool more = free_ < plan_.free.size() || waiting_ < plan_.waiting.size();
        return more ? stream::OwnWork::kNone : stream::OwnWork::kOver;
    }

    bool has_sums(FileRange range) {
        for (const std::size_t payload : image_.sums_in(range)) {
            if (set_[payload]) {
                continue;
            }
            if (!sums_->await(payload, std::chrono::nanoseconds(0))) {
                awaiting_ = true;
                return false;
            }
            image_.set_sums(payload, sums_->of(payload));
            set_[payload] = true;
        }
        return true;
    }

    // A small file is written on this thread.
    [[nodiscard]] stream::PumpUnitPtr unit_of(FileRange range) const {
        auto unit = std::make_unique<stream::PumpUnit>();
        unit->bytes = range.end - range.begin;
        unit->may_run = unit->bytes == total_bytes_;
        unit->request.write = true;
        unit->request.files = {file_};
        unit->request.extents = extents_of(image_, range);
        return unit;
    }

    File& file_;
    FileImage& image_;
    const std::uint64_t total_bytes_;
    stream::ProgressClock progress_;
    WritePlan plan_;
    std::size_t free_ = 0;  // next of the plan's
    std::size_t waiting_ = 0;
    std::vector<bool> set_;
    bool awaiting_ = false;  // next() has no unit because a sum is missing
    stream::Pump pump_;
    std::optional<PieceSums> sums_;  // after the pump, which they wake
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
                 const Progress& progress) {
    make_room(files, file, image.file().total_bytes());
    Writer(engine, file, image, progress).run();
}

void save_file(Engine& engine, const FileSystem& files, const std::string& path, FileImage& image,
               const Progress& progress, bool sync) {
    Replacement replacement(files, path);
    write_image(engine, files, replacement.file(), image, progress);
    replacement.commit(sync);
}

}  // namespace penstock::state
