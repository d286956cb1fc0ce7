// SPDX-License-Identifier: Apache-2.0
// The engine at the public border: options, the environment, verbs, the handle of a transfer. How
// transfers behave on each backend is tests/suite.
#include "simulation/fake_file_system.hpp"
#include "support/error_of.hpp"
#include "support/temp_folder.hpp"

#include <penstock/penstock.hpp>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <span>
#include <thread>

namespace penstock {
namespace {

using namespace std::chrono_literals;
using support::error_of;
using ::testing::HasSubstr;

std::vector<std::byte> numbers(std::size_t bytes) {
    std::vector<std::byte> out(bytes);
    for (std::size_t i = 0; i < bytes; ++i) {
        out[i] = static_cast<std::byte>(i * 131 >> 3);
    }
    return out;
}

// An environment variable for the length of a test.
class Variable {
public:
    Variable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
    Variable(const Variable&) = delete;
    Variable& operator=(const Variable&) = delete;
    ~Variable() { ::unsetenv(name_); }

private:
    const char* name_;
};

TEST(Options, WrongOnesNameTheOptionAndWhatItTakes) {
    const std::vector<std::pair<std::string, std::function<void(EngineOptions&)>>> cases{
        {"block_bytes", [](EngineOptions& o) { o.block_bytes = 0; }},
        {"block_bytes", [](EngineOptions& o) { o.block_bytes = 65536 + 512; }},
        {"block_bytes", [](EngineOptions& o) { o.block_bytes = 0xffff0000; }},
        {"backend", [](EngineOptions& o) { o.backend = static_cast<BackendKind>(9); }},
        {"cache", [](EngineOptions& o) { o.cache = static_cast<CachePolicy>(9); }},
        {"queue_depth", [](EngineOptions& o) { o.queue_depth = 0; }},
        {"queue_depth", [](EngineOptions& o) { o.queue_depth = 1 << 20; }},
        {"channels", [](EngineOptions& o) { o.channels = 0; }},
        {"copy_threads", [](EngineOptions& o) { o.copy_threads = 65; }},
        {"in_flight_bytes", [](EngineOptions& o) { o.in_flight_bytes = 0; }},
        // With none, transfers of the background would wait forever.
        {"background_bytes", [](EngineOptions& o) { o.background_bytes = 0; }},
        {"gap_bytes", [](EngineOptions& o) { o.gap_bytes = std::uint64_t{2} << 30; }},
        {"inline_bytes_max", [](EngineOptions& o) { o.inline_bytes_max = UINT64_MAX; }},
    };
    for (const auto& [name, change] : cases) {
        EngineOptions options;
        change(options);
        const auto error = error_of([&] { return Engine(options).stats(); });
        ASSERT_TRUE(error) << name;
        EXPECT_EQ(error->reason(), ErrorCode::kInvalidArgument);
        EXPECT_THAT(error->what(), HasSubstr(name));
        EXPECT_THAT(error->what(), HasSubstr("; expected "));
    }
}

TEST(Options, EnvironmentOverridesDefaultsAndNothingElse) {
    const Variable backend("PENSTOCK_BACKEND", "posix");
    const Variable block("PENSTOCK_BLOCK_BYTES", "512KiB");
    const Variable depth("PENSTOCK_QUEUE_DEPTH", "7");
    const Variable flight("PENSTOCK_IN_FLIGHT_BYTES", "3MiB");
    const Variable channels("PENSTOCK_CHANNELS", "2");
    const Variable copy("PENSTOCK_COPY_THREADS", "3");
    const Variable small("PENSTOCK_INLINE_BYTES_MAX", "0");
    const Variable limit("PENSTOCK_TRANSFERS_MAX", "9");
    const Variable background("PENSTOCK_BACKGROUND_BYTES", "1MiB");
    const EngineOptions found = Engine::default_options();
    EXPECT_EQ(found.backend, BackendKind::kPosix);
    EXPECT_EQ(found.block_bytes, 512U << 10);
    EXPECT_EQ(found.queue_depth, 7U);
    EXPECT_EQ(found.in_flight_bytes, 3U << 20);
    EXPECT_EQ(found.channels, 2U);
    EXPECT_EQ(found.copy_threads, 3U);
    EXPECT_EQ(found.inline_bytes_max, 0U);
    EXPECT_EQ(found.transfers_max, 9U);
    EXPECT_EQ(found.background_bytes, 1U << 20);
    EXPECT_EQ(Engine().options().queue_depth, 7U);
    EXPECT_EQ(Engine().describe().backend, "posix");
    // A value that a program sets itself stays.
    EXPECT_EQ(Engine(EngineOptions{}).options().queue_depth, 128U);
    EXPECT_EQ(EngineOptions{}.backend, BackendKind::kAuto);
}

TEST(Options, ABackendHasOneName) {
    for (const BackendKind kind :
         {BackendKind::kAuto, BackendKind::kUring, BackendKind::kAio, BackendKind::kPosix}) {
        EXPECT_EQ(backend_named(name_of(kind)), kind);
    }
    EXPECT_EQ(backend_named("uring"), BackendKind::kUring);
    EXPECT_EQ(backend_named("aio"), BackendKind::kAio);
    EXPECT_EQ(backend_named("spdk"), std::nullopt);
    EXPECT_STREQ(name_of(static_cast<BackendKind>(9)), "");
}

TEST(Options, EnvironmentThatMeansNothingIsAnError) {
    for (const auto& [name, value] : {std::pair{"PENSTOCK_BACKEND", "quick"},
                                      {"PENSTOCK_QUEUE_DEPTH", "many"},
                                      {"PENSTOCK_QUEUE_DEPTH", "0"},
                                      {"PENSTOCK_BLOCK_BYTES", "1"},
                                      {"PENSTOCK_TRANSFERS_MAX", "-1"}}) {
        const Variable variable(name, value);
        const auto error = error_of([] { return Engine::default_options(); });
        ASSERT_TRUE(error) << name;
        EXPECT_EQ(error->reason(), ErrorCode::kInvalidArgument);
        EXPECT_THAT(error->what(), HasSubstr(name));
        EXPECT_THAT(error->what(), HasSubstr(value));
    }
    const Variable empty("PENSTOCK_BACKEND", "");
    EXPECT_EQ(Engine::default_options().backend, BackendKind::kAuto);
}

class PublicEngine : public ::testing::Test {
protected:
    support::TempFolder folder_;
    Engine engine_;
    const std::vector<std::byte> data_ = numbers(300'001);
    std::vector<std::byte> back_ = std::vector<std::byte>(data_.size());
};

TEST_F(PublicEngine, ATransferKeepsTheOwnerOfItsMemory) {
    const std::string path = folder_ / "x";
    engine_.write(path, data_);
    auto owner = std::make_shared<std::vector<std::byte>>(data_.size());
    const std::weak_ptr<std::vector<std::byte>> kept = owner;
    {
        TransferRequest request;
        request.paths = {path};
        request.extents = {{0, *owner, 0}};
        request.keep = std::move(owner);
        Transfer transfer = engine_.submit(std::move(request));
        transfer.wait();
        ASSERT_FALSE(kept.expired());
        EXPECT_TRUE(*kept.lock() == data_);
    }
    while (!kept.expired()) {  // the engine lets go of it a little after its waiters
        std::this_thread::yield();
    }
}

TEST_F(PublicEngine, VerbsByPathAndByFile) {
    const std::string path = folder_ / "file";
    EXPECT_EQ(engine_.write(path, data_, 3, {.sync = true}), data_.size());
    EXPECT_EQ(engine_.read(path, back_, 3), data_.size());
    EXPECT_TRUE(back_ == data_);
    const File file(path, {.access = Access::kReadWrite});
    EXPECT_EQ(file.size(), data_.size() + 3);
    std::fill(back_.begin(), back_.end(), std::byte{0});
    EXPECT_EQ(engine_.write_async(file, data_, 10).wait(), data_.size());
    EXPECT_EQ(engine_.read_async(file, back_, 10).wait(), data_.size());
    EXPECT_TRUE(back_ == data_);
    EXPECT_EQ(engine_.write_async(path, data_).wait(), data_.size());
    EXPECT_EQ(engine_.read_async(path, back_).wait(), data_.size());
    EXPECT_TRUE(back_ == data_);
    EXPECT_EQ(engine_.read(file, back_, 10, {.allow_short = true}), data_.size());
    const EngineDescription what = engine_.describe();
    EXPECT_THAT(what.text(), HasSubstr(what.backend));
    ASSERT_EQ(what.devices.size(), 1U);
    EXPECT_EQ(what.devices[0].id, file.info().device);
}

// Also of what the caller's own thread does: a block that is not the device's.
TEST_F(PublicEngine, BlocksAndADepthOfATransfersOwn) {
    const TransferOptions options{.block_bytes = 1000, .depth_limit = DepthLimit(2)};
    const File file(folder_ / "file", {.access = Access::kReadWrite, .create = true});
    for (const std::size_t bytes : {std::size_t{4096}, std::size_t{50'000}, data_.size()}) {
        const auto data = std::span(data_).first(bytes);
        const auto back = std::span(back_).first(bytes);
        std::fill(back_.begin(), back_.end(), std::byte{0});
        EXPECT_EQ(engine_.write(file, data, 0, options), bytes);
        EXPECT_EQ(engine_.read(file, back, 0, options), bytes);
        EXPECT_TRUE(std::equal(data.begin(), data.end(), back.begin())) << bytes;
        std::fill(back_.begin(), back_.end(), std::byte{0});
        EXPECT_EQ(engine_.write_async(file, data, 0, options).wait(), bytes);
        EXPECT_EQ(engine_.read_async(file, back, 0, options).wait(), bytes);
        EXPECT_TRUE(std::equal(data.begin(), data.end(), back.begin())) << bytes;
    }
    EXPECT_THROW(DepthLimit(0), Error);
}

// Writing makes a missing file with the mode 0666 less the umask.
TEST_F(PublicEngine, OneExtentIsRunAsARequestIs) {
    const auto data = numbers(300'000);
    Engine engine;
    const File file(folder_ / "file", {.access = Access::kReadWrite, .create = true});
    for (const std::size_t bytes : std::array<std::size_t, 4>{0, 1, 5000, data.size()}) {
        SCOPED_TRACE(bytes);
        const std::span<const std::byte> from = std::span(data).first(bytes);
        std::vector<std::byte> into(bytes);
        Transfer write = engine.run_write(file, from, 3, {.sync = true});
        EXPECT_EQ(write.wait(), bytes);
        Transfer read = engine.run_read(file, into, 3);
        EXPECT_EQ(read.wait(), bytes);
        EXPECT_EQ(read.total_bytes(), bytes);
        EXPECT_TRUE(std::equal(into.begin(), into.end(), from.begin()));
    }
    std::vector<std::byte> more(10);
    EXPECT_EQ(engine.run_read(file, more, data.size(), {.allow_short = true}).wait(), 3U);
    auto error = error_of([&] { return engine.run_read(file, more, data.size()).wait(); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->reason(), ErrorCode::kEndOfFile);
    error = error_of([&] { return engine.run_read(File(), more); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->reason(), ErrorCode::kClosed);
    engine.close();
    error = error_of([&] { return engine.run_write(file, more); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->reason(), ErrorCode::kClosed);
}

// A program may count those that run, to start the next: one that was seen to have finished is not
// among them.
TEST_F(PublicEngine, WhatHasFinishedDoesNotRun) {
    const File file(folder_ / "file", {.access = Access::kReadWrite, .create = true});
    Engine engine;
    std::vector<std::byte> bytes(4096);
    engine.write(file, std::span<const std::byte>(bytes));
    for (int i = 0; i < 3000; ++i) {
        Transfer read = engine.read_async(file, bytes);
        while (!read.done()) {
        }
        ASSERT_EQ(engine.running(), 0U) << i;
    }
}

TEST_F(PublicEngine, WriteCreates) {
    const mode_t before = ::umask(027);
    engine_.write(folder_ / "new", std::span(data_).first(1));
    ::umask(before);
    EXPECT_EQ(std::filesystem::status(folder_ / "new").permissions(), std::filesystem::perms(0640));
    EXPECT_EQ(error_of([&] { return engine_.read(folder_ / "none", back_); })->system_errno(),
              ENOENT);
}

TEST_F(PublicEngine, RequiredDirectIoIsKept) {
    support::TempFolder memory("/dev/shm");
    const auto error = error_of([&] {
        return engine_.write(memory / "file", data_, 0, {.cache = CachePolicy::kRequired});
    });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->reason(), ErrorCode::kUnsupported) << error->what();
    EXPECT_EQ(error->path(), memory / "file");
    EXPECT_EQ(engine_.write(memory / "file", data_), data_.size());  // kAuto: buffered
    const File open(memory / "file");
    const auto of_open =
        error_of([&] { return engine_.read(open, back_, 0, {.cache = CachePolicy::kRequired}); });
    ASSERT_TRUE(of_open);
    EXPECT_EQ(of_open->reason(), ErrorCode::kUnsupported) << of_open->what();
}

// A file's own policy comes before the engine's, and the transfer's before both.
TEST_F(PublicEngine, APolicyOfTheEngineIsForWhatSaysNothing) {
    support::TempFolder memory("/dev/shm");
    engine_.write(memory / "file", data_);
    Engine strict(EngineOptions{.cache = CachePolicy::kRequired});
    EXPECT_EQ(strict.options().cache, CachePolicy::kRequired);
    for (const bool by_path : {true, false}) {
        const auto refused = error_of([&] {
            return by_path ? strict.read(memory / "file", back_)
                           : strict.read(File(memory / "file"), back_);
        });
        ASSERT_TRUE(refused);
        EXPECT_EQ(refused->reason(), ErrorCode::kUnsupported) << refused->what();
    }
    const File own(memory / "file", {.cache = CachePolicy::kCached});
    EXPECT_EQ(strict.read(own, back_), back_.size());
    EXPECT_EQ(strict.read(memory / "file", back_, 0, {.cache = CachePolicy::kDirect}),
              back_.size());
    EXPECT_EQ(back_, data_);
}

// Bytes past the end are in no cache; that is no reason to ask for them one by one.
TEST_F(PublicEngine, ShortReadsPastTheEndAreFewRequests) {
    const support::TempFolder memory("/dev/shm");
    const std::vector<std::byte> data(1'000'003, std::byte{5});
    std::vector<std::byte> into(3'000'000);
    const TransferOptions shorter{.allow_short = true};
    for (const std::string& folder : {folder_.path(), memory.path()}) {
        for (const CachePolicy cache :
             {CachePolicy::kAuto, CachePolicy::kCached, CachePolicy::kDirect}) {
            const File file(folder + "/short",
                            {.access = Access::kReadWrite, .create = true, .cache = cache});
            engine_.write(file, data);
            Engine engine;
            EXPECT_EQ(engine.read(file, into, 0, shorter), data.size());
            EXPECT_EQ(engine.read(file, into, 900'000, shorter), data.size() - 900'000);
            EXPECT_EQ(engine.read(file, into, 2'000'000, shorter), 0U);
            EXPECT_EQ(
                engine.read(folder + "/short", into, 0, {.allow_short = true, .cache = cache}),
                data.size());
            TransferRequest request;
            request.files = {file};
            request.options = shorter;
            for (std::uint64_t at = 0; at < into.size(); at += 3000) {
                request.extents.push_back({at, std::span(into).subspan(at, 3000), 0});
            }
            EXPECT_EQ(engine.run(std::move(request)).wait(), data.size());
            EXPECT_LE(engine.stats().requests, 60U)
                << folder << ", " << static_cast<int>(cache) << ": " << file.info().page_cache;
        }
    }
}

TEST_F(PublicEngine, FileMayBeClosedUnderATransfer) {
    engine_.write(folder_ / "file", data_);
    File file(folder_ / "file");
    Transfer transfer = engine_.read_async(file, back_);
    file.close();
    EXPECT_EQ(transfer.wait(), data_.size());
    EXPECT_TRUE(back_ == data_);
    const auto closed = error_of([&] { return engine_.read(file, back_); });
    ASSERT_TRUE(closed);
    EXPECT_EQ(closed->reason(), ErrorCode::kClosed);
    EXPECT_THAT(closed->what(), HasSubstr("not open"));
}

// A class that there is not would leave the transfer in no queue at all, and its wait without end.
TEST_F(PublicEngine, PriorityIsOneThatThereIs) {
    engine_.write(folder_ / "file", data_);
    const File file(folder_ / "file");
    Transfer transfer = engine_.read_async(file, back_);
    const auto error = error_of([&] {
        transfer.set_priority(static_cast<Priority>(9));
        return 0;
    });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->reason(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error->what(), HasSubstr("urgent, normal or background"));
    EXPECT_EQ(transfer.wait_for(60s).value_or(0), data_.size());
}

// Into any other descriptor it would write 8 bytes.
TEST_F(PublicEngine, OnlyAnEventfdIsNotified) {
    engine_.write(folder_ / "file", data_);
    const int file_fd = ::open((folder_ / "other").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    ASSERT_GE(file_fd, 0);
    std::array<int, 2> pipe_fds{};
    ASSERT_EQ(::pipe2(pipe_fds.data(), O_CLOEXEC), 0);
    const int epoll_fd = ::epoll_create1(EPOLL_CLOEXEC);
    Transfer transfer = engine_.read_async(File(folder_ / "file"), back_);
    for (const int fd : {-1, 9999, file_fd, pipe_fds[1], epoll_fd}) {
        const auto error = error_of([&] {
            transfer.notify(fd);
            return 0;
        });
        ASSERT_TRUE(error) << fd;
        EXPECT_THAT(error->what(), HasSubstr("is not an open eventfd"));
    }
    struct stat status {};
    ASSERT_EQ(::fstat(file_fd, &status), 0);
    EXPECT_EQ(status.st_size, 0);
    for (const int fd : {file_fd, pipe_fds[0], pipe_fds[1], epoll_fd}) {
        ::close(fd);
    }
    transfer.wait();
}

// Threads and rings go with the engine, not with the last handle of what it did.
TEST_F(PublicEngine, HandlesOfWhatIsOverOutliveIt) {
    engine_.write(folder_ / "file", data_);
    const auto threads = [] {
        const std::filesystem::directory_iterator tasks("/proc/self/task");
        return std::distance(begin(tasks), end(tasks));
    };
    const auto before = threads();
    std::vector<Transfer> kept;
    {
        Engine other;
        kept.push_back(other.read_async(File(folder_ / "file"), back_));
        kept.push_back(other.read_async(folder_ / "not there", back_));
    }
    // A thread that was joined is in the list for a moment more.
    for (int i = 0; i < 1000 && threads() != before; ++i) {
        std::this_thread::sleep_for(10ms);
    }
    EXPECT_EQ(threads(), before);
    EXPECT_EQ(kept[0].wait(), data_.size());
    EXPECT_EQ(kept[0].extent_bytes(0), data_.size());
    kept[0].cancel();
    kept[0].set_priority(Priority::kUrgent);
    EXPECT_EQ(kept[1].status(), TransferStatus::kFailed);
    const auto error = error_of([&] { return kept[1].wait(); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->system_errno(), ENOENT);
}

TEST_F(PublicEngine, HandlesMove) {
    engine_.write(folder_ / "file", data_);
    const File file(folder_ / "file");
    Transfer first = engine_.read_async(file, back_);
    EXPECT_TRUE(first.valid());
    EXPECT_EQ(first.total_bytes(), data_.size());
    Transfer second = std::move(first);
    EXPECT_FALSE(first.valid());  // NOLINT(bugprone-use-after-move): that is what is tested
    EXPECT_TRUE(first.done());
    EXPECT_EQ(first.status(), TransferStatus::kDone);
    EXPECT_EQ(first.total_bytes(), 0U);
    for (const auto& call : std::vector<std::function<void()>>{
             [&] { first.wait(); }, [&] { first.wait_for(1s); }, [&] { first.cancel(); },
             [&] { first.set_priority(Priority::kUrgent); },
             [&] { static_cast<void>(first.extent_bytes(0)); }, [&] { first.notify(1); }}) {
        const auto error = error_of([&] {
            call();
            return 0;
        });
        ASSERT_TRUE(error);
        EXPECT_EQ(error->reason(), ErrorCode::kInvalidArgument);
    }
    // Assigning releases the old transfer, which continues: its error comes with drain().
    std::vector<std::byte> more(data_.size() + 1);
    Transfer third = engine_.read_async(file, more);
    third = std::move(second);
    EXPECT_EQ(third.wait(), data_.size());
    EXPECT_EQ(third.extent_bytes(0), data_.size());
    EXPECT_TRUE(error_of([&] { return third.extent_bytes(1); }));
    EXPECT_EQ(error_of([&] { return engine_.drain(); })->reason(), ErrorCode::kEndOfFile);
    Transfer& self = third;
    third = std::move(self);
    EXPECT_EQ(third.wait(), data_.size());
}

TEST_F(PublicEngine, HandleOutlivesItsEngine) {
    engine_.write(folder_ / "file", data_);
    Transfer transfer;
    {
        Engine other;
        transfer = other.read_async(folder_ / "file", back_);
    }
    EXPECT_TRUE(transfer.done());
    EXPECT_EQ(transfer.wait(), data_.size());
    transfer.cancel();
    transfer.set_priority(Priority::kUrgent);
    EXPECT_EQ(transfer.status(), TransferStatus::kDone);
    EXPECT_TRUE(back_ == data_);
}

TEST_F(PublicEngine, SmallBlockingOnesAreInlineUnlessABackendIsForced) {
    const File file(folder_ / "file", {.access = Access::kReadWrite, .create = true});
    engine_.write(file, std::span(data_).first(5'000), 1);
    EXPECT_GT(engine_.stats().inline_requests, 0U);
    EngineOptions options;
    options.backend = BackendKind::kPosix;
    Engine forced(options);
    forced.read(file, std::span(back_).first(5'000), 1);
    EXPECT_EQ(forced.stats().inline_requests, 0U);
    EXPECT_GT(forced.stats().requests, 0U);
    EXPECT_TRUE(std::equal(back_.begin(), back_.begin() + 5'000, data_.begin()));
}

// Another file system than the machine's: the engine's posix backend asks the files themselves.
TEST(OtherFileSystem, IsUsedForPaths) {
    const auto clock = std::make_shared<base::SteadyClock>();
    const auto disk = std::make_shared<simulation::FakeDisk>(
        DeviceId{240, 0}, simulation::DiskShape{}, simulation::DiskModel{}, 1);
    const FileSystem files(std::make_shared<simulation::FakeFileSystem>(std::vector{disk}, clock));
    EngineOptions options;
    options.backend = BackendKind::kPosix;
    Engine engine(options, files);
    const auto data = numbers(100'001);
    engine.write("/file", data, 1);
    std::vector<std::byte> back(data.size());
    engine.read("/file", back, 1);
    EXPECT_TRUE(back == data);
    EXPECT_EQ(files.open("/file").size(), data.size() + 1);
}

// Nobody has to force that backend: such files have no descriptors for the others.
TEST(OtherFileSystem, GetsABackendThatCallsItsFiles) {
    const auto disk = std::make_shared<simulation::FakeDisk>(
        DeviceId{240, 0}, simulation::DiskShape{}, simulation::DiskModel{}, 1);
    const FileSystem files(std::make_shared<simulation::FakeFileSystem>(
        std::vector{disk}, std::make_shared<base::SteadyClock>()));
    Engine engine({}, files);
    const auto data = numbers(300'001);
    engine.write("/file", data, 1);
    std::vector<std::byte> back(data.size());
    engine.read_async("/file", back, 1).wait();
    EXPECT_TRUE(back == data);
    EXPECT_EQ(engine.describe().devices.at(0).backend, "posix");
}

}  // namespace
}  // namespace penstock
