// SPDX-License-Identifier: Apache-2.0
// What a write leaves that the disk had no room for.
#include "suite/suite.hpp"
#include "support/loop_mount.hpp"

#include <cerrno>
#include <filesystem>

namespace penstock::suite {
namespace {

std::uint64_t size_of(const std::string& path) {
    std::error_code error;
    const std::uint64_t size = std::filesystem::file_size(path, error);
    return error ? UINT64_MAX : size;
}

class FullDisk : public EveryBackend {};
INSTANTIATE_TEST_SUITE_P(Backends, FullDisk, kernel_kinds(), kind_name);

// A write that is refused before its first byte leaves files and disk as they were.
TEST_P(FullDisk, RefusedWriteLeavesExt4AsItWas) {
    PENSTOCK_LOOP_MOUNT(mount, support::LoopOptions{.bytes = 64 << 20});
    const auto good = pattern(1 << 20, 1);
    const std::string path = mount / "good";
    const auto write = [&](const std::string& to, const std::vector<std::byte>& data,
                           std::uint64_t offset, const TransferOptions& how) {
        return engine().run(request_of(true, to, data.data(), data.size(), offset, how))->wait();
    };
    write(path, good, 0, {.sync = true});
    const std::uint64_t free = engine().files().space(mount.path()).free_bytes;
    const std::vector<std::byte> big(free + (8 << 20));
    const std::vector<std::byte> half(free / 2 + (8 << 20));
    const auto as_it_was = [&](const char* what) {
        EXPECT_EQ(size_of(path), good.size()) << what;
        EXPECT_EQ(size_of(mount / "new"), UINT64_MAX) << what;
        EXPECT_LE(free, engine().files().space(mount.path()).free_bytes + (64 << 10)) << what;
        std::vector<std::byte> back(good.size());
        EXPECT_EQ(engine().run(request_of(false, path, back.data(), back.size(), 0))->wait(),
                  back.size());
        EXPECT_TRUE(back == good) << what;
    };
    const auto refused = [&](const auto& call) {
        const auto error = error_of(call);
        EXPECT_TRUE(error && error->system_errno() == ENOSPC) << (error ? error->what() : "done");
    };
    for (const CachePolicy cache :
         {CachePolicy::kAuto, CachePolicy::kCached, CachePolicy::kDirect}) {
        const TransferOptions how{.cache = cache};
        refused([&] { return write(path, big, good.size(), how); });
        as_it_was("a file that was there");
        refused([&] { return write(mount / "new", big, 0, how); });
        as_it_was("a new file");
    }
    const auto list_of = [&](std::uint64_t offset) {
        TransferRequest request;
        request.write = true;
        request.paths = {path, mount / "new"};
        auto* const memory = const_cast<std::byte*>(half.data());
        request.extents = {{offset, {memory, half.size()}, 0}, {0, {memory, half.size()}, 1}};
        return request;
    };
    refused([&] { return engine().submit(list_of(good.size()))->wait(); });
    as_it_was("two files, of which one fits");
    {
        const File file = engine().files().open(path, {.access = Access::kWrite});
        refused([&] { return engine().write(file, big, good.size()); });
        EXPECT_EQ(size_of(path), good.size());
    }
    as_it_was("an open file, when it is closed");
}

}  // namespace
}  // namespace penstock::suite
