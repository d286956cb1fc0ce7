// SPDX-License-Identifier: Apache-2.0
// Reads of several copies: their division follows what is seen of the devices; whatever ends a
// read, no request is left.
#include "weights/read/copied_read.hpp"

#include "support/temp_folder.hpp"
#include "support/text_files.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace penstock::weights {
namespace {

using test::error_of;
using test::write_text;
using Seconds = std::chrono::duration<double>;

// Speeds that were measured in a burst are 1:4 where the devices are 3:1. Only the end of the part
// that is waited for first is seen exactly; another that is done then is seen at the same time.
TEST(FolderSpeedsTest, WhatIsSeenCorrectsWhatWasMeasured) {
    constexpr std::uint32_t kFolders = 2;
    const std::vector<double> real{3.0, 1.0};
    FolderSpeeds speeds(kFolders);
    speeds.set(1, 4.0);
    FolderSpeeds::Time now{std::chrono::hours(1)};
    for (int unit = 0; unit < 100; ++unit) {
        const double sum = speeds.all()[0] + speeds.all()[1];
        std::vector<FolderSpeeds::End> ends;
        for (std::uint32_t folder = 0; folder < kFolders; ++folder) {
            const Seconds taken(speeds.all()[folder] / sum / real[folder]);
            ends.push_back(
                {folder, now + std::chrono::duration_cast<std::chrono::nanoseconds>(taken)});
        }
        const auto first = static_cast<std::uint32_t>(speeds.next_turn() % kFolders);
        ends[1 - first].at = std::max(ends[1 - first].at, ends[first].at);
        speeds.learn(ends);
        now = std::max(ends[0].at, ends[1].at);
    }
    EXPECT_NEAR(speeds.all()[0] / speeds.all()[1], 3.0, 0.1);
}

class CopiedReadTest : public testing::Test {
protected:
    CopiedRead read_of(const std::vector<std::string>& paths) {
        CopiedRead out(std::make_shared<FolderSpeeds>(paths.size()), paths.size());
        memory_.assign(paths.size() * kBytes, std::byte{0});
        for (std::uint32_t i = 0; i < paths.size(); ++i) {
            out.add(engine_.read_async(paths[i], Memory(memory_.data() + i * kBytes, kBytes)), i);
        }
        return out;
    }
    // A transfer leaves the list of the engine a moment after its waiters know.
    bool nothing_runs() {
        return engine_.drain(std::chrono::seconds(60)) && engine_.running() == 0;
    }
    std::string file(const std::string& name, std::size_t bytes, char letter) {
        write_text(folder_ / name, std::string(bytes, letter));
        return folder_ / name;
    }

    static constexpr std::size_t kBytes = 300'000;
    support::TempFolder folder_;
    Engine engine_;
    std::vector<std::byte> memory_;
};

TEST_F(CopiedReadTest, AllPartsAreThereAfterwards) {
    CopiedRead read = read_of({file("a", kBytes, 'a'), file("b", kBytes, 'b')});
    EXPECT_TRUE(read.valid());
    read.set_priority(Priority::kUrgent);
    while (!read.wait_for(std::chrono::milliseconds(1))) {
    }
    EXPECT_TRUE(read.done());
    read.wait();  // again is fine
    EXPECT_EQ(memory_[kBytes - 1], std::byte{'a'});
    EXPECT_EQ(memory_[2 * kBytes - 1], std::byte{'b'});
}

TEST_F(CopiedReadTest, AnErrorOfAnyPartEndsTheOthers) {
    for (const int broken : {0, 1, 2}) {
        std::vector<std::string> paths{file("a", kBytes, 'a'), file("b", kBytes, 'b'),
                                       file("c", kBytes, 'c')};
        std::filesystem::resize_file(paths[static_cast<std::size_t>(broken)], 10);
        CopiedRead read = read_of(paths);
        EXPECT_EQ(error_of([&] { read.wait(); }).path(), paths[static_cast<std::size_t>(broken)]);
        EXPECT_TRUE(read.done());
        EXPECT_TRUE(nothing_runs());
    }
}

TEST_F(CopiedReadTest, WhatIsDroppedIsStopped) {
    { const CopiedRead read = read_of({file("a", kBytes, 'a'), file("b", kBytes, 'b')}); }
    EXPECT_TRUE(nothing_runs());
    EXPECT_FALSE(CopiedRead().valid());
}

}  // namespace
}  // namespace penstock::weights
