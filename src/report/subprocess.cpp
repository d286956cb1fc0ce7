// SPDX-License-Identifier: Apache-2.0
#include "report/subprocess.hpp"

#include "base/unique_fd.hpp"

#include <penstock/error.hpp>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

extern char** environ;

namespace penstock::report {

namespace {

struct Pipe {
    base::UniqueFd read;
    base::UniqueFd write;
};

Error spawn_error(const std::string& program, int code) {
    return {ErrorCode::kSystem,
            code,
            "run",
            program,
            kNoOffset,
            "running " + program + ": " + std::strerror(code)};
}

Pipe make_pipe(const std::string& program) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
        throw spawn_error(program, errno);
    }
    return {base::UniqueFd(ends[0]), base::UniqueFd(ends[1])};
}

// A child process; the destructor ends it, if need be by force, unless it was waited for.
class Child {
public:
    Child(const std::vector<std::string>& argv, int out, int err) {
        std::vector<char*> words;
        for (const std::string& word : argv) {
            words.push_back(const_cast<char*>(word.c_str()));
        }
        words.push_back(nullptr);
        posix_spawn_file_actions_t actions;
        ::posix_spawn_file_actions_init(&actions);
        ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
        ::posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
        ::posix_spawn_file_actions_adddup2(&actions, err, STDERR_FILENO);
        const int code = ::posix_spawnp(&pid_, words[0], &actions, nullptr, words.data(), environ);
        ::posix_spawn_file_actions_destroy(&actions);
        if (code == ENOENT) {
            pid_ = -1;
        } else if (code != 0) {
            throw spawn_error(argv[0], code);
        }
    }
    Child(const Child&) = delete;
    Child& operator=(const Child&) = delete;
    ~Child() {
        if (pid_ > 0) {
            ::kill(pid_, SIGKILL);
            ::waitpid(pid_, nullptr, 0);
        }
    }
    [[nodiscard]] bool found() const { return pid_ > 0; }
    int wait() {
        int status = 0;
        while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
        }
        pid_ = -1;
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }

private:
    pid_t pid_ = -1;
};

// Reads the available output; false at the end.
bool take(int fd, std::string& into) {
    std::array<char, 4096> buffer{};
    const ssize_t count = ::read(fd, buffer.data(), buffer.size());
    if (count > 0) {
        into.append(buffer.data(), static_cast<std::size_t>(count));
    }
    return count > 0 || (count < 0 && (errno == EINTR || errno == EAGAIN));
}

}  // namespace

Finished run_program(const std::vector<std::string>& argv, const std::function<void()>& tick) {
    Pipe out = make_pipe(argv[0]);
    Pipe err = make_pipe(argv[0]);
    Child child(argv, out.write.get(), err.write.get());
    Finished finished;
    if (!child.found()) {
        finished.status = 127;
        return finished;
    }
    out.write.reset();
    err.write.reset();
    std::array<pollfd, 2> polled{pollfd{out.read.get(), POLLIN, 0},
                                 pollfd{err.read.get(), POLLIN, 0}};
    while (polled[0].fd >= 0 || polled[1].fd >= 0) {
        tick();
        if (::poll(polled.data(), polled.size(), 100) <= 0) {
            continue;
        }
        if (polled[0].revents != 0 && !take(polled[0].fd, finished.output)) {
            polled[0].fd = -1;
        }
        if (polled[1].revents != 0 && !take(polled[1].fd, finished.errors)) {
            polled[1].fd = -1;
        }
    }
    finished.status = child.wait();
    return finished;
}

}  // namespace penstock::report
