// SPDX-License-Identifier: Apache-2.0
#include "support/test_engine.hpp"

#include "api/options.hpp"
#include "api/statistics.hpp"
#include "base/clock.hpp"
#include "base/raise.hpp"
#include "device/cuda/pointer.hpp"
#include "device/mover/gpu_mover.hpp"
#include "device/mover/stream_order.hpp"
#include "engine/core.hpp"
#include "simulation/fake_backend.hpp"
#include "simulation/fake_file_system.hpp"

#include <algorithm>
#include <cstring>
#include <random>
#include <stdexcept>
#include <utility>

namespace penstock::support {

namespace {

class KernelTransfer final : public TestTransfer {
public:
    explicit KernelTransfer(Transfer transfer) : transfer_(std::move(transfer)) {}
    std::uint64_t wait() override { return transfer_.wait(); }
    std::optional<std::uint64_t> wait_for(std::chrono::nanoseconds timeout) override {
        return transfer_.wait_for(timeout);
    }
    [[nodiscard]] bool done() const override { return transfer_.done(); }
    [[nodiscard]] TransferStatus status() const override { return transfer_.status(); }
    void cancel() override { transfer_.cancel(); }
    void set_priority(Priority priority) override { transfer_.set_priority(priority); }
    [[nodiscard]] std::uint64_t extent_bytes(std::size_t index) const override {
        return transfer_.extent_bytes(index);
    }
    [[nodiscard]] std::uint64_t total_bytes() const override { return transfer_.total_bytes(); }
    void notify(int eventfd) override { transfer_.notify(eventfd); }

private:
    Transfer transfer_;
};

BackendKind kind_of(EngineKind kind) {
    switch (kind) {
        case EngineKind::kUring:
            return BackendKind::kUring;
        case EngineKind::kAio:
            return BackendKind::kAio;
        case EngineKind::kPosix:
            return BackendKind::kPosix;
        default:
            return BackendKind::kAuto;
    }
}

class KernelEngine final : public TestEngine {
public:
    explicit KernelEngine(const EngineOptions& options) : engine_(options) {}
    [[nodiscard]] FileSystem files() const override { return FileSystem::local(); }
    [[nodiscard]] TransferPtr submit(TransferRequest request) override {
        return std::make_unique<KernelTransfer>(engine_.submit(std::move(request)));
    }
    [[nodiscard]] TransferPtr run(TransferRequest request) override {
        return std::make_unique<KernelTransfer>(engine_.run(std::move(request)));
    }
    bool drain(std::chrono::nanoseconds timeout) override { return engine_.drain(timeout); }
    [[nodiscard]] EngineStats stats() const override { return engine_.stats(); }
    [[nodiscard]] EngineDescription describe() const override { return engine_.describe(); }
    [[nodiscard]] simulation::FakeDisk& disk(std::size_t /*index*/) override {
        throw std::logic_error("the kernel has no fake disk");
    }

private:
    Engine engine_;
};

class FakeTransfer final : public TestTransfer {
public:
    FakeTransfer(std::shared_ptr<engine::Core> core, engine::Transfer* transfer)
        : core_(std::move(core)), transfer_(transfer) {}
    FakeTransfer(const FakeTransfer&) = delete;
    FakeTransfer& operator=(const FakeTransfer&) = delete;
    ~FakeTransfer() override {
        transfer_->abandon();
        transfer_->release();
    }
    std::uint64_t wait() override {
        while (!transfer_->wait(base::kForever)) {
        }
        return result();
    }
    std::optional<std::uint64_t> wait_for(std::chrono::nanoseconds timeout) override {
        const auto until = std::chrono::steady_clock::now() + timeout;
        while (!transfer_->finished()) {
            const auto left = until - std::chrono::steady_clock::now();
            if (left.count() <= 0) {
                return std::nullopt;
            }
            static_cast<void>(transfer_->wait(left.count()));
        }
        return result();
    }
    [[nodiscard]] bool done() const override { return transfer_->finished(); }
    [[nodiscard]] TransferStatus status() const override { return transfer_->status(); }
    void cancel() override { core_->cancel(*transfer_); }
    void set_priority(Priority priority) override { core_->set_priority(*transfer_, priority); }
    [[nodiscard]] std::uint64_t extent_bytes(std::size_t index) const override {
        return transfer_->extent_bytes(index);
    }
    [[nodiscard]] std::uint64_t total_bytes() const override { return transfer_->total_bytes; }
    void notify(int eventfd) override { base::unwrap(core_->notify(*transfer_, eventfd)); }

private:
    std::uint64_t result() {
        transfer_->mark_observed();
        if (const base::Error* error = transfer_->error()) {
            base::raise(*error);
        }
        return transfer_->bytes_moved();
    }

    std::shared_ptr<engine::Core> core_;
    engine::Transfer* transfer_;
};

class FakeEngine final : public TestEngine {
public:
    FakeEngine(const EngineOptions& options, const FakeSetup& fake)
        : options_(options), clock_(std::make_shared<base::SteadyClock>()) {
        for (std::uint32_t i = 0; i < fake.disks; ++i) {
            disks_.push_back(std::make_shared<simulation::FakeDisk>(DeviceId{240, i}, fake.shape,
                                                                    fake.model, fake.seed + i));
        }
        engine::CoreOptions core_options = base::unwrap(api::core_options(options));
        core_options.inline_bytes_max = fake.inline_too ? core_options.inline_bytes_max : 0;
        engine::Platform platform;
        platform.file_system = std::make_shared<simulation::FakeFileSystem>(disks_, clock_);
        platform.clock = clock_;
        platform.backends = {{"fake",
                              [clock = clock_](const engine::BackendOptions& backend)
                                  -> base::Result<std::unique_ptr<engine::Backend>> {
                                  return std::make_unique<simulation::FakeBackend>(backend, clock,
                                                                                   false);
                              }}};
        platform.make_mover = device::make_mover;
        platform.make_order = device::make_order;
        platform.check_devices = device::check_extents;
        file_system_ = platform.file_system;
        core_ = base::unwrap(engine::Core::make(core_options, std::move(platform)));
    }
    FakeEngine(const FakeEngine&) = delete;
    FakeEngine& operator=(const FakeEngine&) = delete;
    ~FakeEngine() override { static_cast<void>(drain_all(std::chrono::nanoseconds::max())); }
    [[nodiscard]] FileSystem files() const override { return FileSystem(file_system_); }
    [[nodiscard]] TransferPtr submit(TransferRequest request) override {
        return start(std::move(request), false);
    }
    [[nodiscard]] TransferPtr run(TransferRequest request) override {
        return start(std::move(request), true);
    }
    bool drain(std::chrono::nanoseconds timeout) override {
        if (!drain_all(timeout)) {
            return false;
        }
        if (const auto error = core_->take_unobserved()) {
            base::raise(*error);
        }
        return true;
    }
    [[nodiscard]] EngineStats stats() const override { return api::statistics(*core_); }
    [[nodiscard]] EngineDescription describe() const override {
        return api::description(*core_, options_);
    }
    [[nodiscard]] simulation::FakeDisk& disk(std::size_t index) override {
        return *disks_.at(index);
    }

private:
    bool drain_all(std::chrono::nanoseconds timeout) {
        const auto begin = std::chrono::steady_clock::now();
        const std::uint64_t all = core_->started();
        while (!core_->wait_for_first(all, 1'000'000)) {
            if (std::chrono::steady_clock::now() - begin > timeout) {
                return false;
            }
        }
        return true;
    }
    TransferPtr start(TransferRequest&& request, bool caller_waits) {
        engine::TransferSpec spec;
        spec.op = request.write ? engine::Op::kWrite : engine::Op::kRead;
        for (const File& file : request.files) {
            spec.files.push_back(file.handle());
        }
        spec.paths = std::move(request.paths);
        if (request.rows) {
            spec.extents =
                base::unwrap(engine::extents_of(*request.rows, request.write ? "write" : "read"));
        } else {
            spec.extents = engine::Extents(std::move(request.extents));
        }
        spec.options = std::move(request.options);
        spec.caller_waits = caller_waits;
        return std::make_unique<FakeTransfer>(core_, base::unwrap(core_->start(std::move(spec))));
    }

    EngineOptions options_;
    std::shared_ptr<const base::Clock> clock_;
    std::vector<std::shared_ptr<simulation::FakeDisk>> disks_;
    std::shared_ptr<os::FileSystem> file_system_;
    std::shared_ptr<engine::Core> core_;
};

}  // namespace

std::string name_of(EngineKind kind) {
    switch (kind) {
        case EngineKind::kUring:
            return "uring";
        case EngineKind::kAio:
            return "aio";
        case EngineKind::kPosix:
            return "posix";
        case EngineKind::kAuto:
            return "auto";
        case EngineKind::kFake:
            return "fake";
    }
    return "?";
}

std::ostream& operator<<(std::ostream& out, EngineKind kind) {
    return out << name_of(kind);
}

std::unique_ptr<TestEngine> TestEngine::make(EngineKind kind, EngineOptions options,
                                             const FakeSetup& fake) {
    options.backend = kind_of(kind);
    if (kind == EngineKind::kFake) {
        return std::make_unique<FakeEngine>(options, fake);
    }
    return std::make_unique<KernelEngine>(options);
}

std::uint64_t TestEngine::read(const File& file, std::span<std::byte> into, std::uint64_t offset,
                               const TransferOptions& options) {
    return run(request_of(false, file, into.data(), into.size(), offset, options))->wait();
}

std::uint64_t TestEngine::write(const File& file, std::span<const std::byte> data,
                                std::uint64_t offset, const TransferOptions& options) {
    return run(request_of(true, file, data.data(), data.size(), offset, options))->wait();
}

TransferRequest request_of(bool write, const File& file, const void* memory, std::uint64_t bytes,
                           std::uint64_t offset, const TransferOptions& options) {
    TransferRequest request;
    request.write = write;
    request.files = {file};
    request.extents = {{offset, {static_cast<std::byte*>(const_cast<void*>(memory)), bytes}, 0}};
    request.options = options;
    return request;
}

TransferRequest request_of(bool write, const std::string& path, const void* memory,
                           std::uint64_t bytes, std::uint64_t offset,
                           const TransferOptions& options) {
    TransferRequest request;
    request.write = write;
    request.paths = {path};
    request.extents = {{offset, {static_cast<std::byte*>(const_cast<void*>(memory)), bytes}, 0}};
    request.options = options;
    return request;
}

void put_bytes(const File& file, std::uint64_t offset, std::span<const std::byte> data) {
    while (!data.empty()) {
        const iovec piece{const_cast<std::byte*>(data.data()), data.size()};
        const std::int64_t moved =
            file.handle()->write_at(os::IoPath::kBuffered, offset, {&piece, 1});
        if (moved <= 0) {
            base::raise(base::system_error(static_cast<int>(-moved), "write", file.path(), offset));
        }
        offset += static_cast<std::uint64_t>(moved);
        data = data.subspan(static_cast<std::size_t>(moved));
    }
}

std::vector<std::byte> get_bytes(const File& file, std::uint64_t offset, std::uint64_t bytes) {
    std::vector<std::byte> out(bytes);
    std::uint64_t done = 0;
    while (done < bytes) {
        const iovec piece{out.data() + done, bytes - done};
        const std::int64_t moved =
            file.handle()->read_at(os::IoPath::kBuffered, offset + done, {&piece, 1});
        if (moved < 0) {
            base::raise(base::system_error(static_cast<int>(-moved), "read", file.path(), offset));
        }
        if (moved == 0) {
            break;
        }
        done += static_cast<std::uint64_t>(moved);
    }
    out.resize(done);
    return out;
}

std::vector<std::byte> pattern(std::uint64_t bytes, std::uint64_t seed) {
    std::vector<std::byte> out(bytes);
    std::mt19937_64 random(seed * 2654435761 + 1);
    for (std::size_t i = 0; i < bytes; i += 8) {
        const std::uint64_t word = random();
        std::memcpy(out.data() + i, &word, std::min<std::size_t>(8, bytes - i));
    }
    return out;
}

}  // namespace penstock::support
