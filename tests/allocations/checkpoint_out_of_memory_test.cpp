// SPDX-License-Identifier: Apache-2.0
// Memory runs out at each allocation of saving and loading: the call says so or has done what was
// asked; what was saved before is there; nobody touches the memory of a load that failed; nothing
// stays open, locked or in flight; and the same call works afterwards.
#include "allocations/scene.hpp"
#include "state/writing/file_image.hpp"
#include "state/writing/file_writer.hpp"
#include "store/background/save_queue.hpp"
#include "store/background/staging.hpp"
#include "stream/file_reader.hpp"
#include "support/temp_folder.hpp"
#include "support/test_engine.hpp"

#include <penstock/penstock.hpp>

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace penstock {
namespace {

std::function<void()> at_rename;  // called once, after the next rename of this process

}  // namespace
}  // namespace penstock

extern "C" int rename(const char* from, const char* to) noexcept {
    const int result = ::renameat(AT_FDCWD, from, AT_FDCWD, to);
    if (const auto call = std::exchange(penstock::at_rename, nullptr)) {
        call();
    }
    return result;
}

namespace penstock {
namespace {

using namespace std::chrono_literals;
using allocator::Attempt;
using allocator::each;
using allocator::holds;
using allocator::kUntouched;
using allocator::make_engine;
using allocator::Saved;
using allocator::Scene;

class CheckpointOutOfMemory : public allocator::OutOfMemory {};

constexpr std::uint64_t kHelperBytes = std::uint64_t{65} << 20;  // a store's reader takes helpers

state::FileImage image_of(const Saved& saved) {
    std::vector<format::safetensors::Tensor> tensors;
    std::vector<state::FileImage::Payload> payloads;
    for (std::size_t i = 0; i < saved.data.size(); ++i) {
        tensors.push_back(
            {fmt::format("t{}", i), tensor::ElementType::kU8, {saved.data[i].size()}, 0, 0});
        payloads.emplace_back(saved.data[i]);
    }
    return state::FileImage::safetensors(tensors, {}, payloads);
}

TEST_F(CheckpointOutOfMemory, AFileIsSaved) {
    in_child([](Scene& scene) {
        const Saved before(1, 1000, 1);
        const Saved saved(5, 1 << 20, 2);  // sums are made by threads
        const std::string path = scene.folder + "/file";
        return each(scene, [&](Attempt& attempt) -> std::string {
            {
                state::FileImage image = image_of(before);
                state::save_file(*scene.engine, scene.files, path, image, {});
            }
            const std::uint64_t size = File(path).size();
            const bool through = attempt([&] {
                state::FileImage image = image_of(saved);
                state::save_file(*scene.engine, scene.files, path, image, {});
            });
            const bool is_new = File(path).size() != size;
            for (const std::string& name : scene.files.list(scene.folder)) {
                if (name != "file") {
                    scene.files.remove(scene.folder + "/" + name);
                    if (through) {
                        return "it left " + name;
                    }
                }
            }
            return through == is_new ? ""
                   : is_new          ? "it failed, and the file is new"
                                     : "the old file is there";
        });
    });
}

TEST_F(CheckpointOutOfMemory, AFileIsRead) {
    in_child([](Scene& scene) {
        const auto data = support::pattern(6 << 20, 1);
        const std::string path = scene.folder + "/file";
        scene.engine->write(path, data);
        std::vector<std::byte> into(data.size());
        return each(scene, [&](Attempt& attempt) -> std::string {
            const File file(path);
            const bool through = attempt([&] {
                const stream::Wanted wanted{.into = into, .sums = {}, .piece_bytes = 0};
                static_cast<void>(
                    stream::read_file(*scene.engine, file, {&wanted, 1}, {.fresh = true}, {}));
            });
            std::string said = through && into != data ? "wrong bytes" : "";
            std::fill(into.begin(), into.end(), kUntouched);
            scene.engine->drain();
            return std::count(into.begin(), into.end(), kUntouched) ==
                           static_cast<std::ptrdiff_t>(into.size())
                       ? said
                       : "memory of a load that is over was written";
        });
    });
}

TEST_F(CheckpointOutOfMemory, AStoreSaves) {
    in_child([](Scene& scene) {
        scene.files.make_folder(scene.folder + "/store");
        const Saved saved(3, 300'000, 2);
        Saved next(3, 300'000, 7);
        next.data[0] = saved.data[0];
        return each(
            scene,
            [&](Attempt& attempt) -> std::string {
                const std::uint64_t first = scene.store({.keep = 2}).save(saved.state()).generation;
                const bool through = attempt(
                    [&] { scene.store({.keep = 2, .shard_bytes = 300'000}).save(next.state()); });
                const CheckpointStore store = scene.store();
                const auto latest = store.latest();
                if (!latest || (through && latest->generation == first)) {
                    return "it is not there";
                }
                Checkpoint there = store.open(latest->generation);
                return holds(there, latest->generation == first ? saved : next);
            },
            5);
    });
}

TEST_F(CheckpointOutOfMemory, AStoreLoads) {
    in_child([](Scene& scene) {
        scene.files.make_folder(scene.folder + "/store");
        const Saved saved(3, 300'000, 2);
        scene.store({.shard_bytes = 300'000}).save(saved.state());
        std::vector<std::vector<std::byte>> into(3, std::vector<std::byte>(300'000));
        return each(
            scene,
            [&](Attempt& attempt) -> std::string {
                const bool through = attempt([&] {
                    const CheckpointStore store = scene.store();
                    static_cast<void>(store.list());
                    static_cast<void>(store.best({.name = "loss"}));
                    Checkpoint checkpoint = store.open(store.latest().value().generation);
                    std::vector<TensorRead> wanted;
                    for (std::size_t i = 0; i < 3; ++i) {
                        wanted.push_back({fmt::format("t{}", i), into[i]});
                    }
                    checkpoint.read(wanted);
                });
                const bool right = into == saved.data;
                for (auto& memory : into) {
                    std::fill(memory.begin(), memory.end(), kUntouched);
                }
                scene.engine->drain();
                for (const auto& memory : into) {
                    if (memory.front() != kUntouched || memory.back() != kUntouched) {
                        return "memory of a load that is over was written";
                    }
                }
                return through && !right ? "wrong bytes" : "";
            },
            2);
    });
}

TEST_F(CheckpointOutOfMemory, AFileIsInspected) {
    in_child([](Scene& scene) {
        const Saved saved(3, 1000, 2);
        const std::string path = scene.folder + "/file.safetensors";
        state::FileImage image = image_of(saved);
        state::save_file(*scene.engine, scene.files, path, image, {});
        return each(scene, [&](Attempt& attempt) -> std::string {
            std::size_t tensors = 0;
            const bool through =
                attempt([&] { tensors = inspect(scene.engine, path).tensors.size(); });
            return through && tensors != 3 ? "not all tensors" : "";
        });
    });
}

// Each attempt has a process of its own: some of the work of a first exception is done once.
TEST_F(CheckpointOutOfMemory, TheFirstExceptionOfAProcessComesOfVerifyingAFile) {
    std::string said;
    for (std::uint64_t n = 1; said.empty(); ++n) {
        said = in_own_child([n](Scene& scene) -> std::string {
            const Saved saved(3, 1000, 2);
            const std::string path = scene.folder + "/file.safetensors";
            save_file(scene.engine, path, saved.state());
            StateFile file(scene.engine, path);
            allocator::Attempt attempt(n, allocator::Fails::kFromThenOn);
            return attempt([&] { static_cast<void>(file.verify()); }) ? "verified" : "";
        });
        ASSERT_LT(n, 10'000U);
    }
    EXPECT_EQ(said, "verified");
}

TEST_F(CheckpointOutOfMemory, AStateFileIsSavedAndRead) {
    in_child([](Scene& scene) {
        const Saved saved(3, 1000, 2);
        const Saved next(3, 900, 7);
        const std::string path = scene.folder + "/file.safetensors";
        return each(
            scene,
            [&](Attempt& attempt) -> std::string {
                save_file(scene.engine, path, saved.state());
                std::vector<std::byte> into(900, kUntouched);
                LoadedState loaded;
                const bool through = attempt([&] {
                    save_file(scene.engine, path, next.state());
                    StateFile file(scene.engine, path);
                    const TensorRead wanted{"t1", into};
                    file.read({&wanted, 1});
                    const std::string pattern = "t*";
                    static_cast<void>(file.select({&pattern, 1}));
                    static_cast<void>(file.verify());
                    loaded = load_file(scene.engine, path);
                });
                if (through && (into != next.data[1] || loaded.state.tensors.size() != 3)) {
                    return "wrong bytes";
                }
                const StateFile there(scene.engine, path);
                const std::uint64_t bytes = there.table().tensors[0].bytes;
                return bytes == 900 || (bytes == 1000 && !through) ? "" : "it is another file";
            },
            20);
    });
}

// All old, or all new; a log that was left is finished by the next update.
TEST_F(CheckpointOutOfMemory, AFileIsUpdated) {
    in_child([](Scene& scene) {
        const Saved saved(3, 1000, 2);
        const Saved next(3, 1000, 7);
        const std::string path = scene.folder + "/file.safetensors";
        return each(
            scene,
            [&](Attempt& attempt) -> std::string {
                save_file(scene.engine, path, saved.state());
                const State given = next.state();
                const bool through = attempt(
                    [&] { update_file(scene.engine, path, std::span(given.tensors).first(2)); });
                StateFile file(scene.engine, path);
                std::vector<std::byte> first(1000);
                std::vector<std::byte> second(1000);
                const TensorRead wanted[] = {{"t0", first}, {"t1", second}};
                file.read(wanted);
                const bool is_new = first == next.data[0] && second == next.data[1];
                const bool is_old = first == saved.data[0] && second == saved.data[1];
                update_file(scene.engine, path, {});
                return is_new || (is_old && !through) ? "" : "neither old nor new";
            },
            20);
    });
}

// Tensors that come one after another, to a file and to an index.
TEST_F(CheckpointOutOfMemory, ACheckpointIsSavedAsAFile) {
    in_child([](Scene& scene) {
        const Saved saved(3, 1000, 2);
        const Saved before(3, 900, 7);
        scene.files.make_folder(scene.folder + "/store");
        scene.files.make_folder(scene.folder + "/out");
        const std::uint64_t generation = scene.store().save(saved.state()).generation;
        const std::string path = scene.folder + "/out/file.pt";
        const std::string index = scene.folder + "/out/model.safetensors.index.json";
        return each(
            scene,
            [&](Attempt& attempt) -> std::string {
                save_file(scene.engine, path, before.state());
                save_file(scene.engine, index, before.state());
                Checkpoint checkpoint = scene.store().open(generation);
                const bool through = attempt([&] {
                    save_file(scene.engine, path, stream_of(checkpoint));
                    save_file(scene.engine, index, stream_of(checkpoint));
                });
                for (const std::string& name : {path, index}) {
                    const StateFile there(scene.engine, name);
                    const std::uint64_t bytes = there.table().tensors.at(0).bytes;
                    if (bytes != 1000 && (bytes != 900 || through)) {
                        return "it is another file";
                    }
                }
                save_file(scene.engine, path, before.state());  // takes away what was left
                save_file(scene.engine, index, before.state());
                const std::size_t files = scene.files.list(scene.folder + "/out").size();
                return files != 3 ? "something was left" : "";
            },
            20);
    });
}

TEST_F(CheckpointOutOfMemory, AStoreVerifiesWithHelpers) {
    in_child([](Scene& scene) {
        scene.files.make_folder(scene.folder + "/store");
        const Saved saved(1, kHelperBytes, 2);
        const CheckpointInfo info = scene.store().save(saved.state());
        const FileSystem files = scene.files;
        for (const std::string& name : files.list(info.path)) {
            if (name.ends_with(".safetensors")) {  // each batch has something to tell
                const File file(info.path + "/" + name, {.access = Access::kWrite});
                for (std::uint64_t at = 1 << 20; at < kHelperBytes; at += 1 << 20) {
                    scene.engine->write(file, std::as_bytes(std::span("damage")), at);
                }
            }
        }
        return each(
            scene,
            [&](Attempt& attempt) -> std::string {
                std::size_t problems = 0;
                const bool through = attempt(
                    [&] { problems = scene.store().open(info.generation).verify().size(); });
                return through && problems == 0 ? "it found nothing" : "";
            },
            100);
    });
}

TEST_F(CheckpointOutOfMemory, AStoreRemovesPinsAndCollects) {
    in_child([](Scene& scene) {
        scene.files.make_folder(scene.folder + "/store");
        const Saved saved(2, 1000, 2);
        return each(
            scene,
            [&](Attempt& attempt) -> std::string {
                const std::uint64_t kept = scene.store({.keep = 9}).save(saved.state()).generation;
                const std::uint64_t gone = scene.store({.keep = 9}).save(saved.state()).generation;
                scene.store({.keep = 9}).save(saved.state());
                attempt([&] {
                    CheckpointStore store = scene.store({.keep = 9});
                    store.pin(kept);
                    store.remove(gone);
                    static_cast<void>(store.collect());
                    store.pin(kept, false);
                });
                Checkpoint there = scene.store().open(kept);
                return holds(there, saved);
            },
            5);
    });
}

TEST_F(CheckpointOutOfMemory, ASaveBehindTheCallersBack) {
    in_child([](Scene& scene) {
        const Saved saved(3, 2 << 20, 2);
        const std::vector<ConstMemory> pieces(saved.data.begin(), saved.data.end());
        const std::string path = scene.folder + "/file";
        store::Staging staging({.budget_bytes = std::uint64_t{64} << 20, .threads = 3});
        store::SaveQueue queue;
        return each(scene, [&](Attempt& attempt) -> std::string {
            attempt([&] {
                auto copy =
                    std::make_shared<std::optional<store::StagedCopy>>(staging.copy(pieces, 0ns));
                const auto save = queue.add(
                    [&scene, &path, copy](store::PendingSave&) {
                        const std::vector<std::byte> first((*copy)->pieces()[0].begin(),
                                                           (*copy)->pieces()[0].end());
                        scene.engine->write(path, first);
                    },
                    "step 1", true);
                copy.reset();
                while (!save->wait_done(1s)) {
                }
                if (const auto failure = save->failure()) {
                    std::rethrow_exception(failure);
                }
            });
            if (!queue.wait_idle(10s)) {
                return "the queue is not idle";
            }
            static_cast<void>(queue.take_failure());
            return staging.used_bytes() == 0
                       ? ""
                       : fmt::format("{} bytes are still in use", staging.used_bytes());
        });
    });
}

// False where memory had run out, as a save says of an earlier one that nobody asked for.
bool succeeds(const std::function<void()>& call) {
    return Attempt(0, allocator::Fails::kOnce)(call);
}

// The second save waits for the room of the first.
TEST_F(CheckpointOutOfMemory, AStoreSavesInTheBackgroundAndOpensTheNewest) {
    in_child([](Scene& scene) {
        scene.files.make_folder(scene.folder + "/store");
        const StoreOptions options{.keep = 2, .host_memory_bytes = std::uint64_t{2} << 20};
        const Saved saved(3, 300'000, 2);
        return each(
            scene,
            [&](Attempt& attempt) -> std::string {
                CheckpointStore store = scene.store(options);
                const std::uint64_t before = store.save(saved.state()).generation;
                std::uint64_t opened = 0;
                const bool through = attempt([&] {
                    const PendingSave one = store.save_async(saved.state());
                    const PendingSave two = store.save_async(saved.state());
                    static_cast<void>(one.result());
                    static_cast<void>(two.result());
                    opened = store.open_newest([](const Checkpoint&) {}).value().generation;
                });
                if (through && opened != before + 2) {
                    return "it is not there";
                }
                // A save may fail for want of memory later, and the one after the next says so.
                for (int i = 0; i < 2; ++i) {
                    static_cast<void>(succeeds([&] { store.save(saved.state()); }));
                }
                Checkpoint last = store.open(store.save(saved.state()).generation);
                return holds(last, saved);
            },
            20);
    });
}

// The same of files: the old one, or the new one, whole.
TEST_F(CheckpointOutOfMemory, FilesAreSavedInTheBackground) {
    in_child([](Scene& scene) {
        const std::string path = scene.folder + "/f.safetensors";
        const Saved saved(3, 300'000, 2);
        const Saved next(3, 300'001, 5);
        return each(
            scene,
            [&](Attempt& attempt) -> std::string {
                save_file(scene.engine, path, saved.state());
                bool is_saved = false;
                const bool through = attempt([&] {
                    FileSaver saver(scene.engine, std::uint64_t{2} << 20, scene.files);
                    const PendingSave one = saver.save_async(path, saved.state());
                    const PendingSave two = saver.save_async(path, next.state());
                    static_cast<void>(one.result());
                    static_cast<void>(two.result());
                    is_saved = !two.cancelled() && two.waited_s() >= 0;
                });
                const LoadedState there = load_file(scene.engine, path);
                const bool is_new = there.state.tensors[0].data.bytes == 300'001;
                return through == is_saved && (is_new || !through) ? "" : "it is not there";
            },
            20);
    });
}

TEST_F(CheckpointOutOfMemory, NpyFiles) {
    in_child([](Scene& scene) {
        const std::vector<std::string> paths{scene.folder + "/0.npy", scene.folder + "/1.npy"};
        const std::vector<std::byte> data = support::pattern(3000, 1);
        for (const std::string& path : paths) {
            std::ofstream file(path, std::ios::binary);
            file << "\x93NUMPY\x01" << '\0' << '\x3d' << '\0'
                 << "{'descr': '|u1', 'fortran_order': False, 'shape': (3000,), }\n";
            file.write(reinterpret_cast<const char*>(data.data()), 3000);
        }
        std::vector<std::byte> both(6000);
        return each(
            scene,
            [&](Attempt& attempt) -> std::string {
                const bool through = attempt([&] {
                    read_npy(*scene.engine, paths, read_npy_header(*scene.engine, paths[0]),
                             {both.data(), both.size()});
                });
                return !through || std::equal(data.begin(), data.end(), both.begin() + 3000)
                           ? ""
                           : "wrong bytes";
            },
            1);
    });
}

// A commit is a rename, so whatever comes after the first one of a save comes after its commit:
// older checkpoints go, the report is made, a save in the background settles. The checkpoint is
// there, so the caller hears of it.
TEST_F(CheckpointOutOfMemory, NothingAfterItsCommitFailsASave) {
    in_child([](Scene& scene) {
        scene.files.make_folder(scene.folder + "/store");
        const Saved saved(2, 1000, 2);
        CheckpointStore store = scene.store({.keep = 1});
        return each(
            scene,
            [&](Attempt& attempt) -> std::string {
                const std::uint64_t before = store.save(saved.state()).generation;
                at_rename = [&] { attempt.begin(); };
                std::uint64_t generation = 0;
                if (attempt.n() % 2 == 0) {
                    generation = store.save(saved.state()).generation;
                    attempt.end();
                } else {
                    const PendingSave save = store.save_async(saved.state());
                    while (!save.wait()) {
                    }
                    attempt.end();
                    generation = save.result().generation;
                }
                if (generation != before + 1) {
                    return "another checkpoint is reported";
                }
                Checkpoint there = store.open(store.latest().value().generation);
                return holds(there, saved);
            },
            1);
    });
}

}  // namespace
}  // namespace penstock
