// SPDX-License-Identifier: Apache-2.0
// The tests' own ground: nothing may be left behind, whatever happens to the process.
#include "support/loop_mount.hpp"

#include "os/machine/sysfs.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <thread>

namespace penstock::support {
namespace {

bool attached(const std::string& device) {
    return std::filesystem::exists("/sys/block/" + device.substr(5) + "/loop/backing_file");
}

// The kernel detaches a loop device a moment after its last user.
bool detached_soon(const std::string& device) {
    for (int i = 0; i < 200; ++i) {
        if (!attached(device)) {
            return true;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return false;
}

TEST(LoopMount, LeavesNothingWhenDestroyed) {
    std::string device;
    std::string path;
    {
        PENSTOCK_LOOP_MOUNT(mount, LoopOptions{});
        device = mount.device();
        path = mount.path();
        EXPECT_TRUE(attached(device));
        EXPECT_THAT(os::read_text("/proc/self/mountinfo").value_or(""), ::testing::HasSubstr(path));
    }
    EXPECT_FALSE(std::filesystem::exists(path));
    EXPECT_TRUE(detached_soon(device));
}

TEST(LoopMount, LeavesNothingWhenKilled) {
    if (::geteuid() != 0) {
        GTEST_SKIP() << "mounting needs root";
    }
    int out[2];
    ASSERT_EQ(::pipe(out), 0);
    const pid_t child = ::fork();
    if (child == 0) {
        // A namespace of the child's own: the one of this process would live on with us.
        std::string device = "-";
        if (::unshare(CLONE_NEWNS) == 0) {
            auto mount = LoopMount::make({.file_system = "overlay"});
            device = mount ? mount->device() : "-" + mount.error().describe();
            if (::write(out[1], device.data(), device.size()) > 0) {
                ::pause();
            }
        }
        ::_exit(1);
    }
    ::close(out[1]);
    std::string device(256, '\0');
    const ssize_t length = ::read(out[0], device.data(), device.size());
    device.resize(length > 0 ? static_cast<std::size_t>(length) : 0);
    ::close(out[0]);
    const bool made = device.rfind("/dev/loop", 0) == 0;
    const bool was_attached = made && attached(device);
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    if (!made) {
        GTEST_SKIP() << "no loop mount here: " << device;
    }
    EXPECT_TRUE(was_attached);
    EXPECT_TRUE(detached_soon(device)) << device;
}

TEST(LoopMount, UnknownFileSystemCannotRun) {
    const auto mount = LoopMount::make({.file_system = "nosuchfs"});
    ASSERT_FALSE(mount);
    EXPECT_EQ(mount.error().code, ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace penstock::support
