// SPDX-License-Identifier: Apache-2.0
// Transfers of device memory under a virtual clock: two devices whose addresses nobody but their
// copies may touch, random extents compared with a model, a fault at every copy, cancel, and
// channels that share what little memory is pinned.
#include "simulation/transfers.hpp"
#include "support/same_bytes.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <stdexcept>
#include <vector>

namespace penstock::simulation {
namespace {

// Memory with two addresses: a read or a write at the device's is a fault, or EFAULT.
class DeviceRegion {
public:
    explicit DeviceRegion(std::size_t bytes) : bytes_(bytes) {
        const int memory = ::memfd_create("device", MFD_CLOEXEC);
        if (memory < 0 || ::ftruncate(memory, static_cast<off_t>(bytes)) != 0) {
            throw std::runtime_error("no memory for a device");
        }
        host_ = static_cast<std::byte*>(
            ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0));
        device_ = static_cast<std::byte*>(
            ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        ::close(memory);
    }
    DeviceRegion(const DeviceRegion&) = delete;
    DeviceRegion& operator=(const DeviceRegion&) = delete;
    ~DeviceRegion() {
        ::munmap(host_, bytes_);
        ::munmap(device_, bytes_);
    }
    [[nodiscard]] std::byte* address() const { return device_; }
    [[nodiscard]] std::span<std::byte> bytes() const { return {host_, bytes_}; }
    [[nodiscard]] std::ptrdiff_t distance() const { return host_ - device_; }

private:
    std::size_t bytes_;
    std::byte* host_ = nullptr;
    std::byte* device_ = nullptr;
};

void fill(std::span<std::byte> bytes, std::mt19937_64& random) {
    for (std::size_t i = 0; i < bytes.size(); i += sizeof(std::uint64_t)) {
        const std::uint64_t word = random();
        std::memcpy(&bytes[i], &word, std::min(sizeof(word), bytes.size() - i));
    }
}

constexpr std::size_t kFileBytes = 200'000;

// Random transfers between one file and the memory of three places.
class Mixed {
public:
    explicit Mixed(std::uint64_t seed)
        : random_(seed),
          host_(kFileBytes * 2),
          devices_{DeviceRegion(kFileBytes * 2), DeviceRegion(kFileBytes * 2)} {
        SimulationOptions options;
        options.seed = seed;
        options.shape.memory_align = below(2) == 0 ? 4 : 512;
        options.shape.read_align = below(2) == 0 ? 512 : 4096;
        options.shape.write_align = below(2) == 0 ? 512 : 4096;
        options.shape.direct = below(6) != 0;
        options.shape.page_cache = below(2) == 0;
        options.shape.cachestat = below(4) != 0;
        options.model.jitter_ns = 300'000;
        engine::ChannelOptions& channel = options.core.domain.channel;
        channel.depth = 1 + static_cast<std::uint32_t>(below(8));
        channel.block_bytes = 32 << 10;
        channel.background_block_bytes = 16 << 10;
        channel.in_flight_bytes = std::uint64_t{32 << 10} << below(3);
        channel.gap_bytes = below(4) == 0 ? 0 : std::uint64_t{1} << below(14);
        channel.slots = {.large_bytes = channel.block_bytes,
                         .large_count = 2,
                         .small_bytes = 4096,
                         .small_count = static_cast<std::uint32_t>(below(3))};
        options.core.domain.channels = 1 + static_cast<std::uint32_t>(below(2));
        for (const DeviceRegion& device : devices_) {
            options.devices.push_back({.bytes_per_second = 1e9, .bytes_at = device.distance()});
        }
        simulation_ = std::make_unique<Simulation>(options);
        file_ = open(*simulation_, "/file");
        truth_.resize(kFileBytes);
        fill(truth_, random_);
        const iovec all{truth_.data(), truth_.size()};
        EXPECT_EQ(file_->write_at(os::IoPath::kBuffered, 0, {&all, 1}),
                  static_cast<std::int64_t>(kFileBytes));
    }

    void transfer() {
        const bool write = below(2) == 0;
        fill(host_, random_);
        for (const DeviceRegion& device : devices_) {
            fill(device.bytes(), random_);
        }
        std::vector<std::vector<std::byte>> expected;
        for (std::size_t place = 0; place < 3; ++place) {
            expected.emplace_back(content(place).begin(), content(place).end());
        }
        std::vector<Extent> extents;
        std::vector<std::size_t> places;
        std::uint64_t offset = below(10'000);
        std::array<std::uint64_t, 3> used{below(600), below(600), below(600)};
        for (std::uint64_t i = below(20); i-- > 0;) {
            const std::size_t place = below(3);
            const std::uint64_t bytes = below(6) == 0 ? below(60'000) : below(5000);
            if (offset + bytes > kFileBytes || used[place] + bytes > host_.size()) {
                break;
            }
            extents.push_back({offset, memory(place, used[place], bytes), 0});
            places.push_back(place);
            const std::span<std::byte> at(content(place).data() + used[place], bytes);
            if (write) {
                std::copy(at.begin(), at.end(), truth_.begin() + static_cast<long>(offset));
            } else {
                std::copy_n(truth_.begin() + static_cast<long>(offset), bytes,
                            expected[place].begin() + static_cast<long>(used[place]));
            }
            offset += bytes + (below(2) == 0 ? 0 : below(9000));
            used[place] += bytes + (below(2) == 0 ? 0 : below(700));
        }
        TransferOptions options;
        options.cache = static_cast<CachePolicy>(below(3));
        options.priority = static_cast<Priority>(below(3));
        engine::Transfer* transfer =
            start(*simulation_, spec_of(write ? engine::Op::kWrite : engine::Op::kRead, {file_},
                                        std::move(extents), options));
        ASSERT_TRUE(simulation_->run(*transfer)) << "it hangs";
        ASSERT_EQ(transfer->error(), nullptr) << transfer->error()->describe();
        let_go(transfer);
        for (std::size_t place = 0; place < 3; ++place) {
            ASSERT_TRUE(support::same_bytes(expected[place],
                                            content(place).subspan(0, expected[place].size())))
                << "memory of place " << place;
        }
        std::vector<std::byte> found(kFileBytes);
        const iovec all{found.data(), found.size()};
        ASSERT_EQ(file_->read_at(os::IoPath::kBuffered, 0, {&all, 1}),
                  static_cast<std::int64_t>(kFileBytes));
        ASSERT_TRUE(support::same_bytes(found, truth_));
    }

private:
    std::uint64_t below(std::uint64_t n) { return random_() % n; }
    std::span<std::byte> content(std::size_t place) {
        return place == 0 ? std::span<std::byte>(host_) : devices_[place - 1].bytes();
    }
    Memory memory(std::size_t place, std::uint64_t at, std::uint64_t bytes) {
        if (place == 0) {
            return {host_.data() + at, bytes};
        }
        return {devices_[place - 1].address() + at, bytes, MemoryKind::kDevice,
                static_cast<std::int32_t>(place - 1)};
    }

    std::mt19937_64 random_;
    std::vector<std::byte> host_;
    std::array<DeviceRegion, 2> devices_;
    std::vector<std::byte> truth_;
    std::unique_ptr<Simulation> simulation_;
    std::shared_ptr<os::File> file_;
};

TEST(SimulatedDevices, RandomExtentsOfThreePlacesEqualAModel) {
    for (std::uint64_t seed = 1; seed <= 80; ++seed) {
        SCOPED_TRACE(seed);
        Mixed mixed(seed);
        for (int i = 0; i < 4; ++i) {
            mixed.transfer();
            if (HasFatalFailure()) {
                return;
            }
        }
    }
}

// One device, one file of 1 MiB in blocks of 64 KiB, and a fault, or a cancel, at one copy.
class AtACopy : public ::testing::TestWithParam<bool> {
protected:
    static constexpr std::size_t kBytes = 1 << 20;

    AtACopy() : region_(kBytes) {
        SimulationOptions options;
        options.core.domain.channel.block_bytes = 64 << 10;
        options.core.domain.channel.in_flight_bytes = 512 << 10;
        options.core.domain.channel.slots.large_bytes = 64 << 10;
        options.model = {.request_ns = 100'000, .lanes = 32, .bytes_per_second = 7e9};
        options.devices.push_back({.bytes_per_second = 5e9,
                                   .bytes_at = region_.distance(),
                                   .fault = [this](std::uint64_t /*index*/, const engine::Move&) {
                                       return copies_++ == fault_at_ ? on_fault_() : 0;
                                   }});
        simulation_ = std::make_unique<Simulation>(options);
        file_ = open(*simulation_, "/file");
        std::mt19937_64 random(1);
        data_.resize(kBytes);
        fill(data_, random);
        const iovec all{data_.data(), data_.size()};
        EXPECT_EQ(file_->write_at(os::IoPath::kBuffered, 0, {&all, 1}),
                  static_cast<std::int64_t>(kBytes));
    }

    engine::Transfer* begin() {
        copies_ = 0;
        return start(*simulation_,
                     spec_of(GetParam() ? engine::Op::kWrite : engine::Op::kRead, {file_},
                             {{0, {region_.address(), kBytes, MemoryKind::kDevice, 0}, 0}}));
    }

    // Nothing is lost: the next one takes all the slots there are, and no longer than it should.
    void expect_good_and_fast(base::Nanos usual) {
        fault_at_ = UINT64_MAX;
        const base::Nanos began = simulation_->now();
        engine::Transfer* transfer = begin();
        ASSERT_TRUE(simulation_->run(*transfer)) << "it hangs";
        ASSERT_EQ(transfer->error(), nullptr);
        let_go(transfer);
        EXPECT_EQ(copies_, 16U);
        if (usual != 0) {
            EXPECT_EQ(simulation_->now() - began, usual);
        }
        EXPECT_TRUE(std::equal(data_.begin(), data_.end(), region_.bytes().begin()));
    }

    base::Nanos usual() {
        std::copy(data_.begin(), data_.end(), region_.bytes().begin());
        const base::Nanos began = simulation_->now();
        expect_good_and_fast(0);
        return simulation_->now() - began;
    }

    DeviceRegion region_;
    std::uint64_t copies_ = 0;
    std::uint64_t fault_at_ = UINT64_MAX;
    std::function<int()> on_fault_;
    std::unique_ptr<Simulation> simulation_;
    std::shared_ptr<os::File> file_;
    std::vector<std::byte> data_;
};
INSTANTIATE_TEST_SUITE_P(Verbs, AtACopy, ::testing::Bool(),
                         [](const auto& verb) { return verb.param ? "write" : "read"; });

TEST_P(AtACopy, AFaultIsOneErrorAndNothingIsLost) {
    const base::Nanos normal = usual();
    on_fault_ = [] { return 77; };
    for (std::uint64_t at = 0; at < 16; ++at) {
        SCOPED_TRACE(at);
        fault_at_ = at;
        engine::Transfer* transfer = begin();
        ASSERT_TRUE(simulation_->run(*transfer)) << "it hangs";
        ASSERT_NE(transfer->error(), nullptr);
        EXPECT_EQ(transfer->error()->message, "simulated fault 77");
        let_go(transfer);
        const std::vector<std::byte> then(region_.bytes().begin(), region_.bytes().end());
        while (simulation_->step()) {
        }
        EXPECT_TRUE(std::equal(then.begin(), then.end(), region_.bytes().begin())) << "not quiet";
        std::copy(data_.begin(), data_.end(), region_.bytes().begin());
        expect_good_and_fast(normal);
        if (HasFatalFailure()) {
            return;
        }
    }
}

TEST_P(AtACopy, CancelWithCopiesOut) {
    const base::Nanos normal = usual();
    for (std::uint64_t at = 0; at < 16; ++at) {
        SCOPED_TRACE(at);
        fault_at_ = at;
        engine::Transfer* transfer = nullptr;
        bool cancelled = false;
        on_fault_ = [&] {
            simulation_->core().cancel(*transfer);
            cancelled = true;
            return 0;
        };
        transfer = begin();
        ASSERT_TRUE(simulation_->run(*transfer)) << "it hangs";
        ASSERT_TRUE(cancelled);
        ASSERT_NE(transfer->error(), nullptr);
        EXPECT_EQ(transfer->error()->code, ErrorCode::kCancelled);
        let_go(transfer);
        EXPECT_LT(copies_, 17U);
        std::copy(data_.begin(), data_.end(), region_.bytes().begin());
        expect_good_and_fast(normal);
        if (HasFatalFailure()) {
            return;
        }
    }
}

// A device that is not there is an error of its transfer, and of no other.
TEST(SimulatedDevices, ADeviceThatIsNotThere) {
    Simulation simulation((SimulationOptions()));
    const auto file = open(simulation, "/file");
    std::vector<std::byte> host(10'000, std::byte{7});
    engine::Transfer* write = start(
        simulation, spec_of(engine::Op::kWrite, {file}, {{0, {host.data(), host.size()}, 0}}));
    engine::Transfer* read =
        start(simulation, spec_of(engine::Op::kRead, {file},
                                  {{0, {host.data(), 1000}, 0},
                                   {1000, {host.data(), 1000, MemoryKind::kDevice, 5}, 0}}));
    ASSERT_TRUE(simulation.run(*read));
    ASSERT_TRUE(simulation.run(*write));
    ASSERT_NE(read->error(), nullptr);
    EXPECT_EQ(read->error()->code, ErrorCode::kUnsupported);
    EXPECT_EQ(write->error(), nullptr);
    let_go(read);
    let_go(write);
}

// 24 disks, of which each could do with 18 MiB of slots: they have 40 MiB together, and all get on.
TEST(SimulatedDevices, ManyChannelsShareWhatIsPinned) {
    constexpr std::uint32_t kDisks = 24;
    constexpr std::uint64_t kEach = 64 << 20;
    SimulationOptions options;
    options.disks = kDisks;
    options.shape.hollow = true;
    options.model = {.request_ns = 100'000, .lanes = 32, .bytes_per_second = 1e9};
    options.devices.emplace_back();
    Simulation simulation(options);
    const DeviceRegion region(4096);
    std::vector<std::shared_ptr<os::File>> files;
    std::vector<Extent> extents;
    for (std::uint32_t i = 0; i < kDisks; ++i) {
        files.push_back(open(simulation, "/" + std::to_string(i) + "/data"));
        ASSERT_TRUE(files.back()->truncate(kEach));
        // Large ones, and a few small ones: slots of both kinds.
        extents.push_back({0, {region.address(), kEach - 8192, MemoryKind::kDevice, 0}, i});
        extents.push_back({kEach - 4096, {region.address(), 100, MemoryKind::kDevice, 0}, i});
    }
    for (int round = 0; round < 2; ++round) {
        engine::Transfer* transfer = start(simulation, spec_of(engine::Op::kRead, files, extents));
        ASSERT_TRUE(simulation.run(*transfer)) << "it hangs";
        EXPECT_EQ(transfer->error(), nullptr);
        let_go(transfer);
    }
    EXPECT_LE(simulation.core().device_slot_bytes(), 40U << 20);
    EXPECT_GT(simulation.core().device_slot_bytes(), 30U << 20);
    // One alone gets what it can use, of what the others have left.
    const base::Nanos began = simulation.now();
    engine::Transfer* alone =
        start(simulation, spec_of(engine::Op::kRead, {files[3]},
                                  {{0, {region.address(), kEach, MemoryKind::kDevice, 0}, 0}}));
    ASSERT_TRUE(simulation.run(*alone));
    let_go(alone);
    EXPECT_LT(simulation.now() - began, 75'000'000);
}

}  // namespace
}  // namespace penstock::simulation
