// SPDX-License-Identifier: Apache-2.0
// SIGTERM in the workers of a DataLoader, for penstock/_store/sigterm.py: a scheduler sends it to
// the whole process group, and the workers must outlive it until their parent has saved.
#include "base/raise.hpp"
#include "bind.hpp"

#include <unistd.h>

#include <cerrno>
#include <csignal>

namespace penstock::python {

namespace {

// Written before the handler is installed.
pid_t parent = 0;
bool is_child = false;                 // of `parent`; otherwise a server forked this process
struct sigaction before_handler = {};  // of the process, without ours

bool parent_lives() {
    return is_child ? ::getppid() == parent : ::kill(parent, 0) == 0 || errno == EPERM;
}

// Async-signal-safe.
void on_sigterm(int number, siginfo_t* info, void* context) {
    const int error = errno;
    const bool ignored = info->si_pid != parent && parent_lives();
    errno = error;
    if (ignored) {
        return;
    }
    if ((before_handler.sa_flags & SA_SIGINFO) != 0) {
        before_handler.sa_sigaction(number, info, context);
    } else if (before_handler.sa_handler == SIG_DFL) {
        ::sigaction(number, &before_handler, nullptr);
        ::raise(number);  // comes when this handler has returned
    } else if (before_handler.sa_handler != SIG_IGN) {
        before_handler.sa_handler(number);
    }
}

void obey_sigterm_of(pid_t of) {
    parent = of;
    is_child = ::getppid() == of;
    struct sigaction ours = {};
    ours.sa_sigaction = on_sigterm;
    ours.sa_flags = SA_SIGINFO | SA_RESTART;
    ::sigemptyset(&ours.sa_mask);
    struct sigaction now = {};
    ::sigaction(SIGTERM, nullptr, &now);
    if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == on_sigterm) {
        return;
    }
    before_handler = now;
    if (::sigaction(SIGTERM, &ours, nullptr) != 0) {
        base::raise(base::system_error(errno, "set signal handler", ""));
    }
}

}  // namespace

void bind_signals(nb::module_& parent_module) {
    parent_module.def("obey_sigterm_of", obey_sigterm_of, nb::arg("parent"),
                      "A SIGTERM that another process than `parent` sends is ignored while that "
                      "one lives. Any other goes to the\n"
                      "handler that this process has now.");
}

}  // namespace penstock::python
