// SPDX-License-Identifier: Apache-2.0
// What the system refuses: the transfer fails once, with operation, path, offset and errno; nothing
// leaks, and the engine works on.
#include "base/unique_fd.hpp"
#include "suite/suite.hpp"
#include "support/loop_mount.hpp"
#include "support/seccomp.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <list>
#include <thread>

namespace penstock::suite {
namespace {

using ::testing::HasSubstr;

std::size_t open_descriptors() {
    std::size_t count = 0;
    for ([[maybe_unused]] const auto& entry :
         std::filesystem::directory_iterator("/proc/self/fd")) {
        ++count;
    }
    return count;
}

// So many, or soon so many: what a transfer opened is closed a moment after its waiters wake.
bool only_descriptors(std::size_t count) {
    for (int i = 0; i < 2000 && open_descriptors() != count; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return open_descriptors() == count;
}

// Runs `body` in a child and gives what it returns: "" when all was well.
std::string in_child(const std::function<std::string()>& body) {
    return test::in_child(body);
}

class System : public EveryBackend {};
INSTANTIATE_TEST_SUITE_P(Backends, System, every_kind(), kind_name);

class KernelSystem : public EveryBackend {};
INSTANTIATE_TEST_SUITE_P(Backends, KernelSystem, kernel_kinds(), kind_name);

TEST_P(System, FolderIsNoFile) {
    engine().files().make_folder(path("folder"));
    std::vector<std::byte> memory(4096);
    for (const bool write : {false, true}) {
        for (const bool blocking : {false, true}) {
            TransferRequest request = request_of(write, path("folder"), memory.data(), 4096, 0);
            const auto error = error_of([&] {
                return (blocking ? engine().run(request) : engine().submit(request))->wait();
            });
            ASSERT_TRUE(error);
            EXPECT_EQ(error->system_errno(), EISDIR) << error->what();
            EXPECT_EQ(error->operation(), "open");
            EXPECT_EQ(error->path(), path("folder"));
        }
    }
}

TEST_P(System, FileThatIsNotThere) {
    std::vector<std::byte> memory(4096);
    const auto error = error_of([&] {
        return engine().submit(request_of(false, path("none"), memory.data(), 4096, 0))->wait();
    });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->system_errno(), ENOENT);
    EXPECT_EQ(error->path(), path("none"));
    const auto folder = error_of([&] {
        return engine().run(request_of(true, path("none/file"), memory.data(), 4096, 0))->wait();
    });
    ASSERT_TRUE(folder);
    EXPECT_EQ(folder->system_errno(), ENOENT);
}

// One of many files cannot be opened: the error names it, and those that were opened are closed.
TEST_P(System, OneOfManyFilesIsMissing) {
    static_cast<void>(with_bytes("there", pattern(5000, 1)));
    TransferRequest request;
    request.paths = {path("there"), path("none"), path("there")};
    std::vector<std::vector<std::byte>> memory(3, std::vector<std::byte>(5000));
    for (std::uint32_t i = 0; i < 3; ++i) {
        request.extents.push_back({0, memory[i], i});
    }
    std::size_t before = 0;
    for (int i = 0; i < 3; ++i) {
        const auto error = error_of([&] { return engine().submit(request)->wait(); });
        ASSERT_TRUE(error && error->path() == path("none"));
        // The first one may read a small file, which makes the channel of its device.
        before = i == 0 ? open_descriptors() : before;
        EXPECT_TRUE(only_descriptors(before));
    }
}

TEST_P(System, FileThatShrinksUnderAReadEnds) {
    const auto data = pattern(4 << 20, 1);
    File file = with_bytes("file", data);
    EngineOptions options;
    options.block_bytes = 65536;
    Arena arena(5 << 20);
    const auto into = arena.take(data.size());
    for (const std::uint64_t left : {0, 1, 5000, 1 << 20}) {
        put_bytes(file, 0, data);
        std::thread shrinking([&] { file.truncate(left); });
        const auto error = error_of([&] {
            return engine().submit(request_of(false, file, into.data(), into.size(), 0))->wait();
        });
        shrinking.join();
        if (error) {
            EXPECT_EQ(error->reason(), ErrorCode::kEndOfFile) << error->what();
        } else {
            EXPECT_TRUE(std::equal(into.begin(), into.end(), data.begin()));
        }
        arena.forget(into);
        EXPECT_EQ(arena.check(), "");
        // For sure now.
        const auto again = error_of([&] { return engine().read(file, into, 0); });
        ASSERT_TRUE(again);
        EXPECT_THAT(again->what(), HasSubstr("has " + std::to_string(left) + " bytes"));
        arena.forget(into);
    }
}

TEST_P(System, FullDiskIsToldAndOthersGoOn) {
    FakeSetup setup;
    setup.shape.capacity_bytes = 8 << 20;
    std::string folder;
    std::optional<support::LoopMount> mount;
    if (fake()) {
        use({}, setup);
    } else {
        auto made = support::LoopMount::make({.file_system = "tmpfs", .bytes = 8 << 20});
        if (!made) {
            GTEST_SKIP() << made.error().describe();
        }
        mount.emplace(std::move(*made));
        folder = mount->path();
    }
    const auto at = [&](const std::string& name) { return folder + "/" + name; };
    const auto good = pattern(1 << 20, 1);
    EXPECT_EQ(engine().run(request_of(true, at("good"), good.data(), good.size(), 0))->wait(),
              good.size());
    const std::vector<std::byte> big(16 << 20);
    for (const std::uint64_t offset : {0, 100'001}) {
        const auto error = error_of([&] {
            return engine()
                .submit(request_of(true, at("big"), big.data(), big.size(), offset))
                ->wait();
        });
        ASSERT_TRUE(error);
        EXPECT_EQ(error->system_errno(), ENOSPC) << error->what();
        EXPECT_EQ(error->path(), at("big"));
        EXPECT_TRUE(error->operation() == "write" || error->operation() == "preallocate")
            << error->operation();
    }
    // A file that the write made and left empty went with it.
    const auto gone = error_of([&] {
        engine().files().remove(at("big"));
        return 0;
    });
    EXPECT_TRUE(!gone || gone->system_errno() == ENOENT) << gone->what();
    std::vector<std::byte> back(good.size());
    EXPECT_EQ(engine().run(request_of(false, at("good"), back.data(), back.size(), 0))->wait(),
              back.size());
    EXPECT_TRUE(back == good);
}

// The same on ext4, where the direct writes themselves meet it: no room is made before small ones.
TEST_P(KernelSystem, FullExt4) {
    PENSTOCK_LOOP_MOUNT(mount, support::LoopOptions{.bytes = 16 << 20});
    const std::vector<std::byte> part(900'000);
    const File file =
        engine().files().open(mount / "file", {.access = Access::kReadWrite, .create = true});
    std::optional<Error> error;
    std::uint64_t offset = 0;
    for (; !error && offset < (std::uint64_t{64} << 20); offset += part.size()) {
        error = error_of([&] { return engine().write(file, part, offset); });
    }
    ASSERT_TRUE(error);
    EXPECT_EQ(error->system_errno(), ENOSPC) << error->what();
    EXPECT_EQ(error->path(), mount / "file");
    EXPECT_GT(offset, 4U << 20);
    std::vector<std::byte> back(part.size());
    EXPECT_EQ(engine().read(file, back, 0), back.size());
}

TEST_P(KernelSystem, PermissionIsTold) {
    if (::geteuid() != 0) {
        GTEST_SKIP() << "needs root, to become somebody else";
    }
    static_cast<void>(with_bytes("secret", pattern(5000, 1)));
    ::chmod(path("secret").c_str(), 0600);
    const std::string secret = path("secret");
    EXPECT_EQ(
        in_child([&]() -> std::string {
            if (::seteuid(65534) != 0) {
                return "no nobody";
            }
            std::vector<std::byte> memory(5000);
            const auto other = make();
            for (const bool write : {false, true}) {
                const auto error = error_of([&] {
                    return other->submit(request_of(write, secret, memory.data(), 5000, 0))->wait();
                });
                if (!error || error->system_errno() != EACCES || error->path() != secret ||
                    error->operation() != "open") {
                    return error ? error->what() : "it was allowed";
                }
            }
            return "";
        }),
        "");
}

TEST_P(KernelSystem, FileSizeLimitIsAnError) {
    const std::string name = path("limited");
    EXPECT_EQ(in_child([&]() -> std::string {
                  ::signal(SIGXFSZ, SIG_IGN);
                  const rlimit limit{1 << 20, 1 << 20};
                  if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) {
                      return "no limit";
                  }
                  const auto other = make();
                  const std::vector<std::byte> data(900'000);
                  const File file =
                      other->files().open(name, {.access = Access::kReadWrite, .create = true});
                  if (const auto error = error_of([&] { return other->write(file, data, 0); })) {
                      return error->what();
                  }
                  const auto error = error_of([&] { return other->write(file, data, 900'000); });
                  if (!error || error->system_errno() != EFBIG || error->path() != name) {
                      return error ? error->what() : "it was written";
                  }
                  const auto small = error_of([&] {
                      return other->write(file, {data.data(), 10}, 2 << 20);
                  });
                  if (!small || small->system_errno() != EFBIG) {
                      return small ? small->what() : "a small one was written";
                  }
                  return "";
              }),
              "");
}

// The kernel cuts a direct write at the limit, which need not be where a block ends.
TEST_P(KernelSystem, FileSizeLimitInTheMiddleOfABlock) {
    const std::string folder = path("limits");
    std::filesystem::create_directory(folder);
    EXPECT_EQ(in_child([&]() -> std::string {
                  ::signal(SIGXFSZ, SIG_IGN);
                  const rlimit limit{100'000, RLIM_INFINITY};
                  if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) {
                      return "no limit";
                  }
                  const auto other = make();
                  const std::vector<std::byte> data(5 << 20);
                  for (const std::size_t bytes : {100'001U, 104'448U, 120'000U, 5U << 20}) {
                      const std::string name = folder + "/" + std::to_string(bytes);
                      const auto error = error_of([&] {
                          return other->run(request_of(true, name, data.data(), bytes, 0))->wait();
                      });
                      if (!error || error->system_errno() != EFBIG) {
                          return error ? error->what() : "it was written";
                      }
                  }
                  return "";
              }),
              "");
}

// The engine copies unaligned memory, where the same fault is SIGBUS: a named limit.
TEST_P(KernelSystem, AlignedMemoryThatMapsAFileThatWasCutIsAnError) {
    constexpr std::size_t kBytes = 65536;
    put_bytes(open("data"), 0, pattern(kBytes, 1));
    put_bytes(open("mapped"), 0, pattern(kBytes, 2));
    const base::UniqueFd fd(::open(path("mapped").c_str(), O_RDWR | O_CLOEXEC));
    void* const mapped = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    ASSERT_NE(mapped, MAP_FAILED);
    ASSERT_EQ(::ftruncate(fd.get(), 0), 0);
    for (const bool write : {false, true}) {
        for (const bool blocking : {false, true}) {
            TransferRequest request =
                request_of(write, path("data"), static_cast<std::byte*>(mapped), kBytes, 0);
            const auto error = error_of([&] {
                return (blocking ? engine().run(request) : engine().submit(request))->wait();
            });
            ASSERT_TRUE(error);
            EXPECT_EQ(error->system_errno(), EFAULT) << error->what();
            EXPECT_THAT(error->what(),
                        HasSubstr("it maps a file that was cut); map the file again"));
        }
    }
    ::munmap(mapped, kBytes);
    put_bytes(open("data"), 0, pattern(kBytes, 3));
    EXPECT_EQ(get_bytes(open("data"), 0, kBytes), pattern(kBytes, 3)) << "the engine goes on";
}

TEST_P(KernelSystem, FailedWriteLeavesNoEmptyFile) {
    const std::string made = path("made");
    const std::string there = path("there");
    std::ofstream(there).flush();
    EXPECT_EQ(
        in_child([&]() -> std::string {
            ::signal(SIGXFSZ, SIG_IGN);
            const rlimit limit{0, RLIM_INFINITY};
            if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) {
                return "no limit";
            }
            const auto other = make();
            const std::vector<std::byte> data(8192);
            for (const bool blocking : {false, true}) {
                for (const std::string& name : {made, there}) {
                    TransferRequest request = request_of(true, name, data.data(), 8192, 0);
                    const auto error = error_of([&] {
                        return (blocking ? other->run(request) : other->submit(request))->wait();
                    });
                    if (!error || error->system_errno() != EFBIG) {
                        return error ? error->what() : "it was written";
                    }
                }
                if (::access(made.c_str(), F_OK) == 0) {
                    return "it left a file";
                }
                if (::access(there.c_str(), F_OK) != 0) {
                    return "it took a file away";
                }
            }
            return "";
        }),
        "");
}

// A file is closed with close() and the end of its last transfer, not with the last handle of one.
TEST_P(KernelSystem, HandlesOfTransfersKeepNoFileOpen) {
    const auto data = pattern(300'000, 1);
    const std::size_t before = [&] {
        static_cast<void>(with_bytes("file", data));
        std::vector<std::byte> into(data.size());
        File file = open("file");
        engine().submit(request_of(false, file, into.data(), into.size(), 0))->wait();
        file.close();
        return open_descriptors();
    }();
    std::vector<TransferPtr> handles;
    std::list<std::vector<std::byte>> memory;  // of each its own: they run at once
    const auto into = [&](std::size_t bytes) { return memory.emplace_back(bytes).data(); };
    for (int i = 0; i < 5; ++i) {
        File file = open("file");
        for (const std::size_t bytes : {data.size(), std::size_t{100}}) {
            handles.push_back(engine().submit(request_of(false, file, into(bytes), bytes, 0, {})));
            handles.push_back(engine().run(request_of(false, file, into(bytes), bytes, 0, {})));
        }
        handles.push_back(engine().submit(request_of(false, file, into(100), 100, 0)));
        file.close();  // the last one may run still
    }
    for (const TransferPtr& handle : handles) {
        handle->wait();
        EXPECT_GT(handle->extent_bytes(0), 0U);
    }
    EXPECT_TRUE(only_descriptors(before)) << open_descriptors() << " and not " << before;
}

TEST_P(KernelSystem, NoDescriptorIsLeft) {
    const auto data = pattern(300'001, 1);
    std::vector<std::byte> into(data.size());
    const auto traffic = [&](TestEngine& other, int rounds) {
        for (int i = 0; i < rounds; ++i) {
            other
                .submit(request_of(true, path("file"), data.data(), data.size(), 1, {.sync = true}))
                ->wait();
            other.run(request_of(false, path("file"), into.data(), into.size(), 1))->wait();
            static_cast<void>(error_of([&] {
                return other.run(request_of(false, path("file"), into.data(), into.size(), 2))
                    ->wait();
            }));
            TransferPtr cancelled =
                other.submit(request_of(false, path("file"), into.data(), into.size(), 1));
            cancelled->cancel();
            cancelled.reset();
            other.submit(request_of(false, path("none"), into.data(), into.size(), 1)).reset();
            // Nothing of this round uses the memory any more.
            static_cast<void>(error_of([&] { return other.drain(); }));
        }
    };
    const std::size_t none = open_descriptors();
    {
        const auto other = make();
        traffic(*other, 1);
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        const std::size_t some = open_descriptors();
        traffic(*other, 10);
        EXPECT_TRUE(only_descriptors(some)) << open_descriptors() << " and not " << some;
    }
    EXPECT_TRUE(only_descriptors(none)) << open_descriptors() << " and not " << none;
}

// No descriptor to be had: an error of the transfer or of the call, and no hang.
TEST_P(KernelSystem, TooManyOpenFiles) {
    static_cast<void>(with_bytes("file", pattern(5000, 1)));
    const std::string name = path("file");
    EXPECT_EQ(
        in_child([&]() -> std::string {
            const auto other = make();
            std::vector<std::byte> into(5000);
            other->run(request_of(false, name, into.data(), into.size(), 0))->wait();
            rlimit limit{};
            ::getrlimit(RLIMIT_NOFILE, &limit);
            limit.rlim_cur = 3;  // which are taken
            ::setrlimit(RLIMIT_NOFILE, &limit);
            const auto error = error_of([&] {
                return other->submit(request_of(false, name, into.data(), into.size(), 0))->wait();
            });
            if (!error || error->system_errno() != EMFILE || error->path() != name) {
                return error ? error->what() : "it was opened";
            }
            limit.rlim_cur = limit.rlim_max;
            ::setrlimit(RLIMIT_NOFILE, &limit);
            other->run(request_of(false, name, into.data(), into.size(), 0))->wait();
            return "";
        }),
        "");
}

// Written ranges that share no byte, but pages, side by side with somebody who reads through the
// page cache: at every moment each byte is an old or a new one, at the end the new.
TEST_P(KernelSystem, UnalignedWritersBesideBufferedReaders) {
    constexpr std::size_t kWriters = 4;
    constexpr std::size_t kShare = 100'003;
    constexpr unsigned kRounds = 12;
    const auto base = pattern(kWriters * kShare, 9);
    const auto version = [&](std::size_t begin, std::size_t bytes, unsigned round) {
        std::vector<std::byte> out(base.begin() + static_cast<std::ptrdiff_t>(begin),
                                   base.begin() + static_cast<std::ptrdiff_t>(begin + bytes));
        for (std::byte& byte : out) {
            byte ^= static_cast<std::byte>(round << 4);  // the low half names the place
        }
        return out;
    };
    const File file = with_bytes("file", base);
    std::atomic<bool> stop{false};
    std::atomic<std::size_t> wrong{0};
    std::atomic<std::size_t> looks{0};
    std::thread reader([&] {
        const int fd = ::open(file.path().c_str(), O_RDONLY | O_CLOEXEC);
        std::vector<unsigned char> seen(base.size());
        while (!stop.load()) {
            const auto got = ::pread(fd, seen.data(), seen.size(), 0);
            wrong += got == static_cast<ssize_t>(seen.size()) ? 0 : 1;
            for (std::size_t i = 0; i < seen.size(); ++i) {
                wrong += (seen[i] & 0x0fU) == (std::to_integer<unsigned>(base[i]) & 0x0fU) ? 0 : 1;
            }
            ++looks;
        }
        ::close(fd);
    });
    std::vector<std::thread> writers;
    for (std::size_t w = 0; w < kWriters; ++w) {
        writers.emplace_back([&, w] {
            for (unsigned round = 1; round <= kRounds; ++round) {
                const auto data = version(w * kShare, kShare, round % 16);
                EXPECT_EQ(engine()
                              .submit(request_of(true, file, data.data(), kShare, w * kShare))
                              ->wait(),
                          kShare);
            }
        });
    }
    for (std::thread& writer : writers) {
        writer.join();
    }
    stop = true;
    reader.join();
    EXPECT_EQ(wrong.load(), 0U);
    EXPECT_GT(looks.load(), 0U);
    EXPECT_TRUE(get_bytes(file, 0, base.size() + 1) == version(0, base.size(), kRounds));
    if (file.info().direct) {
        EXPECT_GT(engine().stats().edge_requests, 0U);
        std::vector<std::byte> direct(base.size());
        engine().read(file, direct, 0);
        EXPECT_TRUE(direct == version(0, base.size(), kRounds));
    }
}

// ---- io_uring refused, as an engine meets it

TEST(Refused, EngineTakesTheNextBackendAndSaysWhy) {
    const std::string folder = scratch_folder();
    EXPECT_EQ(in_child([&]() -> std::string {
                  if (!test::refuse_system_call(SYS_io_uring_setup, EPERM)) {
                      return "no seccomp";
                  }
                  Engine engine;
                  const EngineDescription what = engine.describe();
                  if (what.backend != "libaio" || what.refusals.size() != 1 ||
                      what.refusals[0].find("io_uring") != 0) {
                      return what.text();
                  }
                  const auto data = pattern(500'001, 1);
                  engine.write(folder + "/refused", data, 3);
                  std::vector<std::byte> back(data.size());
                  engine.read(folder + "/refused", back, 3);
                  std::filesystem::remove(folder + "/refused");
                  const auto forced = error_of([] {
                      return Engine(EngineOptions{.backend = BackendKind::kUring}).stats().running;
                  });
                  if (!forced || forced->reason() != ErrorCode::kUnsupported) {
                      return "io_uring was forced in vain";
                  }
                  return back == data ? "" : "wrong bytes";
              }),
              "");
}

// Each transfer to a device that refuses the forced backend asks again; the reason is kept once.
TEST(Refused, ADeviceThatRefusesIsNotedOnce) {
    const std::string path = scratch_folder() + "/refused";
    EXPECT_EQ(in_child([&]() -> std::string {
                  Engine engine(EngineOptions{.backend = BackendKind::kUring});
                  int failed = test::refuse_system_call(SYS_io_uring_setup, EPERM) ? 0 : -1;
                  for (int i = 0; i < 5; ++i) {
                      const auto error =
                          error_of([&] { return engine.write(path, pattern(500'001, 1)); });
                      failed += error && error->reason() == ErrorCode::kUnsupported ? 1 : 0;
                  }
                  std::filesystem::remove(path);
                  const EngineDescription what = engine.describe();
                  return failed == 5 && what.refusals.size() == 1 ? "" : what.text();
              }),
              "");
}

// A sandbox that lets a ring be made and not be used: found when the engine is made.
TEST(Refused, EnteringTheRingIsRefused) {
    const std::string folder = scratch_folder();
    EXPECT_EQ(in_child([&]() -> std::string {
                  if (!test::refuse_system_call(SYS_io_uring_enter, EPERM)) {
                      return "no seccomp";
                  }
                  Engine engine;
                  const EngineDescription what = engine.describe();
                  if (what.backend != "libaio" || what.refusals.size() != 1 ||
                      what.refusals[0].find("io_uring_enter") == std::string::npos) {
                      return what.text();
                  }
                  const auto data = pattern(500'001, 1);
                  engine.write(folder + "/refused", data, 3);
                  std::filesystem::remove(folder + "/refused");
                  return "";
              }),
              "");
}

// Room that cannot be asked for beforehand is found by the write.
TEST(Refused, PreallocationByASandbox) {
    const std::string folder = scratch_folder();
    for (const int refusal : {EPERM, EACCES}) {
        EXPECT_EQ(in_child([&]() -> std::string {
                      if (!test::refuse_system_call(SYS_fallocate, refusal)) {
                          return "no seccomp";
                      }
                      Engine engine;
                      const auto data = pattern(4 << 20, 1);
                      const auto error =
                          error_of([&] { return engine.write(folder + "/refused", data); });
                      std::filesystem::remove(folder + "/refused");
                      return error ? error->what() : "";
                  }),
                  "");
    }
}

TEST(Refused, BothRefusedLeavesThreads) {
    EXPECT_EQ(in_child([]() -> std::string {
                  if (!test::refuse_system_call(SYS_io_uring_setup, ENOSYS) ||
                      !test::refuse_system_call(SYS_io_setup, ENOSYS)) {
                      return "no seccomp";
                  }
                  const EngineDescription what = Engine().describe();
                  return what.backend == "posix" && what.refusals.size() == 2 ? "" : what.text();
              }),
              "");
}

}  // namespace
}  // namespace penstock::suite
