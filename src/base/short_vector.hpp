// SPDX-License-Identifier: Apache-2.0
// A vector whose first item, as long as it is alone, lies in the object itself: most lists of files
// and extents have one item, and then nothing is allocated for them.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <utility>
#include <vector>

namespace penstock::base {

/// Items are made without arguments, move without an exception, and are contiguous. Movable; a
/// vector that was moved from is empty.
template <typename T>
class ShortVector {
public:
    ShortVector() = default;
    ShortVector(std::initializer_list<T> items) {
        reserve(items.size());
        for (const T& item : items) {
            push_back(item);
        }
    }
    /// Takes the memory of a list as it is.
    explicit ShortVector(std::vector<T>&& items) noexcept
        : many_(std::move(items)), items_(many_.data()), size_(many_.size()) {}
    ShortVector(ShortVector&& other) noexcept { take(other); }
    ShortVector& operator=(ShortVector&& other) noexcept {
        if (this != &other) {
            clear();
            take(other);
        }
        return *this;
    }
    ShortVector(const ShortVector&) = delete;
    ShortVector& operator=(const ShortVector&) = delete;
    ~ShortVector() = default;

    [[nodiscard]] std::size_t size() const { return size_; }
    [[nodiscard]] bool empty() const { return size_ == 0; }
    [[nodiscard]] T* data() { return items_; }
    [[nodiscard]] const T* data() const { return items_; }
    [[nodiscard]] T* begin() { return items_; }
    [[nodiscard]] T* end() { return items_ + size_; }
    [[nodiscard]] const T* begin() const { return items_; }
    [[nodiscard]] const T* end() const { return items_ + size_; }
    [[nodiscard]] T& operator[](std::size_t index) { return items_[index]; }
    [[nodiscard]] const T& operator[](std::size_t index) const { return items_[index]; }
    [[nodiscard]] T& front() { return *items_; }
    [[nodiscard]] const T& front() const { return *items_; }
    [[nodiscard]] T& back() { return items_[size_ - 1]; }

    // These throw and change nothing where memory runs out.
    void reserve(std::size_t count) {
        if (count > 1) {
            grow(count);
        }
    }
    void resize(std::size_t count) {
        if (count == 0) {
            clear();
        } else if (count > 1 || !lies_here()) {
            grow(count);
            many_.resize(count);
            items_ = many_.data();
            size_ = count;
        } else {
            size_ = 1;
        }
    }
    void push_back(T item) {
        if (size_ == 0 && lies_here()) {
            one_ = std::move(item);
        } else {
            if (lies_here()) {
                grow(2);
            }
            many_.push_back(std::move(item));
            items_ = many_.data();
        }
        ++size_;
    }
    /// Gives its memory back, too.
    void clear() noexcept {
        if (lies_here()) {
            if (size_ != 0) {
                one_ = T();
            }
        } else {
            many_ = std::vector<T>();
            items_ = &one_;
        }
        size_ = 0;
    }

private:
    [[nodiscard]] bool lies_here() const { return items_ == &one_; }

    // Room for so many in `many_`, with what there is.
    void grow(std::size_t count) {
        many_.reserve(count);
        if (lies_here() && size_ != 0) {
            many_.push_back(std::exchange(one_, T()));
        }
        items_ = many_.data();
    }

    void take(ShortVector& other) noexcept {
        if (other.lies_here()) {
            if (other.size_ != 0) {
                one_ = std::exchange(other.one_, T());
            }
        } else {
            many_ = std::move(other.many_);
            items_ = std::exchange(other.items_, &other.one_);
        }
        size_ = std::exchange(other.size_, 0);
    }

    T one_{};
    std::vector<T> many_;
    T* items_ = &one_;
    std::size_t size_ = 0;
};

}  // namespace penstock::base
