// SPDX-License-Identifier: Apache-2.0
// Files that are open for appending: records are whole and in the order of their calls, while
// others append; what was flushed survives the death of the process, what was synced a power cut.
#include "simulation/fake_disk.hpp"
#include "support/error_of.hpp"
#include "support/temp_folder.hpp"
#include "support/test_engine.hpp"

#include <penstock/penstock.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <map>
#include <random>
#include <thread>

namespace penstock {
namespace {

using support::error_of;
using ::testing::HasSubstr;

constexpr FileOptions kAppend{.access = Access::kWrite, .create = true, .append = true};

FileOptions with_buffer(std::uint64_t bytes) {
    FileOptions options = kAppend;
    options.buffer_bytes = bytes;
    return options;
}

std::string bytes_of(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

ConstMemory memory_of(const std::string& text) {
    return std::as_bytes(std::span(text));
}

// A record that says who wrote it, as which of his, and how long it is.
std::string record_of(char writer, std::uint32_t number, std::size_t bytes) {
    std::string record(8 + bytes, writer);
    std::memcpy(record.data(), &number, 4);
    const auto length = static_cast<std::uint32_t>(bytes);
    std::memcpy(record.data() + 4, &length, 4);
    return record;
}

// "" where the file is whole records, each writer's in their order; else what is wrong.
std::string check(const std::string& text, std::map<char, std::uint32_t>& counts) {
    for (std::size_t at = 0; at < text.size();) {
        std::uint32_t number = 0;
        std::uint32_t length = 0;
        if (text.size() - at < 9) {
            return "a cut record at " + std::to_string(at);
        }
        std::memcpy(&number, text.data() + at, 4);
        std::memcpy(&length, text.data() + at + 4, 4);
        const char writer = text[at + 8];
        if (length > text.size() - at - 8 ||
            text.find_first_not_of(writer, at + 8) < at + 8 + length) {
            return "a torn record at " + std::to_string(at);
        }
        if (number != counts[writer]++) {
            return "out of order at " + std::to_string(at);
        }
        at += 8 + length;
    }
    return "";
}

void write_records(File& file, char writer, std::uint32_t count) {
    std::mt19937_64 random(static_cast<std::uint64_t>(writer));
    for (std::uint32_t i = 0; i < count; ++i) {
        const std::size_t most = random() % 8 == 0 ? 20'000 : 300;
        file.append(memory_of(record_of(writer, i, 1 + random() % most)));
    }
}

class Append : public ::testing::TestWithParam<std::uint64_t> {
protected:
    [[nodiscard]] FileOptions options() const { return with_buffer(GetParam()); }
    support::TempFolder folder_;
    std::string path_ = folder_ / "log";
};
INSTANTIATE_TEST_SUITE_P(Buffers, Append, ::testing::Values(0, 1, 100, 4096, 1 << 20));

TEST_P(Append, ThreadsAndProcessesKeepTheirRecordsWhole) {
    constexpr std::uint32_t kRecords = 300;
    std::vector<pid_t> children;
    for (char writer = 'a'; writer < 'd'; ++writer) {
        const pid_t child = ::fork();
        if (child == 0) {
            const auto error = error_of([&] {
                File file(path_, options());
                write_records(file, writer, kRecords);
                file.close();
            });
            ::_exit(error ? 1 : 0);
        }
        children.push_back(child);
    }
    File file(path_, options());
    std::vector<std::thread> threads;
    for (char writer = 'e'; writer < 'h'; ++writer) {
        threads.emplace_back([&, writer] { write_records(file, writer, kRecords); });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    file.close();
    for (const pid_t child : children) {
        int status = 0;
        ASSERT_EQ(::waitpid(child, &status, 0), child);
        EXPECT_EQ(status, 0);
    }
    std::map<char, std::uint32_t> counts;
    EXPECT_EQ(check(bytes_of(path_), counts), "");
    for (const auto& [writer, count] : counts) {
        EXPECT_EQ(count, kRecords) << writer;
    }
    EXPECT_EQ(counts.size(), 6U);
}

// How many bytes at the end of `text` a kill may have cut off a record: Linux ends a write(2) of a
// killed process at the next page.
std::size_t cut_by_kill(const std::string& text, std::size_t record_bytes) {
    return text.size() % 4096 == 0 ? text.size() % record_bytes : 0;
}

// kill -9 at any time: what is there are whole records, all but those in the buffer.
TEST_P(Append, DeathLosesWhatWasGatheredAndNoMore) {
    std::array<int, 2> pipe{};
    ASSERT_EQ(::pipe(pipe.data()), 0);
    const pid_t child = ::fork();
    if (child == 0) {
        File file(path_, options());
        for (std::uint32_t i = 0;; ++i) {
            const std::string record = record_of('x', i, 50);
            file.append(memory_of(record));
            if (::write(pipe[1], &i, sizeof i) != sizeof i) {
                ::_exit(1);
            }
        }
    }
    ::close(pipe[1]);
    std::uint32_t acknowledged = 0;
    while (acknowledged < 3000 &&
           ::read(pipe[0], &acknowledged, sizeof acknowledged) == sizeof acknowledged) {
    }
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    ::close(pipe[0]);
    const std::string text = bytes_of(path_);
    std::map<char, std::uint32_t> counts;
    EXPECT_EQ(check(text.substr(0, text.size() - cut_by_kill(text, 58)), counts), "");
    EXPECT_GE((counts['x'] * 58U) + GetParam(), acknowledged * 58U);
}

TEST_P(Append, AChildDoesNotWriteWhatItsParentGathered) {
    File file(path_, options());
    file.append(memory_of("parent"));
    const pid_t child = ::fork();
    if (child == 0) {
        const auto error = error_of([&] {
            if (file.buffered_bytes() != 0) {
                ::_exit(2);
            }
            file.append(memory_of("child"));
            file.close();
        });
        ::_exit(error ? 1 : 0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    file.close();
    const std::string text = bytes_of(path_);
    EXPECT_TRUE(text == "parentchild" || text == "childparent") << text;
}

TEST_P(Append, WhatIsGatheredIsWrittenByFlushSyncCloseAndTheLastCopy) {
    const auto appended = [&](const char* word, auto&& act) {
        const std::string before = bytes_of(path_);
        {
            File file(path_, options());
            EXPECT_EQ(file.info().buffer_bytes, GetParam());
            EXPECT_TRUE(file.info().append);
            file.append(memory_of(word));
            const File copy = file;
            EXPECT_LE(copy.buffered_bytes(), GetParam());
            EXPECT_EQ(before.size() + std::strlen(word),
                      bytes_of(path_).size() + copy.buffered_bytes());
            act(file);
        }
        EXPECT_EQ(bytes_of(path_), before + word);
    };
    appended("flush", [](File& file) { file.flush(); });
    appended("sync", [](File& file) { file.sync(); });
    appended("data", [](File& file) { file.sync_data(); });
    appended("close", [](File& file) { file.close(); });
    appended("nothing", [](File& /*file*/) {});
    appended("", [](File& file) { file.append({}); });
}

// The limit on the size of a file, met in the middle of a record: no part of that stays, and a
// buffer goes on with it.
TEST_P(Append, AFullFileIsReportedAndNothingIsWrittenTwice) {
    const pid_t child = ::fork();
    if (child == 0) {
        ::signal(SIGXFSZ, SIG_IGN);
        rlimit limit{1000, RLIM_INFINITY};
        ::setrlimit(RLIMIT_FSIZE, &limit);
        File file(path_, options());
        std::string all;
        std::optional<Error> error;
        while (!error) {
            const std::string record(90, static_cast<char>('a' + all.size() / 90 % 26));
            error = error_of([&] { file.append(memory_of(record)); });
            all += error ? "" : record;
            if (all.size() > GetParam() + 5000) {
                error = error_of([&] { file.flush(); });
            }
        }
        if (error->system_errno() != EFBIG || error->path() != path_) {
            ::_exit(2);
        }
        if (GetParam() >= 100 && !error_of([&] { file.flush(); })) {
            ::_exit(3);
        }
        if (bytes_of(path_).size() % 90 != 0) {
            ::_exit(4);
        }
        limit.rlim_cur = RLIM_INFINITY;
        ::setrlimit(RLIMIT_FSIZE, &limit);
        file.close();
        ::_exit(bytes_of(path_) == all ? 0 : 5);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_P(Append, WrongCallsAreErrors) {
    File file(path_, options());
    EXPECT_EQ(error_of([&] { static_cast<void>(file.preallocate(0, 5)); })->reason(),
              ErrorCode::kInvalidArgument);
    Engine engine;
    const auto error = error_of([&] { engine.write(file, memory_of("x"), 0); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), HasSubstr("append()"));
    File plain(path_, {.access = Access::kWrite});
    EXPECT_THAT(error_of([&] { plain.append(memory_of("x")); })->what(), HasSubstr(path_));
    plain.flush();
    std::array<FileOptions, 3> wrong{options(), options(), options()};
    wrong[0].access = Access::kReadWrite;
    wrong[1].cache = CachePolicy::kRequired;
    wrong[2].buffer_bytes = kAppendBufferMax + 1;
    for (const FileOptions& each : wrong) {
        EXPECT_EQ(error_of([&] { File(path_, each); })->reason(), ErrorCode::kInvalidArgument);
    }
    FileOptions no_append{.access = Access::kWrite};
    no_append.buffer_bytes = 1;
    EXPECT_EQ(error_of([&] { File(path_, no_append); })->reason(), ErrorCode::kInvalidArgument);
    file.close();
    EXPECT_EQ(error_of([&] { file.append(memory_of("x")); })->reason(), ErrorCode::kClosed);
}

// A life on the fake disk: short and interrupted writes, errors now and then. The file holds what
// was taken, in order; after a power cut what was synced.
TEST(AppendLives, TakenIsThereAndSyncedSurvives) {
    for (std::uint64_t seed = 1; seed <= 200; ++seed) {
        SCOPED_TRACE(seed);
        std::mt19937_64 random(seed);
        support::FakeSetup setup;
        setup.seed = seed;
        const auto engine = support::TestEngine::make(support::EngineKind::kFake, {}, setup);
        const std::uint64_t buffer = random() % 3 * 500;
        File file = engine->files().open("/log", with_buffer(buffer));
        engine->disk().set_faults([&](const simulation::DiskAccess&) -> simulation::Fault {
            switch (random() % 6) {
                case 0:
                    return {.system_errno = random() % 2 == 0 ? EINTR : ENOSPC};
                case 1:
                    return {.bytes_max = 1 + random() % 50};
                default:
                    return {};
            }
        });
        std::string expected;
        std::string synced;
        for (int i = 0; i < 100; ++i) {
            const std::string record(1 + random() % 200, static_cast<char>(random()));
            const std::uint64_t before = file.size() + file.buffered_bytes();
            const auto error = error_of([&] { file.append(memory_of(record)); });
            const std::uint64_t taken = file.size() + file.buffered_bytes() - before;
            ASSERT_TRUE(error ? taken < record.size() && (buffer < record.size() || taken == 0)
                              : taken == record.size());
            expected += record.substr(0, taken);
            if (random() % 20 == 0 && !error_of([&] { file.sync(); })) {
                synced = expected;
            }
        }
        engine->disk().set_faults({});
        file.flush();
        const File reader = engine->files().open("/log");
        const auto found = support::get_bytes(reader, 0, expected.size() + 1);
        ASSERT_EQ(std::string(reinterpret_cast<const char*>(found.data()), found.size()), expected);
        engine->disk().crash();
        if (!synced.empty()) {
            const auto left = support::get_bytes(engine->files().open("/log"), 0, synced.size());
            ASSERT_EQ(std::string(reinterpret_cast<const char*>(left.data()), left.size()), synced);
        }
    }
}

// Somebody else has the file open, and might be appending: the part of a record stays, and the
// error says where. The next flush goes on behind it, or begins that record again where others
// have.
TEST(AppendLives, PartOfARecordStaysWhereOthersHaveTheFileOpen) {
    for (const bool others_append : {false, true}) {
        for (const bool gathers : {false, true}) {
            const auto engine = support::TestEngine::make(support::EngineKind::kFake);
            File file = engine->files().open("/log", with_buffer(gathers ? 5000 : 0));
            File other = engine->files().open("/log", with_buffer(0));
            const auto record = [](char letter) { return std::string(300, letter); };
            file.append(memory_of(record('a')));
            file.flush();
            std::uint64_t left = 400;
            engine->disk().set_faults([&](const simulation::DiskAccess& access) {
                simulation::Fault fault{.system_errno = left == 0 ? ENOSPC : 0, .bytes_max = left};
                left -= std::min(left, access.bytes);
                return fault;
            });
            auto error = error_of([&] {
                file.append(memory_of(record('b')));
                file.append(memory_of(record('c')));
                file.flush();
            });
            ASSERT_TRUE(error);
            EXPECT_THAT(error->what(), HasSubstr("the first 100 bytes of a record"));
            EXPECT_THAT(error->what(), HasSubstr("from byte 600 on"));
            EXPECT_EQ(file.size(), 700U);
            EXPECT_EQ(file.buffered_bytes(), gathers ? 200U : 0U);
            error = error_of([&] { file.flush(); });  // still full
            EXPECT_EQ(error.has_value(), gathers);
            engine->disk().set_faults({});
            std::string expected = record('a') + record('b') + std::string(100, 'c');
            if (others_append) {
                other.append(memory_of(record('o')));
                expected += record('o');
            }
            file.close();
            if (gathers) {
                expected += others_append ? record('c') : std::string(200, 'c');
            }
            const auto found = support::get_bytes(engine->files().open("/log"), 0, expected.size());
            EXPECT_EQ(std::string(reinterpret_cast<const char*>(found.data()), found.size()),
                      expected);
            EXPECT_EQ(other.size(), expected.size());
        }
    }
}

// A disk that is full when the file is closed: the error says what is lost.
TEST(AppendLives, CloseReportsWhatIsLost) {
    support::FakeSetup setup;
    setup.shape.capacity_bytes = 1000;
    const auto engine = support::TestEngine::make(support::EngineKind::kFake, {}, setup);
    File file = engine->files().open("/log", with_buffer(5000));
    file.append(memory_of(std::string(1500, 'x')));
    const auto error = error_of([&] { file.close(); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->system_errno(), ENOSPC);
    EXPECT_THAT(error->what(), HasSubstr("1500 bytes that were gathered"));
    EXPECT_THAT(error->what(), HasSubstr("lost"));
    EXPECT_FALSE(file.is_open());
    file.close();
}

}  // namespace
}  // namespace penstock
