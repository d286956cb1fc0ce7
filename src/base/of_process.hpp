// SPDX-License-Identifier: Apache-2.0
// Objects with a mutex or threads, after a fork. Another thread may have held the mutex, which is
// then held forever in the child, or may have left a list half changed. So a child touches nothing
// of the parent's, not even to destroy it, and makes one of its own at first use.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <new>
#include <utility>

namespace penstock::base {

/// Keeps a share of it forever. It allocates nothing, as destructors call it.
template <typename T>
void leave_to_parent(std::shared_ptr<T> its) noexcept {
    alignas(std::shared_ptr<T>) std::byte kept[sizeof(its)];
    static_cast<void>(new (kept) std::shared_ptr<T>(std::move(its)));  // never destroyed
}

/// The T of this process. Thread-safe, and without a mutex of its own.
template <typename T>
class OfProcess {
public:
    explicit OfProcess(std::function<std::shared_ptr<T>()> make)
        : make_(std::move(make)), made_(new Made{::getpid(), make_()}) {}
    OfProcess(const OfProcess&) = delete;
    OfProcess& operator=(const OfProcess&) = delete;
    ~OfProcess() {
        if (is_made()) {
            delete made_.load();
        }
    }

    /// False in the child of a fork, until its first get().
    [[nodiscard]] bool is_made() const { return made_.load()->process == ::getpid(); }
    [[nodiscard]] const std::shared_ptr<T>& get() const {
        Made* known = made_.load(std::memory_order_acquire);
        while (known->process != ::getpid()) {
            auto made = std::make_unique<Made>(Made{::getpid(), make_()});
            if (made_.compare_exchange_strong(known, made.get())) {
                known = made.release();
            }
        }
        return known->it;
    }
    T* operator->() const { return get().get(); }
    T& operator*() const { return *get(); }

private:
    struct Made {
        pid_t process;
        std::shared_ptr<T> it;
    };

    std::function<std::shared_ptr<T>()> make_;
    mutable std::atomic<Made*> made_;
};

}  // namespace penstock::base
