// SPDX-License-Identifier: Apache-2.0
// Several transfers; one thread takes them in the order in which they end.
//
//     penstock::TransferGroup group;
//     for (auto& block : blocks) {
//         group.add(engine.read_async(file, block.memory, block.offset));
//     }
//     while (auto ended = group.wait_any()) {
//         ended->transfer.wait();         // bytes, or its error; does not block
//         use(blocks[ended->number]);
//     }
#pragma once

#include <penstock/engine.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

namespace penstock {

/// Running transfers of one or several engines. One thread at a time may use a group, except for
/// wake(). In the child of a fork() the parent's transfers end as cancelled.
class PENSTOCK_API TransferGroup {
public:
    /// A finished transfer, and the number that add() gave it.
    struct Ended {
        std::uint64_t number = 0;
        Transfer transfer;
    };

    TransferGroup();
    TransferGroup(const TransferGroup&) = delete;
    TransferGroup& operator=(const TransferGroup&) = delete;
    /// Cancels, and waits until the memory of all transfers is no longer in use. Errors of these
    /// transfers are dropped.
    ~TransferGroup();

    /// Adds a transfer, which may have ended. Numbers count from 0 in the order of the calls.
    /// Throws kInvalidArgument for an empty handle, and std::bad_alloc: the transfer has then been
    /// cancelled and waited for.
    std::uint64_t add(Transfer transfer);
    /// The first transfer to end of those that were not returned yet, also if it failed. Nothing if
    /// the group is empty, after `timeout`, or after wake(). Errors of a transfer are thrown by its
    /// own Transfer::wait().
    [[nodiscard]] std::optional<Ended> wait_any(
        std::chrono::nanoseconds timeout = std::chrono::nanoseconds::max());
    /// Transfers that were added and not returned.
    [[nodiscard]] std::size_t size() const noexcept;
    [[nodiscard]] bool empty() const noexcept { return size() == 0; }
    /// Cancels all of them; wait_any() returns each.
    void cancel();
    /// Ends the running wait_any(), or else the next one that would wait. Any thread.
    void wake() noexcept;

private:
    struct State;
    std::shared_ptr<State> state_;
};

}  // namespace penstock
