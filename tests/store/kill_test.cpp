// SPDX-License-Identifier: Apache-2.0
// SIGKILL at random moments: a child saves again and again, into a store and under one file name,
// and says in shared memory what was acknowledged; it is killed; what is there is held against
// that. The next child goes on where this one died, so leftovers of many deaths meet.
#include "state/writing/file_image.hpp"
#include "state/writing/file_writer.hpp"
#include "store/crash_state.hpp"
#include "support/crash_harness.hpp"
#include "support/temp_folder.hpp"
#include "support/test_engine.hpp"

#include <penstock/checkpoint.hpp>

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace penstock::store {
namespace {

constexpr const char* kFolderVariable = "PENSTOCK_TEST_KILLED_FOLDER";
constexpr std::uint64_t kPayloadBytes = 50'001;

// In a file that both map: what a killed process has written there stays.
struct Acknowledged {
    std::atomic<std::uint64_t> store;
    std::atomic<std::uint64_t> file;
};

Acknowledged* acknowledged_in(const std::string& folder) {
    const int fd = ::open((folder + "/acknowledged").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ::ftruncate(fd, sizeof(Acknowledged)) != 0) {
        return nullptr;
    }
    void* const memory =
        ::mmap(nullptr, sizeof(Acknowledged), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ::close(fd);
    return memory == MAP_FAILED ? nullptr : static_cast<Acknowledged*>(memory);
}

CheckpointStore open_store(const std::shared_ptr<Engine>& engine, const std::string& folder) {
    StoreOptions options;
    options.keep = 2;
    options.shard_bytes = 6000;
    return {engine, FileSystem::local(), {folder + "/checkpoints"}, options};
}

void save_one_file(Engine& engine, const std::string& folder, std::uint64_t number) {
    const auto content = support::pattern(kPayloadBytes, number);
    auto image = state::FileImage::safetensors({{.name = "weight", .shape = {kPayloadBytes}}}, {},
                                               {content});
    state::save_file(engine, FileSystem::local(), folder + "/state.safetensors", image);
}

// Run by the parent below; by itself it does nothing.
TEST(Killed, DISABLED_Child) {
    const char* folder = std::getenv(kFolderVariable);
    if (folder == nullptr) {
        GTEST_SKIP() << "is started by Killed.AtRandomMoments...";
    }
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    Acknowledged* const acknowledged = acknowledged_in(folder);
    ASSERT_NE(acknowledged, nullptr);
    const auto engine = std::make_shared<Engine>();
    CheckpointStore store = open_store(engine, folder);
    const auto latest = store.latest();
    for (std::uint64_t number = (latest ? latest->step : 0) + 1;; ++number) {
        store.save(NumberedState(number).state(), {.step = number});
        acknowledged->store = number;
        save_one_file(*engine, folder, number);
        acknowledged->file = number;
    }
}

class Victim {
public:
    explicit Victim(const std::string& folder) {
        std::vector<std::string> words{"/proc/self/exe", "--gtest_filter=Killed.DISABLED_Child",
                                       "--gtest_also_run_disabled_tests"};
        std::vector<char*> arguments;
        for (std::string& word : words) {
            arguments.push_back(word.data());
        }
        arguments.push_back(nullptr);
        ::setenv(kFolderVariable, folder.c_str(), 1);
        posix_spawn_file_actions_t actions;
        ::posix_spawn_file_actions_init(&actions);
        ::posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
        failed_ =
            ::posix_spawn(&child_, arguments[0], &actions, nullptr, arguments.data(), environ);
        ::posix_spawn_file_actions_destroy(&actions);
        ::unsetenv(kFolderVariable);
    }
    Victim(const Victim&) = delete;
    Victim& operator=(const Victim&) = delete;
    ~Victim() { kill(); }

    // Killed by us, or gone before by itself.
    int kill() {
        if (failed_ != 0 || child_ < 0) {
            return -1;
        }
        ::kill(child_, SIGKILL);
        int status = 0;
        while (::waitpid(child_, &status, 0) < 0 && errno == EINTR) {
        }
        child_ = -1;
        return status;
    }

private:
    pid_t child_ = -1;
    int failed_ = 0;
};

// The file's number, by its last bytes, which are the tensor's; 0 when it is none from `first` to
// `last`.
std::uint64_t number_in_file(Engine& engine, const std::string& path, std::uint64_t first,
                             std::uint64_t last) {
    const File file(path);
    if (file.size() < kPayloadBytes) {
        return 0;
    }
    std::vector<std::byte> content(kPayloadBytes);
    engine.read(file, content, file.size() - kPayloadBytes);
    for (std::uint64_t number = first; number <= last; ++number) {
        if (content == support::pattern(kPayloadBytes, number)) {
            return number;
        }
    }
    return 0;
}

class AfterTheKill {
public:
    explicit AfterTheKill(std::string folder)
        : folder_(std::move(folder)), acknowledged_(acknowledged_in(folder_)) {}

    void look(bool save_too) {
        ASSERT_NE(acknowledged_, nullptr);
        CheckpointStore store = open_store(engine_, folder_);
        std::vector<CheckpointInfo> skipped;
        const auto latest = store.latest(&skipped);
        ASSERT_TRUE(skipped.empty()) << skipped[0].path << ": " << skipped[0].problem;
        const std::uint64_t number = acknowledged_->store;
        if (number != 0) {
            ASSERT_TRUE(latest);
            ASSERT_TRUE(latest->step == number || latest->step == number + 1)
                << latest->step << " is there, " << number << " was acknowledged";
        }
        for (const CheckpointInfo& info : store.list()) {
            ASSERT_EQ(info.problem, "");
            Checkpoint checkpoint = store.open(info.generation);
            ASSERT_EQ(compare(checkpoint, info.step), "");
        }
        // A checkpoint that was found counts as acknowledged: the next child may not lose it.
        acknowledged_->store = latest ? latest->step : 0;
        if (const std::uint64_t file = acknowledged_->file; file != 0) {
            const std::string path = folder_ + "/state.safetensors";
            acknowledged_->file = number_in_file(*engine_, path, file, acknowledged_->store);
            ASSERT_NE(acknowledged_->file, 0U) << file << " was acknowledged";
        }
        if (save_too) {
            const std::uint64_t next = (latest ? latest->step : 0) + 1;
            store.save(NumberedState(next).state(), {.step = next});
            acknowledged_->store = next;
            for (const std::string& name : FileSystem::local().list(folder_ + "/checkpoints")) {
                ASSERT_FALSE(name.starts_with(".unfinished") || name.starts_with(".removed"));
            }
        }
    }
    [[nodiscard]] std::uint64_t saves() const { return acknowledged_->store; }

private:
    std::string folder_;
    Acknowledged* acknowledged_;
    std::shared_ptr<Engine> engine_ = std::make_shared<Engine>();
};

// From the start of a child to its first save: on a slow machine a child has to live longer, or
// it dies before it has anything to lose.
std::chrono::microseconds time_to_save(AfterTheKill& after, const support::TempFolder& folder) {
    const auto begun = std::chrono::steady_clock::now();
    const auto passed = [&] {
        return std::chrono::duration_cast<std::chrono::microseconds>(
            std::chrono::steady_clock::now() - begun);
    };
    Victim victim(folder.path());
    while (after.saves() == 0 && passed() < std::chrono::seconds(60)) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const auto took = passed();
    victim.kill();
    after.look(false);
    return took;
}

TEST(Killed, AtRandomMomentsWhatWasAcknowledgedIsThere) {
    const std::uint64_t kills = std::clamp<std::uint64_t>(test::states_wanted() / 1500, 12, 2000);
    const support::TempFolder folder;
    AfterTheKill after(folder.path());
    std::random_device seeds;
    const std::uint64_t seed = seeds();
    SCOPED_TRACE(fmt::format("seed {}", seed));
    std::mt19937_64 random(seed);
    const auto longest = std::max<std::chrono::microseconds>(std::chrono::milliseconds(150),
                                                             3 * time_to_save(after, folder));
    const auto longest_us = static_cast<std::uint64_t>(longest.count());
    const std::uint64_t at_first = after.saves();
    for (std::uint64_t i = 0; i < kills; ++i) {
        SCOPED_TRACE(fmt::format("kill {}", i));
        Victim victim(folder.path());
        std::this_thread::sleep_for(std::chrono::microseconds(random() % longest_us));
        const int status = victim.kill();
        ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "it ended by itself";
        after.look(i % 8 == 7);
        ASSERT_FALSE(HasFatalFailure());
    }
    EXPECT_GT(after.saves(), at_first + kills / 8 + 1)
        << "the children were killed before they saved";
    RecordProperty("kills", std::to_string(kills));
    RecordProperty("saves", std::to_string(after.saves()));
}

}  // namespace
}  // namespace penstock::store
