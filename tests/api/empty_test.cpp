// SPDX-License-Identifier: Apache-2.0
// Objects that are empty or were moved from: each call of theirs is an error, and not a crash.
#include <penstock/checkpoint.hpp>
#include <penstock/engine.hpp>
#include <penstock/file.hpp>
#include <penstock/memory.hpp>

#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <utility>
#include <vector>

namespace penstock {
namespace {

using Call = std::function<void()>;

void expect_refused(const std::vector<Call>& calls) {
    for (std::size_t i = 0; i < calls.size(); ++i) {
        try {
            calls[i]();
            ADD_FAILURE() << "call " << i << " did not throw";
        } catch (const Error& error) {
            EXPECT_EQ(error.reason(), ErrorCode::kInvalidArgument) << i << ": " << error.what();
            EXPECT_NE(std::string(error.what()), "") << i;
        }
    }
}

TEST(EmptyObjects, FileSystem) {
    FileSystem source = FileSystem::local();
    const FileSystem whole = std::move(source);
    EXPECT_NO_THROW((void)whole.list("/"));
    for (const FileSystem& files : {FileSystem(nullptr), source}) {
        expect_refused({
            [&] { (void)files.open("x"); },
            [&] { files.rename("x", "y"); },
            [&] { files.exchange("x", "y"); },
            [&] { files.link("x", "y"); },
            [&] { files.symbolic_link("x", "y"); },
            [&] { files.remove("/penstock-test-is-not-there"); },
            [&] { files.make_folder("/penstock-test-is-not-there/x"); },
            [&] { (void)files.list("/"); },
            [&] { (void)files.space("/"); },
            [&] { (void)files.status("/"); },
            [&] { (void)files.resolve("/"); },
            [&] { files.take_attributes("/", File()); },
            [&] { files.set_modified("/penstock-test-is-not-there", 0); },
            [&] { (void)files.lock("/penstock-test-is-not-there/x"); },
            [&] { files.sync_folder("/"); },
            [&] { const Engine engine({}, files); },
        });
    }
    FileLock lock;
    FileLock other = std::move(lock);
    EXPECT_FALSE(lock.held());
    EXPECT_FALSE(other.held());
}

TEST(EmptyObjects, MemoryPoolAndBuffer) {
    MemoryPool source;
    Buffer buffer = source.take(4096);
    MemoryPool pool = std::move(source);
    expect_refused({
        [&] { (void)source.take(1); },
        [&] { (void)source.kept_bytes(); },
        [&] { source.trim(); },
    });
    Buffer taken = std::move(buffer);
    EXPECT_EQ(taken.size(), 4096U);
    for (const Buffer& empty : {buffer, Buffer()}) {
        EXPECT_EQ(empty.data(), nullptr);
        EXPECT_EQ(empty.size(), 0U);
        EXPECT_TRUE(empty.bytes().empty());
        EXPECT_FALSE(empty.locked());
        EXPECT_EQ(empty.shortfall(), "");
    }
    buffer = std::move(taken);
    EXPECT_EQ(taken.data(), nullptr);
    EXPECT_EQ(buffer.size(), 4096U);
    const Buffer shared = buffer;
    EXPECT_EQ(shared.data(), buffer.data());
    buffer = pool.take(1);
    EXPECT_EQ(shared.size(), 4096U);
}

TEST(EmptyObjects, DepthLimitThatWasMovedFromIsNone) {
    DepthLimit source(3);
    const DepthLimit limit = std::move(source);
    EXPECT_EQ(limit.requests(), 3U);
    EXPECT_EQ(source.requests(), 0U);
}

}  // namespace
}  // namespace penstock
