// SPDX-License-Identifier: Apache-2.0
// Memory runs out at every allocation of every verb of an engine, once or for good, on any thread.
// Each gives an error and touches no memory, or its result; nothing stays counted or allocated.
#include "allocations/failing.hpp"
#include "engine/depth_limit.hpp"
#include "support/same_bytes.hpp"
#include "support/temp_folder.hpp"
#include "support/test_engine.hpp"

#include <penstock/penstock.hpp>

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <vector>

namespace penstock {
namespace {

using namespace std::chrono_literals;
using allocator::Attempt;

constexpr std::size_t kFileBytes = 600'000;
constexpr std::size_t kMemoryBytes = 700'000;
constexpr std::byte kUntouched{0x55};

struct Scene {
    Engine& engine;
    std::string file;    ///< of kFileBytes
    std::string other;   ///< with the same bytes, on another device
    std::string target;  ///< is not there
    std::span<const std::byte> data;
    std::span<std::byte> memory;
    Attempt& attempt;
};

/// Empty, or what is wrong. It says through the Attempt whether memory ran out.
struct Verb {
    const char* name;
    std::function<std::string(Scene&)> run;
    bool drops = false;      ///< it leaves transfers that run
    std::uint64_t step = 1;  ///< one allocation in so many, where each costs a process or an engine
};
void PrintTo(const Verb& verb, std::ostream* out) {
    *out << verb.name;
}

std::vector<std::byte> bytes_of(const std::string& path) {
    std::vector<std::byte> bytes(kMemoryBytes);
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    const ssize_t got = ::read(fd, bytes.data(), bytes.size());
    ::close(fd);
    bytes.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    return bytes;
}

void make_file(const std::string& path, std::span<const std::byte> data) {
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    const ssize_t put = ::write(fd, data.data(), data.size());
    ::close(fd);
    ASSERT_EQ(static_cast<std::size_t>(put), data.size());
}

std::string same(std::span<const std::byte> got, std::span<const std::byte> expected) {
    return support::same_bytes(got, expected) ? "" : "wrong bytes";
}

// `attempt`, and then what must hold of the memory: `expected` at its beginning when it succeeded.
std::string reads(Scene& s, std::size_t begin, std::size_t bytes, std::size_t offset,
                  const std::function<void(std::span<std::byte>)>& call) {
    const std::span<std::byte> into = s.memory.subspan(begin, bytes);
    if (!s.attempt([&] { call(into); })) {
        return "";
    }
    const std::string said = same(into, s.data.subspan(offset, bytes));
    std::fill(s.memory.begin(), s.memory.end(), kUntouched);
    return said;
}

std::string writes(Scene& s, const std::string& path, std::size_t bytes, std::size_t offset,
                   const std::function<void(std::span<const std::byte>)>& call) {
    const std::span<const std::byte> from = s.data.subspan(1, bytes);
    if (!s.attempt([&] { call(from); })) {
        return "";
    }
    const std::vector<std::byte> got = bytes_of(path);
    return got.size() < offset + bytes
               ? "too short"
               : same(std::span<const std::byte>(got).subspan(offset, bytes), from);
}

TransferRequest many_extents(Scene& s, bool by_path) {
    TransferRequest request;
    if (by_path) {
        request.paths = {s.file, s.other};
    } else {
        request.files = {File(s.file), File(s.other)};
    }
    for (std::uint32_t i = 0; i < 300; ++i) {
        request.extents.push_back(
            {std::uint64_t{i} * 1900, {s.memory.data() + i * 900, 700}, i % 2});
    }
    return request;
}

std::string check_many(Scene& s) {
    for (std::size_t i = 0; i < 300; ++i) {
        if (!same(s.memory.subspan(i * 900, 700), s.data.subspan(i * 1900, 700)).empty()) {
            return fmt::format("wrong bytes in extent {}", i);
        }
    }
    std::fill(s.memory.begin(), s.memory.end(), kUntouched);
    return "";
}

// In a child of a fork the engine is created again.
std::string in_a_fork(Scene& s) {
    const pid_t child = ::fork();
    if (child == 0) {
        ::alarm(20);
        std::string said = "?";
        try {
            said = reads(s, 0, 5000, 3,
                         [&](auto into) { static_cast<void>(s.engine.read(s.file, into, 3)); });
            if (said.empty() &&
                (s.engine.read(s.file, s.memory, 0, {.allow_short = true}) != kFileBytes ||
                 !s.engine.drain(10s))) {
                said = "no read afterwards";
            }
        } catch (const std::exception& error) {
            said = error.what();
        }
        // How many allocations there were is what the parent has to know.
        ::_exit(!said.empty() ? 2 : s.attempt.seen() < s.attempt.n() ? 0 : 1);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) == 2) {
        return fmt::format("the child ended with {:#x}", status);
    }
    s.attempt.add_seen(WEXITSTATUS(status) == 1 ? s.attempt.n() : 0);
    return "";
}

std::vector<Verb> verbs() {
    std::vector<Verb> all;
    const auto add = [&](const char* name, std::function<std::string(Scene&)> run) {
        all.push_back({name, std::move(run), false});
    };
    add("ReadSmallOfAFile", [](Scene& s) {
        const File file(s.file, {.access = Access::kReadWrite});
        return reads(s, 1, 5000, 3, [&](auto into) {
            s.engine.run_read(file, into, 3).wait(), s.engine.run_write(file, into, 3).wait();
        });
    });
    add("ReadSmallByPath", [](Scene& s) {
        return reads(s, 1, 5000, 3, [&](auto into) { s.engine.read(s.file, into, 3); });
    });
    add("ReadBigByPath", [](Scene& s) {
        return reads(s, 1, 500'000, 3, [&](auto into) { s.engine.read(s.file, into, 3); });
    });
    add("ReadAsyncOfAFile", [](Scene& s) {
        const File it(s.file);
        return reads(s, 1, 5000, 3, [&](auto into) { s.engine.read_async(it, into, 3).join({}); });
    });
    add("ReadAsyncByPath", [](Scene& s) {
        return reads(s, 1, 500'000, 3, [&](auto into) {
            EXPECT_TRUE(s.engine.read_async(s.file, into, 3).join_for({}, std::chrono::hours(1)));
        });
    });
    add("ReadShort", [](Scene& s) {
        return reads(s, 0, 50'000, kFileBytes - 50'000, [&](auto into) {
            const std::span<std::byte> more(into.data(), into.size() + 10'000);
            s.engine.read_async(s.file, more, kFileBytes - 50'000, {.allow_short = true}).wait();
        });
    });
    add("ReadPastTheEnd", [](Scene& s) -> std::string {
        try {
            s.attempt([&] { s.engine.read_async(s.file, s.memory, 0).wait(); });
        } catch (const Error& error) {
            return error.reason() == ErrorCode::kEndOfFile ? "" : error.what();
        }
        return "";
    });
    add("WriteSmallByPath", [](Scene& s) {
        return writes(s, s.target, 5000, 3,
                      [&](auto from) { s.engine.write(s.target, from, 3, {.sync = true}); });
    });
    add("WriteBigByPath", [](Scene& s) {
        return writes(s, s.target, 500'000, 3,
                      [&](auto from) { s.engine.write(s.target, from, 3, {.sync = true}); });
    });
    add("WriteAsyncOfAFile", [](Scene& s) {
        File file(s.target, {.access = Access::kReadWrite, .create = true});
        return writes(s, s.target, 500'000, 3, [&](auto from) {
            s.engine.write_async(file, from, 3, {.sync = true}).wait();
        });
    });
    add("WriteAsyncByPath", [](Scene& s) {
        return writes(s, s.target, 500'000, 4096, [&](auto from) {
            s.engine.write_async(s.target, from, 4096, {.sync = true}).wait();
        });
    });
    add("ManyExtentsOfTwoDevices", [](Scene& s) -> std::string {
        TransferRequest request = many_extents(s, false);
        return s.attempt([&] { s.engine.submit(std::move(request)).wait(); }) ? check_many(s) : "";
    });
    add("ManyExtentsByPaths", [](Scene& s) -> std::string {
        return s.attempt([&] { s.engine.run(many_extents(s, true)).wait(); }) ? check_many(s) : "";
    });
    add("Rows", [](Scene& s) -> std::string {
        const File file(s.file);
        const bool through = s.attempt([&] {
            TransferRequest request;
            request.files = {file};
            const std::vector<std::uint64_t> ids(200, 7);
            request.rows = Rows{.tables = {{.base = 1, .row_bytes = 100, .stride_bytes = 1900}},
                                .ids = ids,
                                .memory = s.memory};
            s.engine.submit(std::move(request)).wait();
        });
        const std::string said =
            through ? same(s.memory.subspan(19'900, 100), s.data.subspan(1 + 7 * 1900, 100)) : "";
        std::fill(s.memory.begin(), s.memory.end(), kUntouched);
        return said;
    });
    add("DepthLimit", [](Scene& s) {
        return reads(s, 0, 500'000, 3, [&](auto into) {
            const DepthLimit limit(1);
            s.engine.read_async(s.file, into, 3, {.depth_limit = limit}).wait();
        });
    });
    add("DroppedAndDrained", [](Scene& s) -> std::string {
        try {
            s.attempt([&] {
                static_cast<void>(s.engine.read_async(s.file, s.memory.first(500'000), 3));
                static_cast<void>(s.engine.read_async(s.target, s.memory.last(1), 0));
                s.engine.drain(10s);
            });
        } catch (const Error& error) {  // of the file that is not there
            return error.system_errno() == ENOENT ? "" : error.what();
        }
        return "";
    });
    all.back().drops = true;
    add("CancelPriorityNotify", [](Scene& s) -> std::string {
        const int event = ::eventfd(0, EFD_CLOEXEC);
        Transfer transfer = s.engine.read_async(s.file, s.memory.first(500'000), 3);
        try {
            s.attempt([&] {
                transfer.set_priority(Priority::kUrgent);
                transfer.notify(event);
                transfer.cancel();
                transfer.wait();
            });
        } catch (const Error& error) {
            if (error.reason() != ErrorCode::kCancelled) {
                return error.what();
            }
        }
        try {
            transfer.wait();
        } catch (const Error&) {
            ::close(event);
            return "";
        }
        ::close(event);
        return "";
    });
    add("StatisticsAndDescription", [](Scene& s) -> std::string {
        s.attempt([&] {
            static_cast<void>(s.engine.stats());
            static_cast<void>(s.engine.describe().text());
        });
        return "";
    });
    add("AnEngineOfItsOwn", [](Scene& s) {
        return reads(s, 0, 5000, 3, [&](auto into) {
            Engine another(s.engine.options());
            another.read(s.file, into, 3);
        });
    });
    all.back().step = 3;
    add("InAFork", in_a_fork);
    all.back().step = 5;
    add("AGroup", [](Scene& s) -> std::string {
        constexpr std::size_t kEach = 50'000;
        const bool through = s.attempt([&] {
            TransferGroup group;
            for (std::size_t i = 0; i < 3; ++i) {
                group.add(s.engine.read_async(s.file, s.memory.subspan(i * kEach, kEach), i));
            }
            while (auto ended = group.wait_any(10s)) {
                ended->transfer.wait();
            }
        });
        for (std::size_t i = 0; through && i < 3; ++i) {
            if (!same(s.memory.subspan(i * kEach, kEach), s.data.subspan(i, kEach)).empty()) {
                return fmt::format("wrong bytes in transfer {}", i);
            }
        }
        return "";
    });
    add("WhereThereIsRoom", [](Scene& s) {
        return reads(s, 0, 5000, 3, [&](auto into) {
            TransferRequest request;
            request.paths = {s.file};
            request.extents.push_back({3, {into.data(), into.size()}, 0});
            static_cast<void>(s.engine.wait_for_room(10s));
            s.engine.try_submit(request).value().wait();
            s.engine.try_run(request).value().wait();
        });
    });
    add("ThePageCacheByHand", [](Scene& s) -> std::string {
        s.attempt([&] {
            prefetch(s.file);
            evict(s.file);
        });
        return "";
    });
    add("MachineAndPools", [](Scene& s) -> std::string {
        s.attempt([&] {
            static_cast<void>(usable_memory_bytes() + available_memory_bytes());
            static_cast<void>(usable_processors());
            MemoryPool pool;
            static_cast<void>(pool.take(100'000));
            pool.trim();
        });
        return "";
    });
    all.back().step = 7;
    add("Files", [](Scene& s) -> std::string {
        s.attempt([&] {
            File file(s.target, {.access = Access::kReadWrite, .create = true});
            static_cast<void>(file.preallocate(0, 10'000) && file.info().direct);
            file.truncate(5000);
            File log(s.target, {.access = Access::kWrite, .append = true, .buffer_bytes = 9});
            log.append(std::as_bytes(std::span("record")));
            log.flush();
            static_cast<void>(file.size() + log.buffered_bytes() + file.status().bytes);
            file.sync();
            file.sync_data();
            file.close();
        });
        return "";
    });
    add("NamesOfFiles", [](Scene& s) -> std::string {
        const FileSystem files = FileSystem::local();
        const std::string folder = s.target + ".folder";
        s.attempt([&] {
            files.make_folder(folder);
            const File made = files.open(folder + "/a", {.access = Access::kWrite, .create = true});
            files.link(folder + "/a", folder + "/b");
            files.rename(folder + "/b", folder + "/c");
            files.exchange(folder + "/a", folder + "/c");
            files.symbolic_link("a", folder + "/d");
            static_cast<void>(files.list(folder));
            static_cast<void>(files.space(folder));
            static_cast<void>(files.status(files.resolve(folder) + "/d"));
            files.set_modified(folder + "/a", files.find(folder + "/e") ? 6 : 5);
            static_cast<void>(files.begins_with(folder + "/a", "a"));
            files.sync_folder(folder);
            const FileLock lock = files.lock(folder + "/lock");
            files.remove(folder + "/a");
        });
        for (const char* name : {"/a", "/b", "/c", "/d", "/lock"}) {
            ::unlink((folder + name).c_str());
        }
        ::rmdir(folder.c_str());
        return "";
    });
    add("FoldersThatAreOpen", [](Scene& s) -> std::string {
        const FileSystem files = FileSystem::local();
        const std::string name = s.target + ".folder";
        ::mkdir(name.c_str(), 0755);
        ::mkdir((name + "/inner").c_str(), 0755);
        s.attempt([&] {
            const Folder folder = files.open_folder(name);
            const FileLock lock = folder.lock();
            const File file = files.open(name + "/a", {.access = Access::kWrite, .create = true});
            files.take_attributes(s.file, file);
            static_cast<void>(folder.list().size() + folder.status("a").bytes);
            folder.rename("a", "b");
            folder.remove("b");
            static_cast<void>(folder.open_folder("inner").path());
            folder.remove_folder("inner");
            folder.sync();
        });
        for (const char* left : {"/a", "/b"}) {
            ::unlink((name + left).c_str());
        }
        ::rmdir((name + "/inner").c_str());
        ::rmdir(name.c_str());
        return "";
    });
    return all;
}

EngineOptions small(BackendKind backend) {
    EngineOptions options;
    options.backend = backend;
    options.block_bytes = 64 << 10;
    options.queue_depth = 8;
    options.channels = 2;
    options.in_flight_bytes = 256 << 10;
    return options;
}

struct Where {
    BackendKind backend;
    bool warm;  ///< the engine was used before, else it is new each time
};
std::string name_of(const Where& where) {
    const char* names[] = {"Auto", "Uring", "Aio", "Posix"};
    return std::string(names[static_cast<std::size_t>(where.backend)]) +
           (where.warm ? "Warm" : "Cold");
}

// The error of a transfer that was dropped may come here; nothing else may be wrong.
std::string comes_to_rest(Engine& engine) {
    for (int tries = 0; tries < 3; ++tries) {
        try {
            if (!engine.drain(10s)) {
                return "drain() does not return";
            }
            break;
        } catch (const Error&) {
            continue;
        } catch (const std::bad_alloc&) {
            continue;
        }
    }
    return engine.stats().running == 0 ? "" : fmt::format("running: {}", engine.stats().running);
}

std::string works_on(Scene& s) {
    std::vector<std::byte> into(5000);
    const File file(s.file);
    if (s.engine.read(file, into, 3) != into.size() ||
        !same(into, s.data.subspan(3, into.size())).empty()) {
        return "a read afterwards";
    }
    std::vector<std::byte> big(300'001);
    if (s.engine.read_async(s.other, big, 3).wait() != big.size() ||
        !same(big, s.data.subspan(3, big.size())).empty()) {
        return "an asynchronous read afterwards";
    }
    return "";
}

std::string attempt_in(const Verb& verb, Scene& s) {
    std::string said = verb.run(s);
    if (said.empty()) {
        if (verb.drops) {  // its memory is in use until then
            said = comes_to_rest(s.engine);
        }
        // From here on nobody has anything to do with this memory.
        std::fill(s.memory.begin(), s.memory.end(), kUntouched);
        said += comes_to_rest(s.engine);
        said += works_on(s);
        said += std::all_of(s.memory.begin(), s.memory.end(),
                            [](std::byte b) { return b == kUntouched; })
                    ? ""
                    : "memory of a call that is over was written";
    }
    ::unlink(s.target.c_str());
    return said;
}

class OutOfMemory : public ::testing::TestWithParam<std::tuple<Where, Verb>> {};

TEST_P(OutOfMemory, AtEachAllocation) {
    const auto& [where, verb] = GetParam();
    const support::TempFolder folder;
    const support::TempFolder shared("/dev/shm");
    const std::vector<std::byte> data = support::pattern(kFileBytes, 1);
    make_file(folder / "file", data);
    make_file(shared / "file", data);
    const EngineOptions options = small(where.backend);
    try {
        static_cast<void>(Engine(options));
    } catch (const Error& refused) {
        GTEST_SKIP() << refused.what();
    }
    EXPECT_EQ(
        allocator::in_child(
            60,
            [&, &verb = verb, &where = where]() -> std::string {
                std::vector<std::byte> memory(kMemoryBytes);
                std::unique_ptr<Engine> engine;
                const auto once = [&](Attempt& attempt) -> std::string {
                    const std::size_t descriptors = allocator::open_descriptors();
                    const std::int64_t live = allocator::live();
                    if (!engine) {
                        engine = std::make_unique<Engine>(options);
                    }
                    std::string said;
                    {
                        Scene scene{*engine, folder / "file", shared / "file", folder / "target",
                                    data,    memory,          attempt};
                        said = attempt_in(verb, scene);
                    }
                    if (!where.warm) {
                        engine.reset();
                        const std::size_t more = allocator::open_descriptors() - descriptors;
                        const std::int64_t kept = allocator::live() - live;
                        said += more != 0 ? fmt::format("{} descriptors left open", more) : "";
                        said += kept > 0 ? fmt::format("{} allocations left", kept) : "";
                    }
                    return said;
                };
                // Makes everything that a process makes once, and the engine if it is to be warm.
                for (int i = 0; i < 2; ++i) {
                    Attempt none(0, allocator::Fails::kOnce);
                    engine.reset();
                    static_cast<void>(once(none));
                }
                const std::uint64_t step = allocator::sampled(verb.step);
                return allocator::each_allocation(once, step, where.warm ? step : 3 * step);
            }),
        "");
}

// Allocations that a process makes only once fail in a new process each time.
TEST(OutOfMemoryAtFirst, AtEachAllocation) {
    const support::TempFolder folder;
    const std::vector<std::byte> data = support::pattern(kFileBytes, 1);
    make_file(folder / "file", data);
    bool more = true;
    for (std::uint64_t n = 1; more && n < 1000; n += 3) {
        const std::string said = allocator::in_child(90, [&]() -> std::string {
            std::vector<std::byte> into(kFileBytes);
            Attempt attempt(n, allocator::Fails::kOnce);
            const bool through = attempt([&] {
                Engine engine(small(BackendKind::kAuto));
                engine.read_async(folder / "file", into).wait();
            });
            if (through && into != data) {
                return "wrong bytes";
            }
            Engine engine(small(BackendKind::kAuto));
            engine.read(folder / "file", into);
            return into != data ? "wrong bytes afterwards" : attempt.seen() < n ? "end" : "";
        });
        more = said != "end";
        ASSERT_TRUE(said.empty() || !more) << "allocation " << n << ": " << said;
    }
    EXPECT_FALSE(more);
}

// A limit keeps a seat for each channel that uses it: were one kept for a transfer that failed, the
// channels of the next engine would need more. All engines live on, so that no address comes again.
TEST(OutOfMemoryOfALimit, FailedTransferKeepsNoSeat) {
    const support::TempFolder folder;
    make_file(folder / "file", support::pattern(kFileBytes, 1));
    const DepthLimit limit(6);
    std::vector<std::unique_ptr<Engine>> engines;
    EXPECT_EQ(allocator::each_allocation([&](Attempt& attempt) -> std::string {
                  EngineOptions options = small(BackendKind::kPosix);
                  options.channels = 3;
                  Engine& engine = *engines.emplace_back(std::make_unique<Engine>(options));
                  std::vector<std::byte> into(kFileBytes);
                  engine.read_async(folder / "file", into).wait();
                  attempt([&] {
                      engine.read_async(folder / "file", into, 0, {.depth_limit = limit}).wait();
                  });
                  engine.close();
                  return "";
              }),
              "");
    EXPECT_EQ(limit.handle()->seats(), 3U);
}

INSTANTIATE_TEST_SUITE_P(Verbs, OutOfMemory,
                         ::testing::Combine(::testing::Values(Where{BackendKind::kAuto, false},
                                                              Where{BackendKind::kAio, true},
                                                              Where{BackendKind::kPosix, true}),
                                            ::testing::ValuesIn(verbs())),
                         [](const auto& one) {
                             return std::string(std::get<1>(one.param).name) +
                                    name_of(std::get<0>(one.param));
                         });

}  // namespace
}  // namespace penstock
