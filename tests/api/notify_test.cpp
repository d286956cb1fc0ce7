// SPDX-License-Identifier: Apache-2.0
// Eventfds of callers who close them, or give their number away, while transfers run. The disk
// holds what is asked of it until it may go on.
#include "simulation/fake_file_system.hpp"
#include "support/temp_folder.hpp"

#include <penstock/penstock.hpp>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace penstock {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kBytes = 4096;

class Notify : public ::testing::Test {
protected:
    void SetUp() override {
        disk_->set_faults([this](const simulation::DiskAccess&) {
            while (held_) {
                std::this_thread::sleep_for(1ms);
            }
            return simulation::Fault{};
        });
        files_.open("/file", {.access = Access::kWrite, .create = true}).truncate(1 << 20);
    }
    void TearDown() override { held_ = false; }
    Transfer read(std::size_t place = 0) {
        return engine_.read_async("/file", {memory_.data() + place * kBytes, kBytes});
    }

    std::shared_ptr<simulation::FakeDisk> disk_ = std::make_shared<simulation::FakeDisk>(
        DeviceId{240, 0}, simulation::DiskShape{}, simulation::DiskModel{}, 1);
    std::atomic<bool> held_{true};
    FileSystem files_{std::make_shared<simulation::FakeFileSystem>(
        std::vector{disk_}, std::make_shared<base::SteadyClock>())};
    std::vector<std::byte> memory_ = std::vector<std::byte>(200 * kBytes);
    Engine engine_{EngineOptions{}, files_};
};

// Once `wanted` was added, or a minute has passed.
std::uint64_t count_of(int eventfd, std::uint64_t wanted) {
    std::uint64_t all = 0;
    pollfd waiting{eventfd, POLLIN, 0};
    while (all < wanted && ::poll(&waiting, 1, 60'000) == 1) {
        std::uint64_t count = 0;
        EXPECT_EQ(::read(eventfd, &count, sizeof count), 8);
        all += count;
    }
    return all;
}

// The kernel's number of an eventfd, which its copies share; empty: it is none.
std::string id_of(const std::filesystem::path& info) {
    std::ifstream lines(info);
    for (std::string line; std::getline(lines, line);) {
        if (line.rfind("eventfd-id:", 0) == 0) {
            return line;
        }
    }
    return "";
}

// Descriptors of one eventfd: the engine opens and closes others meanwhile.
std::ptrdiff_t copies(int eventfd) {
    const std::filesystem::path folder = "/proc/self/fdinfo";
    const std::string id = id_of(folder / std::to_string(eventfd));
    EXPECT_NE(id, "");
    const std::filesystem::directory_iterator all(folder);
    return std::count_if(begin(all), end(all),
                         [&](const auto& each) { return id_of(each.path()) == id; });
}

TEST_F(Notify, WhatHasTheNumberByThenIsNotWrittenTo) {
    const support::TempFolder folder;
    const int event = ::eventfd(0, EFD_CLOEXEC);
    const int kept = ::dup(event);
    Transfer transfer = read();
    transfer.notify(event);
    const int file = ::open((folder / "file").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    ASSERT_EQ(::dup2(file, event), event);
    held_ = false;
    EXPECT_EQ(transfer.wait(), kBytes);
    EXPECT_EQ(count_of(kept, 1), 1U);
    EXPECT_EQ(std::filesystem::file_size(folder / "file"), 0U);
    for (const int each : {event, kept, file}) {
        ::close(each);
    }
}

TEST_F(Notify, ManyTransfersShareACopyAndItGoesWithThem) {
    const int event = ::eventfd(0, EFD_CLOEXEC);
    const int other = ::eventfd(0, EFD_CLOEXEC);
    const int kept = ::dup(event);
    std::vector<Transfer> transfers;
    for (std::size_t i = 0; i < 200; ++i) {
        transfers.push_back(read(i));
    }
    for (std::size_t i = 0; i < 150; ++i) {
        transfers[i].notify(event);
    }
    EXPECT_EQ(copies(event), 3);
    ASSERT_EQ(::dup2(other, event), event);  // another eventfd of the same number
    for (std::size_t i = 150; i < 200; ++i) {
        transfers[i].notify(event);
    }
    EXPECT_EQ(copies(kept), 2);
    EXPECT_EQ(copies(other), 3);
    held_ = false;
    for (Transfer& transfer : transfers) {
        EXPECT_EQ(transfer.wait(), kBytes);
    }
    // They are written to just after the end, and their copy goes with the last of them.
    EXPECT_EQ(count_of(kept, 150), 150U);
    EXPECT_EQ(count_of(other, 50), 50U);
    engine_.drain();
    for (int tries = 0; tries < 10'000 && copies(kept) + copies(other) > 3; ++tries) {
        std::this_thread::sleep_for(1ms);
    }
    EXPECT_EQ(copies(kept), 1);
    EXPECT_EQ(copies(other), 2);
    for (const int each : {event, other, kept}) {
        ::close(each);
    }
}

}  // namespace
}  // namespace penstock
