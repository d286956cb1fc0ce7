// SPDX-License-Identifier: Apache-2.0
// The sums of a FileImage while it is written, range by range (stream/window_sums.hpp): which
// pieces each range writes, which sums it holds, and the memory that it is written from.
#pragma once

#include "state/writing/file_image.hpp"
#include "stream/window_sums.hpp"

#include <penstock/engine.hpp>

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace penstock::state {

/// One thread, except for what `tell` does.
class ImageSums {
public:
    /// `ranges`: all that will be written, in the order of their writes. They and the image outlive
    /// it. `path`: for errors.
    ImageSums(FileImage& image, std::span<const format::FileRange> ranges,
              const stream::Watch& watch, const std::string& path);

    /// See WindowSums; windows are ranges, by their number. They are asked for in their order.
    void start(std::function<void()> tell = {}) { sums_.start(std::move(tell)); }
    void stop() noexcept { sums_.stop(); }
    [[nodiscard]] bool has_room() const { return sums_.has_room(); }
    void ask(std::size_t range) { sums_.ask(range); }
    /// When it is ready, the sums that the range holds are in the image. Asked in the order of the
    /// ranges.
    [[nodiscard]] bool is_ready(std::size_t range);
    /// The extents of a range that is ready; valid until it has ended.
    [[nodiscard]] std::vector<Extent> extents(std::size_t range) const;
    void ended(std::size_t range) { sums_.ended(range); }
    [[nodiscard]] bool is_over() { return sums_.is_over(); }
    bool work() { return sums_.work(); }
    /// is_ready(), waited for.
    void wait_ready(std::size_t range);
    void wait_over() { sums_.wait_over(); }

private:
    void set_sums(std::size_t range);

    FileImage& image_;
    const std::span<const format::FileRange> ranges_;
    std::vector<bool> set_;  // of each payload: its sums are in the image
    stream::WindowSums sums_;
};

}  // namespace penstock::state
