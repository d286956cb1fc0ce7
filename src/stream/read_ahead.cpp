// SPDX-License-Identifier: Apache-2.0
#include "stream/read_ahead.hpp"

#include "stream/pump.hpp"

#include <penstock/memory.hpp>

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <utility>

namespace penstock::stream {

namespace {

constexpr std::uint64_t kStepBytes = std::uint64_t{8} << 20;
constexpr std::uint64_t kWindowBytes = std::uint64_t{64} << 20;
constexpr std::size_t kStepsMax = 64;

// A part of a stretch that is being read, or was.
struct Step {
    std::size_t stretch = 0;
    std::uint64_t at = 0;  ///< in the stretch
    std::uint64_t bytes = 0;
    Buffer memory;
    bool is_over = false;
    std::optional<Error> error;
};

struct StepUnit final : PumpUnit {
    Step* step = nullptr;
};

class ReadAhead final : public PumpSource {
public:
    ReadAhead(std::span<const Stretch> stretches, const LookAt& look, const NotRead& not_read,
              ProgressClock& progress)
        : stretches_(stretches), look_(look), not_read_(not_read), progress_(progress) {}

    PumpUnitPtr next(std::size_t /*queue*/) override {
        while (next_ < stretches_.size() && at_ >= stretches_[next_].bytes) {
            ++next_;
            at_ = 0;
        }
        if (next_ == stretches_.size() || steps_.size() >= kStepsMax ||
            (held_bytes_ != 0 && held_bytes_ + step_bytes() > kWindowBytes)) {
            return nullptr;
        }
        const Stretch& stretch = stretches_[next_];
        Step& step = steps_.emplace_back();
        step.stretch = next_;
        step.at = at_;
        step.bytes = step_bytes();
        step.memory = pool_.take(step.bytes);
        held_bytes_ += step.bytes;
        at_ += step.bytes;
        auto unit = std::make_unique<StepUnit>();
        unit->step = &step;
        unit->bytes = step.bytes;
        unit->request.files = {stretch.file};
        unit->request.options.cache =
            CachePolicy::kDirect;  // for verify: a cached page proves nothing
        unit->request.extents = {
            {stretch.offset + step.at, step.memory.bytes().first(step.bytes), 0}};
        return unit;
    }

    void ended(PumpUnitPtr unit, Transfer transfer) override {
        Step& step = *static_cast<StepUnit&>(*unit).step;
        step.is_over = true;
        try {
            transfer.wait();
        } catch (const Error& error) {
            if (error.reason() == ErrorCode::kClosed) {
                throw;
            }
            step.error = error;
        }
        while (!steps_.empty() && steps_.front().is_over) {
            look_at_oldest();
        }
    }

    void report_unread() {
        if (const std::optional<Unread> unread = std::exchange(unread_, std::nullopt)) {
            not_read_(unread->stretch, unread->at, unread->bytes, unread->error);
        }
    }

private:
    // Size of the next step.
    [[nodiscard]] std::uint64_t step_bytes() const {
        const Stretch& stretch = stretches_[next_];
        const std::uint64_t piece = stretch.piece_bytes == 0 ? kStepBytes : stretch.piece_bytes;
        return std::min(piece * std::max<std::uint64_t>(1, kStepBytes / piece),
                        stretch.bytes - at_);
    }

    void look_at_oldest() {
        Step& step = steps_.front();
        if (unread_ && unread_->stretch == step.stretch && step.error) {
            unread_->bytes += step.bytes;
        } else if (step.error) {
            report_unread();
            unread_.emplace(Unread{step.stretch, step.at, step.bytes, *step.error});
        } else {
            report_unread();
            look_(step.stretch, step.at, step.memory.bytes().first(step.bytes));
        }
        progress_.add(step.bytes);
        held_bytes_ -= step.bytes;
        steps_.pop_front();
    }

    // Bytes that could not be read, up to the step that is looked at.
    struct Unread {
        std::size_t stretch = 0;
        std::uint64_t at = 0;
        std::uint64_t bytes = 0;
        Error error;
    };

    std::span<const Stretch> stretches_;
    const LookAt& look_;
    const NotRead& not_read_;
    ProgressClock& progress_;
    MemoryPool pool_;
    std::size_t next_ = 0;  // the stretch of the next step
    std::uint64_t at_ = 0;  // and where in it
    std::deque<Step> steps_;
    std::uint64_t held_bytes_ = 0;
    std::optional<Unread> unread_;
};

}  // namespace

void read_ahead(Engine& engine, std::span<const Stretch> stretches, const LookAt& look,
                const NotRead& not_read, ProgressClock& progress) {
    ReadAhead source(stretches, look, not_read, progress);
    Pump pump(engine, progress, {kWindowBytes, kStepsMax});
    pump.run(source, 1);
    source.report_unread();
}

}  // namespace penstock::stream
