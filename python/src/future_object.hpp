// SPDX-License-Identifier: Apache-2.0
// penstock.Future: what is under way, or over. Transfer and PendingSave are such; what they have in
// common is bound once, in bind_future.cpp.
#pragma once

#include "nanobind.hpp"

#include <string>

namespace penstock::python {

/// All with the GIL.
class FutureObject {
public:
    FutureObject() = default;
    FutureObject(const FutureObject&) = default;
    FutureObject(FutureObject&&) = default;
    FutureObject& operator=(const FutureObject&) = default;
    FutureObject& operator=(FutureObject&&) = default;
    virtual ~FutureObject() = default;

    /// Never blocks.
    [[nodiscard]] virtual bool done() = 0;
    [[nodiscard]] virtual bool cancelled() = 0;
    virtual void cancel() = 0;
    /// Until it is done, without the GIL, in slices: false when the time is over. Raises what a
    /// handler of a signal does. `timeout_s` < 0: no limit.
    [[nodiscard]] virtual bool wait(double timeout_s) = 0;
    /// Gives the result of one that is done, or throws its error.
    [[nodiscard]] virtual nb::object value() = 0;
    /// See Transfer::notify().
    virtual void notify(int eventfd) = 0;
    /// Whether done() has something to do at the end that must come before the user hears of the
    /// end: notify() does not wait for it.
    [[nodiscard]] virtual bool works_at_end() const { return false; }
    /// "the transfer", for messages.
    [[nodiscard]] virtual std::string name() const = 0;
};

}  // namespace penstock::python
