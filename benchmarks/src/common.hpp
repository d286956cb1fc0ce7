// SPDX-License-Identifier: Apache-2.0
// What the benchmark programs share: arguments, meters, and the one JSON line that each prints.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace penstock::benchmarks {

/// This machine cannot run it; the program ends with 77 and says why.
class CannotRun : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/// `what --key=value ...`. Asking for a key that is not there without a default throws.
class Arguments {
public:
    Arguments(int count, char** words);
    [[nodiscard]] const std::string& what() const { return what_; }
    [[nodiscard]] std::string text(const std::string& key) const;
    [[nodiscard]] std::string text(const std::string& key, const std::string& otherwise) const;
    [[nodiscard]] std::uint64_t number(const std::string& key) const;
    [[nodiscard]] std::uint64_t number(const std::string& key, std::uint64_t otherwise) const;
    /// The handicap is taken: a program that does not know it must not run without.
    [[nodiscard]] bool handicap(const std::string& name) const;
    /// Throws when a handicap was given that nobody asked about: it would change nothing.
    void check_handicap_was_asked() const;

private:
    std::string what_;
    std::map<std::string, std::string> values_;
    mutable bool handicap_asked_ = false;
};

/// The figures of a run, printed as one line of JSON.
class Figures {
public:
    void set(const std::string& key, double value);
    void set(const std::string& key, std::uint64_t value);
    void set(const std::string& key, const std::string& value);
    void print() const;

private:
    std::vector<std::pair<std::string, std::string>> fields_;
};

/// Wall clock and CPU (all threads of the process) between start() and stop(); system calls too
/// when the kernel's number of raw_syscalls:sys_enter is given. Make it before the threads that it
/// counts.
class Meter {
public:
    explicit Meter(std::uint64_t syscall_tracepoint = 0);
    Meter(const Meter&) = delete;
    Meter& operator=(const Meter&) = delete;
    ~Meter();
    void start();
    void stop();
    void report(Figures& figures, std::uint64_t bytes, std::uint64_t operations) const;
    [[nodiscard]] double seconds() const { return seconds_; }
    [[nodiscard]] double cpu_s() const { return cpu_s_; }
    [[nodiscard]] std::uint64_t system_calls() const { return system_calls_; }

private:
    int counter_ = -1;
    double started_s_ = 0;
    double started_cpu_s_ = 0;
    double seconds_ = 0;
    double cpu_s_ = 0;
    std::uint64_t system_calls_ = 0;
};

/// Page-aligned memory, touched, with `shift` bytes before the first one that is used.
class Memory {
public:
    explicit Memory(std::uint64_t bytes, std::uint64_t shift = 0);
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    ~Memory();
    [[nodiscard]] std::byte* data() const { return data_ + shift_; }

private:
    std::uint64_t mapped_bytes_;
    std::uint64_t shift_;
    std::byte* data_;
};

[[nodiscard]] double now_s();
[[nodiscard]] double median(std::vector<double> values);

/// A small generator: the same offsets in every run.
class Random {
public:
    [[nodiscard]] std::uint64_t below(std::uint64_t limit);

private:
    std::uint64_t state_ = 0x9e3779b97f4a7c15;
};

using Job = void (*)(const Arguments&, Figures&);

/// The main() of a benchmark program: runs the job that the first word names and prints its
/// figures. 64 for wrong words, 77 when it cannot run here, 1 when it failed.
int run_job(const char* program, const std::map<std::string, Job>& known, int count, char** words);

}  // namespace penstock::benchmarks
