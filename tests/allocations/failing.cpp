// SPDX-License-Identifier: Apache-2.0
#include "allocations/failing.hpp"

#include "support/seeds.hpp"

#include <penstock/error.hpp>

#include <dirent.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <new>

namespace penstock::allocator {

namespace {

// Reports the child's position, for a parent that finds it dead.
void note(int out, const std::string& text) {
    static_cast<void>(::write(out, text.data(), text.size()));
}

int progress_fd = -1;

}  // namespace

std::string in_child(unsigned seconds, const std::function<std::string()>& body) {
    std::array<int, 2> out{};
    if (::pipe(out.data()) != 0) {
        return "pipe";
    }
    const pid_t child = ::fork();
    if (child == 0) {
        ::alarm(seconds);
        ::close(out[0]);
        progress_fd = out[1];
        std::string said;
        try {
            said = body();
        } catch (const std::exception& error) {
            said = fmt::format("threw: {}", error.what());
        }
        note(out[1], "\n" + said);
        ::_exit(0);
    }
    ::close(out[1]);
    std::string all;
    std::array<char, 4096> piece{};
    for (ssize_t got = 0; (got = ::read(out[0], piece.data(), piece.size())) > 0;) {
        all.append(piece.data(), static_cast<std::size_t>(got));
    }
    ::close(out[0]);
    int status = 0;
    ::waitpid(child, &status, 0);
    const std::string last = all.substr(all.rfind('\n') + 1);
    return WIFEXITED(status) ? last
                             : fmt::format("ended by signal {} ({}) at {}", WTERMSIG(status),
                                           ::strsignal(WTERMSIG(status)), last);
}

bool Attempt::operator()(const std::function<void()>& call) {
    begin();
    bool through = false;
    try {
        call();
        through = true;
    } catch (const std::bad_alloc&) {
        through = false;
    } catch (const Error& error) {
        end();
        // A thread, a descriptor or a lock of the system's may want memory, too.
        const bool of_memory = error.reason() == ErrorCode::kOutOfMemory ||
                               error.system_errno() == ENOMEM || error.system_errno() == EAGAIN;
        if (!of_memory) {
            throw;
        }
        return false;
    } catch (...) {
        end();
        throw;
    }
    end();
    return through;
}

std::size_t open_descriptors() {
    std::size_t count = 0;
    DIR* folder = ::opendir("/proc/self/fd");
    while (folder != nullptr && ::readdir(folder) != nullptr) {
        ++count;
    }
    ::closedir(folder);
    return count;
}

std::uint64_t sampled(std::uint64_t step) {
    return std::max<std::uint64_t>(1, 20 * step / support::engine_seeds(5));
}

std::string each_allocation(const std::function<std::string(Attempt&)>& body, std::uint64_t step,
                            std::uint64_t more_step) {
    for (const Fails how : {Fails::kOnce, Fails::kFromThenOn}) {
        for (std::uint64_t n = 1;; n += how == Fails::kOnce ? step : more_step) {
            const std::string place = fmt::format(
                "allocation {}{}", n, how == Fails::kOnce ? "" : " and all that follow");
            note(progress_fd, "\n" + place);
            Attempt attempt(n, how);
            std::string said;
            try {
                said = body(attempt);
            } catch (const std::exception& error) {
                said = fmt::format("threw {}", error.what());
            }
            static_cast<void>(stop_failing());
            if (!said.empty()) {
                return place + ": " + said;
            }
            if (attempt.seen() < n) {
                break;
            }
        }
    }
    return "";
}

}  // namespace penstock::allocator
