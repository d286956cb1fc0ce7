// SPDX-License-Identifier: Apache-2.0
#include "report/progress.hpp"

#include "base/clock.hpp"
#include "base/text/units.hpp"
#include "report/interrupt.hpp"
#include "report/style.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace penstock::report {

namespace {

constexpr base::Nanos kTerminalNs = 100'000'000;
constexpr base::Nanos kLogNs = 3'000'000'000;

base::Nanos now() {
    return base::SteadyClock().now();
}

}  // namespace

Progress::Progress(std::FILE* out) : out_(out), terminal_(::isatty(::fileno(out)) == 1) {
    next_ns_ = now() + (terminal_ ? 0 : kLogNs);
}

Progress::~Progress() {
    clear();
}

void Progress::step(std::string prefix) {
    prefix_ = std::move(prefix);
}

bool Progress::due() const {
    return now() >= next_ns_;
}

void Progress::check() {
    check_interrupt();
}

void Progress::moved(std::uint64_t bytes, double seconds) {
    show(base::format_rate(static_cast<double>(bytes) / (seconds + 1e-9)));
}

void Progress::filled(const std::string& path, std::uint64_t bytes, std::uint64_t of,
                      double seconds) {
    show(fmt::format("making the scratch file {}: {} of {}, {}", path, base::format_bytes(bytes),
                     base::format_bytes(of),
                     base::format_rate(static_cast<double>(bytes) / seconds)));
}

void Progress::show(const std::string& text) {
    if (!due()) {
        return;
    }
    std::string line = prefix_ + text;
    if (terminal_) {
        // A longer line would wrap, and the next could not be written over it.
        line.resize(std::min(line.size(), columns_of(out_) - 1));
        fmt::print(out_, "\r\033[K{}", line);
        dirty_ = true;
    } else {
        fmt::print(out_, "{}\n", line);
    }
    std::fflush(out_);
    next_ns_ = now() + (terminal_ ? kTerminalNs : kLogNs);
}

void Progress::clear() {
    if (dirty_) {
        fmt::print(out_, "\r\033[K");
        std::fflush(out_);
        dirty_ = false;
    }
}

}  // namespace penstock::report
