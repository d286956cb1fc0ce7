// SPDX-License-Identifier: Apache-2.0
// Tensors that are not alone in a row of memory: tied, transposed, channels_last, cut out; and
// names that are meant for the terminal and not for who reads it.
#include "cli/program.hpp"
#include "format/torch_types.hpp"
#include "state/writing/file_image.hpp"
#include "state/writing/file_writer.hpp"
#include "support/temp_folder.hpp"

#include <penstock/checkpoint.hpp>
#include <penstock/engine.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace penstock::cli {
namespace {

using format::Value;
using format::ValueId;
using format::ValueKind;
using state::FileImage;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// A state that is a dict of tensors; element k of each storage is k.
class Stated {
public:
    Stated() { root_.kind = ValueKind::kDict; }

    std::uint32_t storage(std::size_t elements) {
        std::vector<float> values(elements);
        for (std::size_t k = 0; k < elements; ++k) {
            values[k] = static_cast<float>(k);
        }
        tree_.storages.push_back({elements * 4, "cpu", std::to_string(tree_.storages.size())});
        data_.push_back(std::move(values));
        return static_cast<std::uint32_t>(tree_.storages.size() - 1);
    }
    Stated& tensor(const std::string& name, std::uint32_t storage, std::vector<std::uint64_t> shape,
                   std::vector<std::uint64_t> strides, std::uint64_t offset = 0) {
        format::TensorValue t;
        t.storage = storage;
        t.offset = offset;
        t.shape = std::move(shape);
        t.strides = std::move(strides);
        Value value;
        value.kind = ValueKind::kTensor;
        value.integer = static_cast<std::int64_t>(tree_.tensors.size());
        tree_.tensors.push_back(std::move(t));
        return add(name, std::move(value));
    }
    Stated& add(const std::string& name, Value value) {
        Value key;
        key.kind = ValueKind::kString;
        key.text = name;
        root_.items.push_back(tree_.add(std::move(key)));
        root_.items.push_back(tree_.add(std::move(value)));
        return *this;
    }
    void save(Engine& engine, const std::string& path) {
        tree_.root = tree_.add(root_);
        std::vector<FileImage::Payload> payloads;
        for (const std::vector<float>& values : data_) {
            payloads.emplace_back(std::as_bytes(std::span(values)));
        }
        FileImage image = FileImage::torch_zip(tree_, "state", std::move(payloads));
        state::save_file(engine, FileSystem::local(), path, image);
    }

private:
    format::ValueTree tree_;
    Value root_;
    std::vector<std::vector<float>> data_;
};

class CheckpointViews : public testing::Test {
protected:
    std::string file_of(Stated state, const std::string& name = "state.pt") {
        state.save(*engine_, folder_ / name);
        return folder_ / name;
    }
    static nlohmann::json shown(const std::string& path) {
        const Outcome outcome = run_cli({"checkpoint", "show", path, "--json", "-"});
        EXPECT_EQ(outcome.status, 0) << outcome.err;
        const auto all = nlohmann::json::parse(outcome.out);
        nlohmann::json out;
        for (const auto& row : all.at("tensors")) {
            out[row.at("name").get<std::string>()] = row;
        }
        return out;
    }
    // The elements of a tensor of a file that is row-major.
    std::vector<float> elements(const std::string& path, const std::string& name) {
        const auto row = shown(path).at(name);
        std::vector<float> out(row.at("bytes").get<std::size_t>() / 4);
        engine_->read(path, std::as_writable_bytes(std::span(out)),
                      row.at("offset").get<std::uint64_t>());
        return out;
    }

    support::TempFolder folder_;
    std::shared_ptr<Engine> engine_ = std::make_shared<Engine>();
};

// Two images of two channels and 2 x 3 pixels, the channels together.
Stated channels_last() {
    Stated state;
    state.tensor("0.weight", state.storage(24), {2, 2, 2, 3}, {12, 1, 6, 2});
    state.tensor("turned", state.storage(6), {3, 2}, {1, 3});
    state.tensor("plain", state.storage(4), {2, 2}, {2, 1});
    return state;
}

std::vector<float> channels_last_row() {
    std::vector<float> out;
    for (int n = 0; n < 2; ++n) {
        for (int c = 0; c < 2; ++c) {
            for (int pixel = 0; pixel < 6; ++pixel) {
                out.push_back(static_cast<float>(n * 12 + pixel * 2 + c));
            }
        }
    }
    return out;
}

TEST_F(CheckpointViews, ShowHasNamesTypesAndShapesOfTheState) {
    const std::string path = file_of(channels_last());
    const std::string store = folder_ / "store";
    ASSERT_EQ(run_cli({"checkpoint", "convert", path, store}).status, 0);
    for (const std::string& source : {path, store}) {
        const auto rows = shown(source);
        ASSERT_EQ(rows.size(), 3U) << rows;
        EXPECT_EQ(rows.at("0.weight").at("dtype"), "F32");
        EXPECT_EQ(rows.at("0.weight").at("shape"), nlohmann::json({2, 2, 2, 3}));
        EXPECT_EQ(rows.at("0.weight").at("bytes"), 96);
        EXPECT_EQ(rows.at("0.weight").at("strides"), nlohmann::json({12, 1, 6, 2}));
        EXPECT_EQ(rows.at("0.weight").at("stored_as"), "0.weight.storage");
        EXPECT_EQ(rows.at("turned").at("shape"), nlohmann::json({3, 2}));
        EXPECT_FALSE(rows.at("plain").contains("stored_as"));
        EXPECT_THAT(run_cli({"checkpoint", "show", source, "--verbose"}).out,
                    AllOf(HasSubstr("[2, 2, 2, 3]"), HasSubstr("strides [1, 3]"),
                          Not(HasSubstr(".storage")), HasSubstr("3 tensors")));
    }
}

TEST_F(CheckpointViews, ShowHasEachNameOfWhatIsTied) {
    Stated state;
    const std::uint32_t storage = state.storage(6);
    state.tensor("wte", storage, {2, 3}, {3, 1}).tensor("lm_head", storage, {2, 3}, {3, 1});
    state.tensor("row", storage, {3}, {1}, 3);
    const std::string path = file_of(state);
    const auto rows = shown(path);
    ASSERT_EQ(rows.size(), 3U) << rows;
    EXPECT_EQ(rows.at("lm_head").at("stored_as"), "wte");
    EXPECT_EQ(rows.at("lm_head").at("offset"), rows.at("wte").at("offset"));
    EXPECT_EQ(rows.at("row").at("offset").get<int>(), rows.at("wte").at("offset").get<int>() + 12);
    EXPECT_THAT(run_cli({"checkpoint", "show", path, "--name", "lm*"}).out,
                AllOf(HasSubstr("in the memory of wte"), Not(HasSubstr("  row "))));
    const Outcome refused = run_cli({"checkpoint", "convert", path, folder_ / "x.safetensors"});
    EXPECT_EQ(refused.status, 2);
    EXPECT_THAT(refused.err, AllOf(HasSubstr("state['lm_head']"),
                                   HasSubstr("shares its memory with state['wte']")));
    ASSERT_EQ(run_cli({"checkpoint", "convert", path, folder_ / "x.safetensors", "--tensors-only"})
                  .status,
              0);
    EXPECT_EQ(elements(folder_ / "x.safetensors", "wte"), (std::vector<float>{0, 1, 2, 3, 4, 5}));
}

TEST_F(CheckpointViews, ConvertPutsInARowWhatIsNot) {
    const std::string path = file_of(channels_last());
    ASSERT_EQ(run_cli({"checkpoint", "convert", path, folder_ / "store"}).status, 0);
    int number = 0;
    for (const std::string& source : {path, folder_ / "store"}) {
        for (const bool tensors_only : {false, true}) {
            const std::string target = folder_ / std::to_string(++number) + ".safetensors";
            std::vector<std::string> words{"checkpoint", "convert", source, target};
            if (tensors_only) {
                words.emplace_back("--tensors-only");
            }
            const Outcome outcome = run_cli(words);
            ASSERT_EQ(outcome.status, 0) << outcome.err;
            const auto rows = shown(target);
            ASSERT_EQ(rows.size(), 3U) << rows;
            EXPECT_EQ(rows.at("0.weight").at("shape"), nlohmann::json({2, 2, 2, 3}));
            EXPECT_EQ(rows.at("turned").at("dtype"), "F32");
            EXPECT_EQ(elements(target, "0.weight"), channels_last_row());
            EXPECT_EQ(elements(target, "turned"), (std::vector<float>{0, 3, 1, 4, 2, 5}));
            EXPECT_EQ(elements(target, "plain"), (std::vector<float>{0, 1, 2, 3}));
        }
    }
    // As they are where the form can hold that.
    ASSERT_EQ(run_cli({"checkpoint", "convert", folder_ / "store", folder_ / "back.pt"}).status, 0);
    EXPECT_EQ(shown(folder_ / "back.pt").at("turned").at("strides"), nlohmann::json({1, 3}));
    EXPECT_EQ(run_cli({"checkpoint", "diff", path, folder_ / "back.pt"}).status, 0);
    for (const char* name : {"alone.pt", "alone"}) {
        const std::string target = folder_ / name;
        ASSERT_EQ(run_cli({"checkpoint", "convert", path, target, "--tensors-only"}).status, 0);
        EXPECT_EQ(shown(target).at("0.weight").at("shape"), nlohmann::json({2, 2, 2, 3}));
        EXPECT_FALSE(shown(target).at("0.weight").contains("strides"));
    }
    const Outcome tight =
        run_cli({"checkpoint", "convert", path, folder_ / "tight.safetensors", "--memory", "64"});
    EXPECT_NE(tight.status, 0);
    EXPECT_THAT(tight.err,
                AllOf(HasSubstr("0.weight"), HasSubstr("not contiguous"), HasSubstr("--memory")));
}

TEST_F(CheckpointViews, WhatCannotBePutInARowSaysWhy) {
    Stated state;
    state.tensor("wide", state.storage(3), {1000, 3}, {0, 1});
    const std::string path = file_of(state);
    const Outcome outcome = run_cli({"checkpoint", "convert", path, folder_ / "x.safetensors"});
    EXPECT_EQ(outcome.status, 2);
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("state['wide']"), HasSubstr("repeats elements"),
                                   Not(HasSubstr("shares"))));
    // For a partial view, only that part is taken.
    Stated cut;
    cut.tensor("every second", cut.storage(6), {3}, {2});
    ASSERT_EQ(
        run_cli({"checkpoint", "convert", file_of(cut, "cut.pt"), folder_ / "cut.safetensors"})
            .status,
        0);
    EXPECT_EQ(elements(folder_ / "cut.safetensors", "every second"), (std::vector<float>{0, 2, 4}));
}

TEST_F(CheckpointViews, NamesForTheTerminalAreEscaped) {
    const std::string hostile =
        "a\x1b[31m\nb\xc2\x9b"
        "2J";
    Stated state;
    state.tensor(hostile, state.storage(4), {4}, {1}).tensor("z", state.storage(4), {4}, {1});
    const std::string path = file_of(state);
    Stated changed;
    static_cast<void>(changed.storage(4));
    changed.tensor(hostile, changed.storage(8), {4}, {1}, 4).tensor("z", 0, {4}, {1});
    const std::string other = file_of(changed, "other.pt");
    for (const std::vector<std::string>& words :
         std::vector<std::vector<std::string>>{{"show", path, "--verbose"},
                                               {"diff", path, other, "--verbose"},
                                               {"ls", path},
                                               {"verify", path},
                                               {"diff", other, path}}) {
        std::vector<std::string> all{"checkpoint"};
        all.insert(all.end(), words.begin(), words.end());
        const Outcome outcome = run_cli(all);
        const std::string out = outcome.out + outcome.err;
        EXPECT_THAT(out, AllOf(Not(HasSubstr("\x1b[31m")), Not(HasSubstr("\xc2\x9b"))));
        EXPECT_THAT(out, Not(HasSubstr("\nb")));
        if (words[0] == "show" || words[0] == "diff") {
            EXPECT_THAT(out, HasSubstr("a\\x1b[31m\\x0ab\\xc2\\x9b2J")) << words[0];
        }
    }
    EXPECT_TRUE(shown(path).contains(hostile));
}

}  // namespace
}  // namespace penstock::cli
