// SPDX-License-Identifier: Apache-2.0
#include "state/writing/file_writer.hpp"

#include "format/zip/crc32.hpp"
#include "state/sum_table.hpp"
#include "state/writing/replace.hpp"
#include "store/support.hpp"
#include "stream/checksum.hpp"
#include "support/crash_harness.hpp"
#include "support/temp_folder.hpp"
#include "support/test_engine.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

namespace penstock::state {
namespace {

using support::pattern;
using test::error_of;

// Payloads and an image of them; they live together.
struct Made {
    std::vector<std::vector<std::byte>> data;
    FileImage image;
};

std::vector<FileImage::Payload> spans(const std::vector<std::vector<std::byte>>& data) {
    return {data.begin(), data.end()};
}

std::vector<std::vector<std::byte>> data_of(const std::vector<std::uint64_t>& sizes,
                                            std::uint64_t seed) {
    std::vector<std::vector<std::byte>> data;
    for (const std::uint64_t size : sizes) {
        data.push_back(pattern(size, seed * 1000 + data.size()));
    }
    return data;
}

Made zip_of(const std::vector<std::uint64_t>& sizes, std::uint64_t seed = 1) {
    auto data = data_of(sizes, seed);
    format::ValueTree tree;
    format::Value list;
    list.kind = format::ValueKind::kList;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
        format::Value tensor;
        tensor.kind = format::ValueKind::kTensor;
        tensor.integer = static_cast<std::int64_t>(i);
        list.items.push_back(tree.add(tensor));
        tree.storages.push_back({sizes[i], "cpu", std::to_string(i)});
        format::TensorValue t;
        t.storage = static_cast<std::uint32_t>(i);
        t.type = tensor::ElementType::kU8;
        t.shape = {sizes[i]};
        t.strides = {1};
        tree.tensors.push_back(t);
    }
    tree.root = tree.add(list);
    auto image = FileImage::torch_zip(tree, "state", spans(data));
    return {std::move(data), std::move(image)};
}

Made safetensors_of(const std::vector<std::uint64_t>& sizes, std::uint64_t seed = 1) {
    auto data = data_of(sizes, seed);
    std::vector<format::safetensors::Tensor> tensors;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
        format::safetensors::Tensor t;
        t.name = fmt::format("t{}", i);
        t.shape = {sizes[i]};
        tensors.push_back(t);
    }
    auto image = FileImage::safetensors(tensors, {{"format", "pt"}}, spans(data));
    return {std::move(data), std::move(image)};
}

std::vector<std::byte> read_all(test::CrashRig& rig, const std::string& path) {
    const File file = rig.files().open(path);
    std::vector<std::byte> bytes(file.size());
    rig.engine()->read(file, bytes);
    return bytes;
}

void expect_zip(const std::vector<std::byte>& bytes,
                const std::vector<std::vector<std::byte>>& data) {
    format::MemorySource source(bytes);
    const auto file = format::torch_file::read(source, true);
    ASSERT_TRUE(file) << file.error().describe();
    ASSERT_EQ(file->storages.size(), data.size());
    for (std::size_t i = 0; i < data.size(); ++i) {
        const auto& record = file->storages[i];
        EXPECT_EQ(record.crc, format::crc32(data[i]));
        const auto found = std::span(bytes).subspan(record.offset, record.bytes);
        EXPECT_TRUE(std::equal(found.begin(), found.end(), data[i].begin(), data[i].end())) << i;
    }
}

void expect_safetensors(const std::vector<std::byte>& bytes,
                        const std::vector<std::vector<std::byte>>& data) {
    const auto header = format::safetensors::read_header(bytes, bytes.size());
    ASSERT_TRUE(header) << header.error().describe();
    const auto table = parse_sum_table(*header, "x");
    ASSERT_TRUE(table);
    for (std::size_t i = 0; i < header->tensors.size(); ++i) {
        const auto& t = header->tensors[i];
        const auto& wanted = data[std::stoul(t.name.substr(1))];
        const auto found = std::span(bytes).subspan(header->data_begin + t.begin, t.end - t.begin);
        ASSERT_TRUE(std::equal(found.begin(), found.end(), wanted.begin(), wanted.end()));
        for (std::uint64_t at = 0, k = table->first[i]; at < found.size();
             at += table->piece_bytes, ++k) {
            EXPECT_EQ(stream::content_hash(found.subspan(
                          at, std::min<std::uint64_t>(table->piece_bytes, found.size() - at))),
                      table->sums[k]);
        }
    }
}

const std::vector<std::vector<std::uint64_t>> kShapes = {
    {},
    {0},
    {1},
    {100, 0, 4096},
    {5000, 70'000, 3},
    {3 << 20},
    {(5 << 20) + 17, 10, 9, (2 << 20) - 1, 1 << 20},
    std::vector<std::uint64_t>(700, 1111),
    {20 << 20, 100, 300'001},
};

TEST(FileWriter, WritesWhatTheImageSays) {
    for (const bool small_ranges : {false, true}) {
        test::CrashRig rig(1, {}, small_ranges);
        rig.files().make_folder("/folder");
        for (const auto& sizes : kShapes) {
            Made zip = zip_of(sizes);
            save_file(*rig.engine(), rig.files(), "/folder/a.pt", zip.image);
            expect_zip(read_all(rig, "/folder/a.pt"), zip.data);
            Made st = safetensors_of(sizes);
            save_file(*rig.engine(), rig.files(), "/folder/a.safetensors", st.image);
            const auto bytes = read_all(rig, "/folder/a.safetensors");
            if (!sizes.empty()) {
                expect_safetensors(bytes, st.data);
            }
        }
        EXPECT_EQ(rig.files().list("/folder"), (std::vector<std::string>{"a.pt", "a.safetensors"}));
    }
}

TEST(FileWriter, PayloadsCanBeReplacedByCopies) {
    test::CrashRig rig;
    Made made = zip_of({100'000, 2 << 20});
    auto other = data_of({100'000, 2 << 20}, 7);
    made.image.replace_payloads(spans(other));
    save_file(*rig.engine(), rig.files(), "/a.pt", made.image);
    expect_zip(read_all(rig, "/a.pt"), other);
}

// Every operation of the disk fails once: the old file or the new one, whole, and no third file.
TEST(FileWriter, AnErrorAtEveryOperationLeavesTheOldFile) {
    const std::vector<std::uint64_t> sizes{70'000, (2 << 20) + 5, 100};
    for (const int number : {EIO, ENOSPC}) {
        std::uint64_t failed = 0;
        for (std::uint64_t at = 0;; ++at) {
            test::CrashRig rig;
            rig.files().make_folder("/folder");
            Made old = zip_of(sizes, 1);
            save_file(*rig.engine(), rig.files(), "/folder/a.pt", old.image);
            Made made = zip_of(sizes, 2);
            const std::uint64_t first = rig.disks()[0]->operations();
            bool removing = false;
            bool happened = false;
            rig.disks()[0]->set_operation_faults([&](const simulation::DiskOperation& operation) {
                removing = removing || operation.call == simulation::DiskCall::kRemove;
                const bool now = operation.number == first + at && !removing;
                happened = happened || now;
                return now ? number : 0;
            });
            bool thrown = false;
            try {
                save_file(*rig.engine(), rig.files(), "/folder/a.pt", made.image);
            } catch (const Error& error) {
                thrown = true;
                EXPECT_EQ(error.system_errno(), number);
                EXPECT_FALSE(error.path().empty());
            }
            rig.disks()[0]->set_operation_faults({});
            ASSERT_EQ(rig.files().list("/folder"), (std::vector<std::string>{"a.pt"})) << at;
            const auto bytes = read_all(rig, "/folder/a.pt");
            format::MemorySource source(bytes);
            const auto file = format::torch_file::read(source, true);
            ASSERT_TRUE(file) << file.error().describe();
            const bool is_new = file->storages[0].crc == format::crc32(made.data[0]);
            expect_zip(bytes, is_new ? made.data : old.data);
            EXPECT_EQ(happened, thrown) << at;
            failed += thrown ? 1 : 0;
            if (!happened) {
                EXPECT_TRUE(is_new);
                break;
            }
        }
        EXPECT_GE(failed, 8U);  // open, preallocate, writes, sync, rename, sync of the folder
    }
}

// The power goes at every operation of four saves: what is there is the last that was acknowledged,
// or the one under way, and whole.
TEST(FileWriter, ACrashAtEveryOperationLeavesTheOldFileOrTheNew) {
    std::vector<Made> versions;
    for (std::uint64_t i = 1; i <= 4; ++i) {
        const std::vector<std::uint64_t> sizes{70'000 * i, 5, 300'000};
        versions.push_back(i % 2 == 0 ? safetensors_of(sizes, i) : zip_of(sizes, i));
    }
    test::CrashRig rig;
    rig.files().make_folder("/folder");
    rig.use(test::CrashRig::settled(rig.disks()));
    std::vector<std::vector<std::byte>> contents(1);
    test::Recording recording(rig, {0});
    for (std::uint64_t i = 1; i <= versions.size(); ++i) {
        recording.step(
            [&] { save_file(*rig.engine(), rig.files(), "/folder/a", versions[i - 1].image); },
            [&] {
                contents.push_back(read_all(rig, "/folder/a"));
                return test::Present{i};
            });
    }
    recording.finish();
    const test::CrashReport report = test::explore(
        rig, recording, "save_file", 1500, [&](const test::CrashState& state) -> std::string {
            const auto names = rig.files().list("/folder");
            const bool there = std::find(names.begin(), names.end(), "a") != names.end();
            const auto found = there ? read_all(rig, "/folder/a") : std::vector<std::byte>();
            const bool fine =
                found == contents[state.before.back()] || found == contents[state.after.back()];
            return fine ? "" : "P1: what is there is neither the old file nor the new one";
        });
    EXPECT_EQ(report.violations, 0U) << report.first;
    EXPECT_GE(report.states, 500U);
}

TEST(FileWriter, AFullDiskIsToldBeforeTheFirstByte) {
    for (const bool preallocates : {true, false}) {
        simulation::DiskShape shape;
        shape.capacity_bytes = 3 << 20;
        shape.preallocates = preallocates;
        test::CrashRig rig(1, shape);
        rig.files().make_folder("/folder");
        Made small = zip_of({1 << 20});
        save_file(*rig.engine(), rig.files(), "/folder/a.pt", small.image);
        std::uint64_t writes = 0;
        rig.disks()[0]->set_faults([&](const simulation::DiskAccess& access) {
            writes += access.op == engine::Op::kWrite ? 1 : 0;
            return simulation::Fault{};
        });
        Made large = zip_of({4 << 20});
        const Error error =
            error_of([&] { save_file(*rig.engine(), rig.files(), "/folder/a.pt", large.image); });
        rig.disks()[0]->set_faults({});
        EXPECT_EQ(error.system_errno(), ENOSPC);
        EXPECT_EQ(writes, 0U);
        const std::uint64_t needed = large.image.file().total_bytes();
        const std::uint64_t free = rig.files().space("/folder").free_bytes;
        EXPECT_NE(
            std::string(error.what()).find(fmt::format("{} bytes are missing", needed - free)),
            std::string::npos)
            << error.what();
        EXPECT_EQ(rig.files().list("/folder"), (std::vector<std::string>{"a.pt"}));
        expect_zip(read_all(rig, "/folder/a.pt"), small.data);
    }
}

TEST(FileWriter, ProgressRisesAndStops) {
    test::CrashRig rig;
    rig.files().make_folder("/folder");
    Made made = zip_of({40 << 20, 100});
    std::uint64_t last = 0;
    std::uint64_t total = 0;
    save_file(*rig.engine(), rig.files(), "/folder/a.pt", made.image,
              [&](std::uint64_t done, std::uint64_t all) {
                  EXPECT_GE(done, last);
                  last = done;
                  total = all;
                  return true;
              });
    EXPECT_EQ(total, made.image.file().total_bytes());
    EXPECT_EQ(last, total);
    Made other = zip_of({40 << 20, 100}, 2);
    const Error error = error_of([&] {
        save_file(*rig.engine(), rig.files(), "/folder/a.pt", other.image,
                  [](std::uint64_t, std::uint64_t) { return false; });
    });
    EXPECT_EQ(error.reason(), ErrorCode::kCancelled);
    EXPECT_EQ(rig.files().list("/folder"), (std::vector<std::string>{"a.pt"}));
    expect_zip(read_all(rig, "/folder/a.pt"), made.data);
}

TEST(FileWriter, AnEngineWithALimitOnTransfersIsWaitedFor) {
    const support::TempFolder folder;
    EngineOptions options;
    options.transfers_max = 1;
    Engine engine(options);
    Made made = zip_of({50 << 20, 1000, 3 << 20});
    const std::string path = folder / "a.pt";
    save_file(engine, FileSystem::local(), path, made.image);
    std::vector<std::byte> bytes(std::filesystem::file_size(path));
    engine.read(path, bytes);
    expect_zip(bytes, made.data);
}

TEST(Replacement, FollowsLinksAndKeepsModes) {
    const support::TempFolder folder;
    const std::string target = folder / "target";
    const std::string link = folder / "link";
    const FileSystem files = FileSystem::local();
    Engine engine;
    Made made = zip_of({1000});
    save_file(engine, files, target, made.image);
    ASSERT_EQ(::chmod(target.c_str(), 0640), 0);
    std::filesystem::create_symlink("target", link);
    Made other = zip_of({2000}, 2);
    save_file(engine, files, link, other.image);
    EXPECT_TRUE(std::filesystem::is_symlink(link));
    EXPECT_EQ(files.status(target).mode, 0640U);
    std::vector<std::byte> bytes(std::filesystem::file_size(target));
    engine.read(target, bytes);
    expect_zip(bytes, other.data);
    const Error error = error_of([&] { save_file(engine, files, folder.path(), other.image); });
    EXPECT_EQ(error.reason(), ErrorCode::kInvalidArgument);
}

TEST(Replacement, TakesAwayWhatNobodyWritesAnyMore) {
    const support::TempFolder folder;
    const std::string abandoned = folder / ".state.pt.0123456789abcdef.tmp";
    const std::vector<std::string> others = {
        ".state.pt.notes.tmp", ".other.pt.0123456789abcdef.tmp", ".state.pt.0123456789abcdeg.tmp",
        ".state.pt.0123456789abcdef.tmp2", "state.pt.0123456789abcdef.tmp"};
    std::ofstream(abandoned) << "half of it";
    for (const std::string& name : others) {
        std::ofstream(folder / name) << "mine";
    }
    Replacement busy(FileSystem::local(), folder / "state.pt");
    {
        Replacement next(FileSystem::local(), folder / "state.pt");
        EXPECT_TRUE(std::filesystem::exists(busy.temporary()));
        next.commit();
    }
    EXPECT_FALSE(std::filesystem::exists(abandoned));
    for (const std::string& name : others) {
        EXPECT_TRUE(std::filesystem::exists(folder / name)) << name;
    }
    busy.commit();
    EXPECT_EQ(FileSystem::local().list(folder.path()).size(), others.size() + 1);
}

// A list of it would take longer than the save, and is not made each time.
TEST(Replacement, TakesItAwayFromLargeFoldersLater) {
    const support::TempFolder folder;
    for (int i = 0; i < 1000; ++i) {
        std::ofstream(folder / fmt::format("{}.txt", i)) << i;
    }
    const std::string abandoned = folder / ".state.pt.0123456789abcdef.tmp";
    for (int round = 0; round < 2; ++round) {
        std::ofstream(abandoned) << "half of it";
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
        while (std::filesystem::exists(abandoned) && std::chrono::steady_clock::now() < end) {
            Replacement(FileSystem::local(), folder / "state.pt").commit();
        }
        EXPECT_FALSE(std::filesystem::exists(abandoned)) << round;
    }
}

TEST(SumTable, ForeignAndDamagedTablesAreToldApart) {
    test::CrashRig rig;
    Made made = safetensors_of({300'000, 5, 0, 1 << 20});
    save_file(*rig.engine(), rig.files(), "/a.safetensors", made.image);
    const auto bytes = read_all(rig, "/a.safetensors");
    const auto header = *format::safetensors::read_header(bytes, bytes.size());
    ASSERT_TRUE(parse_sum_table(header, "x"));
    // Somebody wrote the tensors again, elsewhere, and took the metadata along.
    auto moved = header;
    moved.data_begin += 64;
    EXPECT_FALSE(parse_sum_table(moved, "x"));
    auto again = header;
    again.is_of_layout = false;
    EXPECT_FALSE(parse_sum_table(again, "x"));
    auto renamed = header;
    renamed.tensors[0].name += "x";
    EXPECT_EQ(error_of([&] { static_cast<void>(parse_sum_table(renamed, "the path")); }).path(),
              "the path");
    for (const std::size_t cut : {std::size_t{1}, std::size_t{16}}) {
        auto shorter = header;
        for (auto& [key, value] : shorter.metadata) {
            if (key == kSumTableKey) {
                value.resize(value.size() - cut);
            }
        }
        EXPECT_EQ(error_of([&] { static_cast<void>(parse_sum_table(shorter, "x")); }).reason(),
                  ErrorCode::kDamaged);
    }
    auto without = header;
    without.metadata.clear();
    EXPECT_FALSE(parse_sum_table(without, "x"));
}

}  // namespace
}  // namespace penstock::state
