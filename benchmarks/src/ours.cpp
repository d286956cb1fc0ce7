// SPDX-License-Identifier: Apache-2.0
// penstock_bench_ours JOB --key=value ...: one run of our side (or, with --api=pread, of plain
// system calls), as the rows of bars.toml ask for. Prints one JSON object. 77 when it cannot run
// here.
#include "jobs.hpp"

#include <cstdio>
#include <exception>
#include <map>

namespace {

using penstock::benchmarks::Arguments;
using penstock::benchmarks::Figures;

int run(int count, char** words) {
    using Job = void (*)(const Arguments&, Figures&);
    namespace jobs = penstock::benchmarks;
    const std::map<std::string, Job> known = {
        {"idle", jobs::idle},           {"instructions", jobs::instructions},
        {"latency", jobs::latency},     {"many_small", jobs::many_small},
        {"random", jobs::random_reads}, {"sequential", jobs::sequential},
        {"syscalls", jobs::syscalls},
    };
    const Arguments arguments(count, words);
    const auto job = known.find(arguments.what());
    if (job == known.end()) {
        std::string names;
        for (const auto& [name, function] : known) {
            names += " " + name;
        }
        std::fprintf(stderr, "penstock_bench_ours JOB --key=value ...; jobs:%s\n", names.c_str());
        return 64;
    }
    Figures figures;
    job->second(arguments, figures);
    arguments.check_handicap_was_asked();
    figures.print();
    return 0;
}

}  // namespace

int main(int count, char** words) {
    try {
        return run(count, words);
    } catch (const penstock::benchmarks::CannotRun& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 77;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
