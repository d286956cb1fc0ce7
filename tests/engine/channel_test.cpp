// SPDX-License-Identifier: Apache-2.0
// The end of a channel's thread, turn by turn.
#include "engine/channel.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>

namespace penstock::engine {
namespace {

// Notes whether the channel would have slept.
class Bed final : public Backend {
public:
    explicit Bed(bool& slept) : slept_(slept) {}
    [[nodiscard]] const char* name() const override { return "bed"; }
    [[nodiscard]] std::string detail() const override { return ""; }
    [[nodiscard]] bool takes_buffered() const override { return true; }
    void push(Request& /*request*/) override {}
    void enter(std::uint32_t want, base::Nanos /*timeout*/) override { slept_ |= want != 0; }
    std::size_t reap(std::span<Request*> /*done*/) override { return 0; }
    void wake() override {}

private:
    bool& slept_;
};

// The thread looks whether it may end, and is told to end after that: it hears of it in the turn
// that would sleep, or in any before, and nobody wakes it once more.
TEST(ChannelTest, SleepsNoMoreOnceItIsToEnd) {
    for (int turns_before = 0; turns_before < 3; ++turns_before) {
        bool slept = false;
        const base::SteadyClock clock;
        InlineExecutor executor;
        Channel channel(
            {}, std::make_unique<Bed>(slept),
            [](const MemoryPlace& /*host*/, const std::function<void()>& wake) {
                return std::make_unique<HostMover>(nullptr, wake);
            },
            executor, executor, clock);
        channel.turn(true);
        EXPECT_TRUE(slept);
        EXPECT_FALSE(channel.may_end());
        slept = false;
        channel.stop();
        for (int i = 0; i < turns_before; ++i) {
            channel.turn(false);
        }
        channel.turn(true);
        EXPECT_FALSE(slept);
        EXPECT_TRUE(channel.may_end());
    }
}

}  // namespace
}  // namespace penstock::engine
