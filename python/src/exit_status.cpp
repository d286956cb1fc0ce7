// SPDX-License-Identifier: Apache-2.0
#include "exit_status.hpp"

#include "names.hpp"
#include "nanobind.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>
#include <unwind.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <vector>

namespace penstock::python {

namespace {

constexpr std::size_t kPrintedMax = 20;

struct Unheard {
    pid_t process = 0;
    std::vector<std::string> failures;
};

// With the GIL. Never destroyed: exit() looks at it.
Unheard& unheard() {
    static auto* const instance = new Unheard;
    return *instance;
}

// Whether Python's own main() is below on the stack of this thread.
bool runs_python_main() {
    struct Search {
        std::array<void*, 3> mains;
        bool found = false;
    };
    Search search{{::dlsym(RTLD_DEFAULT, "Py_RunMain"), ::dlsym(RTLD_DEFAULT, "Py_BytesMain"),
                   ::dlsym(RTLD_DEFAULT, "Py_Main")}};
    const auto look = [](_Unwind_Context* frame, void* given) {
        auto& own = *static_cast<Search*>(given);
        const std::uintptr_t next = _Unwind_GetIP(frame);  // after the call
        void* const function =
            next == 0 ? nullptr : _Unwind_FindEnclosingFunction(reinterpret_cast<void*>(next - 1));
        own.found = function != nullptr &&
                    std::find(own.mains.begin(), own.mains.end(), function) != own.mains.end();
        return own.found ? _URC_NORMAL_STOP : _URC_NO_REASON;
    };
    _Unwind_Backtrace(look, &search);
    return search.found;
}

#ifdef __GLIBC__
// glibc goes on with the handlers that are left, and with the new status.
void on_end(int status, void* /*argument*/) {
    if (status == 0 && unheard().process == ::getpid()) {
        std::exit(EXIT_FAILURE);  // NOLINT(concurrency-mt-unsafe): this thread is in exit()
    }
}

// False where the status cannot be changed.
bool change_status() {
    static const bool registered = runs_python_main() && ::on_exit(on_end, nullptr) == 0;
    return registered;
}
#else
bool change_status() {
    return false;
}
#endif

void print(const std::string& text) {
    PyErr_SetObject(PyExc_RuntimeError, path_object(text).ptr());
    const nb::object where = nb::str("penstock, at the end of the interpreter");
    PyErr_WriteUnraisable(where.ptr());
}

}  // namespace

void note_unheard(const std::string& failure) {
    Unheard& all = unheard();
    if (all.process != ::getpid()) {  // what is there is the parent's
        all.failures.clear();
        all.process = ::getpid();
    }
    if (all.failures.size() < kPrintedMax) {
        all.failures.push_back(failure);
    }
}

bool report_unheard() {
    Unheard& all = unheard();
    if (all.process != ::getpid()) {
        return false;
    }
    const char* const status =
        change_status() ? "; so the exit status of this process is 1 if it would be 0" : "";
    for (const std::string& failure : all.failures) {
        print(
            fmt::format("{}{} (wait() or close() of a store raises it, and so does result() of "
                        "the save)",
                        failure, status));
    }
    all.failures.clear();  // some children end in two steps, and call this in each
    return true;
}

}  // namespace penstock::python
