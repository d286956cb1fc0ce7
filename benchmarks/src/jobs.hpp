// SPDX-License-Identifier: Apache-2.0
// The jobs of penstock_bench_ours, over the public API alone. Each fills in the figures of one run.
#pragma once

#include "common.hpp"

#include <penstock/penstock.hpp>

#include <cstdint>
#include <memory>
#include <vector>

namespace penstock::benchmarks {

void sequential(const Arguments& arguments, Figures& figures);
void random_reads(const Arguments& arguments, Figures& figures);
/// `count` rows of `block` bytes by random numbers, `transfer` at a time (all of them).
/// --distinct=1: each row once. --memory=pool: to a buffer of a MemoryPool, unless the handicap is
/// `nothing_registered`.
void random_rows(const Arguments& arguments, Figures& figures);
/// The same by an io_uring of its own, with nothing of the library: a peer.
void uring_rows(const Arguments& arguments, Figures& figures);
/// The loop of GraphBolt's on-disk arrays (dmlc/dgl, graphbolt/src/cnumpy.cc), stated again from
/// its description: blocks of 4 KiB, 512 at once, all awaited before the next, copied out of a
/// bounce buffer. A peer with nothing of the library.
void graphbolt_rows(const Arguments& arguments, Figures& figures);
/// `count` distinct rows of `row` bytes of a feature file of `rows`, `gather` at a time: what
/// feature_gather of Python does.
void feature_gather(const Arguments& arguments, Figures& figures);
/// The same rows by a RowServer, for `threads` that play warps and ask for `held` rows each at
/// once. Handicap `one_request`: a ring of one slot.
void feature_ring(const Arguments& arguments, Figures& figures);
void latency(const Arguments& arguments, Figures& figures);
void many_small(const Arguments& arguments, Figures& figures);
void syscalls(const Arguments& arguments, Figures& figures);
void idle(const Arguments& arguments, Figures& figures);
void scaling(const Arguments& arguments, Figures& figures);
/// A durable save of `bytes` to a new CheckpointStore in --dir. --copies=1: of memory that the
/// caller promises not to change, so that no change is looked for. Handicap `read_back`: the
/// checkpoint is read, and checked.
void store_save(const Arguments& arguments, Figures& figures);
/// Blocking reads of 4 KiB by several threads, or by preadv (--api=preadv). Handicap `four_lanes`:
/// all but four threads read through the ring.
void threads(const Arguments& arguments, Figures& figures);

/// `bytes` of a file to or from the memory of a GPU (--memory=host: of the host) in one transfer;
/// CPU seconds without those of the fake's threads. Handicaps `wait_each_1ms`: blocks of 1 MiB,
/// each waited for, and 1 ms; `one_slot`; `copy`: the CPU copies the bytes once more.
void device_transfer(const Arguments& arguments, Figures& figures);
/// The cost of transfers at odd places, as the fake driver counts it: --what=copies (bytes that the
/// CPU copied), syncs, pinned (MiB). Handicaps `through_host`, `synchronise`,
/// `two_engines`.
void device_counts(const Arguments& arguments, Figures& figures);
/// The rate to or from a GPU over the least of the disk's (our host transfer) and a pinned copy's,
/// all in this run. Handicap `wait_each_1ms`.
void device_bound(const Arguments& arguments, Figures& figures);
/// Median microseconds of one blocking 4 KiB read to a GPU, or (--api=plain) of pread to pinned
/// memory and a copy that is waited for. Handicap `hop`: each by a thread of its own.
void device_latency(const Arguments& arguments, Figures& figures);

/// The defaults, with --block, --depth and --backend.
[[nodiscard]] EngineOptions engine_options(const Arguments& arguments);
/// `count` reads of `block` bytes at random offsets that are multiples of it, into a window of
/// memory.
[[nodiscard]] TransferRequest random_request(const File& file, std::uint64_t count,
                                             std::uint64_t block, const Memory& memory,
                                             std::uint64_t window);
/// Random numbers of rows, the same in every run; `distinct`: none comes twice.
[[nodiscard]] std::vector<std::uint64_t> row_numbers(std::uint64_t rows, std::uint64_t count,
                                                     bool distinct);
/// Blocks of the file as transfers of their own, each waited for.
void one_by_one(Engine& engine, const TransferRequest& request);
void note_engine(const Engine& engine, Figures& figures);

}  // namespace penstock::benchmarks
