// SPDX-License-Identifier: Apache-2.0
#include "os/machine/mount_table.hpp"

#include "support/temp_folder.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

namespace penstock::os {
namespace {

constexpr const char* kText =
    "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
    "31 22 0:27 / /dev/shm rw - tmpfs tmpfs rw\n"
    "40 22 0:51 / /data rw - nfs4 server:/a rw\n"
    "41 40 0:52 / /data/two\\040words rw - nfs4 server:/b rw\n"
    "not a line\n"
    "42 22 0:53 / /data rw - nfs4 server:/c rw\n";

TEST(MountTable, LongestFolderAndLastMountWin) {
    const auto mounts = parse_mountinfo(kText);
    ASSERT_EQ(mounts.size(), 5U);
    const auto minor_of = [&](const char* path) { return device_of_path(mounts, path).minor; };
    EXPECT_EQ(minor_of("/etc/passwd"), 1U);
    EXPECT_EQ(minor_of("/"), 1U);
    EXPECT_EQ(minor_of("/dev/shm/x"), 27U);
    EXPECT_EQ(minor_of("/dev/shmx/x"), 1U);
    EXPECT_EQ(minor_of("/data/x"), 53U);
    EXPECT_EQ(minor_of("/data"), 53U);
    EXPECT_EQ(minor_of("/data/two words/x/y"), 52U);
    EXPECT_EQ(device_of_path({}, "/x"), DeviceId{});
}

TEST(MountTable, KnowsTheMountsOfThisProcess) {
    const support::TempFolder folder("/dev/shm");
    struct stat status {};
    ASSERT_EQ(::stat(folder.path().c_str(), &status), 0);
    const DeviceId device = device_of_path(mounts(), folder.path());
    EXPECT_EQ(device.major, major(status.st_dev));
    EXPECT_EQ(device.minor, minor(status.st_dev));
}

}  // namespace
}  // namespace penstock::os
