// SPDX-License-Identifier: Apache-2.0
// A call of acquire() takes a wave: all experts that it is given, if there are slots for them, else
// as many as half the slots, and others are read ahead into the other half for the next call. One
// transfer reads all that a wave lacks. A slot is held by the wave until release(), and by the
// transfer that reads it until that is done; slots that are not held may be taken.
//
// When the last wave of a layer is in memory, likely experts of the next layer are read, each by a
// transfer of its own. Of these, the next layer cancels what it does not need, after it has asked
// for what it lacks.
#pragma once

#include "tier/budget.hpp"
#include "tier/slots.hpp"
#include "weights/experts/expert_cache.hpp"
#include "weights/experts/expert_forecast.hpp"
#include "weights/experts/expert_layout.hpp"
#include "weights/read/sources.hpp"

#include <penstock/weights.hpp>

#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace penstock {

class weights::StreamingExperts {
public:
    static constexpr std::size_t kNone = ~std::size_t{0};
    using Expert = ExpertCache::Expert;
    using Chosen = std::vector<std::pair<std::size_t, Expert>>;  // with their slots
    // The experts that one transfer reads.
    struct Reading {
        CopiedRead transfer;
        Chosen experts;
        bool is_likely = false;
        bool is_dropped = false;  // it was cancelled: its slot has nothing
    };

    StreamingExperts(std::shared_ptr<Engine> its_engine, const TensorTable& table,
                     std::vector<ExpertLayer> its_layers, const ExpertStreamOptions& options,
                     const FileSystem& files)
        : engine(std::move(its_engine)),
          layers(std::move(its_layers)),
          layout(lay_out_experts(table, layers, options.gpu)),
          sources(*engine, files, table, options.copies),
          cache(0, {}),
          budget(options.memory_bytes, options.spare, options.spare_interval),
          gpu(options.gpu),
          slots(layout.experts, layout.slot_bytes, gpu) {
        std::vector<std::size_t> experts;
        for (std::size_t i = 0; i < layers.size(); ++i) {
            experts.push_back(layers[i].experts.size());
            for (std::size_t number = 0; number < layers[i].experts.size(); ++number) {
                const StoredExpert& expert = layout.of(i, number);
                for (std::size_t part = 0; part < expert.parts.size(); ++part) {
                    sources.check_ends(expert.parts[part], layers[i].experts[number][part].tensor);
                }
            }
        }
        check_budget(options.memory_bytes);
        cache = ExpertCache(0, experts);
        if (options.read_likely) {
            forecast.emplace(experts);
        }
        if (gpu) {
            queue = GpuStream(*gpu);
        }
        stats.slot_bytes = layout.slot_bytes;
        use(options.memory_bytes);
    }
    StreamingExperts(const StreamingExperts&) = delete;
    StreamingExperts& operator=(const StreamingExperts&) = delete;
    ~StreamingExperts() { close(); }

    void check_usable() const;
    void check_budget(std::uint64_t memory_bytes) const;
    void check_call(std::size_t layer, std::span<const std::size_t> experts) const;
    void use(std::uint64_t memory_bytes);
    bool acquire(std::size_t layer, std::span<const std::size_t> experts,
                 std::chrono::nanoseconds timeout);
    void begin(std::size_t layer, std::span<const std::size_t> experts);
    void take_wave(std::size_t layer, std::span<const std::size_t> experts);
    void read_ahead(std::size_t layer, std::span<const std::size_t> experts);
    std::size_t slot_for(Expert expert);
    void learn(std::size_t layer, std::span<const std::size_t> experts);
    void read_likely() noexcept;
    void read_likely_next();
    void drop_unlikely() noexcept;
    bool read(const Chosen& missing, Priority priority);
    bool wait(std::chrono::nanoseconds timeout);
    void reap();
    void end(Reading& reading, bool is_valid) noexcept;
    void cancel(Reading& reading) noexcept;
    [[nodiscard]] bool is_wanted(const Reading& reading) const;
    [[nodiscard]] bool was_read_ahead(Expert expert) const;
    [[noreturn]] void rethrow(const Error& error, const Chosen& experts) const;
    [[nodiscard]] std::vector<ExpertView> views() const;
    void release() noexcept;
    void stop_all() noexcept;
    void close() noexcept;

    std::shared_ptr<Engine> engine;
    std::vector<ExpertLayer> layers;
    ExpertLayout layout;
    Sources sources;
    ExpertCache cache;
    std::optional<ExpertForecast> forecast;  // where likely experts are read
    tier::Budget budget;
    std::optional<std::int32_t> gpu;
    GpuStream queue;  // with a GPU: holds what used the slots that were released
    tier::Slots slots;
    std::vector<Reading> readings;
    std::vector<std::size_t> asked;  // numbers of the wave, in the order of the call
    Chosen wave;                     // held
    Chosen ahead;                    // read for the next wave of the same layer
    Chosen likely;                   // read for the next layer, and not judged yet
    bool is_last_wave = false;       // of the layer
    std::size_t last_layer = kNone;
    bool is_acquired = false;  // the wave, else it is waited for
    bool closed = false;
    pid_t process = ::getpid();
    ExpertStreamStats stats;
};

}  // namespace penstock
