// SPDX-License-Identifier: Apache-2.0
// Power cuts of a real file system.
//
//   1. mkfs, mount, eight saves on a LoggedDisk; after each save it is noted how long the log is,
//   and
//      after every second the file system writes back what it has, as it does by itself in time
//   2. for each state a place in the log is chosen: before and after every flush, after every save,
//      and at random. All writes before the last flush are on the disk. Of those after it a random
//      half, a fifth of these torn: at 512 bytes in the data of files, at 4 KiB in what the file
//      system wrote for itself
//   3. that image is mounted, and a reader looks: a final name must be whole, and the newest whole
//      save not older than what was acknowledged by then
//
//     power_cut --file-system ext4 --work store [--random N] [--seed S] [--only I] [--python PATH]
//
// One line of JSON. Exit status 0 whatever was found, 77 when it cannot run here, 1 when it broke.
#include "logged_disk.hpp"
#include "stream/checksum.hpp"
#include "support/loop_mount.hpp"
#include "works.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/btrfs.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <stdexcept>
#include <thread>
#include <unordered_set>
#include <vector>

namespace penstock::power_cut {
namespace {

constexpr std::uint64_t kDiskBytes = std::uint64_t{320} << 20;  // XFS wants 300 MiB
constexpr std::uint64_t kBlock = 4096;
constexpr std::uint64_t kSector = 512;

struct Options {
    std::string file_system = "ext4";
    std::string work = "store";
    std::string python = "python3";
    std::uint64_t random_states = 100;  ///< besides those at each commit step
    std::uint64_t seed = 1;
    std::int64_t only = -1;
};

struct Cut {
    std::uint64_t at = 0;  ///< records before it have reached the disk, or its cache
    std::uint64_t acknowledged = 0;
};

struct Outcome {
    std::uint64_t states = 0;
    std::uint64_t damaged = 0;      ///< a final name that is not whole
    std::uint64_t lost = 0;         ///< the newest acknowledged save is not there
    std::uint64_t none = 0;         ///< one was acknowledged and nothing whole is there
    std::uint64_t unmountable = 0;  ///< by the file system's own fault
    std::uint64_t stuck = 0;        ///< the next save failed
    std::string first;
};

support::LoopOptions loop_options(const std::string& file_system) {
    support::LoopOptions options;
    options.file_system = file_system;
    options.bytes = kDiskBytes;
    if (file_system == "ext4") {
        // All of it written by mkfs, so that no thread of the kernel goes on with it.
        options.mkfs_arguments = {"-N", "2048", "-E", "lazy_itable_init=0,lazy_journal_init=0"};
    }
    if (file_system == "xfs") {
        options.mount_data = "nouuid";
    }
    return options;
}

void sync_file_system(const std::string& folder) {
    const base::UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd || ::syncfs(fd.get()) != 0) {
        throw std::runtime_error("cannot sync " + folder);
    }
}

// The kernel remembers devices of btrfs, and takes an older image for a stale one.
void forget_btrfs() {
    const base::UniqueFd control(::open("/dev/btrfs-control", O_RDWR | O_CLOEXEC));
    btrfs_ioctl_vol_args all{};
    if (control) {
        static_cast<void>(::ioctl(control.get(), BTRFS_IOC_FORGET_DEV, &all));
    }
}

class PowerCut {
public:
    explicit PowerCut(const Options& options) : options_(options), random_(options.seed) {}

    base::Result<void> run() {
        PENSTOCK_TRY(disk, LoggedDisk::make(kDiskBytes));
        disk_ = std::move(disk);
        work_ = make_work(options_.work, options_.python);
        PENSTOCK_CHECK(do_the_work());
        disk_->stop();
        log_ = disk_->log();
        image_.assign(kDiskBytes, std::byte{0});
        const std::vector<Cut> cuts = choose_cuts();
        for (std::size_t i = 0; i < cuts.size(); ++i) {
            advance(cuts[i].at);
            // Drawn also for states that are passed over, so that a state is the same by itself.
            std::mt19937_64 random(options_.seed * 1'000'003 + i);
            if (options_.only < 0 || static_cast<std::size_t>(options_.only) == i) {
                PENSTOCK_CHECK(look_at(cuts[i], i, random));
            }
        }
        return {};
    }

    [[nodiscard]] std::string json(double seconds) const {
        return fmt::format(
            R"({{"file_system": "{}", "work": "{}", "seed": {}, "states": {}, "commit_steps": {}, )"
            R"("damaged": {}, "lost": {}, "none": {}, "unmountable": {}, "stuck": {}, )"
            R"("records": {}, "flushes": {}, "seconds": {:.1f}, "first": "{}"}})",
            options_.file_system, options_.work, options_.seed, outcome_.states, commit_steps_,
            outcome_.damaged, outcome_.lost, outcome_.none, outcome_.unmountable, outcome_.stuck,
            end_ - begin_, flushes_, seconds, outcome_.first);
    }

private:
    base::Result<void> do_the_work() {
        support::LoopOptions options = loop_options(options_.file_system);
        options.backing_fd = disk_->fd();
        PENSTOCK_TRY(mount, support::LoopMount::make(options));
        sync_file_system(mount.path());
        begin_ = disk_->count();
        std::jthread background;
        for (std::uint64_t number = 1; number <= kSaves; ++number) {
            work_->save(mount.path(), number);
            acknowledged_.push_back(disk_->count());
            remember_data(mount.path());
            if (background.joinable()) {
                background.join();
            }
            // The kernel writes back by itself after some seconds, while something else goes on.
            if (number % 2 == 0) {
                background = std::jthread([folder = mount.path()] { sync_file_system(folder); });
            }
        }
        background.join();
        end_ = disk_->count();
        work_->leave();
        return {};
    }

    // Blocks that are data of files, told by what is in them.
    void remember_data(const std::string& folder) {
        std::vector<char> block(kBlock);
        for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
            if (!entry.is_regular_file()) {
                continue;
            }
            std::ifstream file(entry.path(), std::ios::binary);
            while (file) {
                std::fill(block.begin(), block.end(), '\0');
                file.read(block.data(), static_cast<std::streamsize>(kBlock));
                if (file.gcount() > 0) {
                    data_.insert(stream::content_hash(std::as_bytes(std::span(block))));
                }
            }
        }
    }

    std::vector<Cut> choose_cuts() {
        std::set<std::uint64_t> steps(acknowledged_.begin(), acknowledged_.end());
        for (std::uint64_t i = begin_; i < end_; ++i) {
            if (log_[i].flush) {
                ++flushes_;
                steps.insert({i, i + 1});
            }
        }
        commit_steps_ = steps.size();
        std::vector<std::uint64_t> places(steps.begin(), steps.end());
        for (std::uint64_t i = 0; i < options_.random_states; ++i) {
            places.push_back(begin_ + random_() % (end_ - begin_ + 1));
        }
        std::sort(places.begin(), places.end());
        std::vector<Cut> cuts;
        for (const std::uint64_t at : places) {
            const auto done = std::upper_bound(acknowledged_.begin(), acknowledged_.end(), at);
            cuts.push_back({at, static_cast<std::uint64_t>(done - acknowledged_.begin())});
        }
        return cuts;
    }

    // Applies everything that is surely on the medium: all up to the last flush before `at`.
    void advance(std::uint64_t at) {
        std::uint64_t flushed = at;
        while (flushed > flushed_ && !log_[flushed - 1].flush) {
            --flushed;
        }
        for (; flushed_ < flushed; ++flushed_) {
            const Record& record = log_[flushed_];
            if (!record.flush) {
                std::memcpy(image_.data() + record.offset, record.bytes.data(),
                            record.bytes.size());
                for (std::uint64_t b = record.offset / kBlock;
                     b * kBlock < record.offset + record.bytes.size(); ++b) {
                    written_.insert(b);
                }
            }
        }
    }

    // Chooses where a write is torn: its first bytes are on the medium, the rest is not.
    std::uint64_t tear(const Record& record, std::mt19937_64& random) const {
        const std::uint64_t size = record.bytes.size();
        const std::uint64_t at = random() % (size / kSector + 1) * kSector;
        const std::uint64_t block = at / kBlock * kBlock;
        if (block + kBlock <= size &&
            data_.contains(stream::content_hash(record.bytes.subspan(block, kBlock)))) {
            return at;
        }
        return block;
    }

    base::UniqueFd image_of(const Cut& cut, std::mt19937_64& random) const {
        base::UniqueFd image(::memfd_create("power-cut-state", MFD_CLOEXEC));
        if (!image || ::ftruncate(image.get(), static_cast<off_t>(kDiskBytes)) != 0) {
            throw std::runtime_error("no memory for an image");
        }
        const auto put = [&](std::uint64_t offset, std::span<const std::byte> bytes) {
            if (::pwrite(image.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset)) !=
                static_cast<ssize_t>(bytes.size())) {
                throw std::runtime_error("cannot write an image");
            }
        };
        for (auto block = written_.begin(); block != written_.end();) {
            const std::uint64_t first = *block;
            std::uint64_t next = first;
            while (block != written_.end() && *block == next) {
                ++block;
                ++next;
            }
            put(first * kBlock, std::span(image_).subspan(first * kBlock, (next - first) * kBlock));
        }
        for (std::uint64_t i = flushed_; i < cut.at; ++i) {
            const Record& record = log_[i];
            if (record.flush || random() % 2 == 0) {
                continue;
            }
            put(record.offset,
                random() % 5 == 0 ? record.bytes.subspan(0, tear(record, random)) : record.bytes);
        }
        return image;
    }

    base::Result<void> look_at(const Cut& cut, std::size_t index, std::mt19937_64& random) {
        const base::UniqueFd image = image_of(cut, random);
        support::LoopOptions options = loop_options(options_.file_system);
        options.backing_fd = image.get();
        options.format = false;
        ++outcome_.states;
        auto mount = support::LoopMount::make(options);
        if (!mount) {
            if (mount.error().code == ErrorCode::kUnsupported) {
                return base::fail(std::move(mount.error()));
            }
            ++outcome_.unmountable;
            note(cut, index, "cannot be mounted: " + mount.error().message);
        } else {
            judge(cut, index, mount->path());
        }
        if (options_.file_system == "btrfs") {
            mount = base::fail(base::error(ErrorCode::kClosed, "", ""));
            forget_btrfs();
        }
        return {};
    }

    void judge(const Cut& cut, std::size_t index, const std::string& folder) {
        const Found found = work_->look(folder);
        outcome_.damaged += found.damaged.empty() ? 0 : 1;
        const bool lost = found.newest < cut.acknowledged;
        outcome_.lost += lost ? 1 : 0;
        outcome_.none += lost && found.newest == 0 ? 1 : 0;
        if (!found.damaged.empty()) {
            note(cut, index, found.damaged);
        } else if (lost) {
            note(cut, index, fmt::format("number {} is the newest there", found.newest));
        }
        if (index % 8 == 0 && options_.work.starts_with("store")) {
            std::string failed;
            try {
                work_->save(folder, kSaves + 1);
                failed = work_->look(folder).newest == kSaves + 1 ? "" : "is not there";
            } catch (const std::exception& error) {
                failed = error.what();
            }
            work_->leave();
            outcome_.stuck += failed.empty() ? 0 : 1;
            if (!failed.empty()) {
                note(cut, index, "the next save: " + failed);
            }
        }
    }

    void note(const Cut& cut, std::size_t index, const std::string& what) {
        if (!outcome_.first.empty()) {
            return;
        }
        std::string plain = what;
        std::replace_if(
            plain.begin(), plain.end(), [](char c) { return c == '"' || c == '\\' || c < ' '; },
            ' ');
        outcome_.first =
            fmt::format("--only {}: cut at record {} of {}, {} acknowledged: {}", index,
                        cut.at - begin_, end_ - begin_, cut.acknowledged, plain);
    }

    const Options options_;
    std::mt19937_64 random_;
    std::unique_ptr<LoggedDisk> disk_;
    std::unique_ptr<Work> work_;
    std::uint64_t begin_ = 0;
    std::uint64_t end_ = 0;
    std::vector<std::uint64_t> acknowledged_;  ///< length of the log when each save returned
    std::unordered_set<std::uint64_t> data_;
    std::vector<Record> log_;
    std::uint64_t flushes_ = 0;
    std::uint64_t commit_steps_ = 0;
    std::vector<std::byte> image_;
    std::set<std::uint64_t> written_;  ///< blocks of it
    std::uint64_t flushed_ = 0;        ///< records that are in it
    Outcome outcome_;
};

Options parse(int count, char** words) {
    Options options;
    for (int i = 1; i < count; i += 2) {
        const std::string name = words[i];
        if (i + 1 == count) {
            throw std::invalid_argument(name + " wants a value");
        }
        const std::string value = words[i + 1];
        if (name == "--file-system") {
            options.file_system = value;
        } else if (name == "--work") {
            options.work = value;
        } else if (name == "--python") {
            options.python = value;
        } else if (name == "--random") {
            options.random_states = std::stoull(value);
        } else if (name == "--seed") {
            options.seed = std::stoull(value);
        } else if (name == "--only") {
            options.only = std::stoll(value);
        } else {
            throw std::invalid_argument("there is no option " + name);
        }
    }
    return options;
}

int run(int count, char** words) {
    const auto begin = std::chrono::steady_clock::now();
    PowerCut cut(parse(count, words));
    if (auto done = cut.run(); !done) {
        std::fprintf(stderr, "%s\n", done.error().describe().c_str());
        return done.error().code == ErrorCode::kUnsupported ? 77 : 1;
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    std::printf("%s\n", cut.json(seconds.count()).c_str());
    return 0;
}

}  // namespace
}  // namespace penstock::power_cut

int main(int count, char** words) {
    try {
        return penstock::power_cut::run(count, words);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "power_cut: %s\n", error.what());
        return 1;
    }
}
