// SPDX-License-Identifier: Apache-2.0
#include "os/machine/block_device.hpp"

#include "os/local_file_system.hpp"
#include "support/loop_mount.hpp"
#include "support/temp_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

namespace penstock::os {
namespace {

TEST(BlockDevice, OfAFile) {
    support::LoopOptions options;
    options.sector_bytes = 4096;
    PENSTOCK_LOOP_MOUNT(mount, options);
    auto file = local_file_system()->open(mount / "f", {.access = Access::kWrite, .create = true});
    ASSERT_TRUE(file);
    const auto device = block_device((*file)->info().device);
    ASSERT_TRUE(device);
    EXPECT_EQ("/dev/" + device->name, mount.device());
    EXPECT_EQ(device->logical_block_bytes, 4096U);
    EXPECT_GE(device->physical_block_bytes, 4096U);
    EXPECT_GT(device->max_request_kib, 0U);
    EXPECT_GT(device->queue_requests, 0U);
    EXPECT_FALSE(device->scheduler.empty());
}

TEST(BlockDevice, TmpfsHasNone) {
    const support::TempFolder folder("/dev/shm");
    auto file = local_file_system()->open(folder / "f", {.access = Access::kWrite, .create = true});
    ASSERT_TRUE(file);
    EXPECT_FALSE(block_device((*file)->info().device));
    EXPECT_FALSE(block_device({4000, 4000}));
}

}  // namespace
}  // namespace penstock::os
