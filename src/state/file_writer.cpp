// SPDX-License-Identifier: Apache-2.0
#include "state/file_writer.hpp"

#include "base/align.hpp"
#include "base/raise.hpp"
#include "state/piece_sums.hpp"
#include "state/replace.hpp"
#include "state/write_plan.hpp"
#include "stream/progress_clock.hpp"
#include "stream/transfer_window.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <optional>
#include <vector>

namespace penstock::state {

namespace {

using format::FileRange;

constexpr std::chrono::milliseconds kSlice{50};

class Writer {
public:
    Writer(Engine& engine, File& file, FileImage& image, const Progress& progress)
        : file_(file),
          image_(image),
          total_bytes_(image.file().total_bytes()),
          progress_(progress, "save", file.path()),
          set_(image.payloads().size()),
          window_(engine, kWriteWindowBytes, progress_) {
        progress_.set_total(total_bytes_);
        const FileInfo info = file.info();
        const std::uint64_t block_bytes = std::max(
            {base::kPageBytes, std::uint64_t{info.block_bytes}, std::uint64_t{info.write_align}});
        plan_ = write_plan(image, block_bytes);
    }
    Writer(const Writer&) = delete;
    Writer& operator=(const Writer&) = delete;

    void run() {
        sums_.emplace(image_, 0);
        for (const FileRange& range : plan_.free) {
            send(range);
            sums_->let(range.end);
        }
        sums_->let(PieceSums::kAll);
        for (const FileRange& range : plan_.waiting) {
            await_sums(range);
            send(range);
        }
        while (!window_.empty()) {
            window_.await_oldest();
        }
        progress_.tick(true);
    }

private:
    // In slices, so that an error of what is under way, and the caller, get in between.
    void await_sums(FileRange range) {
        for (const std::size_t payload : image_.sums_in(range)) {
            if (set_[payload]) {
                continue;
            }
            while (!sums_->await(payload, kSlice)) {
                window_.collect();
            }
            image_.set_sums(payload, sums_->of(payload));
            set_[payload] = true;
        }
    }

    // A small file is done on this thread.
    void send(FileRange range) {
        const std::uint64_t bytes = range.end - range.begin;
        window_.send(request_of(range), bytes, bytes == total_bytes_);
    }

    [[nodiscard]] TransferRequest request_of(FileRange range) const {
        TransferRequest request;
        request.write = true;
        request.files = {file_};
        request.extents = extents_of(image_, range);
        return request;
    }

    File& file_;
    FileImage& image_;
    const std::uint64_t total_bytes_;
    stream::ProgressClock progress_;
    WritePlan plan_;
    std::vector<bool> set_;
    std::optional<PieceSums> sums_;
    stream::TransferWindow window_;
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

std::string folder_of(const std::string& path) {
    const std::size_t slash = path.rfind('/');
    return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

void make_room(const FileSystem& files, File& file, std::uint64_t bytes) {
    const std::string& path = file.path();
    try {
        if (!file.preallocate(0, bytes)) {
            const std::uint64_t free = files.space(folder_of(path)).free_bytes;
            if (free < bytes) {
                raise_full(path, bytes, free);
            }
        }
    } catch (const Error& error) {
        if (error.system_errno() != ENOSPC) {
            throw;
        }
        file.truncate(0);  // a part of it may have been given
        raise_full(path, bytes, files.space(folder_of(path)).free_bytes);
    }
}

void write_image(Engine& engine, const FileSystem& files, File& file, FileImage& image,
                 const Progress& progress) {
    make_room(files, file, image.file().total_bytes());
    Writer(engine, file, image, progress).run();
}

void save_file(Engine& engine, const FileSystem& files, const std::string& path, FileImage& image,
               const Progress& progress) {
    Replacement replacement(files, path);
    write_image(engine, files, replacement.file(), image, progress);
    replacement.commit();
}

}  // namespace penstock::state
