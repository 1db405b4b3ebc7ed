// The threads that split a call's own loop: helpers that stay between calls.
//
// A call puts its job up, works on it itself, and waits for the helpers that joined. Where all helpers are busy with another
// caller's job it does everything alone, so nobody ever waits for a free thread. Which thread does which range is chance,
// what the ranges are is not: results do not depend on it.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

#include "common.h"

namespace autorep {
namespace {

constexpr i64 kRangesPerThread = 4;  // so that a thread that is held up leaves its ranges to others
constexpr int kSpins = 8000;         // looks for work before a helper sleeps: some 150 microseconds, as between two kernels

void pause() {
#if AUTOREP_X86
    __builtin_ia32_pause();
#else
    std::this_thread::yield();
#endif
}

struct Job {
    i64 count, ranges;
    RangeBody body;
    void* context;
    i64 wanted;                  // helpers that may still join; under the pool's lock
    std::atomic<i64> next{0};    // the first range that nobody has taken
    std::atomic<i64> inside{0};  // helpers that joined and have not left
    std::atomic<bool> failed{false};
    std::exception_ptr error = nullptr;  // of the thread that set `failed`

    void work() noexcept {
        try {
            for (i64 range = next++; range < ranges; range = next++)
                body(context, count * range / ranges, count * (range + 1) / ranges);
        } catch (...) {
            next = ranges;
            if (!failed.exchange(true)) error = std::current_exception();
        }
    }
};

class Pool {
public:
    void run(Job& job) {
        const i64 helpers = job.wanted;
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            for (; threads_ < helpers && start(); ++threads_) continue;
            open_.push_back(&job);
            ++waiting_;
        }
        for (i64 i = 0; i < helpers; ++i) put_up_.notify_one();
        job.work();
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            close(job);
        }
        for (int i = 0; i < kSpins && job.inside.load(std::memory_order_acquire); ++i) pause();
        if (!job.inside.load(std::memory_order_acquire)) return;
        std::unique_lock<std::mutex> lock(mutex_);
        left_.wait(lock, [&] { return job.inside.load(std::memory_order_acquire) == 0; });
    }

private:
    bool start() {
        try {
            std::thread([this] { help(); }).detach();
            return true;
        } catch (const std::system_error&) {  // the system gives no more threads: those that are there will do
            return false;
        }
    }

    void close(Job& job) {
        const auto found = std::find(open_.begin(), open_.end(), &job);
        if (found == open_.end()) return;
        open_.erase(found);
        --waiting_;
    }

    [[noreturn]] void help() {
        for (;;) {
            for (int i = 0; i < kSpins && !waiting_.load(std::memory_order_relaxed); ++i) pause();
            std::unique_lock<std::mutex> lock(mutex_);
            put_up_.wait(lock, [&] { return !open_.empty(); });
            Job& job = *open_.front();
            ++job.inside;
            if (--job.wanted == 0) close(job);
            lock.unlock();
            job.work();
            lock.lock();
            --job.inside;  // the last touch: the caller may go now
            lock.unlock();
            left_.notify_all();
        }
    }

    std::mutex mutex_;
    std::condition_variable put_up_, left_;
    std::deque<Job*> open_;        // jobs that helpers may join
    std::atomic<i64> waiting_{0};  // their number, to be looked at without the lock
    i64 threads_ = 0;
};

std::atomic<Pool*> pool{nullptr};

// Never destroyed: helpers are not ended with the process. A forked child has no helpers, and begins with a pool of its own.
Pool& the_pool() {
    static const bool made = [] {
        pool = new Pool;
#if defined(__unix__) || defined(__APPLE__)
        pthread_atfork(nullptr, nullptr, [] { pool = new Pool; });
#endif
        return true;
    }();
    (void)made;
    return *pool;
}

}  // namespace

void run_ranges(i64 count, i64 grain, RangeBody body, void* context) {
    const i64 most = std::max<i64>(1, count / std::max<i64>(1, grain)), threads = std::min<i64>(thread_count(), most);
    if (threads <= 1) {
        if (count > 0) body(context, 0, count);
        return;
    }
    Job job{count, std::min(most, threads * kRangesPerThread), body, context, threads - 1};
    the_pool().run(job);
    if (job.failed) std::rethrow_exception(job.error);
}

}  // namespace autorep
