// SPDX-License-Identifier: Apache-2.0
#include "device/mover/small_copies.hpp"

#include "base/assert.hpp"
#include "base/clock.hpp"
#include "base/result.hpp"
#include "device/cuda/context.hpp"
#include "device/cuda/driver.hpp"
#include "device/cuda/owned.hpp"
#include "device/cuda/pointer.hpp"
#include "device/mover/stream_order.hpp"
#include "memory/block.hpp"

#include <time.h>

#include <algorithm>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace penstock::device {

using namespace cuda;  // NVIDIA's names, as in its documents

namespace {

// A copy of 64 KiB takes 10 us. Other work of the GPU may come before it.
constexpr base::Nanos kSpin = 200'000;
constexpr base::Nanos kNap = 20'000;
// A GPU that does not answer for so long after an error has let go of its copies.
constexpr base::Nanos kPatience = 10'000'000'000;

/// The objects of one copy at a time.
struct Kit {
    std::int32_t device = 0;
    CUcontext context = nullptr;
    memory::Block buffer;
    PinnedPages pages;  // ends before the memory does
    Stream stream;
    Event event;
};

/// nullptr where the driver refuses.
std::unique_ptr<Kit> make_kit(const Driver& driver, CUcontext context, std::int32_t device) {
    std::unique_ptr<Kit> kit(new (std::nothrow) Kit);
    if (kit == nullptr) {
        return nullptr;
    }
    kit->device = device;
    kit->context = context;
    // A child of a fork has not got it: it would share pages that a device writes to.
    auto block = memory::Block::make(engine::SmallCopy::kBytes, {.keep_on_fork = false});
    if (!block) {
        return nullptr;
    }
    kit->buffer = std::move(*block);
    const Current current(driver, context);
    const bool made =
        kit->stream.make_in(current).ok() && kit->event.make_in(current).ok() &&
        kit->pages.make_in(current, kit->buffer.bytes(), PinnedPages::Pages::kNew).ok();
    return made ? std::move(kit) : nullptr;
}

class Kits {
public:
    /// Never destroyed: CUDA's objects are left alone when the process ends.
    static Kits& all() {
        static auto* const kits = new Kits;
        return *kits;
    }
    std::unique_ptr<Kit> take(const Driver& driver, std::int32_t device) {
        const auto context = primary_context(driver, device);
        if (!context) {
            return nullptr;
        }
        {
            const std::lock_guard guard(mutex_);
            const auto found = std::find_if(idle_.rbegin(), idle_.rend(), [&](const auto& kit) {
                return kit->device == device && kit->context == *context;
            });
            if (found != idle_.rend()) {
                auto kit = std::move(*found);
                idle_.erase(std::next(found).base());
                return kit;
            }
            if (made_ == kSmallCopiesMax) {
                return nullptr;
            }
            ++made_;
        }
        auto kit = make_kit(driver, *context, device);
        if (kit == nullptr) {
            const std::lock_guard guard(mutex_);
            --made_;
        }
        return kit;
    }
    void give_back(std::unique_ptr<Kit> kit) noexcept {
        const std::lock_guard guard(mutex_);
        PENSTOCK_ASSERT(idle_.size() < made_);
        idle_.push_back(std::move(kit));
    }
    void one_less() noexcept {
        const std::lock_guard guard(mutex_);
        PENSTOCK_ASSERT(made_ > idle_.size() + kept_.size());
        --made_;
    }
    /// Takes what may be written to until the process ends.
    void keep(std::unique_ptr<Kit> kit) noexcept {
        const std::lock_guard guard(mutex_);
        PENSTOCK_ASSERT(kept_.size() < made_);
        kept_.push_back(std::move(kit));
    }

private:
    Kits() {
        idle_.reserve(kSmallCopiesMax);
        kept_.reserve(kSmallCopiesMax);
    }
    std::mutex mutex_;
    std::vector<std::unique_ptr<Kit>> idle_;
    std::vector<std::unique_ptr<Kit>> kept_;
    unsigned made_ = 0;
};

class Copy final : public engine::SmallCopy {
public:
    explicit Copy(const Driver& driver) : driver_(driver) {}
    Copy(const Copy&) = delete;
    Copy& operator=(const Copy&) = delete;
    ~Copy() override {
        if (kit_ == nullptr) {
            return;
        }
        if (sound_) {
            Kits::all().give_back(std::move(kit_));
        } else if (idle_) {
            kit_.reset();
            Kits::all().one_less();
        } else {
            Kits::all().keep(std::move(kit_));
        }
    }

    [[nodiscard]] std::byte* buffer() const override { return kit_->buffer.data(); }
    [[nodiscard]] bool copy_in(const Memory& to) override {
        return run([&] {
            return driver_.cuMemcpyHtoDAsync(address_of(to), buffer(), to.bytes,
                                             kit_->stream.get());
        });
    }
    [[nodiscard]] bool copy_out(const Memory& from) override {
        return run([&] {
            return driver_.cuMemcpyDtoHAsync(buffer(), address_of(from), from.bytes,
                                             kit_->stream.get());
        });
    }
    /// False where there is nothing to copy with now, or the streams are not so far.
    [[nodiscard]] bool begin(std::int32_t device, std::span<const StreamHandle> streams) {
        kit_ = Kits::all().take(driver_, device);
        return kit_ != nullptr &&
               have_passed(driver_, streams, device, kit_->context, kit_->event.get());
    }

private:
    static CUdeviceptr address_of(const Memory& memory) {
        return static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(memory.data));
    }

    template <typename Start>
    bool run(Start&& start) {
        const Current current(driver_, kit_->context);
        CUresult result = current.result();
        if (result != CUDA_SUCCESS) {
            return false;
        }
        sound_ = false;
        result = start();
        if (result == CUDA_SUCCESS) {
            result = driver_.cuEventRecord(kit_->event.get(), kit_->stream.get());
        }
        if (result == CUDA_SUCCESS) {
            result = await([&] { return driver_.cuEventQuery(kit_->event.get()); });
        }
        sound_ = result == CUDA_SUCCESS;
        // The transfer that does it again must not meet a copy that is still out. A refused answer
        // says nothing of it.
        idle_ = sound_ ||
                await([&] { return driver_.cuStreamQuery(kit_->stream.get()); }) == CUDA_SUCCESS;
        return sound_;
    }

    template <typename Ask>
    static CUresult await(Ask&& ask) {
        const base::SteadyClock clock;
        const base::Nanos begin = clock.now();
        while (true) {
            const CUresult result = ask();
            const base::Nanos waited = clock.now() - begin;
            if (result != CUDA_ERROR_NOT_READY || waited > kPatience) {
                return result;
            }
            if (waited > kSpin) {
                const timespec nap{0, kNap};
                ::nanosleep(&nap, nullptr);
            }
        }
    }

    const Driver& driver_;
    std::unique_ptr<Kit> kit_;
    bool sound_ = true;  ///< no call failed
    bool idle_ = true;   ///< nothing is on its stream
};

}  // namespace

std::unique_ptr<engine::SmallCopy> take_small_copy(const Memory& memory,
                                                   std::span<const StreamHandle> streams) {
    const Driver* const driver = loaded_driver();
    if (driver == nullptr || !may_call_driver()) {
        return nullptr;
    }
    auto taken = base::as_result("gpu", [&]() -> base::Result<std::unique_ptr<engine::SmallCopy>> {
        PENSTOCK_CHECK(check_memory(*driver, memory));
        auto copy = std::make_unique<Copy>(*driver);
        if (!copy->begin(memory.device, streams)) {
            copy.reset();
        }
        return std::unique_ptr<engine::SmallCopy>(std::move(copy));
    });
    return taken ? std::move(*taken) : nullptr;
}

}  // namespace penstock::device
