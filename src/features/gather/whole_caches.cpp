// SPDX-License-Identifier: Apache-2.0
#include "features/gather/whole_caches.hpp"

#include <algorithm>

namespace penstock::features {

namespace {

class FifoCache final : public WholeCache {
public:
    FifoCache(std::uint64_t slots, std::size_t rows) : slots_(slots), has_(rows) {}

    [[nodiscard]] bool has(std::uint32_t row) const override { return has_[row]; }
    void use(std::uint32_t /*row*/, std::uint64_t /*next*/) override {}
    void add(std::uint32_t row, std::uint64_t /*next*/) override {
        if (slots_ == 0) {
            return;
        }
        if (queue_.size() == slots_) {
            has_[queue_.front()] = false;
            queue_.pop_front();
        }
        has_[row] = true;
        queue_.push_back(row);
    }

private:
    std::uint64_t slots_;
    std::vector<bool> has_;
    std::deque<std::uint32_t> queue_;
};

class LruCache final : public WholeCache {
public:
    LruCache(std::uint64_t slots, std::size_t rows)
        : slots_(slots), has_(rows), places_(rows, order_.end()) {}

    [[nodiscard]] bool has(std::uint32_t row) const override { return has_[row]; }
    void use(std::uint32_t row, std::uint64_t /*next*/) override {
        order_.splice(order_.end(), order_, places_[row]);
    }
    void add(std::uint32_t row, std::uint64_t /*next*/) override {
        if (slots_ == 0) {
            return;
        }
        if (order_.size() == slots_) {
            has_[order_.front()] = false;
            order_.pop_front();
        }
        has_[row] = true;
        places_[row] = order_.insert(order_.end(), row);
    }

private:
    std::uint64_t slots_;
    std::vector<bool> has_;
    std::list<std::uint32_t> order_;
    std::vector<std::list<std::uint32_t>::iterator> places_;
};

// The queues of Yang et al.: small, main, and the ghosts of what left small.
class WholeS3Cache final : public WholeCache {
public:
    WholeS3Cache(std::uint64_t slots, std::size_t rows)
        : slots_(slots),
          small_slots_(std::max<std::uint64_t>(slots / 10, 1)),
          has_(rows),
          uses_(rows),
          ghost_(rows) {}

    [[nodiscard]] bool has(std::uint32_t row) const override { return has_[row]; }
    void use(std::uint32_t row, std::uint64_t /*next*/) override {
        uses_[row] = static_cast<std::uint8_t>(std::min(uses_[row] + 1, 3));
    }
    void add(std::uint32_t row, std::uint64_t /*next*/) override {
        if (slots_ == 0) {
            return;
        }
        while (small_.size() + main_.size() >= slots_) {
            evict();
        }
        has_[row] = true;
        uses_[row] = 0;
        if (ghost_[row] != 0) {
            ghost_[row] = 0;
            main_.push_back(row);
        } else {
            small_.push_back(row);
        }
    }

private:
    void evict() {
        if (main_.empty() || small_.size() >= small_slots_) {
            evict_small();
        } else {
            evict_main();
        }
    }

    // Takes one row from small; it goes to main or out.
    void evict_small() {
        const std::uint32_t row = small_.front();
        small_.pop_front();
        if (uses_[row] > 1) {
            uses_[row] = 0;
            main_.push_back(row);
            return;
        }
        has_[row] = false;
        // A row that came back left a place behind among the ghosts, which counts until it is old.
        if (ghosts_.size() >= std::max<std::uint64_t>(slots_ - small_slots_, 1)) {
            const auto [old, number] = ghosts_.front();
            ghosts_.pop_front();
            if (ghost_[old] == number) {
                ghost_[old] = 0;
            }
        }
        ghost_[row] = ++number_;
        ghosts_.push_back({row, number_});
    }

    void evict_main() {
        for (;;) {
            const std::uint32_t row = main_.front();
            main_.pop_front();
            if (uses_[row] == 0) {
                has_[row] = false;
                return;
            }
            --uses_[row];
            main_.push_back(row);
        }
    }

    struct Ghost {
        std::uint32_t row;
        std::uint64_t number;
    };

    std::uint64_t slots_;
    std::uint64_t small_slots_;
    std::vector<bool> has_;
    std::vector<std::uint8_t> uses_;
    std::vector<std::uint64_t> ghost_;  // of a row: the number of its ghost; 0: none
    std::deque<std::uint32_t> small_;
    std::deque<std::uint32_t> main_;
    std::deque<Ghost> ghosts_;
    std::uint64_t number_ = 0;
};

// Rows that are there lie in the lists of the batches that use them next, the last list those that
// none does. What a list has of a row is out of date when the row's next batch is another.
class BeladyCache final : public WholeCache {
public:
    BeladyCache(std::uint64_t slots, std::size_t rows, std::size_t batches)
        : slots_(slots), next_(rows, kNone), waiting_(batches + 1) {}

    [[nodiscard]] bool has(std::uint32_t row) const override { return next_[row] != kNone; }
    void use(std::uint32_t row, std::uint64_t next) override { put(row, next); }
    void add(std::uint32_t row, std::uint64_t next) override {
        if (slots_ == 0) {
            return;
        }
        if (held_ == slots_) {
            const std::uint64_t its = std::min<std::uint64_t>(next, waiting_.size() - 1);
            const std::uint64_t farthest = farthest_list();
            if (farthest <= its) {
                return;
            }
            next_[waiting_[farthest].back()] = kNone;
            waiting_[farthest].pop_back();
            --held_;
        }
        ++held_;
        put(row, next);
    }

private:
    static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

    void put(std::uint32_t row, std::uint64_t next) {
        const std::uint64_t list = std::min<std::uint64_t>(next, waiting_.size() - 1);
        next_[row] = static_cast<std::uint32_t>(list);
        waiting_[list].push_back(row);
        farthest_ = std::max(farthest_, list);
    }

    std::uint64_t farthest_list() {
        for (;; --farthest_) {
            std::vector<std::uint32_t>& list = waiting_[farthest_];
            while (!list.empty() && next_[list.back()] != farthest_) {
                list.pop_back();
            }
            if (!list.empty() || farthest_ == 0) {
                return farthest_;
            }
        }
    }

    std::uint64_t slots_;
    std::uint64_t held_ = 0;
    std::vector<std::uint32_t> next_;
    std::vector<std::vector<std::uint32_t>> waiting_;
    std::uint64_t farthest_ = 0;
};

}  // namespace

std::unique_ptr<WholeCache> make_whole_cache(std::string_view name, std::uint64_t slots,
                                             std::size_t rows, std::size_t batches) {
    if (name == "fifo") {
        return std::make_unique<FifoCache>(slots, rows);
    }
    if (name == "lru") {
        return std::make_unique<LruCache>(slots, rows);
    }
    if (name == "s3fifo_whole") {
        return std::make_unique<WholeS3Cache>(slots, rows);
    }
    if (name == "belady") {
        return std::make_unique<BeladyCache>(slots, rows, batches);
    }
    return nullptr;
}

}  // namespace penstock::features
