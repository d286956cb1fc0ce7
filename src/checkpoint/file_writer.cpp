// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/file_writer.hpp"

#include "base/align.hpp"
#include "base/raise.hpp"
#include "checkpoint/piece_sums.hpp"
#include "checkpoint/replace.hpp"
#include "checkpoint/write_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <deque>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace penstock::checkpoint {

namespace {

using format::FileRange;

constexpr std::chrono::milliseconds kSlice{50};
constexpr std::chrono::milliseconds kProgressInterval{100};

class Writer {
public:
    Writer(Engine& engine, File& file, FileImage& image, const Progress& progress)
        : engine_(engine),
          file_(file),
          image_(image),
          progress_(progress),
          total_bytes_(image.file().total_bytes()),
          set_(image.payloads().size()) {
        const FileInfo info = file.info();
        const std::uint64_t block_bytes = std::max(
            {base::kPageBytes, std::uint64_t{info.block_bytes}, std::uint64_t{info.write_align}});
        plan_ = write_plan(image, block_bytes);
    }
    Writer(const Writer&) = delete;
    Writer& operator=(const Writer&) = delete;
    // After an error: nobody looks at the caller's memory when it is gone.
    ~Writer() {
        for (Sent& sent : sent_) {
            sent.transfer.cancel();
        }
        for (Sent& sent : sent_) {
            try {
                sent.transfer.wait();
            } catch (const Error&) {  // the first error is on its way
            }
        }
    }

    void run() {
        sums_.emplace(image_);
        for (const FileRange& range : plan_.free) {
            send(range);
        }
        for (const FileRange& range : plan_.waiting) {
            await_sums(range);
            send(range);
        }
        while (!sent_.empty()) {
            await_oldest();
        }
        if (progress_) {
            report();
        }
    }

private:
    struct Sent {
        Transfer transfer;
        std::uint64_t bytes;
    };

    // In slices, so that an error of what is under way, and the caller, get in between.
    void await_sums(FileRange range) {
        for (const std::size_t payload : image_.sums_in(range)) {
            if (set_[payload]) {
                continue;
            }
            while (!sums_->await(payload, kSlice)) {
                collect();
                look_up();
            }
            image_.set_sums(payload, sums_->of(payload));
            set_[payload] = true;
        }
    }

    void send(FileRange range) {
        const std::uint64_t bytes = range.end - range.begin;
        while (sent_bytes_ != 0 && sent_bytes_ + bytes > kWriteWindowBytes) {
            await_oldest();
        }
        while (true) {
            try {
                // A small file is done on this thread.
                sent_.push_back({bytes == total_bytes_ ? engine_.run(request_of(range))
                                                       : engine_.submit(request_of(range)),
                                 bytes});
                break;
            } catch (const Error& error) {
                if (error.reason() != ErrorCode::kWouldBlock) {
                    throw;
                }
            }
            // The engine's limit on transfers; others may have all of it.
            if (sent_.empty()) {
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
                look_up();
            } else {
                await_oldest();
            }
        }
        sent_bytes_ += bytes;
    }

    [[nodiscard]] TransferRequest request_of(FileRange range) const {
        TransferRequest request;
        request.write = true;
        request.files = {file_};
        request.extents = extents_of(image_, range);
        return request;
    }

    void await_oldest() {
        while (!sent_.front().transfer.wait_for(kSlice)) {
            look_up();
        }
        drop_oldest();
        look_up();
    }

    // What is done already, without waiting.
    void collect() {
        while (!sent_.empty() && sent_.front().transfer.done()) {
            sent_.front().transfer.wait();
            drop_oldest();
        }
    }

    void drop_oldest() {
        sent_bytes_ -= sent_.front().bytes;
        done_bytes_ += sent_.front().bytes;
        sent_.pop_front();
    }

    void look_up() {
        const auto now = std::chrono::steady_clock::now();
        if (progress_ && now - reported_ >= kProgressInterval) {
            reported_ = now;
            report();
        }
    }

    void report() {
        if (!progress_(done_bytes_, total_bytes_)) {
            base::raise(base::error(ErrorCode::kCancelled, "save",
                                    "it was stopped before it was done; nothing was changed",
                                    file_.path()));
        }
    }

    Engine& engine_;
    File& file_;
    FileImage& image_;
    const Progress& progress_;
    const std::uint64_t total_bytes_;
    WritePlan plan_;
    std::vector<bool> set_;
    std::optional<PieceSums> sums_;
    std::deque<Sent> sent_;
    std::uint64_t sent_bytes_ = 0;
    std::uint64_t done_bytes_ = 0;
    std::chrono::steady_clock::time_point reported_ = std::chrono::steady_clock::now();
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

}  // namespace penstock::checkpoint
