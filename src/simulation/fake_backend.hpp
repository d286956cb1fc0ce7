// SPDX-License-Identifier: Apache-2.0
// The backend of fake files. A request is due at the time that its disk's model gives, and done
// then; completions come in the order of their times. Under a virtual clock it never sleeps: the
// simulation moves the clock to next_event(). Under a real one it sleeps like any other backend.
#pragma once

#include "base/clock.hpp"
#include "engine/backend.hpp"

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace penstock::simulation {

/// Something that happens at a time; kForever when nothing is due.
class EventSource {
public:
    virtual ~EventSource() = default;
    [[nodiscard]] virtual base::Nanos next_event() const = 0;
};

class FakeBackend final : public engine::Backend, public EventSource {
public:
    FakeBackend(const engine::BackendOptions& options, std::shared_ptr<const base::Clock> clock,
                bool simulated);

    [[nodiscard]] const char* name() const override { return "fake"; }
    [[nodiscard]] std::string detail() const override { return "a disk in memory"; }
    [[nodiscard]] bool takes_buffered() const override { return true; }
    void push(engine::Request& request) override { pushed_.push_back(&request); }
    void enter(std::uint32_t want, base::Nanos timeout) override;
    std::size_t reap(std::span<engine::Request*> done) override;
    void wake() override;

    [[nodiscard]] base::Nanos next_event() const override;

private:
    struct Due {
        base::Nanos when;
        std::uint64_t order;
        engine::Request* request;
    };
    static bool later(const Due& a, const Due& b);
    [[nodiscard]] std::uint32_t count_due(base::Nanos now) const;

    std::shared_ptr<const base::Clock> clock_;
    const bool simulated_;
    std::vector<engine::Request*> pushed_;
    std::vector<Due> due_;  ///< a heap, the earliest first
    std::uint64_t order_ = 0;
    std::mutex mutex_;
    std::condition_variable woken_;
    bool wake_ = false;
};

}  // namespace penstock::simulation
