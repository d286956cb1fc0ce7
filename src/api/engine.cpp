// SPDX-License-Identifier: Apache-2.0
#include "api/options.hpp"
#include "api/statistics.hpp"
#include "base/clock.hpp"
#include "base/raise.hpp"
#include "base/wait_slice.hpp"
#include "device/cuda/pointer.hpp"
#include "device/cufile/cufile_path.hpp"
#include "device/mover/gpu_mover.hpp"
#include "device/mover/small_copies.hpp"
#include "device/mover/stream_order.hpp"
#include "engine/core.hpp"
#include "engine/depth_limit.hpp"
#include "engine/fork.hpp"
#include "os/local_file_system.hpp"

#include <penstock/engine.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

namespace penstock {

using base::raise;
using base::unwrap;

struct Engine::Impl {
    EngineOptions options;
    std::shared_ptr<os::FileSystem> file_system;
    /// Points to an owner that does not change and that lives as long as this, so that any thread
    /// may copy it. Another core has another owner.
    std::atomic<const std::shared_ptr<engine::Core>*> core{nullptr};
    std::atomic<bool> closed{false};

    std::shared_ptr<engine::Core> make_core() const {
        return unwrap(engine::Core::make(
            unwrap(api::core_options(options)),
            {.file_system = file_system,
             .backends = api::backends_for(options.backend),
             .clock = std::make_shared<base::SteadyClock>(),
             .make_mover = device::make_mover,
             .device_path = device::make_device_path(options.gpu_path, {}, options.tuned_gpu_paths),
             .make_order = device::make_order,
             .check_devices = device::check_extents,
             .take_small_copy = device::take_small_copy}));
    }

    /// nullptr in the child of a fork, until get(). What it points to is there as long as this is.
    const std::shared_ptr<engine::Core>* alive() const {
        const auto* const now = core.load(std::memory_order_acquire);
        return (*now)->dead() ? nullptr : now;
    }

    // In the child of a fork the inherited core is dead: the first thread makes another one, and
    // the rest wait for it. The dead one is never destroyed, nor is its owner: its threads belong
    // to the parent, and another thread may be using it.
    const std::shared_ptr<engine::Core>& get() {
        if (const auto* const now = alive()) {
            return *now;
        }
        const std::lock_guard lock(engine::renewal_mutex());
        if (const auto* const now = alive()) {
            return *now;
        }
        auto made = std::make_unique<const std::shared_ptr<engine::Core>>(make_core());
        if (closed.load()) {
            (*made)->refuse();
        }
        core.store(made.get(), std::memory_order_release);
        return *made.release();
    }
};

Engine::Engine(const EngineOptions& options) : Engine(options, FileSystem::any()) {}

Engine::Engine(const EngineOptions& options, const FileSystem& file_system)
    : impl_(std::make_unique<Impl>()) {
    if (!file_system.handle()) {
        raise(base::error(ErrorCode::kInvalidArgument, "make an engine",
                          "the file system is empty, or was moved from; FileSystem::any() is "
                          "this machine's"));
    }
    impl_->options = options;
    impl_->file_system = file_system.handle();
    impl_->core = new std::shared_ptr<engine::Core>(impl_->make_core());
}

Engine::~Engine() {
    const auto* const owner = impl_->core.load();
    if ((*owner)->dead()) {
        return;  // never destroyed, see get()
    }
    // Here, and not in ~Core: a handle that is being cancelled may have the last share of it.
    (*owner)->refuse();
    const std::uint64_t all = (*owner)->started();
    while (!(*owner)->wait_for_first(all, base::kForever)) {
    }
    delete owner;
}

DepthLimit::DepthLimit(std::uint32_t requests) {
    if (requests == 0) {
        raise(base::error(ErrorCode::kInvalidArgument, "limit the depth",
                          "a limit of 0 requests would let nothing through; give 1 or more"));
    }
    limit_ = std::make_shared<engine::DepthLimit>(requests);
}

std::uint32_t DepthLimit::requests() const noexcept {
    return limit_ ? limit_->depth() : 0;
}

EngineOptions Engine::default_options() {
    return unwrap(api::options_from_environment());
}

const EngineOptions& Engine::options() const noexcept {
    return impl_->options;
}

namespace {

engine::TransferSpec specify(TransferRequest&& request, bool caller_waits) {
    engine::TransferSpec spec;
    spec.op = request.write ? engine::Op::kWrite : engine::Op::kRead;
    spec.files.reserve(request.files.size());
    for (const File& file : request.files) {
        spec.files.push_back(file.handle());
    }
    spec.paths = std::move(request.paths);
    if (request.rows) {
        const char* const verb = request.write ? "write" : "read";
        if (!request.extents.empty()) {
            raise(base::error(ErrorCode::kInvalidArgument, verb,
                              "it has extents and rows as well; give it extents or rows"));
        }
        spec.extents = unwrap(engine::extents_of(*request.rows, verb));
    } else {
        spec.extents = engine::Extents(std::move(request.extents));
    }
    spec.options = std::move(request.options);
    spec.caller_waits = caller_waits;
    spec.keep = std::move(request.keep);
    return spec;
}

// Calls `wait` with a slice of the time until it returns true, or the time is over (false).
template <typename Wait>
bool wait_in_slices(std::chrono::nanoseconds timeout, const Wait& wait) {
    const base::SteadyClock clock;
    const base::Nanos start = clock.now();
    const base::Nanos limit = std::max<base::Nanos>(timeout.count(), 0);
    base::Nanos left = limit;
    while (!wait(std::min<base::Nanos>(left, base::kWaitSlice.count()))) {
        left = limit - (clock.now() - start);
        if (left <= 0) {
            return false;
        }
    }
    return true;
}

engine::TransferSpec one(bool write, const File& file, Memory memory, std::uint64_t offset,
                         const TransferOptions& options, bool caller_waits) {
    engine::TransferSpec spec{.op = write ? engine::Op::kWrite : engine::Op::kRead,
                              .files = {},
                              .paths = {},
                              .extents = engine::Extents::of_one({offset, memory, 0}),
                              .options = options,
                              .caller_waits = caller_waits,
                              .keep = {}};
    spec.files.push_back(file.handle());
    return spec;
}

TransferRequest one(bool write, const std::string& path, Memory memory, std::uint64_t offset,
                    const TransferOptions& options) {
    TransferRequest request;
    request.write = write;
    request.paths.push_back(path);
    request.extents.push_back({offset, memory, 0});
    request.options = options;
    return request;
}

}  // namespace

Transfer Engine::submit(TransferRequest request) {
    const auto& core = impl_->get();
    engine::Transfer* transfer = unwrap(core->start(specify(std::move(request), false)));
    return Transfer(core, transfer);
}

Transfer Engine::run(TransferRequest request) {
    const auto& core = impl_->get();
    engine::Transfer* transfer = unwrap(core->start(specify(std::move(request), true)));
    return Transfer(core, transfer);
}

std::uint64_t Engine::read(const File& file, Memory into, std::uint64_t offset,
                           const TransferOptions& options) {
    if (const auto bytes = try_read_at_once(file, into, offset, options)) {
        return *bytes;
    }
    return run_read(file, into, offset, options).wait();
}

std::uint64_t Engine::read(const std::string& path, Memory into, std::uint64_t offset,
                           const TransferOptions& options) {
    return run(one(false, path, into, offset, options)).wait();
}

std::uint64_t Engine::write(const File& file, ConstMemory data, std::uint64_t offset,
                            const TransferOptions& options) {
    if (const auto bytes = try_write_at_once(file, data, offset, options)) {
        return *bytes;
    }
    return run_write(file, data, offset, options).wait();
}

std::uint64_t Engine::write(const std::string& path, ConstMemory data, std::uint64_t offset,
                            const TransferOptions& options) {
    return run(one(true, path, to_write(data), offset, options)).wait();
}

Transfer Engine::read_async(const File& file, Memory into, std::uint64_t offset,
                            const TransferOptions& options) {
    const auto& core = impl_->get();
    return {core, unwrap(core->start(one(false, file, into, offset, options, false)))};
}

Transfer Engine::read_async(const std::string& path, Memory into, std::uint64_t offset,
                            const TransferOptions& options) {
    return submit(one(false, path, into, offset, options));
}

Transfer Engine::write_async(const File& file, ConstMemory data, std::uint64_t offset,
                             const TransferOptions& options) {
    const auto& core = impl_->get();
    return {core, unwrap(core->start(one(true, file, to_write(data), offset, options, false)))};
}

Transfer Engine::write_async(const std::string& path, ConstMemory data, std::uint64_t offset,
                             const TransferOptions& options) {
    return submit(one(true, path, to_write(data), offset, options));
}

Transfer Engine::run_read(const File& file, Memory into, std::uint64_t offset,
                          const TransferOptions& options) {
    const auto& core = impl_->get();
    return {core, unwrap(core->start(one(false, file, into, offset, options, true)))};
}

Transfer Engine::run_write(const File& file, ConstMemory data, std::uint64_t offset,
                           const TransferOptions& options) {
    const auto& core = impl_->get();
    return {core, unwrap(core->start(one(true, file, to_write(data), offset, options, true)))};
}

std::optional<std::uint64_t> Engine::try_read_at_once(const File& file, Memory into,
                                                      std::uint64_t offset,
                                                      const TransferOptions& options) {
    const std::shared_ptr<os::File> opened = file.handle();  // stays open meanwhile
    return opened == nullptr ? std::nullopt
                             : impl_->get()->read_at_once(*opened, into, offset, options);
}

std::optional<std::uint64_t> Engine::try_write_at_once(const File& file, ConstMemory data,
                                                       std::uint64_t offset,
                                                       const TransferOptions& options) {
    const std::shared_ptr<os::File> opened = file.handle();  // stays open meanwhile
    return opened == nullptr
               ? std::nullopt
               : impl_->get()->write_at_once(*opened, to_write(data), offset, options);
}

// A slot that another thread takes between the check and the start is one more "no room".
std::optional<Transfer> Engine::try_start(const TransferRequest& request, bool caller_waits) {
    const auto& core = impl_->get();
    if (!core->has_room()) {
        return std::nullopt;
    }
    auto started = core->start(specify(TransferRequest(request), caller_waits));
    if (!started && started.error().code == ErrorCode::kWouldBlock) {
        return std::nullopt;
    }
    return Transfer(core, unwrap(std::move(started)));
}

std::optional<Transfer> Engine::try_submit(const TransferRequest& request) {
    return try_start(request, false);
}

std::optional<Transfer> Engine::try_run(const TransferRequest& request) {
    return try_start(request, true);
}

bool Engine::wait_for_room(std::chrono::nanoseconds timeout) {
    const auto& core = impl_->get();
    return wait_in_slices(timeout, [&](base::Nanos slice) { return core->wait_for_room(slice); });
}

std::uint64_t Engine::submitted() const {
    const auto* const core = impl_->alive();
    return core != nullptr ? (*core)->started() : 0;
}

bool Engine::drain(std::chrono::nanoseconds timeout) {
    return drain_first(submitted(), timeout);
}

bool Engine::drain_first(std::uint64_t transfers, std::chrono::nanoseconds timeout) {
    const auto* const alive = impl_->alive();
    if (alive == nullptr) {
        return true;
    }
    const auto& core = *alive;
    if (!wait_in_slices(
            timeout, [&](base::Nanos slice) { return core->wait_for_first(transfers, slice); })) {
        return false;
    }
    if (auto error = core->take_unobserved()) {
        try {
            raise(*error);
        } catch (const std::bad_alloc&) {
            core->unobserved(std::move(*error));  // for the next drain()
            throw;
        }
    }
    return true;
}

bool Engine::close(std::chrono::nanoseconds timeout) {
    impl_->closed.store(true);
    if (const auto* const core = impl_->alive()) {
        (*core)->refuse();
    }
    return drain(timeout);
}

bool Engine::closed() const noexcept {
    return impl_->closed.load();
}

std::uint32_t Engine::running() const noexcept {
    const auto* const core = impl_->core.load(std::memory_order_acquire);
    return (*core)->dead() ? 0 : (*core)->running();
}

EngineStats Engine::stats() const {
    return api::statistics(*impl_->get());
}

EngineDescription Engine::describe() const {
    return api::description(*impl_->get(), impl_->options);
}

void prepare_fork() {
    engine::prepare_fork();
}

void end_fork() {
    engine::end_fork();
}

}  // namespace penstock
