// SPDX-License-Identifier: Apache-2.0
// A read of several copies at once: a transfer for each folder. What is seen of their ends corrects
// how the next one is divided: a speed that was measured once may have been that of a burst.
#pragma once

#include <penstock/engine.hpp>

#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace penstock::weights {

/// The speeds by which work is divided between folders. Only their ratios count.
class FolderSpeeds {
public:
    using Time = std::chrono::steady_clock::time_point;
    struct End {
        std::uint32_t folder = 0;
        Time at;
    };

    explicit FolderSpeeds(std::size_t folders) : speeds_(folders, 1.0) {}
    [[nodiscard]] std::span<const double> all() const { return speeds_; }
    void set(std::size_t folder, double speed) { speeds_[folder] = speed; }
    /// Another folder each time: the end of the part that is waited for first is seen exactly.
    [[nodiscard]] std::size_t next_turn() { return turn_++; }
    /// Gives more to the folders that were done before the last one. `at` is the end of a folder's
    /// part, or a later time at which that was seen.
    void learn(std::span<const End> ends);

private:
    std::vector<double> speeds_;
    Time last_;
    std::size_t turn_ = 0;
};

/// Has the calls of a Transfer, with which it is waited for.
class CopiedRead {
public:
    CopiedRead() = default;
    CopiedRead(std::shared_ptr<FolderSpeeds> speeds, std::size_t folders)
        : speeds_(std::move(speeds)) {
        parts_.reserve(folders);
    }
    CopiedRead(CopiedRead&&) noexcept = default;
    CopiedRead& operator=(CopiedRead&& other) noexcept {
        stop();
        speeds_ = std::move(other.speeds_);
        parts_ = std::move(other.parts_);
        process_ = other.process_;
        return *this;
    }
    CopiedRead(const CopiedRead&) = delete;
    CopiedRead& operator=(const CopiedRead&) = delete;
    /// As stop().
    ~CopiedRead() { stop(); }

    void add(Transfer transfer, std::uint32_t folder);
    [[nodiscard]] bool valid() const noexcept { return !parts_.empty(); }
    [[nodiscard]] bool done() const noexcept;
    /// Throws the first error that it meets, when no part uses its memory any more.
    void wait();
    /// The same, or false when the time is over.
    [[nodiscard]] bool wait_for(std::chrono::nanoseconds timeout);
    void cancel();
    /// Cancels and waits: no request uses its memory any more. Does not wait in a child of fork(),
    /// which has a copy of the memory: its parent's transfers never end there.
    void stop() noexcept;
    void set_priority(Priority priority);

private:
    struct CopyRead {
        Transfer transfer;
        FolderSpeeds::End end;
        bool is_over = false;
    };

    [[nodiscard]] bool wait_for_part(CopyRead& part, FolderSpeeds::Time until);

    std::shared_ptr<FolderSpeeds> speeds_;
    std::vector<CopyRead> parts_;
    pid_t process_ = ::getpid();
};

}  // namespace penstock::weights
