// SPDX-License-Identifier: Apache-2.0
// Files and checkpoints for penstock/_state/load.py: opened, read, and made into objects. Private:
// what users see is load() and inspect().
#include "arguments.hpp"
#include "base/raise.hpp"
#include "bind.hpp"
#include "engine_object.hpp"
#include "file_object.hpp"
#include "fill_targets.hpp"
#include "format/fault.hpp"
#include "format/pickle/pickled.hpp"
#include "format/safetensors.hpp"
#include "format/torch_types.hpp"
#include "format/unread.hpp"
#include "fresh_object.hpp"
#include "names.hpp"
#include "progress.hpp"
#include "request.hpp"
#include "source_object.hpp"
#include "state.hpp"
#include "state/structure/structure.hpp"
#include "streams.hpp"
#include "unread.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace penstock::python {

namespace {

// A file, or an index with its shards. They need not be all of it: see Choice.
class FileSource final : public SourceObject {
public:
    nb::object handle;  ///< what is read: None (the file of the path), a descriptor, or bytes
    CachePolicy cache = CachePolicy::kAuto;
    std::size_t prefix = 0;  ///< bytes left out at the beginning of each name of a .safetensors

    void take(std::unique_ptr<state::TensorReader> reader) { reader_ = std::move(reader); }
    void close() { reader_.reset(); }
    [[nodiscard]] state::TensorReader& reader() const {
        if (!reader_) {
            raise_value("load: '" + path + "' is closed");
        }
        return *reader_;
    }
    [[nodiscard]] const format::torch_file::File* torch_file() const {
        return reader().torch_file();
    }

    [[nodiscard]] const char* kind() const override {
        return torch_file() != nullptr ? "pt" : reader().is_index() ? "index" : "safetensors";
    }
    const format::ValueTree& tree() override {
        if (const auto* const torch = torch_file()) {
            return torch->tree;
        }
        if (!dict_) {
            std::vector<state::StoredTensor> tensors;
            for (std::size_t i = 0; i < reader().items().size(); ++i) {
                const Header& t = reader().tensor(i);
                check(t);
                tensors.push_back({std::string_view(t.name).substr(prefix),
                                   format::safetensors::name_of(t.type), t.shape,
                                   reader().items()[i].bytes});
            }
            dict_ = state::skeleton_of("null", tensors).tree;
        }
        return *dict_;
    }
    std::vector<std::optional<ElementType>> set_types(ElementType to) override {
        if (torch_file() != nullptr) {
            return reader().set_types(to);
        }
        static_cast<void>(tree());
        return state::set_types(*dict_, to);
    }
    [[nodiscard]] Place place(std::size_t item) const override {
        const state::TensorReader::Item& its = reader().items().at(item);
        return {its.file, its.offset, its.bytes};
    }
    [[nodiscard]] std::optional<state::StoredShape> stored(std::size_t /*item*/) const override {
        return std::nullopt;
    }
    [[nodiscard]] ItemRange checkable(const ItemRange& part) const override {
        return reader().checkable(part);
    }
    void read(std::span<const ItemRead> wanted, bool fresh, bool faulted_in,
              const Progress& progress) override {
        std::vector<ItemRange> parts;
        std::vector<Memory> into;
        for (const ItemRead& one : wanted) {
            parts.push_back(one.part);
            into.push_back(one.into);
        }
        reader().read(parts, into, {.fresh = fresh, .faulted_in = faulted_in, .cache = cache},
                      progress);
    }

private:
    using Header = format::safetensors::Tensor;

    // Whether the torch at hand, which may be an old one, has the type.
    static bool has(const format::TorchType& type) {
        static std::set<const format::TorchType*> known;
        if (known.count(&type) == 0) {
            const nb::object arrays = nb::module_::import_("penstock._base.arrays");
            if (!nb::hasattr(arrays.attr("torch_for_states")(), type.torch)) {
                return false;
            }
            known.insert(&type);
        }
        return true;
    }

    void check(const Header& t) const {
        const auto refuse = [&](ErrorCode code, const std::string& why) {
            throw Error(code, 0, "load", path, kNoOffset,
                        fmt::format("load: '{}': tensor {}: {}", path, format::shown(t.name), why));
        };
        const format::TorchType* const type = format::torch_type(t.type);
        const bool is_half = t.type == ElementType::kF4E2M1 &&
                             (t.shape.empty() || t.shape.back() % 2 != 0);  // torch has two in one
        if (type == nullptr || is_half || !has(*type)) {
            refuse(ErrorCode::kUnsupported,
                   fmt::format("torch has no type for {}; name the others in `names`",
                               format::safetensors::name_of(t.type)));
        }
        // Torch counts elements and bytes in 63 bits; next to an extent of 0, others may be any.
        std::uint64_t bytes = type->torch_bytes();
        for (const std::uint64_t extent : t.shape) {
            if (__builtin_mul_overflow(bytes, std::max<std::uint64_t>(extent, 1), &bytes) ||
                bytes > INT64_MAX) {
                refuse(ErrorCode::kDamaged,
                       fmt::format("[{}] is no possible shape", fmt::join(t.shape, ", ")));
            }
        }
    }

    std::unique_ptr<state::TensorReader> reader_;
    std::optional<format::ValueTree> dict_;  // of a .safetensors or an index
};

std::span<const std::byte> span_of(const nb::bytes& bytes) {
    return std::as_bytes(std::span(bytes.c_str(), bytes.size()));
}

constexpr std::string_view kDescriptors = "/proc/self/fd/";

// An error of opening has the user's verb and path, and not the engine's.
[[noreturn]] void raise_of_opening(const Error& error, const std::string& path,
                                   const std::string& verb) {
    if (error.system_errno() == 0 || error.operation() != "open") {
        throw error;
    }
    const bool is_ours = error.path().starts_with(kDescriptors);
    base::raise(base::system_error(error.system_errno(), verb, is_ours ? path : error.path()));
}

std::unique_ptr<state::TensorReader> reader_of(nb::handle from, const std::string& path,
                                               bool is_named, std::uint64_t begin,
                                               const state::Choose& choose) {
    if (PyBytes_Check(from.ptr())) {
        const auto bytes = span_of(nb::cast<nb::bytes>(from));
        const nb::gil_scoped_release nogil;
        return std::make_unique<state::TensorReader>(bytes, path, choose);
    }
    const std::shared_ptr<Engine> engine = opened(default_engine());
    if (from.is_none()) {
        const nb::gil_scoped_release nogil;
        return std::make_unique<state::TensorReader>(engine, FileSystem::any(), path, choose);
    }
    const std::string name = std::string(kDescriptors) + std::to_string(nb::cast<int>(from));
    const nb::gil_scoped_release nogil;
    return std::make_unique<state::TensorReader>(engine, File(name), path, is_named, begin, choose);
}

// `from`: None (the file that the path names), a descriptor, or bytes. `begin`: of the file; None:
// 0, and the path names the descriptor's file. `as_wanted`, `one`: see Choice. `unread`: "raise"
// refuses a state with objects that are not read, "keep" does not.
FileSource open_source(nb::handle from, nb::handle path, nb::handle begin, nb::handle by,
                       nb::handle wanted, bool as_wanted, bool one, nb::handle cache,
                       nb::handle unread) {
    const bool keep = keeps_unread(unread);
    FileSource self;
    self.handle = nb::borrow(from);
    self.path = path_bytes(path, "path", "");
    self.cache = cache_policy_of(cache);
    Choice choice(wanted, as_wanted, one);
    try {
        const std::uint64_t first = begin.is_none() ? 0 : nb::cast<std::uint64_t>(begin);
        self.take(reader_of(from, self.path, begin.is_none(), first, choice.chooser()));
        self.prefix = choice.prefix();
        self.is_part = self.prefix != 0;
        if (const auto* const torch = self.torch_file()) {
            if (auto part = choice.part_of(torch->tree)) {
                self.reader().keep_only(std::move(*part));
                self.is_part = true;
            }
            if (!keep && (self.is_part || wanted.is_none())) {
                refuse_unread(torch->tree, path);
            }
        }
    } catch (const Error& error) {
        choice.raise_lacking(self.path);
        raise_of_opening(error, self.path, word_of(by, "verb"));
    }
    const std::string note = self.reader().note(false);
    if (!note.empty() && PyErr_WarnEx(PyExc_RuntimeWarning, note.c_str(), 1) != 0) {
        throw nb::python_error();
    }
    return self;
}

// (name, type, shape, offset, bytes, shard) each.
nb::list tensors_of(const FileSource& self) {
    nb::list out;
    for (const state::TensorReader::Seen& seen : self.reader().tensors()) {
        out.append(nb::make_tuple(nb::cast(seen.name), std::string(seen.type), nb::cast(seen.shape),
                                  seen.offset, seen.bytes, path_object(std::string(seen.shard))));
    }
    return out;
}

// The metadata of a .safetensors header as a dict, or None.
nb::object metadata_of_header(const FileSource& self) {
    const auto* const header =
        std::get_if<format::safetensors::Header>(&self.reader().file(0).content);
    if (header == nullptr || !header->has_metadata) {
        return nb::none();
    }
    nb::dict out;
    for (const auto& [key, value] : header->metadata) {
        out[nb::cast(key)] = nb::cast(value);
    }
    return out;
}

// (shard, offset in the file) of each item.
nb::list places_of(const FileSource& self) {
    const state::TensorReader& reader = self.reader();
    if (reader.is_swapped()) {
        base::raise(base::error(ErrorCode::kUnsupported, "load",
                                "mmap: a big-endian machine saved it, and its numbers are turned "
                                "in memory; load it without mmap=True",
                                reader.file(0).path));
    }
    nb::list out;
    for (std::size_t i = 0; i < reader.items().size(); ++i) {
        out.append(nb::make_tuple(path_object(std::string(reader.shard(i))),
                                  reader.begin() + reader.items()[i].offset));
    }
    return out;
}

// The end of a .pt in its file; others may follow. None: at the file's end.
nb::object end_of(const FileSource& self) {
    const auto* const torch = self.torch_file();
    return torch == nullptr ? nb::object(nb::none())
                            : nb::object(nb::int_(self.reader().begin() + torch->bytes));
}

// ---- of every source

template <auto kPlaces>
std::vector<std::string> places_in(SourceObject& self) {
    const std::string_view kind = self.kind();
    return kind == "pt" || kind == "checkpoint" ? kPlaces(self.tree()) : std::vector<std::string>();
}

nb::object objects_from(SourceObject& self, nb::handle storages, bool pickle, bool data) {
    return objects_of(self.tree(), storages, pickle, path_object(self.path), data);
}

nb::list item_rows(SourceObject& self) {
    nb::list rows;
    for (const format::StorageValue& storage : self.tree().storages) {
        rows.append(nb::make_tuple(storage.bytes, storage.location));
    }
    return rows;
}

// torch's name of the type that each storage had, or None.
nb::list types_set(SourceObject& self, nb::handle to) {
    const format::TorchType& type = *format::torch_type_named(word_of(to, "dtype"));
    nb::list out;
    for (const auto& was : self.set_types(type.type)) {
        out.append(was ? nb::object(nb::cast(std::string(format::torch_type(*was)->torch)))
                       : nb::none());
    }
    return out;
}

// The wish for an item: its number (all of it); (item, begin, bytes); (item, begin, end) of a
// box that stored() has, in lists; or (item, tensor), with memory for all of it.
struct Wish {
    ItemRead read;
    ItemRange part;
    bool is_fresh = true;
};

Wish wish_of(const SourceObject& self, nb::handle wanted) {
    Wish out;
    if (!nb::isinstance<nb::tuple>(wanted)) {
        const auto item = nb::cast<std::size_t>(wanted);
        out.part = out.read.part = {item, 0, self.place(item).bytes};
        return out;
    }
    const auto item = nb::cast<std::size_t>(wanted[0]);
    if (nb::len(wanted) == 2) {
        out.part = out.read.part = {item, 0, self.place(item).bytes};
        const nb::object tensor = wanted[1];
        if (out.part.bytes > 0) {  // an empty one has no address, which a driver refuses
            out.read.into =
                memory_of(tensor, address_of(tensor), out.part.bytes, nb::str("a tensor"));
        }
        out.is_fresh = false;
    } else if (const nb::object first = wanted[1]; nb::isinstance<nb::list>(first)) {
        state::TensorBox& box = out.read.box;
        box.begin = counts_of(first, "begin", "elements");
        box.end = counts_of(wanted[2], "end", "elements");
        const std::uint64_t bits =
            tensor::row_of(*element_type_named(self.stored(item)->dtype)).bits;
        out.part = out.read.part = {item, 0, box.elements() * bits / 8};
    } else {
        out.part = {item, nb::cast<std::uint64_t>(first), nb::cast<std::uint64_t>(wanted[2])};
        out.read.part = self.checkable(out.part);
    }
    return out;
}

// To memory of its own, laid out as its file is: (buffer, where it begins in it, bytes) of each, or
// None of one that has a tensor; and what a FillPlan has.
nb::list read_wanted(SourceObject& self, const nb::list& wanted, const FillPlan* plan,
                     nb::handle progress) {
    std::vector<Wish> wishes;
    std::vector<std::vector<memory::Stretch>> stretches;  // of each file
    std::vector<std::pair<std::size_t, std::size_t>> places;
    std::uint64_t bytes = 0;
    bool fresh = plan == nullptr;
    for (const nb::handle one : wanted) {
        const Wish& wish = wishes.emplace_back(wish_of(self, one));
        fresh = fresh && wish.is_fresh;
        places.emplace_back();
        if (wish.is_fresh) {
            const ItemRange& part = wish.read.part;
            const auto place = self.place(part.item);
            stretches.resize(std::max<std::size_t>(stretches.size(), place.file + 1));
            places.back() = {place.file, stretches[place.file].size()};
            stretches[place.file].push_back({place.offset + part.begin, part.bytes});
            bytes += part.bytes;
        }
    }
    const bool small = bytes <= memory::FreshMemory::kSmallBytes;
    std::vector<FreshObject> memory;
    for (const auto& of_file : stretches) {
        memory.emplace_back(of_file, small);
    }
    std::vector<ItemRead> reads = plan == nullptr ? std::vector<ItemRead>() : plan->reads;
    for (std::size_t i = 0; i < wishes.size(); ++i) {
        ItemRead& read = wishes[i].read;
        if (wishes[i].is_fresh) {
            read.into = {memory[places[i].first].address(places[i].second), read.part.bytes};
        }
        reads.push_back(std::move(read));
    }
    std::vector<Memory> into;
    for (const ItemRead& read : reads) {
        into.push_back(read.into);
    }
    const bool there = fresh && std::ranges::all_of(memory, &FreshObject::faulted_in);
    const std::vector<StreamHandle> streams = streams_of(into);
    run_with_progress(progress, [&](const Progress& report) {
        wait_for_streams(streams);
        self.read(reads, fresh, there, report);
    });
    nb::list out;
    for (std::size_t i = 0; i < wishes.size(); ++i) {
        if (!wishes[i].is_fresh) {
            out.append(nb::none());
            continue;
        }
        auto [buffer, at] = memory[places[i].first].part(places[i].second);
        const std::uint64_t skipped = wishes[i].part.begin - wishes[i].read.part.begin;
        out.append(nb::make_tuple(std::move(buffer), at + skipped, wishes[i].part.bytes));
    }
    return out;
}

}  // namespace

Choice::Choice(nb::handle wanted, bool as_wanted, bool one) : as_wanted_(as_wanted), one_(one) {
    if (!wanted.is_none()) {
        wanted_ = texts_of(nb::cast<nb::list>(wanted));
    }
}

state::Choose Choice::chooser() {
    if (!wanted_) {
        return {};
    }
    return [this](std::span<const std::string_view> names) { return choose(names); };
}

std::vector<std::size_t> Choice::choose(std::span<const std::string_view> names) {
    const std::vector<std::string_view> wanted(wanted_->begin(), wanted_->end());
    auto found = state::select(names, wanted);
    if (!found) {
        lacking_ = found.error().message;
        base::raise(found.error());
    }
    chosen_ = std::move(*found);
    if (!as_wanted_) {
        std::sort(chosen_.begin(), chosen_.end(),
                  [](const auto& a, const auto& b) { return a.tensor < b.tensor; });
    }
    std::vector<std::size_t> out;
    below_ = one_ && !chosen_.empty();
    for (const state::Selected& one : chosen_) {
        out.push_back(one.tensor);
        below_ = below_ && state::is_below(names[one.tensor], wanted[0]);
    }
    return out;
}

std::optional<state::Subtree> Choice::part_of(const format::ValueTree& tree) {
    if (!wanted_ || as_wanted_) {
        return std::nullopt;
    }
    const std::vector<std::string_view> wanted(wanted_->begin(), wanted_->end());
    auto part = state::named_parts(tree, wanted, one_);
    if (!part) {
        lacking_ = part.error().message;
        base::raise(part.error());
    }
    return std::move(*part);
}

void Choice::raise_lacking(const std::string& path) const {
    if (!lacking_.empty()) {
        const nb::object message = path_object("load: '" + path + "': " + lacking_);
        PyErr_SetObject(PyExc_KeyError, message.ptr());
        throw nb::python_error();
    }
}

void bind_sources(nb::module_& m) {
    nb::class_<FillPlan>(m, "FillPlan");
    nb::class_<SourceObject>(m, "Source")
        .def_prop_ro("kind", &SourceObject::kind)
        .def_prop_ro("path", [](const SourceObject& s) { return path_object(s.path); })
        .def_ro("is_part", &SourceObject::is_part)
        .def_prop_ro("rows", item_rows, "(bytes, location) of each item.")
        .def("objects", objects_from, nb::arg("storages"), nb::arg("pickle"),
             nb::arg("data") = true)
        .def("pickled", places_in<format::pickled_places>)
        .def("unread", places_in<format::unread_places>)
        .def("set_types", types_set, nb::arg("to"), "See set_types() in state/subtree.hpp.")
        .def("has_boxes", has_boxes, nb::arg("item"), nb::arg("view"),
             "Whether boxes of the view can be read.")
        .def("plan_fill", plan_fill, nb::arg("items"), nb::arg("views"), nb::arg("tensors"),
             nb::arg("names"), nb::arg("rest"), nb::arg("boxes") = nb::list())
        .def("read", read_wanted, nb::arg("wanted"), nb::arg("plan").none() = nb::none(),
             nb::arg("progress").none() = nb::none());
    nb::class_<FileSource, SourceObject>(m, "FileSource")
        .def_ro("handle", &FileSource::handle)
        .def("metadata", metadata_of_header)
        .def("tensors", tensors_of)
        .def("places", places_of)
        .def_prop_ro("end", end_of)
        .def("close", &FileSource::close)
        .def(
            "is_still",
            [](const FileSource& s, bool by_name) {
                const state::TensorReader& reader = s.reader();
                const nb::gil_scoped_release nogil;
                return reader.is_still(by_name);
            },
            nb::arg("by_name"));
    m.def("open_source", open_source, nb::arg("file").none(), nb::arg("path"),
          nb::arg("begin").none(), nb::arg("verb"), nb::arg("wanted").none(), nb::arg("as_wanted"),
          nb::arg("one"), nb::arg("cache").none(), nb::arg("unread"));
}

}  // namespace penstock::python
