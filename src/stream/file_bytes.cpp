// SPDX-License-Identifier: Apache-2.0
#include "stream/file_bytes.hpp"

#include "stream/progress_clock.hpp"
#include "stream/pump.hpp"
#include "stream/when_room.hpp"

#include <memory>
#include <utility>

namespace penstock::stream {

namespace {

// One transfer of many extents.
class OneTransfer final : public PumpSource {
public:
    explicit OneTransfer(PumpUnitPtr unit) : unit_(std::move(unit)) {}
    PumpUnitPtr next(std::size_t /*queue*/) override { return std::move(unit_); }
    void ended(PumpUnitPtr /*unit*/, Transfer transfer) override { transfer.wait(); }

private:
    PumpUnitPtr unit_;
};

}  // namespace

format::Result<void> FileBytes::read(std::uint64_t offset, std::span<std::byte> into) {
    if (!into.empty()) {
        read_when_room(engine_, file_, into, begin_ + offset);
    }
    return {};
}

format::Result<void> FileBytes::read_many(std::span<const format::ByteRead> reads) {
    auto unit = std::make_unique<PumpUnit>();
    unit->request.files.push_back(file_);
    unit->request.extents.reserve(reads.size());
    for (const format::ByteRead& one : reads) {
        unit->request.extents.push_back({begin_ + one.offset, one.into, 0});
        unit->bytes += one.into.size();
    }
    if (unit->bytes > 0) {
        unit->may_run = true;
        ProgressClock nobody({}, "read", file_.path());
        Pump pump(engine_, nobody, {unit->bytes, 1});
        OneTransfer source(std::move(unit));
        pump.run(source, 1);
    }
    return {};
}

}  // namespace penstock::stream
