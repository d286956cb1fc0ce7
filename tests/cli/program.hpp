// SPDX-License-Identifier: Apache-2.0
// The command line in a process of its own, as from a shell: its own signals, output and exit code.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

namespace penstock::cli {

struct Outcome {
    int status = 0;  ///< 128 + n when signal n ended it
    std::string out;
    std::string err;
};

class Program {
public:
    /// `first` is called in the new process before the command line runs.
    explicit Program(const std::vector<std::string>& args, const std::function<void()>& first = {});
    ~Program();
    Program(const Program&) = delete;
    Program& operator=(const Program&) = delete;

    void signal(int number) const;
    [[nodiscard]] Outcome wait();

private:
    pid_t pid_ = -1;
    int out_ = -1;
    int err_ = -1;
};

/// From start to end.
[[nodiscard]] Outcome run_cli(const std::vector<std::string>& args,
                              const std::function<void()>& first = {});

/// Names in a folder.
[[nodiscard]] std::vector<std::string> names_in(const std::string& folder);

}  // namespace penstock::cli
