// SPDX-License-Identifier: Apache-2.0
// The parts of one class that wait, in flows: what one group of transfers, one File or one call by
// path asks for is a flow, and all transfers of at most a block are one. Flows take turns by bytes
// (deficit round robin): a flow draws until its credit is used up, gets a block of credit, and goes
// to the back. Inside a flow parts are first in, first out.
//
// The flow of small transfers keeps its credit while it is empty, and enters at the front while it
// has some: a small transfer waits for no turn, and a stream of them gets a flow's share and no
// more.
//
// A flow lives in one of its parts, and moves to the first when that one goes. So nothing
// allocates, and a request costs the same however many flows there are.
#pragma once

#include "base/assert.hpp"
#include "base/intrusive.hpp"
#include "engine/transfer.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

namespace penstock::engine {

class Flows {
public:
    /// `small_bytes`: the most that a transfer of the small flow has. `turn_bytes`: of a turn.
    Flows(std::uint64_t small_bytes, std::uint64_t turn_bytes)
        : small_bytes_(small_bytes), turn_bytes_(static_cast<std::int64_t>(turn_bytes)) {
        small_.credit_bytes = turn_bytes_;
    }
    Flows(const Flows&) = delete;
    Flows& operator=(const Flows&) = delete;

    [[nodiscard]] bool empty() const { return turns_.empty(); }

    void push_back(Part& part) {
        Flow& flow = flow_of(part);
        part.link.next = nullptr;
        (flow.first == nullptr ? flow.first : flow.last->link.next) = &part;
        flow.last = &part;
    }
    void push_front(Part& part) {
        Flow& flow = flow_of(part);
        part.link.next = flow.first;
        flow.last = flow.first == nullptr ? &part : flow.last;
        flow.first = &part;
    }

    /// The part whose turn it is, or nullptr.
    [[nodiscard]] Part* front() {
        Flow* flow = turns_.front();
        while (flow != nullptr && flow->credit_bytes <= 0) {
            flow->credit_bytes += turn_bytes_;
            turns_.push_back(*turns_.pop_front());
            flow = turns_.front();
        }
        return flow == nullptr ? nullptr : flow->first;
    }
    /// `bytes` of the part that front() gave are on their way.
    void charge(std::uint64_t bytes) {
        turns_.front()->credit_bytes -= static_cast<std::int64_t>(bytes);
    }
    /// Takes out the part that front() gave.
    void pop_front() {
        Flow& flow = *turns_.pop_front();
        Part& part = *flow.first;
        flow.first = std::exchange(part.link.next, nullptr);
        if (flow.first == nullptr) {
            forget(flow);
        } else if (&flow == &part.flow) {
            turns_.push_front(move(flow, flow.first->flow));
        } else {
            turns_.push_front(flow);
        }
    }

    /// Takes out the parts that `keep` says no to; the others keep their order and their turns.
    template <typename Keep>
    void take_unless(const Keep& keep, base::Fifo<Part>& out) {
        base::Fifo<Flow> turns = std::exchange(turns_, {});
        while (Flow* flow = turns.pop_front()) {
            Part* part = std::exchange(flow->first, nullptr);
            PENSTOCK_ASSERT(part != nullptr);  // a flow without parts has no turn
            while (part != nullptr) {
                Part* const next = std::exchange(part->link.next, nullptr);
                if (!keep(std::as_const(*part))) {
                    out.push_back(*part);
                } else if (flow->first == nullptr) {
                    flow->first = flow->last = part;
                } else {
                    flow->last = flow->last->link.next = part;
                }
                part = next;
            }
            if (flow->first == nullptr) {
                forget(*flow);
            } else {
                turns_.push_back(flow == &small_ ? small_ : move(*flow, flow->first->flow));
            }
        }
    }

private:
    static constexpr std::size_t kBuckets = 64;

    [[nodiscard]] Flow*& bucket(const void* key) {
        return buckets_[std::hash<const void*>{}(key) / 64 % kBuckets];
    }

    // The flow that a part belongs to, which takes its place among the turns if it is new.
    [[nodiscard]] Flow& flow_of(Part& part) {
        const Transfer& transfer = *part.transfer;
        const void* key = transfer.group;
        if (key == nullptr && transfer.total_bytes <= small_bytes_) {
            if (small_.first == nullptr) {
                enter_small();
            }
            return small_;
        }
        if (key == nullptr) {
            key = transfer.paths.empty() ? static_cast<const void*>(transfer.files.front().get())
                                         : &transfer;
        }
        for (Flow* flow = bucket(key); flow != nullptr; flow = flow->next_in_bucket) {
            if (flow->key == key) {
                return *flow;
            }
        }
        Flow& own = part.flow;
        own.next_in_bucket = std::exchange(bucket(key), &own);
        own.key = key;
        own.first = nullptr;
        own.credit_bytes = turn_bytes_;
        turns_.push_back(own);
        return own;
    }

    void enter_small() {
        if (small_.credit_bytes > 0) {
            turns_.push_front(small_);
        } else {
            small_.credit_bytes += turn_bytes_;
            turns_.push_back(small_);
        }
    }

    // The place that points at a flow in its bucket.
    [[nodiscard]] Flow*& place_of(const Flow& flow) {
        Flow** place = &bucket(flow.key);
        while (*place != &flow) {
            PENSTOCK_ASSERT(*place != nullptr);  // it is in its bucket while it has parts
            place = &(*place)->next_in_bucket;
        }
        return *place;
    }
    void forget(const Flow& flow) {
        if (&flow != &small_) {
            place_of(flow) = flow.next_in_bucket;
        }
    }
    // Out of turn meanwhile.
    [[nodiscard]] Flow& move(const Flow& from, Flow& to) {
        if (&from != &to) {
            PENSTOCK_ASSERT(&from != &small_);  // it is in no part, and in no bucket
            place_of(from) = &to;
            to = from;
        }
        return to;
    }

    const std::uint64_t small_bytes_;
    const std::int64_t turn_bytes_;
    base::Fifo<Flow> turns_;
    std::array<Flow*, kBuckets> buckets_{};
    Flow small_;
};

}  // namespace penstock::engine
