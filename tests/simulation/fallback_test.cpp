// SPDX-License-Identifier: Apache-2.0
// A backend that could be had for one device and cannot for the next: that device takes the one
// after it, says so, and moves its bytes.
#include "base/clock.hpp"
#include "engine/core.hpp"
#include "simulation/fake_backend.hpp"
#include "simulation/fake_disk.hpp"
#include "simulation/fake_file_system.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

namespace penstock::simulation {
namespace {

class Scarce final {
public:
    explicit Scarce(int first_backends_to_have, bool plenty_too = true)
        : left_(first_backends_to_have) {
        for (std::uint32_t i = 0; i < 2; ++i) {
            disks_.push_back(
                std::make_shared<FakeDisk>(DeviceId{240, i}, DiskShape{}, DiskModel{}, 1));
        }
        auto clock = std::make_shared<base::SteadyClock>();
        engine::Platform platform;
        platform.clock = clock;
        platform.file_system = std::make_shared<FakeFileSystem>(disks_, clock);
        const auto fake = [clock](const engine::BackendOptions& options) {
            return base::Result<std::unique_ptr<engine::Backend>>(
                std::make_unique<FakeBackend>(options, clock, false));
        };
        platform.backends = {
            {"scarce",
             [this, fake](const engine::BackendOptions& options)
                 -> base::Result<std::unique_ptr<engine::Backend>> {
                 if (left_.fetch_sub(1) <= 0) {
                     return base::fail(base::system_error(ENOMEM, "make a ring", ""));
                 }
                 return fake(options);
             }},
            {"plenty", fake}};
        if (!plenty_too) {
            platform.backends.pop_back();
        }
        core = *engine::Core::make({}, std::move(platform));
    }

    void write(const std::string& path, TransferStatus expected = TransferStatus::kDone) {
        engine::TransferSpec spec;
        spec.op = engine::Op::kWrite;
        spec.paths = {path};
        spec.extents = engine::Extents({{0, {memory_.data(), memory_.size()}, 0}});
        auto started = core->start(std::move(spec));
        ASSERT_TRUE(started);
        while (!(*started)->wait(base::kForever)) {
        }
        EXPECT_EQ((*started)->status(), expected);
        (*started)->mark_observed();
        (*started)->abandon();
        (*started)->release();
    }

    std::shared_ptr<engine::Core> core;

private:
    std::atomic<int> left_;
    std::vector<std::shared_ptr<FakeDisk>> disks_;
    std::vector<std::byte> memory_{1 << 20};
};

TEST(Fallback, EachDeviceTakesTheBackendThatCanBeHad) {
    Scarce engine(2);  // one to see whether it can be had, one for the first device
    engine.write("/0/file");
    EXPECT_TRUE(engine.core->refusals().empty());
    engine.write("/1/file");
    ASSERT_EQ(engine.core->refusals().size(), 1U);
    EXPECT_NE(engine.core->refusals()[0].find("scarce for device 240:1"), std::string::npos)
        << engine.core->refusals()[0];
    engine.write("/1/file");
    EXPECT_EQ(engine.core->refusals().size(), 1U) << "asked again for a device that has one";
}

TEST(Fallback, SameRefusalIsKeptOnce) {
    Scarce engine(2, false);
    engine.write("/0/file");
    for (int i = 0; i < 20; ++i) {
        engine.write("/1/file", TransferStatus::kFailed);
    }
    EXPECT_EQ(engine.core->refusals().size(), 1U);
}

}  // namespace
}  // namespace penstock::simulation
