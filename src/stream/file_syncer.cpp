// SPDX-License-Identifier: Apache-2.0
#include "stream/file_syncer.hpp"

#include "base/start_threads.hpp"

#include <utility>

namespace penstock::stream {

FileSyncer::~FileSyncer() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
        files_.clear();
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) {
        thread.join();
    }
}

void FileSyncer::use_threads(std::size_t count) {
    base::start_threads(threads_, count, [this] { work(); });
}

void FileSyncer::add(File file) {
    if (threads_.empty()) {
        file.sync_data();
        file.close();
        return;
    }
    {
        const std::lock_guard lock(mutex_);
        if (error_) {
            std::rethrow_exception(error_);
        }
        files_.push_back(std::move(file));
    }
    changed_.notify_all();
}

void FileSyncer::finish() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return error_ || (files_.empty() && busy_ == 0); });
    if (error_) {
        std::rethrow_exception(error_);
    }
}

void FileSyncer::work() {
    std::unique_lock lock(mutex_);
    while (true) {
        changed_.wait(lock, [this] { return stopping_ || !files_.empty(); });
        if (stopping_) {
            return;
        }
        File file = std::move(files_.front());
        files_.pop_front();
        ++busy_;
        lock.unlock();
        std::exception_ptr error;
        try {
            file.sync_data();
            file.close();
        } catch (...) {
            error = std::current_exception();
        }
        lock.lock();
        --busy_;
        if (error && !error_) {
            error_ = error;
        }
        changed_.notify_all();
    }
}

}  // namespace penstock::stream
