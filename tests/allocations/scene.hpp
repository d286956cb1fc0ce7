// SPDX-License-Identifier: Apache-2.0
// Helpers of tests in which memory runs out at each allocation of a call: a warm engine and a
// folder in a child process.
#pragma once

#include "allocations/failing.hpp"
#include "support/temp_folder.hpp"
#include "support/test_engine.hpp"

#include <penstock/penstock.hpp>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace penstock::allocator {

inline constexpr std::byte kUntouched{0x55};

inline std::shared_ptr<Engine> make_engine() {
    EngineOptions options;
    options.queue_depth = 16;
    return std::make_shared<Engine>(options);
}

struct Saved {
    std::vector<std::vector<std::byte>> data;

    Saved(std::size_t tensors, std::uint64_t bytes, std::uint64_t seed) {
        for (std::size_t i = 0; i < tensors; ++i) {
            data.push_back(support::pattern(bytes, seed + i));
        }
    }
    [[nodiscard]] State state() const {
        State state;
        for (std::size_t i = 0; i < data.size(); ++i) {
            state.tensors.push_back(
                {fmt::format("t{}", i), "U8", {data[i].size()}, std::span(data[i])});
        }
        return state;
    }
};

// The state of a test in its child process: an engine that is warm, and its folder.
struct Scene {
    explicit Scene(const std::string& place) : folder(place) {}
    std::string folder;
    std::shared_ptr<Engine> engine = make_engine();
    FileSystem files = FileSystem::local();

    [[nodiscard]] CheckpointStore store(const StoreOptions& options = {}) const {
        return {engine, files, {folder + "/store"}, options};
    }
};

// `body` at each allocation, and what must hold after it.
inline std::string each(Scene& scene, const std::function<std::string(Attempt&)>& body,
                        std::uint64_t step = 4) {
    Attempt none(0, Fails::kOnce);
    static_cast<void>(body(none));
    const std::size_t descriptors = open_descriptors();
    return each_allocation(
        [&](Attempt& attempt) {
            std::string said = body(attempt);
            if (!scene.engine->drain(std::chrono::seconds(10))) {
                said += " drain() does not return";
            }
            const std::size_t more = open_descriptors() - descriptors;
            said += more != 0 ? fmt::format(" {} descriptors left open", more) : "";
            return said;
        },
        sampled(step), sampled(3 * step));
}

/// What is wrong with the tensors of a checkpoint; nothing: empty.
inline std::string holds(Checkpoint& checkpoint, const Saved& saved) {
    for (std::size_t i = 0; i < saved.data.size(); ++i) {
        std::vector<std::byte> into(saved.data[i].size());
        const TensorRead wanted{fmt::format("t{}", i), into};
        checkpoint.read({&wanted, 1});
        if (into != saved.data[i]) {
            return "wrong bytes";
        }
    }
    return "";
}

class OutOfMemory : public ::testing::Test {
protected:
    /// Returns what `body` returns, or how its process died.
    std::string in_own_child(const std::function<std::string(Scene&)>& body) {
        return allocator::in_child(60, [&] {
            Scene scene(folder_.path());
            return body(scene);
        });
    }
    void in_child(const std::function<std::string(Scene&)>& body) {
        EXPECT_EQ(in_own_child(body), "");
    }

private:
    support::TempFolder folder_{"/dev/shm"};
};

}  // namespace penstock::allocator
