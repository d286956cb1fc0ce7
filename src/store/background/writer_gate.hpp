// SPDX-License-Identifier: Apache-2.0
// Says whether this thread of this process may write to a store now. One thread writes at a time.
// Refused are: a closed store, the child of a process that writes (both have the lock, and would
// remove each other's writes), and the progress function of a save, which would wait for itself.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <mutex>
#include <string>
#include <thread>

namespace penstock::store {

class WriterGate {
public:
    /// `folder`: for messages.
    explicit WriterGate(std::string folder) : folder_(std::move(folder)) {}
    WriterGate(const WriterGate&) = delete;
    WriterGate& operator=(const WriterGate&) = delete;
    ~WriterGate() = default;

    /// Throws what refuses the call. Takes no mutex: in the child of a fork, a save of the parent
    /// may hold it forever. Comes before each Hold but those of saves in the background.
    void check();
    void check_open() const;
    /// Throws if the progress function of a save on this thread makes this call.
    void check_not_inside() const;
    void close() { closed_ = true; }
    [[nodiscard]] bool is_closed() const { return closed_; }
    /// True in the child of a process that writes.
    [[nodiscard]] bool is_of_parent() const;

    /// The right to write, for the lifetime of the object.
    class Hold {
    public:
        explicit Hold(WriterGate& gate);
        Hold(const Hold&) = delete;
        Hold& operator=(const Hold&) = delete;
        ~Hold() { gate_.thread_ = std::thread::id(); }

    private:
        WriterGate& gate_;
        std::lock_guard<std::mutex> guard_;
    };

private:
    const std::string folder_;
    std::mutex mutex_;                     // held by the thread that writes
    std::atomic<std::thread::id> thread_;  // that thread
    std::atomic<pid_t> process_ = 0;       // the first process that wrote, or tried to
    std::atomic<bool> closed_ = false;
};

}  // namespace penstock::store
