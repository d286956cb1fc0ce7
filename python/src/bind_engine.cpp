// SPDX-License-Identifier: Apache-2.0
// Engine and the four verbs, as methods and, on the default engine, as functions of the module.
#include "api/option_table.hpp"
#include "arguments.hpp"
#include "bind.hpp"
#include "engine_object.hpp"
#include "engine_text.hpp"
#include "errors.hpp"
#include "file_object.hpp"
#include "names.hpp"
#include "request.hpp"
#include "transfer_object.hpp"

#include <penstock/engine.hpp>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace penstock::python {

namespace {

// All access is with the GIL. Never destroyed: engines may outlive the statics.
struct Engines {
    std::set<EngineObject*> live;
    std::vector<std::shared_ptr<Engine>> dropped;  // while transfers of theirs ran, which go on
    PyObject* default_engine = nullptr;
    std::optional<std::thread::id> ends;  // who ends the interpreter, from when it does
};

Engines& engines() {
    static auto* const instance = new Engines;
    return *instance;
}

// Frees dropped engines that have nothing more to do. Cheap when no engine was dropped.
void sweep_engines() {
    std::vector<std::shared_ptr<Engine>>& dropped = engines().dropped;
    if (dropped.empty()) {
        return;
    }
    const auto first = std::partition(dropped.begin(), dropped.end(),
                                      [](const auto& e) { return e->running() != 0; });
    std::vector<std::shared_ptr<Engine>> done(std::make_move_iterator(first),
                                              std::make_move_iterator(dropped.end()));
    dropped.erase(first, dropped.end());
    const nb::gil_scoped_release nogil;
    done.clear();
}

bool is_closed(const EngineObject& self) {
    return !self.engine || self.engine->closed();
}

}  // namespace

EngineObject::EngineObject() : EngineObject(nullptr) {}

EngineObject::EngineObject(std::shared_ptr<Engine> made) : engine(std::move(made)) {
    // Room to be dropped: its destructor cannot report a lack of memory.
    engines().dropped.reserve(engines().dropped.size() + engines().live.size() + 1);
    engines().live.insert(this);
}

EngineObject::~EngineObject() {
    sweep_engines();
    engines().live.erase(this);
    if (engine && engine->running() != 0) {
        engines().dropped.push_back(std::move(engine));
        return;
    }
    const nb::gil_scoped_release nogil;
    engine.reset();
}

const std::shared_ptr<Engine>& opened(const EngineObject& self) {
    check_interpreter_goes_on();
    if (is_closed(self)) {
        raise_value("engine: it is closed; make another one");
    }
    return self.engine;
}

// A daemon thread would keep the end up: it would go on asking until it is stopped, after us.
void check_interpreter_goes_on() {
    const auto& ends = engines().ends;
    if (ends && *ends != std::this_thread::get_id()) {
        PyErr_SetString(PyExc_RuntimeError,
                        "engine: the interpreter ends, and no other thread begins anything new; "
                        "stop and join threads before the program ends");
        throw nb::python_error();
    }
}

EngineObject& default_engine() {
    check_interpreter_goes_on();
    Engines& all = engines();
    // One that was closed stays where it is: a call of another thread may be on its way to it.
    if (all.default_engine == nullptr ||
        is_closed(*nb::inst_ptr<EngineObject>(all.default_engine))) {
        auto made = std::make_unique<EngineObject>(std::make_shared<Engine>());
        all.default_engine =
            nb::cast(made.release(), nb::rv_policy::take_ownership).release().ptr();
    }
    return *nb::inst_ptr<EngineObject>(all.default_engine);
}

namespace {

// `wait` is a way to drain an engine, which raises what dropped transfers failed with: the handles
// of those go only now, and tell of errors when they do.
template <typename Wait>
bool drained(double timeout_s, const Wait& wait) {
    if (!wait_in_slices(timeout_s, wait)) {
        return false;
    }
    sweep_orphans();
    const nb::gil_scoped_release nogil;
    static_cast<void>(wait(std::chrono::nanoseconds(0)));
    return true;
}

}  // namespace

bool drain(const std::shared_ptr<Engine>& engine, double timeout_s) {
    const std::uint64_t all = engine->submitted();
    return drained(timeout_s, [&](auto slice) { return engine->drain_first(all, slice); });
}

namespace {

// The engine, for the length of the call, even if another thread closes it.
std::shared_ptr<Engine> use(EngineObject& self) {
    self.used = true;
    return opened(self);
}

// Ctrl-C during a blocking verb: nobody has a handle to wait on later, so it ends before the
// exception goes on.
void cancel_and_wait(Held& held) {
    const nb::gil_scoped_release nogil;
    held.transfer.cancel();
    try {
        static_cast<void>(held.transfer.wait());
    } catch (const std::exception&) {
        return;  // as was asked for
    }
}

std::optional<std::uint64_t> run_at_once(Engine& engine, const Request& parsed) {
    if (!parsed.one) {
        return std::nullopt;
    }
    const OneExtent& one = *parsed.one;
    const TransferOptions& options = parsed.request.options;
    return parsed.request.write
               ? engine.try_write_at_once(one.file, one.memory, one.offset, options)
               : engine.try_read_at_once(one.file, one.memory, one.offset, options);
}

Transfer run(Engine& engine, Request& parsed) {
    if (!parsed.one) {
        return engine.run(std::move(parsed.request));
    }
    const OneExtent& one = *parsed.one;
    return parsed.request.write
               ? engine.run_write(one.file, one.memory, one.offset, parsed.request.options)
               : engine.run_read(one.file, one.memory, one.offset, parsed.request.options);
}

Transfer submit(Engine& engine, Request& parsed) {
    if (!parsed.one) {
        return engine.submit(std::move(parsed.request));
    }
    const OneExtent& one = *parsed.one;
    return parsed.request.write
               ? engine.write_async(one.file, one.memory, one.offset, parsed.request.options)
               : engine.read_async(one.file, one.memory, one.offset, parsed.request.options);
}

}  // namespace

nb::object run_request(EngineObject& self, Request parsed) {
    const std::shared_ptr<Engine> engine = use(self);
    Held held{.transfer = {}, .keeps = std::move(parsed.keeps)};
    std::optional<std::uint64_t> bytes;
    {
        const nb::gil_scoped_release nogil;
        bytes = run_at_once(*engine, parsed);
        if (!bytes) {
            held.transfer = run(*engine, parsed);
        }
    }
    if (bytes) {
        return nb::int_(*bytes);
    }
    try {
        wait(held, -1);
    } catch (...) {
        if (!held.transfer.done()) {
            cancel_and_wait(held);
        }
        throw;
    }
    return result(held, parsed.list_result, parsed.extent_count);
}

// With the GIL, for submitting does not wait; but memory of a GPU may make a context of it first.
nb::object submit_request(EngineObject& self, Request parsed) {
    HeldPtr held(new Held{.transfer = {}, .keeps = std::move(parsed.keeps)});
    const std::shared_ptr<Engine> engine = use(self);
    if (parsed.request.options.streams.empty()) {
        held->transfer = submit(*engine, parsed);
    } else {
        const nb::gil_scoped_release nogil;
        held->transfer = submit(*engine, parsed);
    }
    return nb::cast(new TransferObject(std::move(held), parsed.list_result, parsed.extent_count),
                    nb::rv_policy::take_ownership);
}

namespace {

nb::object move_now(EngineObject& self, const Arguments& arguments) {
    sweep_orphans();
    sweep_engines();
    return run_request(self, parse(arguments));
}

nb::object start(EngineObject& self, const Arguments& arguments) {
    sweep_orphans();
    sweep_engines();
    return submit_request(self, parse(arguments));
}

template <nb::object (*kMove)(EngineObject&, const Arguments&), bool kWrite>
nb::object method(EngineObject& self, nb::handle file, nb::handle memory, nb::handle offset,
                  nb::handle flag, nb::handle stream, nb::handle priority, nb::handle block_bytes,
                  nb::handle depth_limit, nb::handle cache) {
    return kMove(
        self,
        {kWrite, file, memory, offset, flag, stream, {priority, block_bytes, depth_limit, cache}});
}

template <nb::object (*kMove)(EngineObject&, const Arguments&), bool kWrite>
nb::object function(nb::handle file, nb::handle memory, nb::handle offset, nb::handle flag,
                    nb::handle stream, nb::handle priority, nb::handle block_bytes,
                    nb::handle depth_limit, nb::handle cache) {
    return kMove(
        default_engine(),
        {kWrite, file, memory, offset, flag, stream, {priority, block_bytes, depth_limit, cache}});
}

// The keywords of Engine(): `options`, and a row of api::kWordOptions or api::kOptions each.
template <typename Table>
const typename Table::value_type* option_named(const Table& table, std::string_view name) {
    const auto* const found = std::find_if(table.begin(), table.end(),
                                           [&](const auto& option) { return option.name == name; });
    return found == table.end() ? nullptr : found;
}

void set_word(EngineOptions& options, const api::WordOption& option, nb::handle value) {
    const std::string word = word_of(value, option.name);
    if (!option.set(options, word)) {
        raise_value(option.name + (": got " + quoted(word)) + "; expected " + option.allowed);
    }
}

void make_engine(EngineObject* self, const nb::kwargs& given) {
    const nb::object file = given.contains("options") ? nb::object(given["options"]) : nb::none();
    EngineOptions options =
        file.is_none() ? Engine::default_options() : load_options(path_bytes(file, "options", ""));
    for (const auto& [key, value] : given) {
        const std::string name = word_of(key, "argument");
        const api::Option* const option = option_named(api::kOptions, name);
        const api::WordOption* const words = option_named(api::kWordOptions, name);
        if (option == nullptr && words == nullptr && name != "options") {
            throw nb::next_overload();  // says which arguments there are
        }
        if (value.is_none() || name == "options") {
            continue;
        }
        if (words != nullptr) {
            set_word(options, *words, value);
        } else {
            const auto number = option->is_size() ? size_of : count_of;
            option->set(options, number(value, name, option->unit, option->member_max()));
        }
    }
    sweep_engines();
    new (self) EngineObject(std::make_shared<Engine>(options));
}

// Gives threads and rings back; what others still hold of it goes when they do.
void let_go(EngineObject& self, std::shared_ptr<Engine>& engine) {
    self.engine.reset();
    const nb::gil_scoped_release nogil;
    engine.reset();
}

bool close_engine(EngineObject& self, double timeout_s) {
    std::shared_ptr<Engine> engine = self.engine;
    if (!engine) {
        return true;
    }
    try {
        if (!drained(timeout_s, [&](auto slice) { return engine->close(slice); })) {
            return false;
        }
    } catch (const Error&) {  // of a transfer that was dropped: it is closed all the same
        let_go(self, engine);
        throw;
    }
    let_go(self, engine);
    return true;
}

void drain_at_exit(const std::shared_ptr<Engine>& engine) {
    try {
        drain(engine, -1);
    } catch (const Error& error) {
        set_python_error(error);
        const nb::object who =
            checked(PyUnicode_FromString("a penstock transfer that was dropped"));
        PyErr_WriteUnraisable(who.ptr());
    }
}

// The first of what runs at the end of the interpreter, on the thread that ends it: nobody else
// begins anything from here on.
void refuse_other_threads() {
    engines().ends = std::this_thread::get_id();
}

// Runs when the interpreter ends: finishes all transfers, and reports their errors as Python
// reports exceptions at exit.
void at_exit() {
    Engines& all = engines();
    for (EngineObject* self : std::set<EngineObject*>(all.live)) {
        const bool alive = all.live.contains(self);
        if (const auto engine = alive && self->used ? self->engine : nullptr) {
            drain_at_exit(engine);
        }
    }
    for (const auto& engine : std::exchange(all.dropped, {})) {
        drain_at_exit(engine);
    }
    sweep_orphans();
    nb::object dropped = nb::steal(std::exchange(all.default_engine, nullptr));
}

// Engines of the parent are made again at first use; until then there is nothing to drain.
void after_fork_in_child() {
    engines().ends.reset();  // if it ends, that is the parent
    for (EngineObject* self : engines().live) {
        self->used = false;
    }
    // Never destroyed: what they do is the parent's.
    new std::vector<std::shared_ptr<Engine>>(std::exchange(engines().dropped, {}));
}

// The signatures as people read them; the text of Python's argument parser would name none of the
// types.
#define PENSTOCK_SIGNATURE(name, self, memory, flag, returns)                       \
    "def " name "(" self                                                            \
    "file: Path | File | "                                                          \
    "collections.abc.Sequence[Path] | collections.abc.Sequence[File], " memory      \
    ": Memory | collections.abc.Sequence[Memory], "                                 \
    "offset: int | collections.abc.Sequence[int] = 0, *, " flag                     \
    ": bool = False, stream: Stream | None = None, "                                \
    "priority: typing.Literal['urgent', 'normal', 'background'] = 'normal', "       \
    "block_bytes: int | str | None = None, depth_limit: DepthLimit | None = None, " \
    "cache: typing.Literal['auto', 'cached', 'direct', 'required'] | None = None) -> " returns

constexpr const char* kReadDoc =
    "Fills `into` with the file's bytes from `offset` on; blocks. Bytes moved.\n\n"
    "file: a path, opened for this call, or a File. into: any contiguous writable tensor, array or "
    "buffer, in host\n"
    "memory or in that of a GPU (CUDA). offset: bytes. With `into` a list, `offset` is a list too, "
    "`file` one or a list, and "
    "all is one transfer.\n"
    "allow_short: meeting the end of the file is no error; the result says how much came (of a "
    "list: a list).\n"
    "priority: 'urgent', 'normal' or 'background'. block_bytes: of a request at most, rounded up "
    "to the device's\n"
    "blocks; at most, and by default, the engine's. depth_limit: shared with other transfers.\n"
    "cache: of paths, as in File(). stream, of GPU memory: what this CUDA stream holds at the call "
    "comes before the\n"
    "transfer; None: torch's current stream for its tensors, the default stream for others; a "
    "handle (int), or an object\n"
    "with __cuda_stream__ or cuda_stream. Ctrl-C cancels.";
constexpr const char* kWriteDoc =
    "Puts the bytes of `data` into the file at `offset`; blocks. Bytes moved.\n\n"
    "Makes the file when it is not there (0666 less umask) and never truncates it. sync: data, "
    "size and name survive\n"
    "a power cut when it returns. Everything else as in read().";
constexpr const char* kReadAsyncDoc = "Like read(), but does not block: gives a Transfer.";
constexpr const char* kWriteAsyncDoc = "Like write(), but does not block: gives a Transfer.";

template <typename Scope, typename Signatures>
void def_verb(Scope& scope, const char* name, auto verb, const char* memory, const char* flag,
              const Signatures& signature, const char* doc) {
    scope.def(name, verb, nb::arg("file").none(), nb::arg(memory).none(),
              nb::arg("offset").none() = 0, nb::kw_only(), nb::arg(flag).none() = false,
              nb::arg("stream") = nb::none(), nb::arg("priority").none() = "normal",
              nb::arg("block_bytes") = nb::none(), nb::arg("depth_limit") = nb::none(),
              nb::arg("cache") = nb::none(), signature, doc);
}

void bind_methods(nb::class_<EngineObject>& c) {
    def_verb(c, "read", method<move_now, false>, "into", "allow_short",
             nb::sig(PENSTOCK_SIGNATURE("read", "self, ", "into", "allow_short", "typing.Any")),
             kReadDoc);
    def_verb(c, "write", method<move_now, true>, "data", "sync",
             nb::sig(PENSTOCK_SIGNATURE("write", "self, ", "data", "sync", "int")), kWriteDoc);
    def_verb(c, "read_async", method<start, false>, "into", "allow_short",
             nb::sig(PENSTOCK_SIGNATURE("read_async", "self, ", "into", "allow_short",
                                        "Transfer[typing.Any]")),
             kReadAsyncDoc);
    def_verb(c, "write_async", method<start, true>, "data", "sync",
             nb::sig(PENSTOCK_SIGNATURE("write_async", "self, ", "data", "sync", "Transfer[int]")),
             kWriteAsyncDoc);
}

void bind_functions(nb::module_& m) {
    def_verb(m, "read", function<move_now, false>, "into", "allow_short",
             nb::sig(PENSTOCK_SIGNATURE("read", "", "into", "allow_short", "typing.Any")),
             kReadDoc);
    def_verb(m, "write", function<move_now, true>, "data", "sync",
             nb::sig(PENSTOCK_SIGNATURE("write", "", "data", "sync", "int")), kWriteDoc);
    def_verb(m, "read_async", function<start, false>, "into", "allow_short",
             nb::sig(PENSTOCK_SIGNATURE("read_async", "", "into", "allow_short",
                                        "Transfer[typing.Any]")),
             kReadAsyncDoc);
    def_verb(m, "write_async", function<start, true>, "data", "sync",
             nb::sig(PENSTOCK_SIGNATURE("write_async", "", "data", "sync", "Transfer[int]")),
             kWriteAsyncDoc);
    m.def(
        "default_engine", [] { return nb::find(default_engine()); },
        nb::sig("def default_engine() -> Engine"),
        "The engine of read(), write() and so on; made at its first use, with the options of the "
        "environment then.");
    m.def(
        "engine_option",
        [](nb::handle word) {
            const std::string name = word_of(word, "name");
            const api::Option* const option = option_named(api::kOptions, name);
            if (option == nullptr) {
                raise_value("there is no option " + quoted(name));
            }
            return nb::make_tuple(option->get({}), option->max, option->step);
        },
        nb::arg("name"), nb::sig("def engine_option(name: str) -> tuple[int, int, int]"),
        "Default, largest value and step; private.");
    m.def("refuse_other_threads", refuse_other_threads);
    m.def("at_exit", at_exit);
    // Without the GIL: other threads run while it waits for what is at the devices.
    m.def("prepare_fork", [] {
        const nb::gil_scoped_release nogil;
        prepare_fork();
    });
    m.def("end_fork", [] {
        const nb::gil_scoped_release nogil;
        end_fork();
    });
    m.def("after_fork_in_child", after_fork_in_child);
}

}  // namespace

void bind_engine(nb::module_& m) {
    bind_engine_report(m);
    // nanobind keeps the pointers.
    static const std::string doc = engine_doc();
    static const std::string signature = engine_signature();
    nb::class_<EngineObject> engine(m, "Engine", nb::is_weak_referenceable(), doc.c_str());
    engine.def("__init__", make_engine, nb::sig(signature.c_str()))
        .def(
            "drain",
            [](EngineObject& e, nb::handle timeout) {
                return drain(opened(e), timeout_seconds(timeout));
            },
            nb::arg("timeout") = nb::none(),
            nb::sig("def drain(self, timeout: float | None = None) -> bool"),
            "Waits until all earlier transfers are done, or the time (seconds) is "
            "over: False. Then\n"
            "raises the first error of a transfer that was dropped before its end was checked.")
        .def("stats", [](EngineObject& e) { return opened(e)->stats(); })
        .def("describe", [](EngineObject& e) { return opened(e)->describe(); })
        .def_prop_ro("options", [](EngineObject& e) { return opened(e)->options(); })
        .def_prop_ro("closed", [](EngineObject& e) { return is_closed(e); })
        .def("__repr__",
             [](EngineObject& e) {
                 return "<penstock.Engine " +
                        (is_closed(e) ? "closed" : options_text(opened(e)->options())) + ">";
             })
        .def(
            "close",
            [](EngineObject& e, nb::handle timeout) {
                return close_engine(e, timeout_seconds(timeout));
            },
            nb::arg("timeout") = nb::none(),
            nb::sig("def close(self, timeout: float | None = None) -> bool"),
            "Refuses what comes after (ValueError), then drain(), then gives threads and rings "
            "back. False when the\n"
            "time (seconds) is over: call it again to wait on. What its transfers say can still be "
            "asked. Calling it\n"
            "again is fine.")
        .def(
            "__enter__", [](nb::handle self) { return nb::borrow(self); },
            nb::sig("def __enter__(self) -> Engine"))
        .def(
            "__exit__", [](EngineObject& e, nb::args) { close_engine(e, -1); },
            nb::sig("def __exit__(self, *exc: object) -> None"))
        .def(
            "__reduce__", [](nb::handle) { cannot_pickle("Engine", "its options"); },
            nb::sig("def __reduce__(self) -> str"));
    bind_methods(engine);
    bind_functions(m);
}

}  // namespace penstock::python
