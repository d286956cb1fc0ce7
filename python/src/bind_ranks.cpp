// SPDX-License-Identifier: Apache-2.0
// Ranks for penstock/_store/ranks.py. Private: what users see is penstock.Ranks.
#include "arguments.hpp"
#include "names.hpp"
#include "ranks.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock::python {

namespace {

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
        std::optional<std::string> value;
        run([&] {
            const nb::object found =
                object_.attr("get")(key, std::chrono::duration<double>(timeout).count());
            if (!found.is_none()) {
                value = raw(found);
            }
        });
        return value;
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
        .def_static("of_threads", of_threads, nb::arg("count"));
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
