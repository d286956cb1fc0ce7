// SPDX-License-Identifier: Apache-2.0
// The backend of the inline path: what is pushed is done in enter(), on the caller's thread, with
// blocking calls.
#pragma once

#include "engine/backend.hpp"

namespace penstock::engine {

class SyncBackend final : public Backend {
public:
    [[nodiscard]] const char* name() const override { return "inline"; }
    [[nodiscard]] std::string detail() const override { return "blocking calls, caller's thread"; }
    [[nodiscard]] bool takes_buffered() const override { return true; }
    void push(Request& request) override { pushed_.push_back(request); }
    void enter(std::uint32_t /*want*/, base::Nanos /*timeout*/) override {
        while (Request* request = pushed_.pop_front()) {
            request->result =
                request->op == Op::kRead
                    ? request->file->read_at(request->lane, request->offset, request->pieces)
                    : request->file->write_at(request->lane, request->offset, request->pieces);
            done_.push_back(*request);
        }
    }
    std::size_t reap(std::span<Request*> done) override {
        std::size_t count = 0;
        while (count < done.size() && !done_.empty()) {
            done[count++] = done_.pop_front();
        }
        return count;
    }
    void wake() override {}

private:
    base::Fifo<Request> pushed_;
    base::Fifo<Request> done_;
};

}  // namespace penstock::engine
