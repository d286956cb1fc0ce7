// SPDX-License-Identifier: Apache-2.0
#include "support/loop_mount.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/loop.h>
#include <sched.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <iterator>

namespace penstock::support {

using base::fail;
using base::Result;
using base::system_error;
using base::UniqueFd;

namespace {

base::Failure cannot_run(const std::string& why) {
    return fail(base::error(ErrorCode::kUnsupported, "loop mount", why));
}

// An empty folder that every machine has; the tmpfs that hides it is seen by this process alone.
std::string place_for_mounts() {
    for (const char* folder : {"/media", "/srv", "/mnt", "/opt"}) {
        std::error_code error;
        if (std::filesystem::is_empty(folder, error) && !error) {
            return folder;
        }
    }
    return {};
}

// Once a process: a mount namespace with a tmpfs for mount points in it.
Result<std::string> private_place() {
    static const auto made = []() -> Result<std::string> {
        if (::geteuid() != 0) {
            return cannot_run("mounting needs root; run the tests as root");
        }
        const std::string place = place_for_mounts();
        if (place.empty()) {
            return cannot_run("no empty folder among /media, /srv, /mnt and /opt to mount on");
        }
        if (::unshare(CLONE_NEWNS) != 0) {
            return cannot_run(fmt::format("unshare: {}", std::generic_category().message(errno)));
        }
        if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
            ::mount("penstock-tests", place.c_str(), "tmpfs", 0, "size=16m") != 0) {
            return cannot_run(fmt::format("mount: {}", std::generic_category().message(errno)));
        }
        return place;
    }();
    return made;
}

std::string new_folder(const std::string& place) {
    static int count = 0;
    std::string path = fmt::format("{}/{}", place, ++count);
    ::mkdir(path.c_str(), 0777);
    return path;
}

Result<std::string> find_program(const std::string& name) {
    for (const char* folder : {"/usr/sbin/", "/sbin/", "/usr/bin/", "/usr/local/sbin/"}) {
        if (::access((folder + name).c_str(), X_OK) == 0) {
            return folder + name;
        }
    }
    return cannot_run(fmt::format("{} is not installed", name));
}

// Runs a program; its output is the error's message when it fails.
Result<void> run(std::vector<std::string> words) {
    const UniqueFd output(::memfd_create("output", MFD_CLOEXEC));
    std::vector<char*> arguments;
    for (std::string& word : words) {
        arguments.push_back(word.data());
    }
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_adddup2(&actions, output.get(), 1);
    ::posix_spawn_file_actions_adddup2(&actions, output.get(), 2);
    pid_t child = 0;
    const int error =
        ::posix_spawn(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
    ::posix_spawn_file_actions_destroy(&actions);
    if (error != 0) {
        return fail(system_error(error, "run", words[0]));
    }
    int status = 0;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    if (status == 0) {
        return {};
    }
    std::string text(4096, '\0');
    const ssize_t length = ::pread(output.get(), text.data(), text.size(), 0);
    text.resize(length > 0 ? static_cast<std::size_t>(length) : 0);
    return fail(base::error(ErrorCode::kSystem, "run", text, words[0]));
}

struct Loop {
    UniqueFd fd;
    std::string path;
};

Result<Loop> attach(const LoopOptions& options) {
    // A name of its own: mkfs.btrfs takes loop devices over files of one name for the same.
    static std::atomic<unsigned> made{0};
    const std::string name = fmt::format("penstock-loop-{}-{}", ::getpid(), made++);
    UniqueFd memory;
    if (options.backing_fd < 0) {
        memory = UniqueFd(::memfd_create(name.c_str(), MFD_CLOEXEC));
        if (!memory || ::ftruncate(memory.get(), static_cast<off_t>(options.bytes)) != 0) {
            return fail(system_error(errno, "memfd_create", ""));
        }
    }
    const UniqueFd control(::open("/dev/loop-control", O_RDWR | O_CLOEXEC));
    if (!control) {
        return cannot_run(
            fmt::format("/dev/loop-control: {}", std::generic_category().message(errno)));
    }
    loop_config config{};
    config.fd = static_cast<std::uint32_t>(memory ? memory.get() : options.backing_fd);
    config.block_size = options.sector_bytes;
    config.info.lo_flags = LO_FLAGS_AUTOCLEAR;
    // Others look for a free device at the same time.
    for (int i = 0; i < 64; ++i) {
        const int number = ::ioctl(control.get(), LOOP_CTL_GET_FREE);
        if (number < 0) {
            return cannot_run(
                fmt::format("no free loop device: {}", std::generic_category().message(errno)));
        }
        Loop loop{UniqueFd(), fmt::format("/dev/loop{}", number)};
        loop.fd = UniqueFd(::open(loop.path.c_str(), O_RDWR | O_CLOEXEC));
        if (!loop.fd) {
            return cannot_run(
                fmt::format("{}: {}", loop.path, std::generic_category().message(errno)));
        }
        if (::ioctl(loop.fd.get(), LOOP_CONFIGURE, &config) == 0) {
            return loop;
        }
        if (errno != EBUSY) {
            return fail(system_error(errno, "LOOP_CONFIGURE", loop.path));
        }
    }
    return cannot_run("all loop devices are busy");
}

Result<void> make_file_system(const LoopOptions& options, const std::string& kind,
                              const std::string& device) {
    PENSTOCK_TRY(program, find_program("mkfs." + kind));
    std::vector<std::string> words{program, "-q", kind == "ext4" ? "-F" : "-f"};
    words.insert(words.end(), options.mkfs_arguments.begin(), options.mkfs_arguments.end());
    words.push_back(device);
    return run(std::move(words));
}

Result<void> mount_on(const std::string& source, const std::string& path, const std::string& kind,
                      const std::string& data) {
    if (::mount(source.c_str(), path.c_str(), kind.c_str(), 0, data.c_str()) == 0) {
        return {};
    }
    if (errno == ENODEV) {
        return cannot_run(fmt::format("this kernel has no {}", kind));
    }
    return fail(system_error(errno, "mount", path, kNoOffset, kind + " from " + source));
}

}  // namespace

Result<std::string> private_folder() {
    PENSTOCK_TRY(place, private_place());
    return new_folder(place);
}

Result<LoopMount> LoopMount::make(const LoopOptions& options) {
    PENSTOCK_TRY(place, private_place());
    LoopMount made;
    if (options.file_system == "tmpfs") {
        made.path_ = new_folder(place);
        std::string data = fmt::format("size={}", options.bytes);
        data += options.mount_data.empty() ? "" : "," + options.mount_data;
        PENSTOCK_CHECK(mount_on("penstock-tests", made.path_, "tmpfs", data));
        made.mounts_.push_back(made.path_);
        return made;
    }
    PENSTOCK_TRY(loop, attach(options));
    made.loop_ = std::move(loop.fd);
    made.device_ = loop.path;
    if (options.file_system == "none") {
        return made;
    }
    const bool overlay = options.file_system == "overlay";
    const std::string kind = overlay ? "ext4" : options.file_system;
    if (options.format) {
        PENSTOCK_CHECK(make_file_system(options, kind, made.device_));
    }
    const std::string base = new_folder(place);
    PENSTOCK_CHECK(mount_on(made.device_, base, kind, overlay ? "" : options.mount_data));
    made.mounts_.push_back(base);
    made.path_ = base;
    if (overlay) {
        for (const char* name : {"/lower", "/upper", "/work"}) {
            ::mkdir((base + name).c_str(), 0777);
        }
        made.path_ = new_folder(place);
        PENSTOCK_CHECK(
            mount_on("overlay", made.path_, "overlay",
                     fmt::format("lowerdir={0}/lower,upperdir={0}/upper,workdir={0}/work", base)));
        made.mounts_.push_back(made.path_);
    }
    return made;
}

LoopMount::~LoopMount() {
    for (auto path = mounts_.rbegin(); path != mounts_.rend(); ++path) {
        // A descriptor that an asynchronous backend releases late keeps the mount busy; detached,
        // it goes with that.
        if (::umount2(path->c_str(), 0) != 0) {
            ::umount2(path->c_str(), MNT_DETACH);
        }
        ::rmdir(path->c_str());
    }
}

}  // namespace penstock::support
