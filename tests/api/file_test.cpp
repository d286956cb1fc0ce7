// SPDX-License-Identifier: Apache-2.0
// Files and file systems at the public border.
#include "support/error_of.hpp"
#include "support/temp_folder.hpp"

#include <penstock/penstock.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

namespace penstock {
namespace {

using support::error_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class PublicFile : public ::testing::Test {
protected:
    [[nodiscard]] File make(const std::string& name) const {
        return File(folder_ / name, {.access = Access::kReadWrite, .create = true});
    }
    support::TempFolder folder_;
};

TEST_F(PublicFile, ErrorsCarryAllThatIsKnown) {
    const std::string path = folder_ / "none";
    const auto error = error_of([&] { return File(path).size(); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->reason(), ErrorCode::kSystem);
    EXPECT_EQ(error->code().category(), error_category());
    EXPECT_EQ(error->code().value(), static_cast<int>(ErrorCode::kSystem));
    EXPECT_STREQ(error->code().category().name(), "penstock");
    EXPECT_FALSE(error->code().message().empty());
    EXPECT_EQ(error->system_errno(), ENOENT);
    EXPECT_EQ(error->operation(), "open");
    EXPECT_EQ(error->path(), path);
    EXPECT_EQ(error->offset(), kNoOffset);
    EXPECT_THAT(error->what(), HasSubstr(path));
    EXPECT_THAT(error->what(), HasSubstr("open"));
    // It is what the standard library catches.
    EXPECT_THROW(static_cast<void>(File(path)), std::system_error);
}

TEST_F(PublicFile, InfoSaysWhatItIs) {
    const File file = make("file");
    const FileInfo info = file.info();
    EXPECT_EQ(info.path, folder_ / "file");
    EXPECT_EQ(info.access, Access::kReadWrite);
    EXPECT_FALSE(info.file_system.empty());
    EXPECT_FALSE(info.reason.empty());
    EXPECT_FALSE(info.is_block_device);
    struct stat status {};
    ASSERT_EQ(::stat(info.path.c_str(), &status), 0);
    EXPECT_GE(info.block_bytes, 512U);
    if (info.direct) {
        EXPECT_GE(info.read_align, 1U);
        EXPECT_GE(info.write_align, info.read_align);
    } else {
        EXPECT_EQ(info.memory_align, 1U);
        EXPECT_EQ(info.read_align, 1U);
    }
    const File buffered(folder_ / "file", {.cache = CachePolicy::kCached});
    EXPECT_FALSE(buffered.info().direct);
    EXPECT_EQ(buffered.info().cache, CachePolicy::kCached);
    EXPECT_EQ(buffered.info().page_cache, "all goes through it, as asked for");
    EXPECT_NE(info.page_cache, buffered.info().page_cache);
    const support::TempFolder memory("/dev/shm");
    const File tmpfs(memory / "file", {.access = Access::kReadWrite, .create = true});
    EXPECT_EQ(tmpfs.info().page_cache, "read from there: tmpfs has no device below it");
    EXPECT_EQ(buffered.info().read_align, 1U);
}

TEST_F(PublicFile, SizeTruncatePreallocateSync) {
    File file = make("file");
    EXPECT_EQ(file.size(), 0U);
    file.truncate(10'001);
    EXPECT_EQ(file.size(), 10'001U);
    if (file.preallocate(8192, 100'000)) {
        EXPECT_EQ(file.size(), 108'192U);
    }
    file.truncate(5);
    EXPECT_EQ(std::filesystem::file_size(folder_ / "file"), 5U);
    file.sync();
    const File reader(folder_ / "file");
    const auto refused = error_of([&] {
        File(reader).truncate(1);
        return 0;
    });
    ASSERT_TRUE(refused);
    EXPECT_EQ(refused->operation(), "truncate");
    EXPECT_EQ(reader.size(), 5U);
}

TEST_F(PublicFile, OpensAsAsked) {
    File file = make("file");
    file.truncate(100);
    EXPECT_EQ(make("file").size(), 100U);  // nothing truncates by itself
    const auto there = error_of([&] {
        return File(folder_ / "file", {.access = Access::kWrite, .create = true, .exclusive = true})
            .size();
    });
    ASSERT_TRUE(there);
    EXPECT_EQ(there->system_errno(), EEXIST);
    EXPECT_EQ(File(folder_ / "file", {.access = Access::kWrite, .truncate = true}).size(), 0U);
    const auto folder = error_of([&] { return File(folder_.path()).size(); });
    ASSERT_TRUE(folder);
    EXPECT_EQ(folder->system_errno(), EISDIR);
    EXPECT_TRUE(error_of([] { return File("").size(); }));
    EXPECT_TRUE(error_of([] { return File(std::string("/tmp/a\0b", 8)).size(); }));
}

TEST_F(PublicFile, ClosedFilesSaySo) {
    File file = make("file");
    const File copy = file;
    EXPECT_TRUE(file.is_open());
    file.close();
    file.close();
    EXPECT_FALSE(file.is_open());
    const auto error = error_of([&] { return file.size(); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->reason(), ErrorCode::kClosed);
    EXPECT_TRUE(error_of([] { return File().info(); }));
    EXPECT_EQ(copy.size(), 0U);  // copies share one opening: it is open still
}

TEST_F(PublicFile, FileSystemCalls) {
    const FileSystem files = FileSystem::local();
    files.make_folder(folder_ / "inner");
    static_cast<void>(make("inner/b"));
    make("inner/a").truncate(7);
    EXPECT_THAT(files.list(folder_ / "inner"), ElementsAre("a", "b"));
    files.rename(folder_ / "inner/a", folder_ / "inner/b");
    EXPECT_EQ(files.open(folder_ / "inner/b").size(), 7U);
    files.link(folder_ / "inner/b", folder_ / "inner/c");
    files.sync_folder(folder_ / "inner");
    EXPECT_THAT(files.list(folder_ / "inner"), ElementsAre("b", "c"));
    const Space space = files.space(folder_.path());
    EXPECT_GT(space.total_bytes, 0U);
    EXPECT_LE(space.free_bytes, space.total_bytes);
    const auto full = error_of([&] {
        files.remove(folder_ / "inner");
        return 0;
    });
    ASSERT_TRUE(full);
    EXPECT_EQ(full->system_errno(), ENOTEMPTY);
    EXPECT_EQ(full->path(), folder_ / "inner");
    files.remove(folder_ / "inner/b");
    files.remove(folder_ / "inner/c");
    files.remove(folder_ / "inner");
    EXPECT_TRUE(error_of([&] { return files.list(folder_ / "inner"); }));
}

TEST_F(PublicFile, AnyRefusesWhatBeginsAsAUrlAndLocalTakesIt) {
    const std::string before = std::filesystem::current_path();
    std::filesystem::current_path(folder_.path());
    std::filesystem::create_directories("s3:/bucket");
    const FileSystem files = FileSystem::any();
    files.open("./s3://bucket/a", {.access = Access::kWrite, .create = true}).truncate(7);
    EXPECT_EQ(FileSystem::local().open("s3://bucket/a").size(), 7U);
    EXPECT_EQ(files.open("s3:/bucket/a").size(), 7U);
    for (const std::string path :
         {"s3://bucket/a", "gs://b/a", "hf://a/b", "http://a/b", "https://a/b"}) {
        const std::array<std::optional<Error>, 5> errors{
            error_of([&] { return files.open(path); }), error_of([&] { return File(path); }),
            error_of([&] { return files.find(path); }), error_of([&] { return files.list(path); }),
            error_of([&] {
                files.rename("./s3:/bucket/a", path);
                return 0;
            })};
        for (const std::optional<Error>& error : errors) {
            ASSERT_TRUE(error) << path;
            EXPECT_EQ(error->system_errno(), ENOENT);
            EXPECT_THAT(error->what(), HasSubstr("only local paths are opened")) << path;
        }
    }
    std::filesystem::current_path(before);
}

TEST_F(PublicFile, LockIsHeldUntilTheLastCopy) {
    const FileSystem files = FileSystem::local();
    FileLock second;
    {
        const FileLock lock = files.lock(folder_ / "lock");
        EXPECT_TRUE(lock.held());
        const auto held = error_of([&] { return files.lock(folder_ / "lock"); });
        ASSERT_TRUE(held);
        EXPECT_EQ(held->system_errno(), EWOULDBLOCK);
        second = lock;
    }
    EXPECT_TRUE(error_of([&] { return files.lock(folder_ / "lock"); }));
    second = {};
    EXPECT_FALSE(second.held());
    EXPECT_TRUE(files.lock(folder_ / "lock").held());
}

TEST_F(PublicFile, ALockIsHeldWhileItsFileHasItsName) {
    const FileSystem files = FileSystem::local();
    const FileLock lock = files.lock(folder_ / "lock");
    files.rename(folder_ / "lock", folder_ / "other");
    EXPECT_FALSE(lock.held());
    const FileLock second = files.lock(folder_ / "lock");
    EXPECT_TRUE(second.held());
    EXPECT_FALSE(lock.held());
    files.rename(folder_ / "other", folder_ / "lock");
    EXPECT_TRUE(lock.held());
    EXPECT_FALSE(second.held());
    files.remove(folder_ / "lock");
    EXPECT_FALSE(lock.held());
}

TEST_F(PublicFile, TimesAreSetAndTold) {
    const FileSystem files = FileSystem::local();
    files.open(folder_ / "file", {.access = Access::kWrite, .create = true}).close();
    for (const std::int64_t time : {std::int64_t{0}, std::int64_t{1'700'000'000'123'456'700},
                                    std::int64_t{1}, std::int64_t{-1}}) {
        files.set_modified(folder_ / "file", time);
        EXPECT_EQ(files.status(folder_ / "file").modified_ns, time);
    }
    const auto missing = error_of([&] { files.set_modified(folder_ / "none", 1); });
    ASSERT_TRUE(missing);
    EXPECT_EQ(missing->system_errno(), ENOENT);
}

TEST(PublicMemory, BuffersComeAndGoBack) {
    MemoryPool pool({.kept_bytes_max = 64 << 20});
    std::byte* first = nullptr;
    {
        const Buffer buffer = pool.take(5'000'001);
        EXPECT_EQ(buffer.size(), 5'000'001U);
        EXPECT_EQ(buffer.bytes().size(), 5'000'001U);
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 4096, 0U);
        buffer.bytes().back() = std::byte{1};
        EXPECT_FALSE(buffer.locked());
        EXPECT_EQ(buffer.shortfall(), "");
        first = buffer.data();
    }
    EXPECT_GE(pool.kept_bytes(), 5'000'001U);
    EXPECT_EQ(pool.take(5'000'001).data(), first);
    pool.trim();
    EXPECT_EQ(pool.kept_bytes(), 0U);
    EXPECT_EQ(Buffer().size(), 0U);
    EXPECT_FALSE(Buffer().locked());
}

TEST(PublicMemory, BuffersOutliveTheirPoolAndMove) {
    Buffer kept;
    {
        MemoryPool pool;
        kept = pool.take(100);
    }
    kept.bytes()[99] = std::byte{7};
    const Buffer moved = std::move(kept);
    EXPECT_EQ(moved.bytes()[99], std::byte{7});
}

TEST(PublicMemory, MoreThanThereIsNamesTheSize) {
    MemoryPool pool;
    const auto error = error_of([&] { return pool.take(std::uint64_t{1} << 60); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->reason(), ErrorCode::kOutOfMemory) << error->what();
}

// Not of what has its name by now, which may even have its inode's number later.
TEST_F(PublicFile, StatusOfAnOpenFileIsItsOwn) {
    const std::string path = folder_ / "open";
    const FileSystem files = FileSystem::local();
    const auto write = [&](std::uint64_t bytes) {
        File(path, {.access = Access::kWrite, .create = true}).truncate(bytes);
    };
    write(100);
    const File open(path);
    const FileStatus before = files.status(path);
    files.remove(path);
    write(200);
    EXPECT_EQ(open.status().inode, before.inode);
    EXPECT_EQ(open.status().bytes, 100U);
    EXPECT_EQ(open.status().modified_ns, before.modified_ns);
    EXPECT_EQ(open.status().links, 0U);
    EXPECT_NE(files.status(path).inode, before.inode);
}

TEST_F(PublicFile, StatusLinksAndAttributes) {
    const FileSystem files = FileSystem::local();
    File file = make("file");
    file.truncate(10);
    file.sync_data();
    files.symbolic_link("file", folder_ / "link");
    EXPECT_EQ(files.status(folder_ / "link").kind, FileKind::kSymbolicLink);
    const FileStatus status = files.status(folder_ / "file");
    EXPECT_EQ(status.kind, FileKind::kFile);
    EXPECT_EQ(status.bytes, 10U);
    EXPECT_EQ(status.links, 1U);
    EXPECT_EQ(files.resolve(folder_ / "link"), files.resolve(folder_ / "file"));
    const auto gone = error_of([&] { return files.status(folder_ / "none"); });
    ASSERT_TRUE(gone);
    EXPECT_EQ(gone->system_errno(), ENOENT);
    EXPECT_EQ(gone->operation(), "status");
    ASSERT_EQ(::chmod((folder_ / "file").c_str(), 0600), 0);
    const File other = make("other");
    files.take_attributes(folder_ / "file", other);
    EXPECT_EQ(files.status(folder_ / "other").mode, 0600U);
    EXPECT_TRUE(error_of([&] { return files.take_attributes(folder_ / "file", File()), 0; }));
    files.make_folder(folder_ / "private");
    files.make_folder(folder_ / "like it");
    ASSERT_EQ(::chmod((folder_ / "private").c_str(), 0700), 0);
    const Folder like = files.open_folder(folder_ / "like it");
    like.take_attributes(folder_ / "private");
    EXPECT_EQ(files.status(folder_ / "like it").mode, 0700U);
    EXPECT_TRUE(error_of([&] { return like.take_attributes(folder_ / "none"), 0; }));
    EXPECT_TRUE(error_of([&] { return Folder().take_attributes(folder_ / "private"), 0; }));
}

}  // namespace
}  // namespace penstock
