// SPDX-License-Identifier: Apache-2.0
// Work that may block, and who does it. A job lives in whatever asked for it; posting links it.
// Neither posting nor running throws: nobody is there who could catch it.
#pragma once

#include "base/intrusive.hpp"

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace penstock::engine {

/// Run once by an executor. It may be gone as soon as `run` has said that it is done.
struct Job {
    base::Link<Job> job_link;
    void (*run)(Job&) noexcept = nullptr;
    bool may_take_long = false;  ///< an open, a sync: a fork does not wait for it
};

class Executor {
public:
    virtual ~Executor() = default;
    /// Any thread; does not wait for the job.
    virtual void post(Job& job) noexcept = 0;
    /// Starts no job until resume(), and waits for those that run and do not take long. For fork().
    virtual void pause() {}
    virtual void resume() {}
};

/// Runs a job where it is posted: for simulations and for the caller's own thread.
class InlineExecutor final : public Executor {
public:
    void post(Job& job) noexcept override { job.run(job); }
};

/// Threads that are started on demand and sleep while idle. First in, first out. If the system
/// starts no thread and none runs yet, the posting thread does the work.
class Workers final : public Executor {
public:
    Workers(const char* name, std::uint32_t threads_max) : name_(name), threads_max_(threads_max) {}
    Workers(const Workers&) = delete;
    Workers& operator=(const Workers&) = delete;
    ~Workers() override;

    void post(Job& job) noexcept override;

    void pause() override;
    void resume() override;

private:
    void loop() noexcept;

    const char* name_;
    const std::uint32_t threads_max_;
    std::mutex mutex_;
    std::condition_variable work_;
    std::condition_variable quiet_;
    base::Fifo<Job, &Job::job_link> jobs_;
    std::vector<std::thread> threads_;
    std::uint32_t idle_ = 0;
    std::uint32_t running_ = 0;  ///< jobs that do not take long
    std::uint32_t queued_ = 0;
    bool paused_ = false;
    bool stopping_ = false;
};

}  // namespace penstock::engine
