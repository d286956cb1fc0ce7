// SPDX-License-Identifier: Apache-2.0
// FileSaver: save_file() in the background, and what a call does while it waits.
#include "store_support.hpp"
#include "support/temp_folder.hpp"
#include "support/text_files.hpp"

#include <penstock/state_file.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace penstock {
namespace {

using namespace std::chrono_literals;
using test::error_of;
using test::Tensors;
using ::testing::HasSubstr;

// Without a structure, as every format has it.
State plain(const Tensors& tensors) {
    State state = tensors.state();
    state.structure = "null";
    return state;
}

class FileSavers : public ::testing::Test {
protected:
    [[nodiscard]] std::string path(const std::string& name) const { return folder_ / name; }

    void expect_holds(const std::string& name, const Tensors& tensors) const {
        const LoadedState found = load_file(engine_, path(name));
        ASSERT_EQ(found.state.tensors.size(), tensors.size());
        for (std::size_t i = 0; i < tensors.size(); ++i) {
            const std::string own = found.state.tensors[i].name;  // in an order of the format's
            const auto& expected = tensors.data(own == Tensors::name(0) ? 0 : 1);
            EXPECT_EQ(own, Tensors::name(&expected == &tensors.data(0) ? 0 : 1));
            const Memory bytes = found.tensor(i);
            EXPECT_TRUE(
                std::equal(bytes.data, bytes.data + bytes.bytes, expected.begin(), expected.end()));
        }
    }

    // Keeps a save from its end until it is opened.
    [[nodiscard]] Progress held() const {
        return [is_open = open_](std::uint64_t, std::uint64_t) {
            while (!*is_open) {
                std::this_thread::sleep_for(1ms);
            }
            return true;
        };
    }

    support::TempFolder folder_;
    std::shared_ptr<Engine> engine_ = std::make_shared<Engine>();
    Tensors tensors_{{1000, 50'000}, 1};
    std::shared_ptr<std::atomic<bool>> open_ = std::make_shared<std::atomic<bool>>(false);
};

TEST_F(FileSavers, TheTensorsMayChangeWhenItReturns) {
    const Tensors before = tensors_;
    FileSaver saver(engine_);
    const PendingSave pending =
        saver.save_async(path("a.safetensors"), plain(tensors_), {.progress = held()});
    EXPECT_EQ(pending.name(), "'" + path("a.safetensors") + "'");
    EXPECT_TRUE(pending.staged());
    EXPECT_EQ(pending.state(), PendingSave::State::kStaged);
    EXPECT_FALSE(pending.wait(1ms));
    EXPECT_EQ(pending.failure(), nullptr);
    tensors_.change(1, 9);
    *open_ = true;
    const CheckpointInfo info = pending.result();
    EXPECT_EQ(pending.state(), PendingSave::State::kDurable);
    EXPECT_EQ(info.path, path("a.safetensors"));
    EXPECT_EQ(info.tensors, 2U);
    EXPECT_EQ(info.tensor_bytes, before.bytes());
    EXPECT_EQ(pending.done_bytes(), pending.total_bytes());
    expect_holds("a.safetensors", before);
}

TEST_F(FileSavers, EveryFormatOfSaveFileIsWritten) {
    FileSaver saver(engine_);
    const PendingSave index = saver.save_async(path("m.safetensors.index.json"), plain(tensors_),
                                               {.shard_bytes = 10'000});
    saver.save_async(path("a.pt"), plain(tensors_));
    EXPECT_TRUE(saver.wait());
    static_cast<void>(index.result());
    expect_holds("m.safetensors.index.json", tensors_);
    expect_holds("a.pt", tensors_);
}

TEST_F(FileSavers, WhatAFileCannotHoldIsAnErrorOfTheCall) {
    FileSaver saver(engine_);
    State sliced = plain(tensors_);
    sliced.tensors[0].global_shape = {2000};
    sliced.tensors[0].global_offset = {0};
    EXPECT_THAT(error_of([&] { saver.save_async(path("a.safetensors"), sliced); }).what(),
                HasSubstr("slice of a larger one"));
    EXPECT_EQ(error_of([&] { saver.save_async(path("a.json"), plain(tensors_)); }).reason(),
              ErrorCode::kInvalidArgument);
    EXPECT_EQ(error_of([&] { FileSaver(nullptr); }).reason(), ErrorCode::kInvalidArgument);
    FileSaver other = std::move(saver);
    EXPECT_EQ(error_of([&] {
                  saver.save_async(path("a.pt"), {});  // NOLINT(bugprone-use-after-move)
              }).reason(),
              ErrorCode::kInvalidArgument);
    EXPECT_TRUE(other.wait());
    EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_F(FileSavers, AFailureIsThrownByTheNextSaveWhichIsNotBegun) {
    FileSaver saver(engine_);
    const std::string away = path("away/a.safetensors");
    EXPECT_TRUE(saver.save_async(away, plain(tensors_)).wait());
    const Error error = error_of([&] { saver.save_async(path("b.safetensors"), plain(tensors_)); });
    EXPECT_EQ(error.system_errno(), ENOENT);
    EXPECT_THAT(error.what(), HasSubstr("the earlier save of '" + away + "' failed"));
    EXPECT_FALSE(std::filesystem::exists(path("b.safetensors")));
}

TEST_F(FileSavers, AFailureThatWasAskedForIsNotThrownAgain) {
    FileSaver saver(engine_);
    const PendingSave pending = saver.save_async(path("away/a.safetensors"), plain(tensors_));
    EXPECT_TRUE(pending.wait());
    EXPECT_NE(pending.failure(), nullptr);
    EXPECT_EQ(pending.state(), PendingSave::State::kFailed);
    EXPECT_FALSE(pending.cancelled());
    EXPECT_TRUE(saver.wait());
}

TEST_F(FileSavers, ACancelledSaveLeavesTheOldFile) {
    save_file(engine_, path("a.safetensors"), plain(tensors_));
    const Tensors old = tensors_;
    tensors_.change(0, 5);
    FileSaver saver(engine_);
    PendingSave pending =
        saver.save_async(path("a.safetensors"), plain(tensors_), {.progress = held()});
    pending.cancel();
    *open_ = true;
    EXPECT_EQ(error_of([&] { static_cast<void>(pending.result()); }).reason(),
              ErrorCode::kCancelled);
    EXPECT_TRUE(pending.cancelled());
    expect_holds("a.safetensors", old);
}

TEST_F(FileSavers, AnEventfdIsToldOfTheEnd) {
    FileSaver saver(engine_);
    const int fd = ::eventfd(0, 0);
    saver.save_async(path("a.safetensors"), plain(tensors_)).notify(fd);
    std::uint64_t count = 0;
    EXPECT_EQ(::read(fd, &count, sizeof count), 8);
    EXPECT_EQ(count, 1U);
    ::close(fd);
}

TEST_F(FileSavers, TheOwnerOfWhatIsCopiedIsNotKept) {
    FileSaver saver(engine_);
    auto owner = std::make_shared<int>(1);
    const std::weak_ptr<int> seen = owner;
    const PendingSave pending = saver.save_async(path("a.safetensors"), plain(tensors_),
                                                 {.progress = held()}, {.keeps = std::move(owner)});
    EXPECT_TRUE(seen.expired());
    *open_ = true;
    static_cast<void>(pending.result());
}

// One save holds the memory; the call of the next one waits for it, and says so.
TEST_F(FileSavers, ACallThatWaitsForRoomCallsItsFunction) {
    FileSaver saver(engine_, 2 << 20);
    Tensors large({300'000}, 3);
    const PendingSave first =
        saver.save_async(path("a.safetensors"), plain(large), {.progress = held()});
    int calls = 0;
    const PendingSave second = saver.save_async(path("b.safetensors"), plain(large), {},
                                                {.waiting = [&](const AsyncWait& wait) {
                                                    EXPECT_EQ(wait.note, "");
                                                    EXPECT_EQ(wait.total_bytes, 0U);
                                                    *open_ = ++calls == 2;
                                                }});
    EXPECT_EQ(calls, 2);
    EXPECT_GT(second.waited_s(), 0.05);
    EXPECT_TRUE(first.done());
    static_cast<void>(second.result());
    expect_holds("b.safetensors", large);
}

// What the function throws is thrown by the call, and the save has not begun.
TEST_F(FileSavers, AWaitForRoomCanBeEnded) {
    FileSaver saver(engine_, 2 << 20);
    Tensors large({300'000}, 3);
    saver.save_async(path("a.safetensors"), plain(large), {.progress = held()});
    EXPECT_THROW(
        saver.save_async(path("b.safetensors"), plain(large), {},
                         {.waiting = [](const AsyncWait&) { throw std::runtime_error("no"); }}),
        std::runtime_error);
    *open_ = true;
    EXPECT_TRUE(saver.wait());
    EXPECT_FALSE(std::filesystem::exists(path("b.safetensors")));
}

// Without room at all the call waits for its own save, which goes on when the wait is ended.
TEST_F(FileSavers, AWaitForItsOwnSaveCanBeEndedAndTheSaveGoesOn) {
    FileSaver saver(engine_, 1);
    auto owner = std::make_shared<int>(1);
    const std::weak_ptr<int> seen = owner;
    EXPECT_THROW(saver.save_async(path("a.safetensors"), plain(tensors_), {.progress = held()},
                                  {.keeps = std::move(owner),
                                   .waiting =
                                       [](const AsyncWait& wait) {
                                           EXPECT_THAT(wait.note, HasSubstr("does not fit into"));
                                           throw std::runtime_error("no");
                                       }}),
                 std::runtime_error);
    EXPECT_FALSE(seen.expired());  // its memory is not copied
    *open_ = true;
    EXPECT_TRUE(saver.wait());
    expect_holds("a.safetensors", tensors_);
}

TEST_F(FileSavers, TheEndOfTheSaverFinishesItsSaves) {
    {
        FileSaver saver(engine_);
        for (const char* const name : {"a.safetensors", "b.safetensors", "c.safetensors"}) {
            saver.save_async(path(name), plain(tensors_));
        }
    }
    expect_holds("a.safetensors", tensors_);
    expect_holds("c.safetensors", tensors_);
}

TEST_F(FileSavers, TheChildOfAForkHasNoneOfTheParents) {
    FileSaver saver(engine_);
    PendingSave pending =
        saver.save_async(path("a.safetensors"), plain(tensors_), {.progress = held()});
    const pid_t child = ::fork();
    if (child == 0) {
        const bool failed = pending.done() && pending.cancelled();
        ::_exit(failed ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    *open_ = true;
    static_cast<void>(pending.result());
    expect_holds("a.safetensors", tensors_);
}

}  // namespace
}  // namespace penstock
