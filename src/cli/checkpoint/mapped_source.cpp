// SPDX-License-Identifier: Apache-2.0
#include "cli/checkpoint/mapped_source.hpp"

#include "base/raise.hpp"
#include "base/unique_fd.hpp"
#include "format/fault.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <unordered_map>
#include <utility>

namespace penstock::cli {

namespace {

// Read by the signal handler, which may take no lock.
std::atomic<const std::deque<MappedFile>*> mapped{nullptr};
std::atomic<const MappedFile*> lost{nullptr};

const MappedFile* file_with(const void* address) {
    const auto* const files = mapped.load();
    if (files == nullptr) {
        return nullptr;
    }
    const auto at = static_cast<const std::byte*>(address);
    const auto has = [at](const MappedFile& file) {
        return at >= file.bytes().data() && at < file.bytes().data() + file.bytes().size();
    };
    const auto found = std::find_if(files->begin(), files->end(), has);
    return found == files->end() ? nullptr : &*found;
}

void on_bus_error(int signal, siginfo_t* info, void* context) {
    static_cast<void>(context);
    const int saved_errno = errno;
    const auto page_bytes = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    void* const page = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(info->si_addr) &
                                               ~(page_bytes - 1));
    const MappedFile* const file = file_with(info->si_addr);
    if (file != nullptr && ::mmap(page, page_bytes, PROT_READ,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == page) {
        lost.store(file);
    } else {
        ::signal(signal, SIG_DFL);
        ::raise(signal);  // ends the program on return
    }
    errno = saved_errno;
}

[[noreturn]] void raise_lost(const std::string& path) {
    throw Error(
        ErrorCode::kDamaged, 0, "read", path, kNoOffset,
        fmt::format("{}: it became shorter, or its device failed, while it was read", path));
}

}  // namespace

MappedFile::MappedFile(std::string path) : path_(std::move(path)) {
    const base::UniqueFd fd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat status {};
    if (!fd || ::fstat(fd.get(), &status) != 0) {
        base::raise(base::system_error(errno, "open", path_));
    }
    const auto bytes = static_cast<std::size_t>(status.st_size);
    if (bytes == 0) {
        return;
    }
    void* const begin = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
    if (begin == MAP_FAILED) {
        base::raise(base::system_error(errno, "mmap", path_));
    }
    bytes_ = {static_cast<const std::byte*>(begin), bytes};
    ::madvise(begin, bytes, MADV_SEQUENTIAL);  // a hint: reads ahead as far as it does for files
}

MappedFile::~MappedFile() {
    if (!bytes_.empty()) {
        ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
    }
}

MappedSource::MappedSource(const state::Source& source) : source_path_(source.path()) {
    std::unordered_map<std::string, const MappedFile*> by_path;
    for (const TensorEntry& t : source.tensors()) {
        if (t.bytes == 0) {
            tensors_.emplace_back();
            continue;
        }
        if (t.stretches.size() != 1) {
            throw Error(ErrorCode::kOutOfMemory, 0, "convert", source.path(), kNoOffset,
                        fmt::format("{}: tensor {} was saved in slices, which have to be put "
                                    "together in memory, and there is not enough; convert it on a "
                                    "machine with more",
                                    source.path(), format::shown(t.name)));
        }
        const auto [found, is_new] = by_path.try_emplace(source.path_of(t), nullptr);
        if (is_new) {
            found->second = &files_.emplace_back(found->first);
        }
        const MappedFile& file = *found->second;
        const std::uint64_t bytes = file.bytes().size();
        const std::uint64_t begin = t.stretches[0].offset;
        if (begin > bytes || t.bytes > bytes - begin) {
            throw Error(ErrorCode::kDamaged, 0, "mmap", file.path(), begin,
                        fmt::format("{}: it has become shorter: {} bytes, and tensor {} ends at "
                                    "byte {}",
                                    file.path(), bytes, format::shown(t.name), begin + t.bytes));
        }
        tensors_.push_back(file.bytes().subspan(begin, t.bytes));
    }
    lost = nullptr;
    mapped = &files_;
    struct sigaction action {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO;
    ::sigemptyset(&action.sa_mask);
    ::sigaction(SIGBUS, &action, &before_);
}

MappedSource::~MappedSource() {
    ::sigaction(SIGBUS, &before_, nullptr);
    mapped = nullptr;
}

void MappedSource::check() const {
    if (const MappedFile* const file = lost.load()) {
        raise_lost(file->path());
    }
}

void MappedSource::explain(const Error& failed) const {
    check();
    if (failed.system_errno() != EFAULT) {
        return;
    }
    for (const MappedFile& file : files_) {
        struct stat status {};
        if (::stat(file.path().c_str(), &status) != 0 ||
            static_cast<std::uint64_t>(status.st_size) < file.bytes().size()) {
            raise_lost(file.path());
        }
    }
    raise_lost(source_path_);
}

}  // namespace penstock::cli
