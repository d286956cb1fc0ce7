// SPDX-License-Identifier: Apache-2.0
// Memory runs out at each allocation of planning and streaming weights: the call says so or has
// done what was asked, nothing stays open or in flight, and the same call works afterwards.
#include "allocations/scene.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace penstock {
namespace {

using namespace std::chrono_literals;
using allocator::Attempt;
using allocator::each;
using allocator::kUntouched;
using allocator::Saved;
using allocator::Scene;

class WeightsOutOfMemory : public allocator::OutOfMemory {};

TEST_F(WeightsOutOfMemory, WeightsAreStreamed) {
    in_child([](Scene& scene) {
        const Saved saved(3, 9000, 2);
        const std::string path = scene.folder + "/file.safetensors";
        save_file(scene.engine, path, saved.state());
        const TensorTable table = inspect(scene.engine, path);
        const std::vector<WeightUnit> units{{"a", {"t0"}}, {"b", {"t1"}}, {"c", {"t2"}}};
        return each(
            scene,
            [&](Attempt& attempt) -> std::string {
                std::vector<std::byte> found;
                const bool through = attempt([&] {
                    found.clear();
                    const std::uint64_t least = least_weight_memory(table, units);
                    static_cast<void>(most_weight_memory(table, units));
                    const WeightPlan plan = plan_weights(table, units, {.memory_bytes = least});
                    WeightStream stream(scene.engine, table, units,
                                        {.memory_bytes = plan.used_bytes()});
                    for (std::size_t unit = 0; unit < units.size(); ++unit) {
                        const auto bytes = stream.acquire(unit).tensors[0].span();
                        found.insert(found.end(), bytes.begin(), bytes.end());
                        stream.release(unit);
                    }
                    stream.set_memory(10 * least);
                    static_cast<void>(stream.acquire_for(0, 1s));
                    static_cast<void>(stream.stats());
                    stream.close();
                });
                std::vector<std::byte> expected;
                for (const std::vector<std::byte>& one : saved.data) {
                    expected.insert(expected.end(), one.begin(), one.end());
                }
                return through && found != expected ? "wrong bytes" : "";
            },
            1);
    });
}

TEST_F(WeightsOutOfMemory, WeightsArePlanned) {
    in_child([](Scene& scene) {
        const Saved saved(3, 9000, 2);
        for (const char* const folder : {"/a", "/b"}) {
            scene.files.make_folder(scene.folder + folder);
            save_file(scene.engine, scene.folder + folder + "/model.safetensors", saved.state());
        }
        const std::vector<std::string> folders{scene.folder + "/a", scene.folder + "/b"};
        return each(
            scene,
            [&](Attempt& attempt) -> std::string {
                std::size_t units = 0;
                double rate = 0;
                const bool through = attempt([&] {
                    const WeightFolders model = inspect_folders(scene.engine, folders);
                    units = find_weight_units(model.table).size();
                    static_cast<void>(find_expert_layers(model.table));
                    const WeightForecast forecast = forecast_weights(model.table, 1 << 20);
                    static_cast<void>(pass_seconds(forecast.plan, 1e9, 0.5));
                    static_cast<void>(spare_memory(1 << 20)());
                    static_cast<void>(memory_stall());
                    rate = measure_weight_rate(*scene.engine, model, 1ms);
                });
                return through && (units != 3 || rate <= 0) ? "wrong answers" : "";
            },
            1);
    });
}

TEST_F(WeightsOutOfMemory, AModelIsFoundInTheLocalCache) {
    in_child([](Scene& scene) {
        const std::string model = scene.folder + "/models--me--tiny";
        std::filesystem::create_directories(model + "/refs");
        std::filesystem::create_directories(model + "/snapshots/abc");
        std::ofstream(model + "/refs/main") << "abc";
        ::setenv("HF_HUB_CACHE", scene.folder.c_str(), 1);
        return each(
            scene,
            [&](Attempt& attempt) -> std::string {
                std::string found;
                const bool through = attempt([&] {
                    static_cast<void>(hub_cache_folder());
                    found = find_hub_model(*scene.engine, "me/tiny");
                });
                return through && found != model + "/snapshots/abc" ? "another folder" : "";
            },
            1);
    });
}

// The lack of a GPU is reported before memory of one is asked for.
TEST_F(WeightsOutOfMemory, WeightsForAGpuArePlanned) {
    in_child([](Scene& scene) {
        const Saved saved(3, 9000, 2);
        const std::string path = scene.folder + "/file.safetensors";
        save_file(scene.engine, path, saved.state());
        const TensorTable table = inspect(scene.engine, path);
        const std::vector<WeightUnit> units{{"a", {"t0"}}, {"b", {"t1"}}, {"c", {"t2"}}};
        WeightStreamOptions there{.gpu = 0, .host_memory_bytes = 30'000};
        there.memory_bytes = least_weight_memory(table, units, there);
        const std::uint64_t expected = plan_weights(table, units, there).copied_bytes;
        return each(
            scene,
            [&](Attempt& attempt) -> std::string {
                std::uint64_t copied = 0;
                bool is_refused = false;
                const bool through = attempt([&] {
                    WeightStreamOptions options{.gpu = 0, .host_memory_bytes = 30'000};
                    options.memory_bytes = least_weight_memory(table, units, options);
                    const WeightPlan plan = plan_weights(table, units, options);
                    options.gpu = 1000;
                    copied = plan.copied_bytes;
                    try {
                        WeightStream stream(scene.engine, table, units, options);
                    } catch (const Error& error) {
                        is_refused = error.reason() == ErrorCode::kUnsupported ||
                                     error.reason() == ErrorCode::kInvalidArgument;
                        if (!is_refused) {
                            throw;
                        }
                    }
                });
                return through && (copied != expected || !is_refused) ? "wrong plan, or taken" : "";
            },
            12);
    });
}

TEST_F(WeightsOutOfMemory, ExpertsArePlanned) {
    in_child([](Scene& scene) {
        const Saved saved(6, 9000, 2);
        State state = saved.state();
        for (std::size_t i = 1; i < state.tensors.size(); ++i) {
            state.tensors[i].name = "layers.0.experts." + std::to_string(i - 1) + ".up";
        }
        scene.files.make_folder(scene.folder + "/m");
        save_file(scene.engine, scene.folder + "/m/model.safetensors", state);
        const std::vector<std::string> folders{scene.folder + "/m"};
        const TensorTable table = inspect(scene.engine, folders[0] + "/model.safetensors");
        return each(
            scene,
            [&](Attempt& attempt) -> std::string {
                std::uint64_t chosen = 0;
                double rate = 0;
                const bool through = attempt([&] {
                    const std::uint64_t used = find_experts_per_token(*scene.engine, folders);
                    const WeightForecast forecast = forecast_weights(table, 40000, 2, used + 1);
                    static_cast<void>(pass_seconds(forecast, 1e9, 0.5));
                    static_cast<void>(share_weight_memory(1000, 100, 500, 20));
                    chosen = forecast.experts.chosen;
                    rate = measure_memory_rate(1, 1us);
                });
                return through && (chosen != 1 || rate <= 0) ? "wrong answers" : "";
            },
            1);
    });
}

TEST_F(WeightsOutOfMemory, ExpertsAreStreamed) {
    in_child([](Scene& scene) {
        const Saved saved(4, 8192, 2);
        const std::string path = scene.folder + "/file.safetensors";
        save_file(scene.engine, path, saved.state());
        TensorTable table = inspect(scene.engine, path);
        std::vector<ExpertLayer> layers(2);
        layers[0].experts = {{{"both", 0, 8192}}, {{"both", 8192, 8192}}};
        layers[1].experts = {{{"t2", 0, 8192}}, {{"t3", 0, 8192}}};
        const std::vector<JoinedTensor> joined{
            {"both", {16384}, {{"t0", 0, 8192}, {"t1", 0, 8192}}}};
        return each(
            scene,
            [&](Attempt& attempt) -> std::string {
                std::vector<std::byte> found;
                const bool through = attempt([&] {
                    found.clear();
                    TensorTable whole = table;
                    join_tensors(whole, joined);
                    const std::uint64_t least = least_expert_memory(whole, layers);
                    ExpertStream stream(scene.engine, whole, layers, {.memory_bytes = least});
                    for (std::size_t layer = 0; layer < layers.size(); ++layer) {
                        const std::vector<std::size_t> chosen{0, 1};
                        for (const ExpertView& view : stream.acquire(layer, chosen)) {
                            found.insert(found.end(), view.parts[0].span().begin(),
                                         view.parts[0].span().end());
                        }
                        stream.release();
                    }
                    stream.set_memory(2 * least);
                    const std::vector<std::size_t> first{0};
                    static_cast<void>(stream.acquire_for(0, first, 1s));
                    static_cast<void>(stream.stats());
                    stream.close();
                });
                std::vector<std::byte> expected;
                for (const std::vector<std::byte>& one : saved.data) {
                    expected.insert(expected.end(), one.begin(), one.end());
                }
                return through && found != expected ? "wrong bytes" : "";
            },
            1);
    });
}

TEST_F(WeightsOutOfMemory, RowsOfTensorsAreGathered) {
    in_child([](Scene& scene) {
        const std::vector<std::byte> data = support::pattern(40 * 100, 3);
        State state;
        state.tensors.push_back({"t", "U8", {40, 100}, std::span(data)});
        const std::string path = scene.folder + "/file.safetensors";
        save_file(scene.engine, path, state);
        const TensorTable table = inspect(scene.engine, path);
        const std::vector<std::string> names{"t"};
        const std::vector<std::uint64_t> ids{7, 0, 39, 7};
        std::vector<std::byte> out(ids.size() * 100);
        return each(
            scene,
            [&](Attempt& attempt) -> std::string {
                std::fill(out.begin(), out.end(), kUntouched);
                const bool through = attempt([&] {
                    TensorRows rows(scene.engine, table, names);
                    rows.gather(ids, out);
                    rows.gather_async(ids, out).wait();
                    rows.close();
                });
                scene.engine->drain();
                for (std::size_t i = 0; i < ids.size() && through; ++i) {
                    if (!std::equal(&out[i * 100], &out[i * 100] + 100, &data[ids[i] * 100])) {
                        return "wrong bytes";
                    }
                }
                return "";
            },
            1);
    });
}

}  // namespace
}  // namespace penstock
