// SPDX-License-Identifier: Apache-2.0
#include "common.hpp"

#include <linux/perf_event.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>

namespace penstock::benchmarks {

namespace {

double cpu_now_s() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const auto seconds = [](const timeval& t) {
        return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
    };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

int open_syscall_counter(std::uint64_t tracepoint) {
    perf_event_attr attributes{};
    attributes.size = sizeof attributes;
    attributes.type = PERF_TYPE_TRACEPOINT;
    attributes.config = tracepoint;
    attributes.disabled = 1;
    attributes.inherit = 1;
    const auto fd = syscall(SYS_perf_event_open, &attributes, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
    if (fd < 0) {
        throw CannotRun(std::string("system calls are counted by perf_event_open, as root: ") +
                        std::strerror(errno));
    }
    return static_cast<int>(fd);
}

std::string quoted(const std::string& text) {
    std::string out = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') {
            out += '\\';
        }
        out += c == '\n' ? ' ' : c;
    }
    return out + '"';
}

}  // namespace

Arguments::Arguments(int count, char** words) {
    for (int i = 1; i < count; ++i) {
        const std::string word = words[i];
        const auto equals = word.find('=');
        if (word.rfind("--", 0) != 0) {
            what_ = word;
        } else if (equals == std::string::npos) {
            throw std::invalid_argument(word + ": give it as --key=value");
        } else {
            values_[word.substr(2, equals - 2)] = word.substr(equals + 1);
        }
    }
}

std::string Arguments::text(const std::string& key) const {
    const auto found = values_.find(key);
    if (found == values_.end()) {
        throw std::invalid_argument(what_ + " needs --" + key + "=...");
    }
    return found->second;
}

std::string Arguments::text(const std::string& key, const std::string& otherwise) const {
    return values_.count(key) != 0 ? text(key) : otherwise;
}

std::uint64_t Arguments::number(const std::string& key) const {
    return std::stoull(text(key));
}

std::uint64_t Arguments::number(const std::string& key, std::uint64_t otherwise) const {
    return values_.count(key) != 0 ? number(key) : otherwise;
}

bool Arguments::handicap(const std::string& name) const {
    if (text("handicap", "") != name) {
        return false;
    }
    handicap_asked_ = true;
    return true;
}

void Arguments::check_handicap_was_asked() const {
    if (values_.count("handicap") != 0 && !handicap_asked_) {
        throw std::invalid_argument(what_ + " knows no handicap " + text("handicap"));
    }
}

void Figures::set(const std::string& key, double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.17g", value);
    fields_.emplace_back(key, text);
}

void Figures::set(const std::string& key, std::uint64_t value) {
    fields_.emplace_back(key, std::to_string(value));
}

void Figures::set(const std::string& key, const std::string& value) {
    fields_.emplace_back(key, quoted(value));
}

void Figures::print() const {
    std::string line = "{";
    for (const auto& [key, value] : fields_) {
        line += (line.size() > 1 ? ", " : "") + quoted(key) + ": " + value;
    }
    std::puts((line + "}").c_str());
}

Meter::Meter(std::uint64_t syscall_tracepoint) {
    if (syscall_tracepoint != 0) {
        counter_ = open_syscall_counter(syscall_tracepoint);
    }
}

Meter::~Meter() {
    if (counter_ >= 0) {
        close(counter_);
    }
}

void Meter::start() {
    if (counter_ >= 0) {
        ioctl(counter_, PERF_EVENT_IOC_RESET, 0);
        ioctl(counter_, PERF_EVENT_IOC_ENABLE, 0);
    }
    started_cpu_s_ = cpu_now_s();
    started_s_ = now_s();
}

void Meter::stop() {
    seconds_ = now_s() - started_s_;
    cpu_s_ = cpu_now_s() - started_cpu_s_;
    if (counter_ >= 0) {
        ioctl(counter_, PERF_EVENT_IOC_DISABLE, 0);
        if (read(counter_, &system_calls_, sizeof system_calls_) != sizeof system_calls_) {
            throw CannotRun("the counter of system calls cannot be read");
        }
    }
}

void Meter::report(Figures& figures, std::uint64_t bytes, std::uint64_t operations) const {
    figures.set("seconds", seconds_);
    figures.set("bytes", bytes);
    figures.set("operations", operations);
    figures.set("cpu_s", cpu_s_);
    if (counter_ >= 0) {
        figures.set("syscalls", system_calls_);
    }
}

Memory::Memory(std::uint64_t bytes, std::uint64_t shift)
    : mapped_bytes_(bytes + shift), shift_(shift) {
    void* mapped =
        mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) {
        throw CannotRun(std::to_string(mapped_bytes_) +
                        " bytes of memory: " + std::strerror(errno));
    }
    data_ = static_cast<std::byte*>(mapped);
    std::memset(data_, 0x5a, mapped_bytes_);
}

Memory::~Memory() {
    munmap(data_, mapped_bytes_);
}

double now_s() {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

double median(std::vector<double> values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

std::uint64_t Random::below(std::uint64_t limit) {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_ % limit;
}

int run_job(const char* program, const std::map<std::string, Job>& known, int count, char** words) {
    try {
        const Arguments arguments(count, words);
        const auto job = known.find(arguments.what());
        if (job == known.end()) {
            std::string names;
            for (const auto& [name, function] : known) {
                names += " " + name;
            }
            std::fprintf(stderr, "%s JOB --key=value ...; jobs:%s\n", program, names.c_str());
            return 64;
        }
        Figures figures;
        job->second(arguments, figures);
        arguments.check_handicap_was_asked();
        figures.print();
        return 0;
    } catch (const CannotRun& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 77;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}

}  // namespace penstock::benchmarks
