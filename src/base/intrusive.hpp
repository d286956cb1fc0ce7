// SPDX-License-Identifier: Apache-2.0
// Lists whose links live in the elements, so that linking neither allocates nor fails.
//
// Fifo: one thread. Inbox: many producers, one consumer, lock-free; the consumer takes everything
// at once, in the order in which it was put.
#pragma once

#include <atomic>
#include <cstddef>

namespace penstock::base {

template <typename T>
struct Link {
    T* next = nullptr;
};

/// A queue of T through its member `link` (a Link<T>).
template <typename T, Link<T> T::*link = &T::link>
class Fifo {
public:
    [[nodiscard]] bool empty() const { return head_ == nullptr; }
    [[nodiscard]] T* front() const { return head_; }
    [[nodiscard]] static T* next(const T& item) { return (item.*link).next; }

    void push_back(T& item) {
        (item.*link).next = nullptr;
        if (tail_ == nullptr) {
            head_ = &item;
        } else {
            (tail_->*link).next = &item;
        }
        tail_ = &item;
    }
    void push_front(T& item) {
        (item.*link).next = head_;
        head_ = &item;
        if (tail_ == nullptr) {
            tail_ = &item;
        }
    }
    T* pop_front() {
        T* item = head_;
        if (item != nullptr) {
            head_ = (item->*link).next;
            if (head_ == nullptr) {
                tail_ = nullptr;
            }
            (item->*link).next = nullptr;
        }
        return item;
    }
    /// Takes everything out of `other`, in order.
    void take(Fifo& other) {
        while (T* item = other.pop_front()) {
            push_back(*item);
        }
    }

private:
    T* head_ = nullptr;
    T* tail_ = nullptr;
};

template <typename T, Link<T> T::*link = &T::link>
class Inbox {
public:
    void put(T& item) {
        T* head = head_.load(std::memory_order_relaxed);
        do {
            (item.*link).next = head;
        } while (!head_.compare_exchange_weak(head, &item, std::memory_order_seq_cst,
                                              std::memory_order_relaxed));
    }
    [[nodiscard]] bool empty() const { return head_.load(std::memory_order_seq_cst) == nullptr; }

    /// Consumer only: takes all elements that were put so far, oldest first.
    [[nodiscard]] Fifo<T, link> take_all() {
        if (head_.load(std::memory_order_relaxed) == nullptr) {
            return {};  // what is put just now comes with the next call
        }
        T* item = head_.exchange(nullptr, std::memory_order_acq_rel);
        Fifo<T, link> in_order;
        while (item != nullptr) {
            T* next = (item->*link).next;
            in_order.push_front(*item);
            item = next;
        }
        return in_order;
    }

private:
    std::atomic<T*> head_{nullptr};
};

}  // namespace penstock::base
