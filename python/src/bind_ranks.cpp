// SPDX-License-Identifier: Apache-2.0
// Ranks for penstock/_store/ranks.py. Private: what users see is penstock.Ranks.
#include "arguments.hpp"
#include "names.hpp"
#include "ranks.hpp"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

namespace penstock::python {

namespace {

constexpr std::chrono::nanoseconds kPause = std::chrono::milliseconds(2);

// An object with put(key, bytes), get(key, seconds) -> bytes or None, and erase(key). Its calls
// come from any thread. Ctrl-C in one of them is kept for later: the save looks at signals between
// its calls, and can tell the other ranks then.
class PythonMailbox final : public Mailbox {
public:
    explicit PythonMailbox(nb::object object) : object_(std::move(object)) {}
    PythonMailbox(const PythonMailbox&) = delete;
    PythonMailbox& operator=(const PythonMailbox&) = delete;
    ~PythonMailbox() override {
        if (Py_IsInitialized() == 0) {
            static_cast<void>(object_.release());
            return;
        }
        const nb::gil_scoped_acquire gil;
        object_.reset();
    }

    void put(const std::string& key, std::string_view value) override {
        run([&] { object_.attr("put")(key, nb::bytes(value.data(), value.size())); });
    }
    std::optional<std::string> get(const std::string& key,
                                   std::chrono::nanoseconds timeout) override {
        using Clock = std::chrono::steady_clock;
        const auto end = Clock::now() + timeout;
        for (std::chrono::nanoseconds left = timeout;;) {
            std::optional<std::string> value;
            run([&] {
                const nb::object found =
                    object_.attr("get")(key, std::chrono::duration<double>(left).count());
                if (!found.is_none()) {
                    value = raw(found);
                }
            });
            left = end - Clock::now();
            if (value || left <= std::chrono::nanoseconds::zero()) {
                return value;
            }
            // Other ranks are accused of what was waited for: it has to be waited for.
            std::this_thread::sleep_for(std::min(left, kPause));
        }
    }
    void erase(const std::string& key) override {
        run([&] { object_.attr("erase")(key); });
    }

private:
    // An interrupted call is made again: what is put twice is put once, and so for the others.
    template <typename Call>
    void run(const Call& call) {
        const nb::gil_scoped_acquire gil;
        bool interrupted = false;
        for (;;) {
            try {
                call();
                break;
            } catch (nb::python_error& error) {
                if (interrupted || !error.matches(PyExc_KeyboardInterrupt)) {
                    throw std::runtime_error(type_text(error.value()) + ": " + text(error.value()));
                }
                interrupted = true;
            } catch (const nb::cast_error&) {
                throw std::runtime_error("its get() gave what is not bytes");
            }
        }
        if (interrupted) {
            PyErr_SetInterrupt();
        }
    }

    nb::object object_;
};

// StopTogether without the GIL; Ctrl-C ends its waits.
class StopObject {
public:
    StopObject(const Ranks& ranks, std::uint32_t wait_ms)
        : stop_(ranks, {.limit = std::chrono::milliseconds(wait_ms), .look = [this] { look(); }}) {}

    [[nodiscard]] bool step_end(bool is_asked) {
        return run([&] { return stop_.step_end(is_asked); });
    }
    [[nodiscard]] bool end(bool is_asked) {
        return run([&] { return stop_.end(is_asked); });
    }
    [[nodiscard]] bool leave() {
        return run([&] { return stop_.leave(); });
    }

private:
    template <typename Call>
    bool run(const Call& call) {
        raised_.reset();
        try {
            const nb::gil_scoped_release nogil;
            return call();
        } catch (const Error&) {
            if (!raised_) {
                throw;
            }
        }
        throw nb::python_error(std::move(*raised_));
    }
    void look() {
        const nb::gil_scoped_acquire gil;
        if (PyErr_CheckSignals() != 0) {
            raised_.emplace();
            throw Error(ErrorCode::kCancelled, 0, "step_end", "", kNoOffset, "a signal came");
        }
    }

    std::optional<nb::python_error> raised_;
    StopTogether stop_;
};

nb::list of_threads(std::uint32_t count) {
    nb::list out;
    for (Ranks& ranks : Ranks::of_threads(count)) {
        out.append(nb::cast(new RanksObject{std::move(ranks)}, nb::rv_policy::take_ownership));
    }
    return out;
}

// "10.0.0.1" and its port of the other end of a socket; an empty address for what is no such
// socket.
std::pair<std::string, std::uint16_t> peer_of(int fd) {
    sockaddr_storage peer{};
    socklen_t bytes = sizeof(peer);
    std::array<char, INET6_ADDRSTRLEN> text{};
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &bytes) != 0) {
        return {};
    }
    if (peer.ss_family == AF_INET) {
        sockaddr_in of{};
        std::memcpy(&of, &peer, sizeof(of));
        ::inet_ntop(AF_INET, &of.sin_addr, text.data(), text.size());
        return {text.data(), ntohs(of.sin_port)};
    }
    if (peer.ss_family == AF_INET6) {
        sockaddr_in6 of{};
        std::memcpy(&of, &peer, sizeof(of));
        const bool is_4 = IN6_IS_ADDR_V4MAPPED(&of.sin6_addr);
        ::inet_ntop(is_4 ? AF_INET : AF_INET6, of.sin6_addr.s6_addr + (is_4 ? 12 : 0), text.data(),
                    text.size());
        return {text.data(), ntohs(of.sin6_port)};
    }
    return {};
}

// Limits the waits for an answer on the sockets of this process that are connected to there: a call
// of TCPStore has no limit of its own where the other machine has stopped. Returns how many they
// are.
std::size_t limit_waits(nb::handle address, std::uint16_t port, std::uint64_t milliseconds) {
    const std::pair<std::string, std::uint16_t> there(word_of(address, "address"), port);
    constexpr std::uint64_t kMillisecondsOfSecond = 1000;
    const timeval limit{.tv_sec = static_cast<time_t>(milliseconds / kMillisecondsOfSecond),
                        .tv_usec = static_cast<suseconds_t>(milliseconds % kMillisecondsOfSecond *
                                                            kMillisecondsOfSecond)};
    std::size_t count = 0;
    const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc/self/fd"), ::closedir);
    for (const dirent* entry = nullptr; folder && (entry = ::readdir(folder.get())) !=
                                                      nullptr;) {  // NOLINT(concurrency-mt-unsafe)
        char* end = nullptr;
        const int fd = static_cast<int>(std::strtol(entry->d_name, &end, 10));
        if (*end != '\0') {
            continue;
        }
        if (peer_of(fd) == there &&
            ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) == 0) {
            ++count;
        }
    }
    return count;
}

}  // namespace

Ranks ranks_of(nb::handle object) {
    return object.is_none() ? Ranks() : nb::cast<const RanksObject&>(object).ranks;
}

void bind_ranks(nb::module_& m) {
    nb::class_<RanksObject>(m, "Ranks")
        .def("__reduce__", [](nb::handle) { cannot_pickle("Ranks", "what it is made of"); })
        .def(
            "__init__",
            [](RanksObject* self, std::uint32_t number, std::uint32_t count, nb::handle host,
               nb::object mailbox) {
                new (self) RanksObject{
                    Ranks(number, count, word_of(host, "host"),
                          mailbox.is_none() ? nullptr
                                            : std::make_shared<PythonMailbox>(std::move(mailbox)))};
            },
            nb::arg("number"), nb::arg("count"), nb::arg("host"), nb::arg("mailbox").none())
        .def_prop_ro("number", [](const RanksObject& r) { return r.ranks.number(); })
        .def_prop_ro("count", [](const RanksObject& r) { return r.ranks.count(); })
        .def_prop_ro("host", [](const RanksObject& r) { return path_object(r.ranks.host()); })
        .def_static("of_threads", of_threads, nb::arg("count"))
        .def_static("limit_waits", limit_waits, nb::arg("address"), nb::arg("port"),
                    nb::arg("milliseconds"));
    nb::class_<StopObject>(m, "StopTogether")
        .def("__reduce__", [](nb::handle) { cannot_pickle("StopTogether", "its ranks"); })
        .def(
            "__init__",
            [](StopObject* self, nb::handle ranks, std::uint32_t wait_ms) {
                new (self) StopObject(ranks_of(ranks), wait_ms);
            },
            nb::arg("ranks").none(), nb::arg("wait_ms"))
        .def("step_end", &StopObject::step_end, nb::arg("is_asked"))
        .def("end", &StopObject::end, nb::arg("is_asked"))
        .def("leave", &StopObject::leave);
}

}  // namespace penstock::python
