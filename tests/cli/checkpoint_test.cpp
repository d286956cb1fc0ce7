// SPDX-License-Identifier: Apache-2.0
#include "cli/checkpoint/command.hpp"
#include "cli/program.hpp"
#include "support/temp_folder.hpp"

#include <penstock/checkpoint.hpp>
#include <penstock/engine.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <thread>

namespace penstock::cli {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// A store with two checkpoints; "a.weight" changed between them by 0.5 in one place.
class CheckpointCliTest : public testing::Test {
protected:
    void SetUp() override {
        weight_.resize(100'000, 1.5F);
        bias_.resize(1000, 2);
        save(10);
        weight_[77] += 0.5F;
        save(20);
    }

    void save(std::uint64_t step) {
        State state;
        state.tensors.push_back({"a.weight", "F32", {1000, 100}, bytes_of(weight_)});
        state.tensors.push_back({"a.bias", "I64", {1000}, bytes_of(bias_)});
        state.metadata.emplace_back("run", "first");
        CheckpointStore store(engine_, FileSystem::local(), {store_path()},
                              {.shard_bytes = 300'000});
        const double loss = 1 / static_cast<double>(step);
        last_ = store.save(state, {.step = step, .metadata = {{"loss", loss}}}).path;
    }
    template <typename T>
    static std::span<const std::byte> bytes_of(const std::vector<T>& values) {
        return std::as_bytes(std::span(values));
    }
    [[nodiscard]] std::string store_path() const { return folder_ / "store"; }
    // Changes one byte that belongs to a tensor.
    void damage(const std::string& checkpoint) const {
        const std::string path = checkpoint + "/shard-00001.safetensors";
        ASSERT_TRUE(std::filesystem::exists(path));
        std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
        file.seekp(-5, std::ios::end);
        file.put('\x7f');
    }
    static nlohmann::json json_of(const Outcome& outcome) {
        return nlohmann::json::parse(outcome.out);
    }

    support::TempFolder folder_;
    std::shared_ptr<Engine> engine_ = std::make_shared<Engine>();
    std::vector<float> weight_;
    std::vector<std::int64_t> bias_;
    std::string last_;
};

TEST_F(CheckpointCliTest, LsListsWhatAStoreHas) {
    const Outcome outcome = run_cli({"checkpoint", "ls", store_path()});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_THAT(outcome.out, AllOf(HasSubstr("generation"), HasSubstr("ok; loss: 0.1; run: first"),
                                   HasSubstr("ok; loss: 0.05; run: first")));
    const auto rows = json_of(run_cli({"checkpoint", "ls", store_path(), "--json", "-"}));
    ASSERT_EQ(rows.at("checkpoints").size(), 2U);
    EXPECT_EQ(rows["checkpoints"][0]["step"], 10);
    EXPECT_EQ(rows["checkpoints"][1]["step"], 20);
    EXPECT_EQ(rows["checkpoints"][1]["tensor_bytes"], 408'000);
    EXPECT_EQ(rows["checkpoints"][1]["problem"], "");
    EXPECT_EQ(rows["checkpoints"][1]["metadata"],
              (nlohmann::json{{"loss", 0.05}, {"run", "first"}}));
    std::filesystem::remove(last_ + "/shard-00001.safetensors");
    const Outcome broken = run_cli({"checkpoint", "ls", store_path()});
    EXPECT_EQ(broken.status, 0);
    EXPECT_THAT(broken.out, HasSubstr("missing"));
}

TEST_F(CheckpointCliTest, ShowTellsTheTensors) {
    const Outcome outcome = run_cli({"checkpoint", "show", store_path(), "--verbose"});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_THAT(outcome.out,
                AllOf(HasSubstr("step 20"), HasSubstr("a.weight"), HasSubstr("[1000, 100]"),
                      HasSubstr("shard-0000"), HasSubstr("'run': 'first'")));
    const auto one =
        json_of(run_cli({"checkpoint", "show", store_path(), "--name", "*.bias", "--json", "-"}));
    ASSERT_EQ(one.at("tensors").size(), 1U);
    EXPECT_EQ(one["tensors"][0]["dtype"], "I64");
    EXPECT_EQ(one["checkpoint"]["generation"], 2);
    const auto old =
        json_of(run_cli({"checkpoint", "show", store_path(), "--generation", "1", "--json", "-"}));
    EXPECT_EQ(old["checkpoint"]["step"], 10);
}

TEST_F(CheckpointCliTest, AFolderWithOneModelIsThatModel) {
    const std::string model = folder_ / "model";
    std::filesystem::create_directory(model);
    const Outcome none = run_cli({"checkpoint", "show", model});
    EXPECT_EQ(none.status, 2);
    EXPECT_THAT(none.err, AllOf(HasSubstr("no checkpoints"), HasSubstr("one model.safetensors")));
    const std::string file = model + "/model.safetensors";
    ASSERT_EQ(run_cli({"checkpoint", "convert", store_path(), file}).status, 0);
    std::ofstream(model + "/config.json") << "{}";
    for (const char* const command : {"show", "verify", "ls"}) {
        const Outcome outcome = run_cli({"checkpoint", command, model});
        EXPECT_EQ(outcome.status, 0) << outcome.err;
        EXPECT_THAT(outcome.out, HasSubstr("model.safetensors"));
    }
    EXPECT_EQ(run_cli({"checkpoint", "diff", model, store_path()}).status, 0);
    ASSERT_EQ(run_cli({"checkpoint", "convert", model, model + "/other.safetensors"}).status, 0);
    EXPECT_EQ(run_cli({"checkpoint", "show", model}).status, 0);  // the usual name comes first
    std::filesystem::remove(file);
    EXPECT_EQ(run_cli({"checkpoint", "show", model}).status, 0);  // the only one, by any name
}

TEST_F(CheckpointCliTest, DiffTakesTwoCheckpointsOfAStoreByNumber) {
    const std::vector<std::string> diff{"checkpoint", "diff", store_path(), "--json", "-"};
    const auto with = [&diff](std::initializer_list<std::string> more) {
        std::vector<std::string> words = diff;
        words.insert(words.end(), more);
        return run_cli(words);
    };
    const Outcome two = with({"--generation", "1", "--generation", "2"});
    EXPECT_EQ(two.status, 1) << two.err;
    EXPECT_EQ(json_of(two)["a"], store_path() + "/00000001-step-10");
    EXPECT_EQ(json_of(two)["b"], last_);
    EXPECT_EQ(json_of(two)["different"][0]["name"], "a.weight");
    EXPECT_EQ(with({"--generation", "1"}).status, 1);  // with the newest
    EXPECT_EQ(with({"--generation", "2"}).status, 0);
    const Outcome none = with({});
    EXPECT_EQ(none.status, 2);
    EXPECT_THAT(none.err, HasSubstr("Give another path, or --generation"));
    EXPECT_THAT(with({"--generation", "7"}).err, HasSubstr("no checkpoint of generation 7"));
    const std::string model = folder_ / "model.pt";
    ASSERT_EQ(run_cli({"checkpoint", "convert", store_path(), model}).status, 0);
    EXPECT_EQ(run_cli({"checkpoint", "diff", store_path(), model, "--generation", "1"}).status, 1);
    EXPECT_EQ(run_cli({"checkpoint", "diff", store_path(), model, "--generation", "2"}).status, 0);
}

TEST_F(CheckpointCliTest, ConvertTakesAPartOfAFile) {
    const std::string part = folder_ / "part.safetensors";
    const auto names = [&part] {
        std::vector<std::string> out;
        const auto shown = json_of(run_cli({"checkpoint", "show", part, "--json", "-"}));
        for (const auto& tensor : shown.at("tensors")) {
            out.push_back(tensor["name"]);
        }
        return out;
    };
    const std::vector<std::string> convert{"checkpoint", "convert", store_path(), part, "--force"};
    const auto with = [&convert](std::initializer_list<std::string> more) {
        std::vector<std::string> words = convert;
        words.insert(words.end(), more);
        return run_cli(words);
    };
    ASSERT_EQ(with({"--names", "a"}).status, 0);  // what is below a name, without it
    EXPECT_THAT(names(), ElementsAre("weight", "bias"));
    EXPECT_EQ(run_cli({"checkpoint", "verify", part}).status, 0);
    ASSERT_EQ(with({"--names", "a.bias"}).status, 0);
    EXPECT_THAT(names(), ElementsAre("a.bias"));
    ASSERT_EQ(with({"--names", "*.w*", "--names", "a.bias"}).status, 0);
    EXPECT_THAT(names(), testing::UnorderedElementsAre("a.weight", "a.bias"));
    const Outcome whole = run_cli({"checkpoint", "diff", store_path(), part});
    EXPECT_EQ(whole.status, 0) << whole.out;
    ASSERT_EQ(with({"--names", "*.w*", "--memory", "1"}).status, 0);  // from mapped files
    const Outcome lacks = with({"--names", "a.bia"});
    EXPECT_EQ(lacks.status, 2);
    EXPECT_THAT(lacks.err, AllOf(HasSubstr("--names"), HasSubstr("did you mean 'a.bias'?")));
}

TEST_F(CheckpointCliTest, VerifyNamesWhatIsDamagedAndFails) {
    const Outcome sound = run_cli({"checkpoint", "verify", store_path(), "--all"});
    EXPECT_EQ(sound.status, 0) << sound.out << sound.err;
    EXPECT_THAT(sound.out, HasSubstr("ok: "));
    damage(last_);
    const Outcome outcome = run_cli({"checkpoint", "verify", last_});
    EXPECT_EQ(outcome.status, 1);
    EXPECT_THAT(outcome.out, AllOf(HasSubstr("DAMAGED"), HasSubstr("shard-00001"),
                                   HasSubstr("tensor 'a."), HasSubstr("byte ")));
    const Outcome json = run_cli({"checkpoint", "verify", last_, "--json", "-"});
    EXPECT_EQ(json.status, 1);
    EXPECT_EQ(json_of(json)["damaged"], 1);
    EXPECT_THAT(json_of(json)["verified"][0]["problems"], Not(IsEmpty()));
}

TEST_F(CheckpointCliTest, VerifyOfADamagedManifestIsDamage) {
    std::ofstream(last_ + "/manifest.json", std::ios::trunc) << "{}";
    const Outcome outcome = run_cli({"checkpoint", "verify", last_});
    EXPECT_EQ(outcome.status, 1);
    EXPECT_THAT(outcome.out, AllOf(HasSubstr("DAMAGED"), HasSubstr("manifest.json")));
    // The store falls back to the one before it.
    EXPECT_EQ(run_cli({"checkpoint", "verify", store_path()}).status, 0);
}

TEST_F(CheckpointCliTest, DiffTellsWhichTensorsAndHowMuch) {
    const std::string first = store_path() + "/00000001-step-10";
    const Outcome outcome = run_cli({"checkpoint", "diff", first, last_, "--json", "-"});
    EXPECT_EQ(outcome.status, 1) << outcome.err;
    const auto json = json_of(outcome);
    ASSERT_EQ(json["different"].size(), 1U);
    EXPECT_EQ(json["different"][0]["name"], "a.weight");
    EXPECT_EQ(json["different"][0]["difference"], "content");
    EXPECT_EQ(json["different"][0]["largest_distance"], 0.5);
    EXPECT_EQ(json["same"], 1);
    EXPECT_EQ(run_cli({"checkpoint", "diff", first, first}).status, 0);
    EXPECT_EQ(run_cli({"checkpoint", "diff", first, folder_ / "absent"}).status, 2);
}

TEST_F(CheckpointCliTest, ConvertGoesRound) {
    const std::string safetensors = folder_ / "model.safetensors";
    const std::string torch = folder_ / "model.pt";
    const std::string second = folder_ / "second";
    EXPECT_EQ(run_cli({"checkpoint", "convert", store_path(), safetensors}).status, 0);
    EXPECT_EQ(run_cli({"checkpoint", "verify", safetensors}).status, 0);
    EXPECT_EQ(run_cli({"checkpoint", "convert", safetensors, torch}).status, 0);
    EXPECT_EQ(run_cli({"checkpoint", "verify", torch}).status, 0);
    EXPECT_EQ(run_cli({"checkpoint", "convert", torch, second, "--step", "5"}).status, 0);
    const Outcome same = run_cli({"checkpoint", "diff", store_path(), second});
    EXPECT_EQ(same.status, 0) << same.out << same.err;
    // As stock readers find it.
    const std::string index = last_ + "/model.safetensors.index.json";
    EXPECT_EQ(run_cli({"checkpoint", "diff", index, second}).status, 0);
    const auto shown = json_of(run_cli({"checkpoint", "show", second, "--json", "-"}));
    EXPECT_EQ(shown["checkpoint"]["step"], 5);
    EXPECT_THAT(names_in(folder_.path()),
                ElementsAre("model.pt", "model.safetensors", "second", "store"));
    // An existing file is not replaced without --force.
    const Outcome again = run_cli({"checkpoint", "convert", store_path(), torch});
    EXPECT_EQ(again.status, 2);
    EXPECT_THAT(again.err, HasSubstr("--force"));
    const Outcome forced =
        run_cli({"checkpoint", "convert", store_path(), torch, "--force", "--json", "-"});
    EXPECT_EQ(forced.status, 0);
    EXPECT_EQ(json_of(forced)["target"], torch);
}

TEST_F(CheckpointCliTest, ConvertWritesAnIndexOfShards) {
    const std::string index = folder_ / "model.safetensors.index.json";
    for (const char* shard_bytes : {"1KiB", "1GiB"}) {
        const Outcome made = run_cli({"checkpoint", "convert", store_path(), index, "--force",
                                      "--shard-bytes", shard_bytes});
        ASSERT_EQ(made.status, 0) << made.err;
        EXPECT_EQ(run_cli({"checkpoint", "verify", index}).status, 0);
        const Outcome same = run_cli({"checkpoint", "diff", store_path(), index});
        EXPECT_EQ(same.status, 0) << same.out << same.err;
    }
    // The shards of the first went with the second.
    EXPECT_THAT(names_in(folder_.path()), ElementsAre("model-00001-of-00001.safetensors",
                                                      "model.safetensors.index.json", "store"));
    const std::string again = folder_ / "again.safetensors.index.json";
    EXPECT_EQ(run_cli({"checkpoint", "convert", index, again}).status, 0);
    EXPECT_EQ(run_cli({"checkpoint", "diff", index, again}).status, 0);
}

TEST_F(CheckpointCliTest, WhatAnIndexCannotBeIsSaid) {
    const std::string index = folder_ / "model.safetensors.index.json";
    const auto refused = [&](const std::string& target, const char* shard_bytes) {
        const Outcome outcome =
            run_cli({"checkpoint", "convert", store_path(), target, "--shard-bytes", shard_bytes});
        EXPECT_EQ(outcome.status, 2);
        return outcome.err;
    };
    EXPECT_THAT(refused(index, "0"), HasSubstr("--shard-bytes: got '0'"));
    EXPECT_THAT(refused(index, "many"), HasSubstr("many"));
    EXPECT_THAT(refused(folder_ / "model.pt", "1GB"), HasSubstr("--shard-bytes is for an index"));
    EXPECT_THAT(refused(folder_ / "model.index.json", "1GB"), HasSubstr(".safetensors.index.json"));
    EXPECT_THAT(names_in(folder_.path()), ElementsAre("store"));
}

TEST_F(CheckpointCliTest, ConvertOfADamagedSourceWritesNothing) {
    damage(last_);
    for (const char* memory : {"1GiB", "1KiB"}) {
        const Outcome outcome = run_cli(
            {"checkpoint", "convert", last_, folder_ / "m.safetensors", "--memory", memory});
        EXPECT_EQ(outcome.status, 1);
        EXPECT_THAT(outcome.err, HasSubstr("tensor 'a."));
        EXPECT_THAT(names_in(folder_.path()), ElementsAre("store"));
    }
}

TEST_F(CheckpointCliTest, ConvertOfMoreThanMemoryMakesTheSame) {
    const std::string torch = folder_ / "model.pt";
    const std::string safetensors = folder_ / "model.safetensors";
    ASSERT_EQ(run_cli({"checkpoint", "convert", store_path(), torch}).status, 0);
    ASSERT_EQ(run_cli({"checkpoint", "convert", store_path(), safetensors}).status, 0);
    std::filesystem::create_directory(folder_ / "again");
    const std::string index = last_ + "/model.safetensors.index.json";
    for (const std::string& source : {store_path(), index, torch, safetensors}) {
        for (const std::string& expected : {torch, safetensors}) {
            const std::string target = folder_ / "again" + expected.substr(expected.rfind('/'));
            const Outcome outcome = run_cli({"checkpoint", "convert", source, target, "--force",
                                             "--memory", "1KiB", "--json", "-"});
            ASSERT_EQ(outcome.status, 0) << source << outcome.err;
            EXPECT_EQ(json_of(outcome)["held_in_memory"], false);
            EXPECT_EQ(run_cli({"checkpoint", "verify", target}).status, 0) << source;
            EXPECT_EQ(run_cli({"checkpoint", "diff", target, expected}).status, 0) << source;
        }
        const std::string target = folder_ / "again/store";
        EXPECT_EQ(run_cli({"checkpoint", "convert", source, target, "--memory", "1KiB"}).status, 0);
        EXPECT_EQ(run_cli({"checkpoint", "verify", target}).status, 0) << source;
        EXPECT_EQ(run_cli({"checkpoint", "diff", target, store_path()}).status, 0) << source;
    }
    const Outcome wrong =
        run_cli({"checkpoint", "convert", torch, folder_ / "x.pt", "--memory", "much"});
    EXPECT_EQ(wrong.status, 2);
    EXPECT_THAT(wrong.err, HasSubstr("'much'"));
}

// A checkpoint of slices, which are joined: in memory, or one tensor after another.
class ConvertOfSlices : public CheckpointCliTest {
protected:
    void SetUp() override {
        CheckpointCliTest::SetUp();
        for (const std::string name : {"a.weight", "b.weight"}) {
            for (const std::uint64_t column : {0U, 50U}) {
                std::vector<float>& half = halves_.emplace_back();
                for (std::size_t row = 0; row < 1000; ++row) {
                    const auto from = weight_.begin() + static_cast<std::ptrdiff_t>(row * 100);
                    half.insert(half.end(), from + static_cast<std::ptrdiff_t>(column),
                                from + static_cast<std::ptrdiff_t>(column) + 50);
                }
                state_.tensors.push_back(
                    {name, "F32", {1000, 50}, bytes_of(half), {1000, 100}, {0, column}});
            }
        }
        state_.tensors.push_back({"a.bias", "I64", {1000}, bytes_of(bias_)});
        state_.metadata.emplace_back("run", "sliced");
        save_slices();
    }
    void save_slices() {
        CheckpointStore store(engine_, FileSystem::local(), {slices()});
        path_ = store.save(state_, {.step = 1}).path;
    }
    [[nodiscard]] std::string slices() const { return folder_ / "slices"; }
    [[nodiscard]] static Outcome convert(const std::string& source, const std::string& target,
                                         const char* memory) {
        return run_cli({"checkpoint", "convert", source, target, "--memory", memory, "--json", "-",
                        "--force"});
    }

    std::deque<std::vector<float>> halves_;
    State state_;
    std::string path_;
};

TEST_F(ConvertOfSlices, MakesTheSameWithLessMemory) {
    for (const std::string& structure :
         {std::string("null"),
          std::string(R"({"penstock_structure":1,"values":[["dict",1,2,3,4,5,6],"a.weight",)"
                      R"(["tensor",0],"b.weight",["tensor",1],"a.bias",["tensor",2]],)"
                      R"("tensors":[[0],[1],[2]],"storages":["a.weight","b.weight","a.bias"]})")}) {
        state_.structure = structure;
        save_slices();
        for (const char* name : {"m.pt", "m.safetensors", "m.safetensors.index.json"}) {
            const std::string whole = folder_ / "whole" + name;
            ASSERT_EQ(convert(slices(), whole, "1GiB").status, 0);
            const std::string target = folder_ / name;
            const Outcome made = convert(slices(), target, "500KiB");  // one of the weights
            ASSERT_EQ(made.status, 0) << made.err;
            EXPECT_EQ(json_of(made)["held_in_memory"], false);
            EXPECT_EQ(json_of(made)["tensors"], 3);
            EXPECT_EQ(run_cli({"checkpoint", "verify", target}).status, 0);
            EXPECT_EQ(run_cli({"checkpoint", "diff", target, whole}).status, 0);
            EXPECT_EQ(run_cli({"checkpoint", "diff", target, slices()}).status, 0);
        }
    }
}

// Rows of a tensor that was saved as columns.
TEST_F(ConvertOfSlices, APartOfOneIsJoinedToo) {
    state_.tensors.resize(2);
    state_.structure =
        R"({"penstock_structure":1,"values":[["dict",1,2,3,4],"low",["tensor",0],"high",)"
        R"(["tensor",1]],"tensors":[[0,"","float32",0,[500,100],[100,1]],)"
        R"([0,"","float32",50000,[500,100],[100,1]]],"storages":["a.weight"]})";
    save_slices();
    const std::string names[] = {folder_ / "held.safetensors", folder_ / "joined.safetensors"};
    for (const std::string& name : names) {
        const Outcome made = run_cli({"checkpoint", "convert", slices(), name, "--names", "l*",
                                      "--memory", name == names[0] ? "1GiB" : "200300"});
        ASSERT_EQ(made.status, 0) << made.err;
    }
    const Outcome same = run_cli({"checkpoint", "diff", names[0], names[1]});
    EXPECT_EQ(same.status, 0) << same.out;
}

TEST_F(ConvertOfSlices, WhatDoesNotFitOrIsDamagedLeavesNothing) {
    const std::string target = folder_ / "m.safetensors";
    const Outcome large = convert(slices(), target, "300KiB");
    EXPECT_EQ(large.status, 1);
    EXPECT_THAT(large.err,
                AllOf(HasSubstr("tensor 'a.weight' has 400000 bytes"), HasSubstr("--memory")));
    const Outcome store = convert(slices(), folder_ / "other", "500KiB");
    EXPECT_EQ(store.status, 1);
    EXPECT_THAT(store.err, HasSubstr("was saved in slices"));
    std::filesystem::rename(path_ + "/shard-00001.slices.safetensors",
                            path_ + "/shard-00001.safetensors");
    damage(path_);
    std::filesystem::rename(path_ + "/shard-00001.safetensors",
                            path_ + "/shard-00001.slices.safetensors");
    for (const char* memory : {"500KiB", "1GiB"}) {
        const Outcome damaged = convert(path_, target, memory);
        EXPECT_EQ(damaged.status, 1);
        EXPECT_THAT(damaged.err, HasSubstr("tensor '"));
    }
    EXPECT_THAT(names_in(folder_.path()), ElementsAre("slices", "store"));
}

TEST_F(CheckpointCliTest, WhatAFormCannotHoldIsNamed) {
    State state;
    state.tensors.push_back({"model.w", "F32", {1000, 100}, bytes_of(weight_)});
    state.structure =
        R"({"penstock_structure":1,"values":[["dict",1,2,5,6],"model",["dict",3,4],"w",)"
        R"(["tensor",0],"step",7],"tensors":[[0]],"storages":["model.w"]})";
    const std::string nested = folder_ / "nested";
    CheckpointStore(engine_, FileSystem::local(), {nested}).save(state);
    const std::string target = folder_ / "m.safetensors";
    const Outcome outcome = run_cli({"checkpoint", "convert", nested, target});
    EXPECT_EQ(outcome.status, 2);
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("state['model']"), HasSubstr("--tensors-only")));
    EXPECT_FALSE(std::filesystem::exists(target));
    EXPECT_EQ(run_cli({"checkpoint", "convert", nested, target, "--tensors-only"}).status, 0);
    EXPECT_THAT(run_cli({"checkpoint", "show", nested}).out, HasSubstr("['step'] 7"));
    EXPECT_EQ(run_cli({"checkpoint", "convert", nested, folder_ / "m.pt"}).status, 0);
    EXPECT_EQ(run_cli({"checkpoint", "diff", nested, folder_ / "m.pt"}).status, 0);
}

TEST_F(CheckpointCliTest, ASignalEndsAConversionAndLeavesNothing) {
    weight_.assign(40'000'000, 3);
    bias_.clear();
    State state;
    state.tensors.push_back({"w", "F32", {40'000'000}, bytes_of(weight_)});
    const std::string large = folder_ / "large";
    CheckpointStore(engine_, FileSystem::local(), {large}).save(state);
    for (const int delay_ms : {30, 100, 200, 300}) {
        Program program({"checkpoint", "convert", large, folder_ / "w.pt", "--memory",
                         delay_ms % 200 == 0 ? "1GiB" : "1KiB"});
        std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
        program.signal(SIGINT);
        const Outcome outcome = program.wait();
        EXPECT_TRUE(outcome.status == 130 || outcome.status == 0) << outcome.status << outcome.err;
        const bool done = outcome.status == 0;
        EXPECT_EQ(std::filesystem::exists(folder_ / "w.pt"), done);
        std::filesystem::remove(folder_ / "w.pt");
        EXPECT_THAT(names_in(folder_.path()), ElementsAre("large", "store"));
    }
}

TEST_F(CheckpointCliTest, ASourceThatShrinksUnderAConversionIsNamedAndNothingIsMadeOfIt) {
    // At an odd offset: what lies on block boundaries is looked at by the kernel alone.
    const std::string whole = folder_ / "whole.safetensors";
    const std::vector<char> data(80'000'000, 3);
    nlohmann::json header;
    header["w"] = {{"dtype", "U8"}, {"shape", {data.size()}}, {"data_offsets", {0, data.size()}}};
    const std::string text = header.dump();
    const std::uint64_t text_bytes = text.size();
    std::ofstream(whole, std::ios::binary)
        .write(reinterpret_cast<const char*>(&text_bytes), sizeof text_bytes)
        .write(text.data(), static_cast<std::streamsize>(text.size()))
        .write(data.data(), static_cast<std::streamsize>(data.size()));
    const std::string source = folder_ / "source.safetensors";
    for (const int delay_ms : {10, 20, 30, 45, 60, 80, 100, 150}) {
        std::filesystem::copy_file(whole, source);
        Program program(
            {"checkpoint", "convert", source, folder_ / "w.pt", "--memory", "1KiB", "--no-verify"});
        std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
        std::filesystem::resize_file(source, 10'000'000);
        const Outcome outcome = program.wait();
        if (outcome.status == 0) {  // it was too late
            EXPECT_EQ(run_cli({"checkpoint", "diff", folder_ / "w.pt", whole}).status, 0);
            std::filesystem::remove(folder_ / "w.pt");
        } else {
            EXPECT_EQ(outcome.status, 1) << outcome.err;
            EXPECT_THAT(outcome.err, HasSubstr("source.safetensors"));
        }
        std::filesystem::remove(source);
        EXPECT_THAT(names_in(folder_.path()), ElementsAre("store", "whole.safetensors"));
    }
}

TEST_F(CheckpointCliTest, AFileIsWhatItsContentSays) {
    const std::string plain = folder_ / "model.safetensors";
    const std::string torch = folder_ / "model.pt";
    ASSERT_EQ(run_cli({"checkpoint", "convert", store_path(), plain}).status, 0);
    ASSERT_EQ(run_cli({"checkpoint", "convert", store_path(), torch}).status, 0);
    std::filesystem::rename(plain, folder_ / "model.bin");
    std::filesystem::rename(torch, folder_ / "model");
    for (const char* name : {"model.bin", "model"}) {
        const Outcome same = run_cli({"checkpoint", "diff", folder_ / name, store_path()});
        EXPECT_EQ(same.status, 0) << same.out << same.err;
        EXPECT_EQ(run_cli({"checkpoint", "verify", folder_ / name}).status, 0);
    }
}

TEST_F(CheckpointCliTest, AnIndexIsReadAsLoadReadsIt) {
    // A link to it, as the cache of Hugging Face has; and a shard with a tensor that it does not
    // name.
    const std::string index = folder_ / "link.index.json";
    std::filesystem::create_directory(folder_ / "model");
    ASSERT_EQ(
        run_cli({"checkpoint", "convert", store_path(), folder_ / "model/all.safetensors"}).status,
        0);
    std::ofstream(folder_ / "model/m.index.json")
        << R"({"weight_map": {"a.bias": "all.safetensors"}})";
    std::filesystem::create_symlink(folder_ / "model/m.index.json", index);
    const Outcome shown = run_cli({"checkpoint", "show", index});
    EXPECT_EQ(shown.status, 0) << shown.err;
    EXPECT_THAT(shown.out, AllOf(HasSubstr("a.bias"), Not(HasSubstr("a.weight"))));
    EXPECT_EQ(run_cli({"checkpoint", "verify", index}).status, 0);
}

TEST_F(CheckpointCliTest, WhatItReadsTakesAPolicyForThePageCache) {
    const std::string file = folder_ / "a.safetensors";
    ASSERT_EQ(run_cli({"checkpoint", "convert", store_path(), file, "--cache", "cached"}).status,
              0);
    EXPECT_EQ(run_cli({"checkpoint", "diff", store_path(), file, "--cache", "direct"}).status, 0);
    const support::TempFolder memory("/dev/shm");
    const std::string copy = memory / "a.safetensors";
    ASSERT_EQ(run_cli({"checkpoint", "convert", file, copy}).status, 0);
    const Outcome refused = run_cli({"checkpoint", "diff", file, copy, "--cache", "required"});
    EXPECT_EQ(refused.status, 2);
    EXPECT_THAT(refused.err, HasSubstr("direct I/O was required"));
    const Outcome unknown = run_cli({"checkpoint", "diff", file, copy, "--cache", "no"});
    EXPECT_EQ(unknown.status, 2);
    EXPECT_THAT(unknown.err, HasSubstr("{auto,cached,direct,required}"));
}

TEST_F(CheckpointCliTest, WrongUsageSaysWhatToDo) {
    EXPECT_EQ(run_cli({"checkpoint"}).status, 2);
    EXPECT_THAT(run_cli({"checkpoint", "show"}).err, HasSubstr("penstock checkpoint show --help"));
    const Outcome help = run_cli({"checkpoint", "--help"});
    EXPECT_EQ(help.status, 0);
    EXPECT_THAT(help.out, HasSubstr("Examples:"));
    for (const char* command : {"ls", "show", "verify", "diff", "convert"}) {
        EXPECT_THAT(run_cli({"checkpoint", command, "--help"}).out, HasSubstr("Examples:"));
    }
    EXPECT_THAT(run_cli({"checkpoint", "bench", "x"}).err, HasSubstr("Python package"));
    // CLI11 alone makes 2^64 - 1 of "-1" and 8 of "010".
    for (const char* number : {"-1", "010", "1.5", "18446744073709551616"}) {
        for (const char* option : {"--step", "--generation"}) {
            const Outcome wrong =
                run_cli({"checkpoint", "convert", store_path(), folder_ / "new", option, number});
            EXPECT_EQ(wrong.status, 2) << option << " " << number;
            EXPECT_THAT(wrong.err, HasSubstr("expected a whole number, 0 or more"));
            EXPECT_FALSE(std::filesystem::exists(folder_ / "new"));
        }
    }
    const Outcome nothing = run_cli({"checkpoint", "show", folder_.path()});
    EXPECT_EQ(nothing.status, 2);
    EXPECT_THAT(nothing.err, HasSubstr("no checkpoints in this folder"));
    std::ofstream(folder_ / "text.pt") << "hello";
    const Outcome text = run_cli({"checkpoint", "show", folder_ / "text.pt"});
    EXPECT_EQ(text.status, 1);
    EXPECT_THAT(text.err, HasSubstr("text.pt"));
}

}  // namespace
}  // namespace penstock::cli
