// SPDX-License-Identifier: Apache-2.0
// Names of models in the local cache of Hugging Face.
#include "support/temp_folder.hpp"
#include "support/test_engine.hpp"

#include <penstock/weights.hpp>

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>

namespace penstock::weights {
namespace {

constexpr std::array kVariables{"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME",
                                "XDG_CACHE_HOME", "HOME"};

class HubCache : public testing::Test {
protected:
    HubCache() {
        for (const char* const name : kVariables) {
            const char* const value = std::getenv(name);
            before_[name] = value == nullptr ? std::nullopt : std::optional<std::string>(value);
            ::unsetenv(name);
        }
    }
    ~HubCache() override {
        for (const auto& [name, value] : before_) {
            value ? ::setenv(name.c_str(), value->c_str(), 1) : ::unsetenv(name.c_str());
        }
    }
    // A model whose reference names a snapshot.
    void add(const std::string& model, const std::string& snapshot, const std::string& reference) {
        std::filesystem::create_directories(folder_ / model + "/refs");
        std::filesystem::create_directories(folder_ / model + "/snapshots/" + snapshot);
        std::ofstream(folder_ / model + "/refs/main") << reference;
    }
    [[nodiscard]] std::string found(const std::string& name) {
        return find_hub_model(*engine_, name);
    }

    support::TempFolder folder_;
    std::shared_ptr<Engine> engine_ = std::make_shared<Engine>();
    std::map<std::string, std::optional<std::string>> before_;
};

TEST_F(HubCache, TheFolderIsTheOneThatHuggingFaceWouldTake) {
    ::setenv("HOME", "/users/me", 1);
    EXPECT_EQ(hub_cache_folder(), "/users/me/.cache/huggingface/hub");
    ::setenv("XDG_CACHE_HOME", "/caches", 1);
    EXPECT_EQ(hub_cache_folder(), "/caches/huggingface/hub");
    ::setenv("HF_HOME", "~/hf", 1);
    EXPECT_EQ(hub_cache_folder(), "/users/me/hf/hub");
    ::setenv("HUGGINGFACE_HUB_CACHE", "/old", 1);
    EXPECT_EQ(hub_cache_folder(), "/old");
    ::setenv("HF_HUB_CACHE", "/new", 1);
    EXPECT_EQ(hub_cache_folder(), "/new");
}

TEST_F(HubCache, AModelIsFoundByItsName) {
    ::setenv("HF_HUB_CACHE", folder_.path().c_str(), 1);
    add("models--me--tiny", "abc", "abc\n");
    add("models--plain", "def", "def");
    EXPECT_EQ(found("me/tiny"), folder_ / "models--me--tiny" + "/snapshots/abc");
    EXPECT_EQ(found("plain"), folder_ / "models--plain" + "/snapshots/def");
    for (const char* const name : {"me/other", "me", "me/tiny/more", "../tiny", "me/..", "/", "",
                                   "me/", "/tiny", "me/ti ny"}) {
        EXPECT_EQ(found(name), "") << name;
    }
    ::setenv("HF_HUB_CACHE", "/no/such/folder", 1);
    EXPECT_EQ(found("me/tiny"), "");
}

TEST_F(HubCache, AReferenceNamesNothingOutsideOfTheSnapshots) {
    ::setenv("HF_HUB_CACHE", folder_.path().c_str(), 1);
    add("models--me--out", "abc", "../../..");
    add("models--me--gone", "abc", "abd");
    add("models--me--empty", "abc", "");
    add("models--me--long", "abc", std::string(100'000, 'a'));
    std::filesystem::create_directories(folder_ / "models--me--none");
    for (const char* const name : {"me/out", "me/gone", "me/empty", "me/long", "me/none"}) {
        EXPECT_EQ(found(name), "") << name;
    }
}

}  // namespace
}  // namespace penstock::weights
