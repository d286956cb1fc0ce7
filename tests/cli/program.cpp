// SPDX-License-Identifier: Apache-2.0
#include "cli/program.hpp"

#include "cli/run.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <iostream>

namespace penstock::cli {

namespace {

std::string all_of(int fd) {
    std::string text;
    std::array<char, 4096> buffer{};
    ::lseek(fd, 0, SEEK_SET);
    for (ssize_t count = 0; (count = ::read(fd, buffer.data(), buffer.size())) > 0;) {
        text.append(buffer.data(), static_cast<std::size_t>(count));
    }
    return text;
}

}  // namespace

Program::Program(const std::vector<std::string>& args, const std::function<void()>& first)
    : out_(::memfd_create("out", MFD_CLOEXEC)), err_(::memfd_create("err", MFD_CLOEXEC)) {
    std::fflush(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
        ::dup2(out_, STDOUT_FILENO);
        ::dup2(err_, STDERR_FILENO);
        if (first) {
            first();
        }
        const int status = run(args);
        std::cout.flush();
        std::fflush(nullptr);
        ::_exit(status);
    }
}

Program::~Program() {
    if (pid_ > 0) {
        ::kill(pid_, SIGKILL);
        ::waitpid(pid_, nullptr, 0);
    }
    ::close(out_);
    ::close(err_);
}

void Program::signal(int number) const {
    ASSERT_EQ(::kill(pid_, number), 0);
}

Outcome Program::wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), all_of(out_),
            all_of(err_)};
}

Outcome run_cli(const std::vector<std::string>& args, const std::function<void()>& first) {
    return Program(args, first).wait();
}

std::vector<std::string> names_in(const std::string& folder) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
}

}  // namespace penstock::cli
