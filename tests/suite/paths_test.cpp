// SPDX-License-Identifier: Apache-2.0
// Transfers of paths: any number of files with few descriptors, and none of them waits for the
// device of another.
#include "suite/suite.hpp"
#include "support/seccomp.hpp"
#include "support/temp_folder.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>

namespace penstock::suite {
namespace {

using simulation::DiskCall;
using simulation::DiskOperation;

constexpr std::size_t kFileBytes = 5000;

FakeSetup two_disks() {
    FakeSetup setup;
    setup.disks = 2;
    return setup;
}

std::string on_disk(std::uint32_t disk, const std::string& name) {
    return "/" + std::to_string(disk) + "/" + name;
}
constexpr auto kSoon = std::chrono::seconds(20);

std::size_t open_descriptors() {
    std::size_t count = 0;
    for ([[maybe_unused]] const auto& entry :
         std::filesystem::directory_iterator("/proc/self/fd")) {
        ++count;
    }
    return count;
}

bool limit_descriptors(std::uint64_t most) {
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = most;
    return ::setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

/// Files of kFileBytes each, and what is in them.
struct Shelf {
    std::vector<std::string> paths;
    std::vector<std::byte> bytes;

    Shelf(const std::string& folder, std::uint32_t files) : bytes(pattern(files * kFileBytes, 5)) {
        std::filesystem::create_directories(folder);
        for (std::uint32_t i = 0; i < files; ++i) {
            paths.push_back(folder + "/" + std::to_string(i));
        }
    }
    void fill() const {
        for (std::size_t i = 0; i < paths.size(); ++i) {
            std::ofstream(paths[i], std::ios::binary)
                .write(reinterpret_cast<const char*>(bytes.data() + i * kFileBytes), kFileBytes);
        }
    }
    /// Each file in one piece, or in two that lie far from each other in the list.
    [[nodiscard]] TransferRequest request(bool write, std::byte* memory, bool scattered) const {
        constexpr std::size_t kHead = 1234;
        TransferRequest request;
        request.write = write;
        request.paths = paths;
        for (std::uint32_t i = 0; i < paths.size(); ++i) {
            request.extents.push_back(
                {0, {memory + i * kFileBytes, scattered ? kHead : kFileBytes}, i});
        }
        for (std::uint32_t i = 0; scattered && i < paths.size(); ++i) {
            request.extents.push_back(
                {kHead, {memory + i * kFileBytes + kHead, kFileBytes - kHead}, i});
        }
        return request;
    }
    [[nodiscard]] std::string compare() const {
        for (std::size_t i = 0; i < paths.size(); ++i) {
            std::ifstream file(paths[i], std::ios::binary);
            const std::vector<char> now{std::istreambuf_iterator<char>(file), {}};
            if (now.size() != kFileBytes ||
                std::memcmp(now.data(), bytes.data() + i * kFileBytes, kFileBytes) != 0) {
                return paths[i] + " has other bytes";
            }
        }
        return "";
    }
};

class Paths : public EveryBackend {};
INSTANTIATE_TEST_SUITE_P(Backends, Paths, every_kind(), kind_name);
class KernelPaths : public EveryBackend {};
INSTANTIATE_TEST_SUITE_P(Backends, KernelPaths, kernel_kinds(), kind_name);

// Far more files than there may be descriptors: written, read, in one piece and in two, blocking
// and not.
TEST_P(KernelPaths, ManyFilesWithFewDescriptors) {
    const Shelf shelf(path("many"), 500);
    EXPECT_EQ(
        test::in_child([&]() -> std::string {
            const auto other = make();
            const std::size_t before = open_descriptors();
            if (!limit_descriptors(64)) {
                return "no limit";
            }
            for (const bool scattered : {false, true}) {
                auto data = shelf.bytes;
                const auto wrote = error_of([&] {
                    const TransferRequest request = shelf.request(true, data.data(), scattered);
                    return (scattered ? other->run(request) : other->submit(request))->wait();
                });
                if (wrote) {
                    return wrote->what();
                }
                if (const std::string wrong = shelf.compare(); !wrong.empty()) {
                    return wrong;
                }
                std::vector<std::byte> back(data.size());
                const auto read = error_of([&] {
                    const TransferRequest request = shelf.request(false, back.data(), scattered);
                    return (scattered ? other->submit(request) : other->run(request))->wait();
                });
                if (read || back != data) {
                    return read ? read->what() : "other bytes were read";
                }
            }
            limit_descriptors(1024);
            for (int i = 0; i < 1000 && open_descriptors() > before + 8; ++i) {
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            }
            return open_descriptors() <= before + 8 ? "" : "descriptors were left open";
        }),
        "");
}

// Transfers in the queue have nothing open that keeps others from opening.
TEST_P(KernelPaths, ManyTransfersWithFewDescriptors) {
    const Shelf shelf(path("queue"), 300);
    shelf.fill();
    EXPECT_EQ(test::in_child([&]() -> std::string {
                  const auto other = make();
                  const auto second = make();  // the limit is one for both
                  std::vector<std::byte> back(shelf.bytes.size());
                  if (!limit_descriptors(64)) {
                      return "no limit";
                  }
                  std::vector<TransferPtr> transfers;
                  for (std::size_t i = 0; i < shelf.paths.size(); ++i) {
                      transfers.push_back(
                          (i % 2 == 0 ? other : second)
                              ->submit(request_of(false, shelf.paths[i],
                                                  back.data() + i * kFileBytes, kFileBytes, 0)));
                  }
                  for (const TransferPtr& transfer : transfers) {
                      if (const auto error = error_of([&] { return transfer->wait(); })) {
                          return error->what();
                      }
                  }
                  return back == shelf.bytes ? "" : "other bytes were read";
              }),
              "");
}

// Openings fail because the program opens files meanwhile; they wait for our own to close.
TEST_P(KernelPaths, DescriptorsThatTheProgramTakesMeanwhile) {
#ifdef __SANITIZE_ADDRESS__
    GTEST_SKIP() << "UndefinedBehaviorSanitizer looks at objects through a pipe, and here no "
                    "descriptor is left for one";
#endif
    const Shelf shelf(path("taken"), 300);
    shelf.fill();
    EXPECT_EQ(test::in_child([&]() -> std::string {
                  const auto other = make();
                  std::vector<std::byte> back(shelf.bytes.size());
                  other->run(shelf.request(false, back.data(), false))->wait();
                  std::fill(back.begin(), back.end(), std::byte{0});
                  limit_descriptors(96);
                  const TransferPtr transfer =
                      other->submit(shelf.request(false, back.data(), false));
                  std::vector<int> taken;
                  for (int fd = 0; (fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) {
                      taken.push_back(fd);
                      if (taken.size() % 4 == 0) {
                          std::this_thread::sleep_for(std::chrono::milliseconds(1));
                      }
                  }
                  // Few are left for it, but as it closes its own it goes on; at last with two.
                  std::atomic<bool> done{false};
                  std::thread giver([&] {
                      std::this_thread::sleep_for(std::chrono::milliseconds(50));
                      if (!done) {
                          ::close(taken.back());
                          ::close(taken[taken.size() - 2]);
                      }
                  });
                  const auto error = error_of([&] { return transfer->wait(); });
                  done = true;
                  giver.join();
                  // With none of ours open and none to be had, the error is the system's.
                  if (error) {
                      return error->system_errno() == EMFILE ? "" : error->what();
                  }
                  return back == shelf.bytes ? "" : "other bytes were read";
              }),
              "");
}

TEST_P(Paths, ManyFilesOfSeveralDevices) {
    use({}, two_disks());
    constexpr std::uint32_t kFiles = 400;
    const auto data = pattern(kFiles * kFileBytes, 3);
    TransferRequest request;
    request.write = true;
    request.options.sync = true;
    for (std::uint32_t i = 0; i < kFiles; ++i) {
        const std::string name = "file" + std::to_string(i);
        request.paths.push_back(fake() ? on_disk(i % 2, name) : path(name));
        request.extents.push_back(
            {0, {const_cast<std::byte*>(data.data()) + i * kFileBytes, kFileBytes}, i});
    }
    engine().submit(request)->wait();
    if (fake()) {  // each file was synced before it was closed
        engine().disk(0).crash();
        engine().disk(1).crash();
    }
    std::vector<std::byte> back(data.size() + kFiles * 100, std::byte{7});
    TransferRequest read = request;
    read.write = false;
    read.options = {};
    read.options.allow_short = true;
    std::vector<std::uint32_t> order(kFiles);
    std::iota(order.begin(), order.end(), 0U);
    std::shuffle(order.begin(), order.end(), std::mt19937_64(9));
    for (std::uint32_t i = 0; i < kFiles; ++i) {  // in any order, and past the end of each
        read.extents[i] = {
            0, {back.data() + order[i] * (kFileBytes + 100), kFileBytes + 100}, order[i]};
    }
    const TransferPtr transfer = engine().submit(read);
    EXPECT_EQ(transfer->wait(), data.size());
    for (std::uint32_t i = 0; i < kFiles; ++i) {
        ASSERT_EQ(transfer->extent_bytes(i), kFileBytes);
        ASSERT_TRUE(std::equal(data.begin() + i * kFileBytes, data.begin() + (i + 1) * kFileBytes,
                               back.begin() + i * (kFileBytes + 100)))
            << i;
    }
}

TEST_P(Paths, OneOfVeryManyIsMissing) {
    constexpr std::uint32_t kFiles = 300;
    const auto data = pattern(100, 1);
    std::vector<std::byte> back(kFiles * 100);
    TransferRequest request;
    for (std::uint32_t i = 0; i < kFiles; ++i) {
        const std::string name = "file" + std::to_string(i);
        if (i != 205) {
            static_cast<void>(with_bytes(name, data));
        }
        request.paths.push_back(path(name));
        request.extents.push_back({0, {back.data() + i * 100, 100}, i});
    }
    for (const bool blocking : {false, true}) {
        const auto error = error_of(
            [&] { return (blocking ? engine().run(request) : engine().submit(request))->wait(); });
        ASSERT_TRUE(error);
        EXPECT_EQ(error->system_errno(), ENOENT);
        EXPECT_EQ(error->path(), path("file205"));
    }
}

TEST_P(Paths, ManyFilesAreCancelledAtAnyTime) {
    constexpr std::uint32_t kFiles = 260;
    std::vector<std::byte> data = pattern(kFiles * 100, 1);
    TransferRequest request;
    request.write = true;
    for (std::uint32_t i = 0; i < kFiles; ++i) {
        request.paths.push_back(path("file" + std::to_string(i)));
        request.extents.push_back({0, {data.data() + i * 100, 100}, i});
    }
    const std::size_t before = open_descriptors();
    for (int wait_us = 0; wait_us < 3000; wait_us += 150) {
        const TransferPtr transfer = engine().submit(request);
        std::this_thread::sleep_for(std::chrono::microseconds(wait_us));
        transfer->cancel();
        const auto error = error_of([&] { return transfer->wait(); });
        EXPECT_TRUE(!error || error->reason() == ErrorCode::kCancelled) << error->what();
    }
    EXPECT_TRUE(engine().drain(kSoon));
    EXPECT_LE(open_descriptors(), before + 8);
}

// ---- devices that do not answer

/// Stops operations on a disk until it is released.
class Gate {
public:
    void wait() {
        std::unique_lock lock(mutex_);
        ++waiting_;
        changed_.wait(lock, [this] { return open_; });
    }
    void open() {
        {
            const std::lock_guard lock(mutex_);
            open_ = true;
        }
        changed_.notify_all();
    }
    [[nodiscard]] bool holds_one() {
        const std::lock_guard lock(mutex_);
        return waiting_ != 0;
    }

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    bool open_ = false;
    int waiting_ = 0;
};

// One device hangs in `call`; transfers to it, and to it and another, hang with it, and those to
// the other do not.
void one_device_hangs(DiskCall call) {
    const auto engine = TestEngine::make(EngineKind::kFake, {}, two_disks());
    Gate gate;
    std::atomic<bool> armed{false};
    engine->disk(0).set_watch([&](const DiskOperation& operation) {
        if (armed && operation.call == call) {
            gate.wait();
        }
    });
    std::vector<std::byte> data = pattern(4 << 20, 1);
    const auto write = [&](std::vector<std::string> paths) {
        TransferRequest request;
        request.write = true;
        request.options.sync = true;
        for (std::uint32_t i = 0; i < paths.size(); ++i) {
            request.extents.push_back({0, {data.data(), data.size()}, i});
        }
        request.paths = std::move(paths);
        return engine->submit(std::move(request));
    };
    // Which folder is on which device is known from here on.
    write({"/0/known", "/1/known"})->wait();
    armed = true;
    std::vector<TransferPtr> hung;
    for (int i = 0; i < 12; ++i) {
        const std::string name = std::to_string(i);
        hung.push_back(write({"/0/hung" + name}));
        hung.push_back(write({"/1/with" + name, "/0/other" + name}));
    }
    for (int i = 0; i < 2000 && !gate.holds_one(); ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_TRUE(gate.holds_one());
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const TransferPtr fine = write({"/1/fine"});
    EXPECT_TRUE(fine->wait_for(kSoon)) << "it waits for another device";
    for (const TransferPtr& transfer : hung) {
        EXPECT_FALSE(transfer->done());
    }
    gate.open();
    for (const TransferPtr& transfer : hung) {
        transfer->wait();
    }
}

TEST(SlowDevice, OpeningStopsOnlyItsOwn) {
    one_device_hangs(DiskCall::kOpen);
}

TEST(SlowDevice, PreallocatingStopsOnlyItsOwn) {
    one_device_hangs(DiskCall::kPreallocate);
}

TEST(SlowDevice, SyncingStopsOnlyItsOwn) {
    one_device_hangs(DiskCall::kSync);
}

// A lease makes an opening wait for its holder, as a server that is gone would.
TEST_P(KernelPaths, OpeningsThatHangStopNoOtherFileSystem) {
    const support::TempFolder elsewhere("/dev/shm");
    std::ofstream(elsewhere / "fine") << std::string(8192, 'x');
    const std::string folder = path("leased");
    std::filesystem::create_directories(folder);
    EXPECT_EQ(test::in_child([&]() -> std::string {
                  ::signal(SIGIO, SIG_IGN);
                  const auto other = make();
                  std::vector<std::byte> memory(8192);
                  std::vector<int> leases;
                  std::vector<TransferPtr> hung;
                  for (int i = 0; i < 8; ++i) {
                      const std::string file = folder + "/" + std::to_string(i);
                      std::ofstream(file) << std::string(8192, 'x');
                      leases.push_back(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
                      if (::fcntl(leases.back(), F_SETLEASE, F_RDLCK) != 0) {
                          return "";  // this file system has no leases
                      }
                      hung.push_back(other->submit(request_of(true, file, memory.data(), 8192, 0)));
                  }
                  std::this_thread::sleep_for(std::chrono::milliseconds(200));
                  const TransferPtr fine =
                      other->submit(request_of(false, elsewhere / "fine", memory.data(), 8192, 0));
                  const bool in_time = fine->wait_for(std::chrono::seconds(10)).has_value();
                  const bool hangs = !hung.front()->done();
                  for (const int lease : leases) {
                      ::fcntl(lease, F_SETLEASE, F_UNLCK);
                  }
                  for (const TransferPtr& transfer : hung) {
                      transfer->wait();
                  }
                  return !hangs ? "nothing hung" : in_time ? "" : "it waited for the others";
              }),
              "");
}

}  // namespace
}  // namespace penstock::suite
