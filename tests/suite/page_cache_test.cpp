// SPDX-License-Identifier: Apache-2.0
// Reads of files that are in the page cache, not in it, partly in it, or dirty there: the bytes
// come from where they are, and are right whatever others do to the cache meanwhile.
#include "base/align.hpp"
#include "os/file.hpp"
#include "suite/suite.hpp"
#include "support/seccomp.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <random>
#include <thread>

namespace penstock::suite {
namespace {

constexpr std::uint64_t kPage = 4096;

class PageCache : public EveryBackend {
protected:
    void SetUp() override {
        EveryBackend::SetUp();
        if (IsSkipped()) {
            return;
        }
        file_ = engine().files().open(path("file"), {.access = Access::kReadWrite, .create = true});
        if (!file_.handle()->info().asks_cache) {
            GTEST_SKIP() << "no direct I/O here: " << file_.info().reason;
        }
        os::CachedPages pages;
        if (const int refused = file_.handle()->cached_pages(0, 1, pages); refused != 0) {
            GTEST_SKIP() << "cachestat(2): " << std::generic_category().message(refused);
        }
    }
    void TearDown() override {
        file_ = {};
        EveryBackend::TearDown();
    }

    [[nodiscard]] int fd() const { return file_.handle()->descriptor(os::IoPath::kBuffered); }
    /// Makes the file, and leaves it in the cache, dirty.
    void fill(std::uint64_t bytes) {
        data_ = pattern(bytes, 1);
        put_bytes(file_, 0, data_);
    }
    void evict() const {
        ASSERT_EQ(::fdatasync(fd()), 0);
        ASSERT_EQ(::posix_fadvise(fd(), 0, 0, POSIX_FADV_DONTNEED), 0);
        ASSERT_EQ(cached().pages, 0U);
    }
    [[nodiscard]] os::CachedPages cached() const {
        os::CachedPages pages;
        EXPECT_EQ(file_.handle()->cached_pages(0, data_.size(), pages), 0);
        return pages;
    }
    /// Reads and compares.
    void expect_read(std::uint64_t offset, std::size_t bytes, std::size_t align, bool blocking) {
        Arena arena(bytes + 3 * kPage);
        const auto into = arena.take(bytes, align);
        const TransferRequest request = request_of(false, file_, into.data(), bytes, offset);
        ASSERT_EQ((blocking ? engine().run(request) : engine().submit(request))->wait(), bytes);
        arena.expect(into.data(), std::span(data_).subspan(offset, bytes));
        ASSERT_EQ(arena.check(), "") << offset << " " << bytes;
    }

    File file_;
    std::vector<std::byte> data_;
};
INSTANTIATE_TEST_SUITE_P(Backends, PageCache, kernel_kinds(), kind_name);

// Dirty pages are read where they are: a direct read would write them back first.
TEST_P(PageCache, WhatIsCachedComesFromTheCacheAndStaysDirty) {
    fill(4 * base::kMiB);
    std::uint64_t bytes = 0;
    for (const bool blocking : {true, false}) {
        for (const auto& [offset, length] :
             {std::pair<std::uint64_t, std::size_t>{0, 4 * base::kMiB},
              {1, 300'000},
              {base::kMiB + 5, 2 * base::kMiB},
              {4096, 4096},
              {9999, 1}}) {
            expect_read(offset, length, offset % 2 == 0 ? kPage : 1, blocking);
            bytes += length;
        }
    }
    EXPECT_EQ(engine().stats().bytes_cached, bytes);
    EXPECT_EQ(engine().stats().bytes_read, 0U);
    EXPECT_GT(cached().dirty, 0U);
}

TEST_P(PageCache, WhatIsColdComesFromTheDeviceAndStaysCold) {
    fill(16 * base::kMiB);
    evict();
    expect_read(0, 16 * base::kMiB, kPage, true);
    std::mt19937_64 random(1);
    for (int i = 0; i < 1500; ++i) {
        expect_read(random() % (16 * base::kMiB - kPage), kPage, 1, true);
    }
    EXPECT_EQ(engine().stats().bytes_cached, 0U);
    EXPECT_LE(engine().stats().cache_questions, 20U);
    EXPECT_EQ(cached().pages, 0U);
}

// A kernel that reclaims pages meanwhile takes some from an attempt; five in a row it does not.
constexpr int kAttempts = 5;

TEST_P(PageCache, EachHalfComesFromWhereItIs) {
    fill(16 * base::kMiB);
    ASSERT_EQ(::posix_fadvise(fd(), 0, 0, POSIX_FADV_RANDOM), 0);
    std::vector<std::byte> some(2 * base::kMiB);
    double cached_mib = 0;
    for (int attempt = 0; attempt < kAttempts && std::abs(cached_mib - 8) > 1; ++attempt) {
        evict();
        for (std::uint64_t at = 2 * base::kMiB; at < data_.size(); at += 4 * base::kMiB) {
            ASSERT_EQ(::pread(fd(), some.data(), some.size(), static_cast<off_t>(at)),
                      static_cast<ssize_t>(some.size()));
        }
        const std::uint64_t before = engine().stats().bytes_cached;
        expect_read(3, data_.size() - 10, 1, false);
        cached_mib = static_cast<double>(engine().stats().bytes_cached - before) / base::kMiB;
        EXPECT_LE(cached().pages, 8 * base::kMiB / kPage + 32);
    }
    EXPECT_NEAR(cached_mib, 8, 1);
}

// The transfer says, whatever the file was opened for.
TEST_P(PageCache, AReadTakesItsPolicyFromTheTransfer) {
    fill(4 * base::kMiB);
    std::vector<std::byte> into(data_.size());
    const auto read = [&](CachePolicy policy, std::size_t bytes) {
        TransferRequest request = request_of(false, file_, into.data(), bytes, 0);
        request.options.cache = policy;
        const std::uint64_t before = engine().stats().bytes_cached;
        EXPECT_EQ(engine().submit(request)->wait(), bytes);
        EXPECT_TRUE(std::equal(into.begin(), into.begin() + static_cast<std::ptrdiff_t>(bytes),
                               data_.begin()));
        return engine().stats().bytes_cached - before;
    };
    // What comes from the cache where a read before it has brought all of it in.
    const auto read_again = [&](CachePolicy policy) {
        std::uint64_t cached_bytes = 0;
        for (int attempt = 0; attempt < kAttempts && cached_bytes != data_.size(); ++attempt) {
            cached_bytes = read(policy, data_.size());
        }
        return cached_bytes;
    };
    EXPECT_EQ(read(CachePolicy::kDirect, data_.size()), 0U);
    EXPECT_EQ(read(CachePolicy::kRequired, data_.size()), 0U);
    std::uint64_t pages = 0;
    for (int attempt = 0; attempt < kAttempts && pages != data_.size() / kPage; ++attempt) {
        evict();
        EXPECT_LT(read(CachePolicy::kCached, data_.size()), data_.size());  // it was not there
        pages = cached().pages;
    }
    EXPECT_EQ(pages, data_.size() / kPage);
    EXPECT_EQ(read_again(CachePolicy::kCached), data_.size());
    EXPECT_EQ(read(CachePolicy::kCached, 100), 0U);  // nothing is asked of what is short
    file_ = engine().files().open(path("file"), {.cache = CachePolicy::kCached});
    EXPECT_EQ(read_again(CachePolicy::kAuto), data_.size());
}

// Small blocking reads one after the other: the kernel reads ahead.
TEST_P(PageCache, WhatIsReadInSequenceIsReadAhead) {
    if (GetParam() != EngineKind::kAuto) {
        GTEST_SKIP() << "forced backends read nothing on the caller's thread";
    }
    fill(4 * base::kMiB);
    evict();
    for (std::uint64_t offset = 0; offset < 2 * base::kMiB; offset += kPage) {
        expect_read(offset, kPage, kPage, true);
    }
    EXPECT_GT(engine().stats().bytes_cached, base::kMiB);
}

// To wait for other threads is a voluntary switch of the caller.
TEST_P(PageCache, TheCallerCopiesAFewMiBWithoutAHop) {
    if (GetParam() != EngineKind::kAuto) {
        GTEST_SKIP() << "forced backends read nothing on the caller's thread";
    }
    constexpr std::uint64_t kSize = 4 * base::kMiB;
    fill(kSize);
    std::vector<std::byte> into(kSize);
    const std::vector<std::string> paths(3, path("file"));
    const auto read_all = [&] {
        engine().read(file_, into);
        engine().read(file_, std::span(into).subspan(1, 300'000), 1);
        for (const std::size_t files : {1, 3}) {
            TransferRequest list;
            list.paths.assign(paths.begin(), paths.begin() + static_cast<std::ptrdiff_t>(files));
            for (std::uint32_t i = 0; i < files; ++i) {
                list.extents.push_back(
                    {i * base::kMiB, Memory(into.data() + i * base::kMiB, base::kMiB), i});
            }
            engine().run(std::move(list))->wait();
        }
    };
    read_all();
    rusage before{};
    rusage after{};
    ASSERT_EQ(::getrusage(RUSAGE_THREAD, &before), 0);
    for (int i = 0; i < 10; ++i) {
        read_all();
    }
    ASSERT_EQ(::getrusage(RUSAGE_THREAD, &after), 0);
    EXPECT_LE(after.ru_nvcsw - before.ru_nvcsw, 5);
    EXPECT_EQ(into, data_);
    EXPECT_EQ(engine().stats().bytes_read, 0U);
    // Nothing of a file that is half there is copied twice.
    ASSERT_EQ(::fdatasync(fd()), 0);
    ASSERT_EQ(::posix_fadvise(fd(), 0, kSize / 2, POSIX_FADV_DONTNEED), 0);
    const EngineStats half = engine().stats();
    engine().read(file_, into);
    EXPECT_EQ(into, data_);
    EXPECT_EQ(engine().stats().bytes_read, kSize / 2);
    EXPECT_EQ(engine().stats().bytes_cached - half.bytes_cached, kSize / 2);
}

// cachestat(2) is refused to those who neither own nor may write a file.
TEST_P(PageCache, OthersProbeAndLeaveFewPagesBehind) {
    if (::geteuid() != 0 || GetParam() != EngineKind::kAuto) {
        GTEST_SKIP() << "needs root, and reads on the caller's thread";
    }
    fill(8 * base::kMiB);
    evict();
    file_ = engine().files().open(path("file"), {});
    std::thread([&] {  // the credentials of one thread
        ASSERT_EQ(::syscall(SYS_setresuid, 65534, 65534, 65534), 0);
        os::CachedPages pages;
        ASSERT_EQ(file_.handle()->cached_pages(0, 1, pages), EPERM);
        std::mt19937_64 random(1);
        for (int i = 0; i < 1500; ++i) {
            expect_read(random() % (8 * base::kMiB - kPage), kPage, 1, true);
        }
    })
        .join();
    EXPECT_LE(engine().stats().cache_questions, 32U);
    const File owner = engine().files().open(path("file"), {.access = Access::kReadWrite});
    os::CachedPages pages;
    ASSERT_EQ(owner.handle()->cached_pages(0, data_.size(), pages), 0);
    EXPECT_LE(pages.pages, 32U);
}

// Each word says where it stands, however written: through the cache, past it, or in between.
TEST_P(PageCache, RightBytesWhileOthersWriteAndEvict) {
    constexpr std::uint64_t kWords = 2 * base::kMiB / 8;
    std::vector<std::uint64_t> words(kWords);
    const auto stamp = [&](std::uint64_t begin, std::uint64_t end, std::uint64_t version) {
        for (std::uint64_t i = begin; i < end; ++i) {
            words[i] = i << 16 | version % 60'000;
        }
        return std::as_bytes(std::span(words).subspan(begin, end - begin));
    };
    put_bytes(file_, 0, stamp(0, kWords, 0));
    std::atomic<bool> stop{false};
    std::thread writer([&] {
        std::mt19937_64 random(2);
        for (std::uint64_t version = 1; !stop; ++version) {
            const std::uint64_t begin = random() % kWords;
            const std::uint64_t end = std::min(kWords, begin + random() % 20'000 + 1);
            const auto bytes = stamp(begin, end, version);
            if (version % 2 == 0) {
                put_bytes(file_, begin * 8, bytes);
            } else {
                engine().write(file_, bytes, begin * 8);
            }
        }
    });
    std::thread evictor([&] {
        while (!stop) {
            static_cast<void>(::posix_fadvise(fd(), 0, 0, POSIX_FADV_DONTNEED));
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
    });
    std::mt19937_64 random(3);
    std::vector<std::uint64_t> into(kWords);
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(300);
    std::uint64_t wrong = 0;
    while (std::chrono::steady_clock::now() < until) {
        const std::uint64_t count = random() % 2 == 0 ? random() % 500 + 1 : random() % kWords + 1;
        const std::uint64_t begin = random() % (kWords - count + 1);
        const auto memory = std::as_writable_bytes(std::span(into).first(count));
        const TransferRequest request =
            request_of(false, file_, memory.data(), memory.size(), begin * 8);
        const bool blocking = random() % 2 == 0;
        static_cast<void>((blocking ? engine().run(request) : engine().submit(request))->wait());
        for (std::uint64_t i = 0; i < count; ++i) {
            wrong += into[i] >> 16 != begin + i ? 1U : 0U;
        }
    }
    stop = true;
    writer.join();
    evictor.join();
    EXPECT_EQ(wrong, 0U);
}

// A process that has a file mapped and changes the first word of each of its pages, until it ends.
class MapsAndChanges {
public:
    MapsAndChanges(const std::string& path, std::uint64_t bytes) : child_(::fork()) {
        if (child_ == 0) {
            change(path.c_str(), bytes);
        }
    }
    MapsAndChanges(const MapsAndChanges&) = delete;
    MapsAndChanges& operator=(const MapsAndChanges&) = delete;
    ~MapsAndChanges() {
        ::kill(child_, SIGKILL);
        ::waitpid(child_, nullptr, 0);
    }
    [[nodiscard]] bool runs() const { return child_ > 0; }

private:
    [[noreturn]] static void change(const char* path, std::uint64_t bytes) {
        const int fd = ::open(path, O_RDWR | O_CLOEXEC);
        void* const map = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED) {
            ::_exit(1);
        }
        auto* const words = static_cast<volatile std::uint64_t*>(map);
        while (true) {
            for (std::uint64_t i = 0; i < bytes / 8; i += kPage / 8) {
                words[i] = words[i] + 1;
            }
        }
    }

    pid_t child_;
};

// A page that another process has mapped and makes dirty meanwhile cannot always be dropped from
// the cache. Linux keeps it then, and reports EIO at the next sync: about one sync in ten here.
TEST_P(PageCache, ADirectWriteUnderAMapIsCoherentOrReported) {
    constexpr std::uint64_t kWords = 64 * kPage / 8;
    fill(kWords * 8);
    const MapsAndChanges other(path("file"), kWords * 8);
    ASSERT_TRUE(other.runs());
    std::vector<std::uint64_t> words(kWords);
    for (std::uint64_t version = 1; version <= 15; ++version) {
        std::fill(words.begin(), words.end(), version << 32);
        TransferRequest request =
            request_of(true, file_, std::as_writable_bytes(std::span(words)).data(), kWords * 8, 0);
        request.options.sync = true;
        try {
            engine().submit(request)->wait();
        } catch (const Error& error) {
            ASSERT_EQ(error.system_errno(), EIO) << error.what();
            continue;
        }
        for (const CachePolicy policy : {CachePolicy::kCached, CachePolicy::kDirect}) {
            std::vector<std::uint64_t> found(kWords);
            request = request_of(false, file_, std::as_writable_bytes(std::span(found)).data(),
                                 kWords * 8, 0);
            request.options.cache = policy;
            engine().submit(request)->wait();
            for (std::uint64_t i = 0; i < kWords; ++i) {
                ASSERT_EQ(i % (kPage / 8) == 0 ? version << 32 : found[i], version << 32)
                    << "version " << version << ", word " << i;
            }
        }
    }
}

// Reads of what is in the page cache try a call that waits for nothing, which a sandbox may refuse.
TEST(PageCacheRefused, CallThatReadsTheCacheAlone) {
    const std::string path = scratch_folder() + "/refused";
    for (const int refusal : {EPERM, EACCES, ENOSYS}) {
        EXPECT_EQ(test::in_child([&]() -> std::string {
                      if (!test::refuse_system_call(SYS_preadv2, refusal)) {
                          return "no seccomp";
                      }
                      Engine engine;
                      const auto data = pattern(3 << 20, 1);
                      engine.write(path, data, 0, {.cache = CachePolicy::kCached});
                      const File file = FileSystem::local().open(path);
                      std::string wrong;
                      for (const std::size_t bytes : {100, 4096, 100'000, 3 << 20}) {
                          std::vector<std::byte> back(bytes);
                          const auto error = error_of([&] {
                              for (int i = 0; i < 6; ++i) {
                                  engine.read(file, back, 0);
                              }
                              return engine.read(path, back, 0);
                          });
                          wrong += error ? error->what() : "";
                          wrong +=
                              std::equal(back.begin(), back.end(), data.begin()) ? "" : "bytes";
                      }
                      std::filesystem::remove(path);
                      return wrong;
                  }),
                  "");
    }
}

}  // namespace
}  // namespace penstock::suite
