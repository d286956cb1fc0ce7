// SPDX-License-Identifier: Apache-2.0
// Memory runs out at each allocation of writing, importing, checking and gathering features: the
// call says so or has done what was asked, no file is half there, and the same call works
// afterwards.
#include "allocations/scene.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace penstock {
namespace {

using allocator::Attempt;
using allocator::each;
using allocator::Scene;

class FeatureStoreOutOfMemory : public allocator::OutOfMemory {
protected:
    static void write(const Scene& scene, const std::string& path,
                      const std::vector<std::byte>& rows,
                      const std::vector<std::string>& folders = {}) {
        FeatureWriter writer(scene.engine, path, {.folders = folders});
        writer.begin_table({"a", "U8", {100}});
        writer.append(rows);
        static_cast<void>(writer.row_bytes() + writer.bytes());
        writer.commit();
    }
};

TEST_F(FeatureStoreOutOfMemory, RowsAreWritten) {
    in_child([](Scene& scene) {
        const auto rows = support::pattern(20'000, 1);
        const std::vector<std::string> folders{scene.folder + "/a", scene.folder + "/b"};
        for (const std::string& folder : folders) {
            scene.files.make_folder(folder);
        }
        const std::string path = scene.folder + "/x.features";
        return each(
            scene,
            [&](Attempt& attempt) -> std::string {
                const std::size_t before = scene.files.list(folders[1]).size();
                const bool through = attempt([&] { write(scene, path, rows, folders); });
                if (!through) {
                    return scene.files.list(folders[1]).size() > before ? "a part is left" : "";
                }
                return FeatureStore::open(scene.engine, path).tables().size() == 1 ? "" : "wrong";
            },
            8);
    });
}

TEST_F(FeatureStoreOutOfMemory, RowsAreImportedAndVerified) {
    in_child([](Scene& scene) {
        const auto rows = support::pattern(20'000, 1);
        const std::string raw = scene.folder + "/raw";
        scene.engine->write(raw, std::span(rows));
        const std::string path = scene.folder + "/x.features";
        const std::vector<FeatureSource> sources{{{"a", "U8", {100}}, raw}};
        return each(
            scene,
            [&](Attempt& attempt) -> std::string {
                std::size_t problems = 0;
                const bool through = attempt([&] {
                    import_features(scene.engine, path, sources);
                    problems = verify_features(scene.engine, path).size();
                    problems += inspect_features(scene.engine, path).tables.size() - 1;
                });
                return through && problems != 0 ? "wrong answers" : "";
            },
            8);
    });
}

class GathersOutOfMemory : public FeatureStoreOutOfMemory,
                           public testing::WithParamInterface<std::uint64_t> {};

// Without rows that stay, and with.
INSTANTIATE_TEST_SUITE_P(FeatureStore, GathersOutOfMemory, testing::Values(0, 50'000));

TEST_P(GathersOutOfMemory, RowsAreGathered) {
    in_child([ram_bytes = GetParam()](Scene& scene) {
        const auto rows = support::pattern(20'000, 1);
        const std::string path = scene.folder + "/x.features";
        write(scene, path, rows);
        const std::vector<std::uint64_t> ids{7, 199, 7, 0};
        const std::vector<std::uint64_t> hot(ids.begin(), ids.begin() + (ram_bytes == 0 ? 0 : 2));
        std::vector<std::byte> out(400);
        std::vector<std::byte> second(100);
        return each(
            scene,
            [&](Attempt& attempt) -> std::string {
                const bool through = attempt([&] {
                    FeatureStore store = FeatureStore::open(
                        scene.engine, path, {.ram_bytes = ram_bytes, .hot = {{"a", hot}}});
                    static_cast<void>(store.hint(0, ids));
                    store.drop_hints();
                    const std::uint32_t table = store.table("a");
                    store.gather(table, ids, out);
                    const std::vector<FeatureRequest> requests{
                        {table, ids, out}, {table, std::span(ids).first(1), second}};
                    FeatureGather later = store.gather_async(requests);
                    Transfer reads = later.take_transfer();
                    if (reads.valid()) {
                        reads.wait();
                    }
                    later.finish();
                    store.run(requests).wait();
                    static_cast<void>(store.file().bytes + store.stats().rows);
                    store.close();
                });
                const bool right =
                    std::equal(out.begin(), out.begin() + 100, rows.begin() + 700) &&
                    std::equal(out.begin() + 100, out.begin() + 200, rows.begin() + 19'900) &&
                    std::equal(second.begin(), second.end(), rows.begin() + 700);
                return through && !right ? "wrong rows" : "";
            },
            2);
    });
}

// An answer says that memory ran out as any other failed read.
TEST_P(GathersOutOfMemory, RowsAreServed) {
    in_child([ram_bytes = GetParam()](Scene& scene) {
        const auto rows = support::pattern(20'000, 1);
        const std::string path = scene.folder + "/x.features";
        write(scene, path, rows);
        const auto store = std::make_shared<const FeatureStore>(
            FeatureStore::open(scene.engine, path, {.ram_bytes = ram_bytes}));
        return each(
            scene,
            [&](Attempt& attempt) -> std::string {
                bool right = true;
                attempt([&] {
                    RowServer server(store, 0, {.slots = 4});
                    const auto served = server.array<std::byte>();
                    std::vector<device::Loading> asked;
                    asked.reserve(4);
                    for (const std::uint64_t row : {7U, 199U, 7U, 0U}) {
                        asked.push_back(served.load_async(row, device::kNoLimit));
                    }
                    for (device::Loading& loading : asked) {
                        const bool ready =
                            served.wait(loading, device::kNoLimit) == device::RowStatus::kReady;
                        right = right && (ready || loading.status == device::RowStatus::kReadError);
                    }
                    right = right && (asked[1].status != device::RowStatus::kReady ||
                                      *served.row(asked[1]) == rows[19'900]);
                    server.stop();
                    static_cast<void>(server.stats());
                });
                return right ? "" : "wrong rows";
            },
            2);
    });
}

}  // namespace
}  // namespace penstock
