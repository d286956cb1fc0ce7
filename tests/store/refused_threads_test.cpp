// SPDX-License-Identifier: Apache-2.0
// A system that gives only so many threads (ulimit -u, pids.max): what threads make faster is done
// without them, and what cannot be done without one is an Error.
#include "base/start_threads.hpp"
#include "store/background/save_queue.hpp"
#include "store/write/chunk_sums.hpp"
#include "stream/checksum.hpp"
#include "stream/copy_threads.hpp"
#include "stream/file_reader.hpp"
#include "stream/file_syncer.hpp"
#include "stream/window_sums.hpp"
#include "support/temp_folder.hpp"
#include "support/test_engine.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace penstock::store {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::size_t kBytes = std::size_t{24} << 20;  // enough for threads, whatever asks for them
constexpr unsigned kGrantedMax = 3;

bool set_limit(rlim_t processes) {
    rlimit limit{};
    return ::getrlimit(RLIMIT_NPROC, &limit) == 0 &&
           (limit.rlim_cur = processes, ::setrlimit(RLIMIT_NPROC, &limit) == 0);
}

bool can_start_one() {
    try {
        std::thread([] {}).join();
    } catch (const std::system_error&) {
        return false;
    }
    std::this_thread::sleep_for(10ms);  // joined, it counts a little longer
    return true;
}

// From here on the system gives this process `granted` threads at once and no more. Empty, or why
// it does not work.
std::string grant(unsigned granted) {
    constexpr rlim_t kOthersMax = 4096;  // of the same user
    if (::setresgid(65534, 65534, 65534) != 0 || ::setresuid(65534, 65534, 65534) != 0) {
        return "setuid";
    }
    for (rlim_t limit = 1; limit < kOthersMax; ++limit) {
        if (!set_limit(limit)) {
            return "setrlimit";
        }
        if (can_start_one()) {
            return set_limit(limit - 1 + granted) ? "" : "setrlimit";
        }
    }
    return "there is no limit";
}

// Runs `body` in a child that may have so many threads. Returns its report: empty, if all is well.
std::string with_threads(unsigned granted, const std::function<std::string()>& body) {
    std::array<int, 2> out{};
    if (::pipe(out.data()) != 0) {
        return "pipe";
    }
    const pid_t child = ::fork();
    if (child == 0) {
        std::string said;
        try {
            said = grant(granted);
            said = said.empty() ? body() : said;
        } catch (const std::exception& error) {
            said = fmt::format("threw: {}", error.what());
        }
        ::_exit(::write(out[1], said.data(), said.size()) >= 0 ? 0 : 1);
    }
    ::close(out[1]);
    std::string said(4096, '\0');
    const ssize_t length = ::read(out[0], said.data(), said.size());
    said.resize(length > 0 ? static_cast<std::size_t>(length) : 0);
    ::close(out[0]);
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) ? said : said + " (killed)";
}

// One sum per chunk.
std::vector<std::uint64_t> sums_of(std::span<const std::byte> data) {
    std::vector<std::uint64_t> sums;
    for (; !data.empty(); data = data.subspan(std::min<std::size_t>(data.size(), kChunkBytes))) {
        sums.push_back(
            stream::content_hash(data.first(std::min<std::size_t>(data.size(), kChunkBytes))));
    }
    return sums;
}

class RefusedThreads : public ::testing::TestWithParam<unsigned> {
protected:
    void SetUp() override {
        if (::geteuid() != 0) {
            GTEST_SKIP() << "only root may become a user with a limit on its threads";
        }
    }
    // The report with so many threads.
    static std::string said(const std::function<std::string()>& body) {
        return with_threads(GetParam(), body);
    }
};

TEST_P(RefusedThreads, AsManyAsAreGivenAreStarted) {
    EXPECT_EQ(said([] {
                  std::atomic<bool> over{false};
                  std::vector<std::jthread> threads;
                  base::start_threads(threads, kGrantedMax + 2, [&] { over.wait(false); });
                  const std::size_t started = threads.size();
                  over.store(true);
                  over.notify_all();
                  return started == GetParam() ? "" : fmt::format("{} threads", started);
              }),
              "");
}

TEST_P(RefusedThreads, SumsOfWhatIsWritten) {
    const auto data = support::pattern(kBytes, 1);
    const std::vector<std::uint64_t> right = sums_of(data);
    EXPECT_EQ(said([&]() -> std::string {
                  for (const Changing changing : {Changing::kFails, Changing::kTorn}) {
                      stream::WindowSums sums({{data, 0, false}, {data, kBytes, false}},
                                              {.hash = stream::content_hash,
                                               .piece_bytes = kChunkBytes,
                                               .watch = {changing, {}},
                                               .name = [](std::size_t) { return "a tensor"; }});
                      const std::size_t window = sums.add({sums.all_of(0), sums.all_of(1)});
                      sums.start();
                      sums.ask(window);
                      sums.wait_ready(window);
                      sums.ended(window);
                      sums.wait_over();
                      for (std::size_t source = 0; source < 2; ++source) {
                          if (!std::ranges::equal(sums.sums(source), right)) {
                              return "a wrong sum";
                          }
                      }
                  }
                  return "";
              }),
              "");
}

TEST_P(RefusedThreads, SumsOfWhatWasRead) {
    auto data = support::pattern(kBytes, 1);
    const std::vector<std::uint64_t> sums = sums_of(data);
    EXPECT_EQ(said([&]() -> std::string {
                  const stream::Wanted wanted{
                      .into = data, .sums = sums, .piece_bytes = kChunkBytes};
                  if (stream::check_sums({&wanted, 1})) {
                      return "sound bytes are wrong";
                  }
                  data[kBytes / 2] ^= std::byte{1};
                  return stream::check_sums({&wanted, 1}) ? "" : "wrong bytes are sound";
              }),
              "");
}

TEST_P(RefusedThreads, WhatChangedInAState) {
    auto data = support::pattern(kBytes, 1);
    EXPECT_EQ(
        said([&]() -> std::string {
            const StateTensor tensor{"a", "U8", {kBytes}, data};
            const std::vector<Shard> shards(1);
            Slice slice;
            for (const std::uint64_t sum : sums_of(data)) {
                const std::uint64_t begin = slice.sums.size() * kChunkBytes;
                slice.sums.push_back(stream::bind(sum, shards[0].id, shards[0].generation, begin));
            }
            const Slice* before = &slice;
            stream::ProgressClock clock({}, "save");
            if (ChunkSums({&tensor, 1}).compare({&before, 1}, shards, clock)[0]) {
                return "it did not change";
            }
            data.back() ^= std::byte{1};
            return ChunkSums({&tensor, 1}).compare({&before, 1}, shards, clock)[0] ? ""
                                                                                   : "it changed";
        }),
        "");
}

TEST_P(RefusedThreads, FilesAreSynced) {
    const support::TempFolder folder("/dev/shm");
    std::vector<File> files;
    for (int i = 0; i < 20; ++i) {
        files.push_back(FileSystem::local().open(folder / std::to_string(i),
                                                 {.access = Access::kWrite, .create = true}));
    }
    EXPECT_EQ(said([&]() -> std::string {
                  stream::FileSyncer syncer;
                  syncer.use_threads(kGrantedMax + 2);
                  std::vector<std::weak_ptr<os::File>> open;
                  for (File& file : files) {
                      open.emplace_back(file.handle());
                      syncer.add(std::move(file));
                  }
                  syncer.finish();
                  for (const auto& file : open) {
                      if (!file.expired()) {
                          return "one is still open";
                      }
                  }
                  return "";
              }),
              "");
}

TEST_P(RefusedThreads, MemoryIsCopied) {
    EXPECT_EQ(said([]() -> std::string {
                  stream::CopyThreads threads(kGrantedMax + 2);
                  for (int round = 0; round < 100; ++round) {
                      std::array<std::atomic<int>, 50> calls{};
                      threads.run(calls.size(), [&](std::size_t i) { ++calls.at(i); });
                      for (const auto& count : calls) {
                          if (count != 1) {
                              return fmt::format("{} calls", count.load());
                          }
                      }
                  }
                  return "";
              }),
              "");
}

TEST_P(RefusedThreads, ASaveBehindTheCallersBackSaysWhatItNeeds) {
    const std::string what = said([]() -> std::string {
        SaveQueue queue;
        bool saved = false;
        try {
            const auto save = queue.add([&](PendingSave&) { saved = true; }, "step 1", true);
            return save->wait_done(20s) && saved ? "saved" : "not saved";
        } catch (const Error& error) {
            if (error.system_errno() != EAGAIN || queue.in_flight() != 0 ||
                queue.take_failure() != nullptr || !queue.wait_idle(0ns)) {
                return "it is not as it was";
            }
            // And goes on when there are threads again.
            std::string said = error.what();
            rlimit limit{};
            ::getrlimit(RLIMIT_NPROC, &limit);
            set_limit(limit.rlim_cur + 1);
            const auto save = queue.add([&](PendingSave&) { saved = true; }, "step 2", true);
            return save->wait_done(20s) && saved ? said : "not saved";
        }
    });
    if (GetParam() == 0) {
        EXPECT_THAT(what, AllOf(HasSubstr("start thread"), HasSubstr("ulimit -u"),
                                HasSubstr("pids.max"), HasSubstr("without save_async")));
    } else {
        EXPECT_EQ(what, "saved");
    }
}

INSTANTIATE_TEST_SUITE_P(Granted, RefusedThreads, ::testing::Range(0U, kGrantedMax + 1));

}  // namespace
}  // namespace penstock::store
