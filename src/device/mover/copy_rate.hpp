// SPDX-License-Identifier: Apache-2.0
// When to look at copies of a GPU again. Nothing reports their end, so a thread asks for it: too
// early costs CPU, too late a slot that nobody fills. The copies that have ended tell how long the
// next one takes.
#pragma once

#include "base/clock.hpp"

#include <algorithm>
#include <cstdint>

namespace penstock::device {

/// The copies of one stream, in order. Not thread-safe.
class CopyRate {
public:
    /// A copy is queued, and no other is in the stream.
    void begin(base::Nanos now) { begun_ = now; }

    /// The first copies, of so many bytes, were seen to have ended. Small ones tell nothing of the
    /// rate.
    void ended(std::uint64_t bytes, base::Nanos now) {
        if (bytes >= kTellingBytes) {
            const double measured = static_cast<double>(now - begun_) / static_cast<double>(bytes);
            nanos_per_byte_ = std::clamp(measured, kFastest, kSlowest);
        }
        begun_ = now;
    }

    /// How long to sleep before the first copy, of so many bytes, is asked for. Less than is
    /// expected: else a copy that became faster would never be seen to be.
    [[nodiscard]] base::Nanos look_again(std::uint64_t bytes, base::Nanos now) const {
        const base::Nanos elapsed = now - begun_;
        const auto expected =
            static_cast<base::Nanos>(static_cast<double>(bytes) * nanos_per_byte_);
        const base::Nanos step =
            std::clamp(std::max(expected, elapsed) / 8, kLookSoonest, kLookLate);
        return std::clamp((expected - elapsed) * 3 / 4, step, kLookLatest);
    }

private:
    // A shorter sleep costs as much as it saves.
    static constexpr base::Nanos kLookSoonest = 5'000;
    // Bounds how late the end of a copy is seen that takes longer than the one before it.
    static constexpr base::Nanos kLookLate = 20'000;
    static constexpr base::Nanos kLookLatest = 500'000;
    static constexpr std::uint64_t kTellingBytes = 256 << 10;
    static constexpr double kFastest = 0.02;  // 50 GB/s, PCIe Gen5
    static constexpr double kSlowest = 1;     // 1 GB/s; slower ones waited for something else

    base::Nanos begun_ = 0;  ///< of the first copy
    double nanos_per_byte_ = kFastest;
};

}  // namespace penstock::device
