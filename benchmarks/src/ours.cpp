// SPDX-License-Identifier: Apache-2.0
// penstock_bench_ours JOB --key=value ...: one run of our side (or, with --api=pread, of plain
// system calls), as the rows of bars.toml ask for. Prints one JSON object. 77 when it cannot run
// here.
#include "jobs.hpp"

int main(int count, char** words) {
    namespace jobs = penstock::benchmarks;
    return jobs::run_job("penstock_bench_ours",
                         {{"device", jobs::device_transfer},
                          {"device_bound", jobs::device_bound},
                          {"device_counts", jobs::device_counts},
                          {"device_latency", jobs::device_latency},
                          {"feature_gather", jobs::feature_gather},
                          {"feature_ring", jobs::feature_ring},
                          {"graphbolt_rows", jobs::graphbolt_rows},
                          {"idle", jobs::idle},
                          {"latency", jobs::latency},
                          {"many_small", jobs::many_small},
                          {"random", jobs::random_reads},
                          {"rows", jobs::random_rows},
                          {"scaling", jobs::scaling},
                          {"sequential", jobs::sequential},
                          {"store_save", jobs::store_save},
                          {"syscalls", jobs::syscalls},
                          {"threads", jobs::threads},
                          {"uring_rows", jobs::uring_rows}},
                         count, words);
}
