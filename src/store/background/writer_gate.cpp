// SPDX-License-Identifier: Apache-2.0
#include "store/background/writer_gate.hpp"

#include "base/assert.hpp"
#include "base/raise.hpp"

#include <fmt/format.h>
#include <unistd.h>

namespace penstock::store {

namespace {

constexpr const char* kOperation = "save checkpoint";

}  // namespace

void WriterGate::check_open() const {
    if (closed_) {
        base::raise(base::error(ErrorCode::kClosed, kOperation,
                                "the store is closed; make another one", folder_));
    }
}

bool WriterGate::is_of_parent() const {
    const pid_t owner = process_;
    return owner != 0 && owner != ::getpid();
}

void WriterGate::check() {
    check_open();
    pid_t owner = 0;
    if (!process_.compare_exchange_strong(owner, ::getpid()) && owner != ::getpid()) {
        base::raise(base::error(ErrorCode::kInvalidArgument, kOperation,
                                fmt::format("this process was forked from {}, which writes to this "
                                            "store; only that one may",
                                            owner),
                                folder_));
    }
    check_not_inside();
}

void WriterGate::check_not_inside() const {
    if (thread_ == std::this_thread::get_id()) {
        base::raise(base::error(ErrorCode::kInvalidArgument, kOperation,
                                "the progress function of a save of this store called this; call "
                                "it when that save has returned",
                                folder_));
    }
}

WriterGate::Hold::Hold(WriterGate& gate) : gate_(gate), guard_(gate.mutex_) {
    PENSTOCK_ASSERT(gate_.thread_ == std::thread::id());  // one writer at a time
    gate_.thread_ = std::this_thread::get_id();
}

}  // namespace penstock::store
