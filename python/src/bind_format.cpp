// SPDX-License-Identifier: Apache-2.0
// Files of formats for penstock/_state/load.py: read, and made into objects. Private: what users
// see is load() and inspect().
#include "arguments.hpp"
#include "base/raise.hpp"
#include "bind.hpp"
#include "buffer_object.hpp"
#include "engine_object.hpp"
#include "file_image_object.hpp"
#include "file_object.hpp"
#include "fill_targets.hpp"
#include "format/pickle/pickled.hpp"
#include "format/safetensors.hpp"
#include "format/torch_types.hpp"
#include "format/unread.hpp"
#include "fresh_object.hpp"
#include "names.hpp"
#include "progress.hpp"
#include "request.hpp"
#include "state.hpp"
#include "state/selection.hpp"
#include "state/tensor_reader.hpp"
#include "state/writing/file_writer.hpp"
#include "state/writing/image_sums.hpp"
#include "state/writing/replace.hpp"
#include "state/writing/write_plan.hpp"
#include "stream/host_windows.hpp"
#include "streams.hpp"
#include "tensor_stream.hpp"
#include "unread.hpp"

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

std::span<const std::byte> span_of(const nb::bytes& bytes) {
    return std::as_bytes(std::span(bytes.c_str(), bytes.size()));
}

struct TensorFileObject {
    nb::object bytes;  ///< what is read, where it is in memory
    std::unique_ptr<state::TensorReader> reader;
    CachePolicy cache = CachePolicy::kAuto;
};

// The names and patterns that a load was given, and what they have chosen.
class Choice {
public:
    /// `wanted`: a list, or None for all. `as_wanted`: in that order, and not the one of the names.
    /// `one`: the name was given alone, and stands for the part of the state that has it.
    Choice(nb::handle wanted, bool as_wanted, bool one = false) : as_wanted_(as_wanted), one_(one) {
        if (!wanted.is_none()) {
            wanted_ = texts_of(nb::cast<nb::list>(wanted));
        }
    }

    [[nodiscard]] state::Choose chooser() {
        if (!wanted_) {
            return {};
        }
        return [this](std::span<const std::string_view> names) { return choose(names); };
    }
    std::vector<std::size_t> choose(std::span<const std::string_view> names) {
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
    /// Leaves of a .pt the part that was wanted, if it is one.
    [[nodiscard]] bool cut(state::TensorReader& reader) {
        if (!wanted_ || as_wanted_ || reader.torch_file() == nullptr) {
            return false;
        }
        auto part = part_of(reader.torch_file()->tree);
        if (part) {
            reader.keep_only(std::move(*part));
        }
        return part.has_value();
    }
    [[nodiscard]] std::optional<state::Subtree> part_of(const format::ValueTree& tree) {
        const std::vector<std::string_view> wanted(wanted_->begin(), wanted_->end());
        auto part = state::named_parts(tree, wanted, one_);
        if (!part) {
            lacking_ = part.error().message;
            base::raise(part.error());
        }
        return std::move(*part);
    }
    /// Bytes at the beginning of each name that are the name of the part, and a dot.
    [[nodiscard]] std::size_t prefix() const { return below_ ? (*wanted_)[0].size() + 1 : 0; }
    /// By what the i-th was chosen.
    [[nodiscard]] std::size_t wanted(std::size_t i) const {
        return wanted_ ? chosen_[i].wanted : 0;
    }
    /// KeyError where it was this that failed.
    void raise_lacking(const std::string& path) const {
        if (!lacking_.empty()) {
            const nb::object message = path_object("load: '" + path + "': " + lacking_);
            PyErr_SetObject(PyExc_KeyError, message.ptr());
            throw nb::python_error();
        }
    }

private:
    std::optional<std::vector<std::string>> wanted_;
    bool as_wanted_;
    bool one_;
    bool below_ = false;
    std::vector<state::Selected> chosen_;
    std::string lacking_;
};

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

// Rows: of a .pt (bytes, location) of each storage; else (name, type, shape, by what it was chosen)
// of each tensor.
nb::list rows_of(const state::TensorReader& reader, const Choice& choice) {
    nb::list rows;
    if (const auto* const torch = reader.torch_file()) {
        for (const format::StorageValue& storage : torch->tree.storages) {
            rows.append(nb::make_tuple(storage.bytes, storage.location));
        }
        return rows;
    }
    for (std::size_t i = 0; i < reader.items().size(); ++i) {
        const format::safetensors::Tensor& t = reader.tensor(i);
        rows.append(nb::make_tuple(t.name.substr(choice.prefix()),
                                   std::string(format::safetensors::name_of(t.type)),
                                   nb::cast(t.shape), choice.wanted(i)));
    }
    return rows;
}

// `from`: None (the file that the path names), a descriptor, or bytes. `begin`: of the file; None:
// 0, and the path names the descriptor's file. `as_wanted`, `one`: see Choice. `unread`: "raise"
// refuses a state with objects that are not read, "keep" does not. (file, kind, rows,
// whether it is a part of the state, in which the names that were wanted mean nothing any more).
nb::tuple open_tensors(nb::handle from, nb::handle path, nb::handle begin, nb::handle by,
                       nb::handle wanted, bool as_wanted, bool one, nb::handle cache,
                       nb::handle unread) {
    const bool keep = keeps_unread(unread);
    const std::string name = path_bytes(path, "path", "");
    const CachePolicy policy = cache_policy_of(cache);
    Choice choice(wanted, as_wanted, one);
    bool is_part = false;
    TensorFileObject self;
    self.bytes = nb::borrow(from);
    try {
        const std::uint64_t first = begin.is_none() ? 0 : nb::cast<std::uint64_t>(begin);
        self.reader = reader_of(from, name, begin.is_none(), first, choice.chooser());
        is_part = choice.cut(*self.reader) || choice.prefix() != 0;
        if (!keep && (is_part || wanted.is_none()) && self.reader->torch_file() != nullptr) {
            refuse_unread(self.reader->torch_file()->tree, path);
        }
    } catch (const Error& error) {
        choice.raise_lacking(name);
        raise_of_opening(error, name, word_of(by, "verb"));
    }
    const std::string note = self.reader->note(false);
    if (!note.empty() && PyErr_WarnEx(PyExc_RuntimeWarning, note.c_str(), 1) != 0) {
        throw nb::python_error();
    }
    const char* const kind = self.reader->torch_file() != nullptr ? "pt"
                             : self.reader->is_index()            ? "index"
                                                                  : "safetensors";
    self.cache = policy;
    nb::list rows = rows_of(*self.reader, choice);
    return nb::make_tuple(nb::cast(std::move(self)), kind, std::move(rows), is_part);
}

// (name, type, shape, offset, bytes, shard) each.
nb::list tensors_of(const TensorFileObject& self) {
    nb::list out;
    for (const state::TensorReader::Seen& seen : self.reader->tensors()) {
        out.append(nb::make_tuple(nb::cast(seen.name), std::string(seen.type), nb::cast(seen.shape),
                                  seen.offset, seen.bytes, path_object(std::string(seen.shard))));
    }
    return out;
}

// Of a .safetensors: a dict of what its header says, or None.
nb::object metadata_of_header(const TensorFileObject& self) {
    const auto* const header =
        std::get_if<format::safetensors::Header>(&self.reader->file(0).content);
    if (header == nullptr || !header->has_metadata) {
        return nb::none();
    }
    nb::dict out;
    for (const auto& [key, value] : header->metadata) {
        out[nb::cast(key)] = nb::cast(value);
    }
    return out;
}

std::uint64_t tensor_bytes(nb::handle type, nb::handle shape) {
    const auto known = format::safetensors::type_named(word_of(type, "type"));
    const auto bytes =
        known ? format::safetensors::bytes_of(*known, counts_of(shape, "shape", "elements"))
              : std::nullopt;
    if (!bytes) {
        raise_value("load: no tensor has such a type and shape");
    }
    return *bytes;
}

template <auto kPlaces>
std::vector<std::string> places_in(const TensorFileObject& self) {
    const auto* const torch = self.reader->torch_file();
    return torch == nullptr ? std::vector<std::string>() : kPlaces(torch->tree);
}

// (shard, offset in the file) of each item.
nb::list places_of(const TensorFileObject& self) {
    if (self.reader->is_swapped()) {
        base::raise(base::error(ErrorCode::kUnsupported, "load",
                                "mmap: a big-endian machine saved it, and its numbers are turned "
                                "in memory; load it without mmap=True",
                                self.reader->file(0).path));
    }
    nb::list out;
    for (std::size_t i = 0; i < self.reader->items().size(); ++i) {
        out.append(nb::make_tuple(path_object(std::string(self.reader->shard(i))),
                                  self.reader->begin() + self.reader->items()[i].offset));
    }
    return out;
}

// (number among the names, number of what it was chosen by) each.
nb::list select(const nb::list& names, const nb::list& wanted, nb::handle path) {
    const std::vector<std::string> texts = texts_of(names);
    const std::vector<std::string_view> views(texts.begin(), texts.end());
    Choice choice(wanted, true);
    nb::list out;
    try {
        const std::vector<std::size_t> chosen = choice.choose(views);
        for (std::size_t i = 0; i < chosen.size(); ++i) {
            out.append(nb::make_tuple(chosen[i], choice.wanted(i)));
        }
    } catch (const Error&) {
        choice.raise_lacking(path_bytes(path, "path", ""));
        throw;
    }
    return out;
}

using Parts = std::vector<state::TensorReader::ItemRange>;

// `parts`: (item, begin, bytes) each, or None for all of each.
Parts parts_of(const state::TensorReader& reader, nb::handle parts) {
    Parts out;
    if (parts.is_none()) {
        for (std::size_t i = 0; i < reader.items().size(); ++i) {
            out.push_back({i, 0, reader.items()[i].bytes});
        }
        return out;
    }
    for (const nb::handle part : nb::iter(parts)) {
        out.push_back({nb::cast<std::size_t>(part[0]), nb::cast<std::uint64_t>(part[1]),
                       nb::cast<std::uint64_t>(part[2])});
    }
    return out;
}

void read_into(const TensorFileObject& self, const Parts& parts, std::span<const Memory> into,
               const stream::ReadFileOptions& how, nb::handle progress) {
    const std::vector<StreamHandle> streams = streams_of(into);
    run_with_progress(progress, [&](const Progress& report) {
        wait_for_streams(streams);
        self.reader->read(parts, into, how, report);
    });
}

// Into memory of its own, laid out as its file is: (buffer, where the part begins in it) each.
nb::list read_parts(TensorFileObject& self, nb::handle wanted, nb::handle progress) {
    const state::TensorReader& reader = *self.reader;
    const Parts parts = parts_of(reader, wanted);
    Parts read;
    std::vector<std::vector<memory::Stretch>> stretches;  // of each file
    std::vector<std::pair<std::size_t, std::size_t>> places;
    std::uint64_t bytes = 0;
    for (const auto& part : parts) {
        read.push_back(reader.checkable(part));
        const auto& item = reader.items()[part.item];
        stretches.resize(std::max<std::size_t>(stretches.size(), item.file + 1));
        places.emplace_back(item.file, stretches[item.file].size());
        stretches[item.file].push_back({item.offset + read.back().begin, read.back().bytes});
        bytes += read.back().bytes;
    }
    const bool small = bytes <= memory::FreshMemory::kSmallBytes;
    std::vector<FreshObject> memory;
    for (const auto& of_file : stretches) {
        memory.emplace_back(of_file, small);
    }
    std::vector<Memory> into;
    for (std::size_t i = 0; i < places.size(); ++i) {
        into.emplace_back(memory[places[i].first].address(places[i].second), read[i].bytes);
    }
    const bool there = std::ranges::all_of(memory, &FreshObject::faulted_in);
    read_into(self, read, into, {.fresh = true, .faulted_in = there, .cache = self.cache},
              progress);
    nb::list out;
    for (std::size_t i = 0; i < parts.size(); ++i) {
        auto [buffer, at] = memory[places[i].first].part(places[i].second);
        out.append(nb::make_tuple(std::move(buffer), at + parts[i].begin - read[i].begin));
    }
    return out;
}

// Each tensor that is as the `view` of its item, all of that and without gaps on the host or a GPU,
// straight from the file; one that is there twice, once. `names`: for messages. Of a .pt tensors
// may share memory as the views do. `begins` is called with those tensors before the first byte.
// The numbers of the others, which are to be filled by other means.
nb::list fill(TensorFileObject& self, const nb::list& items, const nb::list& views,
              const nb::list& tensors, const nb::list& names, nb::handle begins,
              nb::handle progress) {
    const state::TensorReader& reader = *self.reader;
    Parts parts;
    std::vector<Memory> into;
    std::set<std::pair<std::size_t, std::byte*>> seen;
    nb::list kin;
    nb::list filled;
    nb::list others;
    for (std::size_t i = 0; i < nb::len(items); ++i) {
        const auto item = nb::cast<std::size_t>(items[i]);
        const FillTarget target(views[i], tensors[i]);
        kin.append(reader.torch_file() != nullptr ? target.kin(items[i]) : nb::none());
        const std::uint64_t bytes = reader.items().at(item).bytes;
        if (!target.is_all_of(bytes)) {
            others.append(nb::cast(i));
            continue;
        }
        filled.append(tensors[i]);
        auto* const address = reinterpret_cast<std::byte*>(target.address());
        if (seen.emplace(item, address).second) {
            parts.push_back({item, 0, bytes});
            into.push_back(target.place(bytes, names[i]));
        }
    }
    refuse_unfit(names, tensors, kin);
    begins(filled);
    read_into(self, parts, into, {.cache = self.cache}, progress);
    return others;
}

}  // namespace

std::optional<state::Subtree> part_of(const format::ValueTree& tree, const nb::list& wanted,
                                      bool one, nb::handle path) {
    Choice choice(wanted, false, one);
    try {
        return choice.part_of(tree);
    } catch (const Error&) {
        choice.raise_lacking(path_bytes(path, "path", ""));
        throw;
    }
}

ElementType float_type_of(nb::handle name) {
    const std::string word = word_of(name, "dtype");
    const format::TorchType* const type = format::torch_type_named(word);
    if (type == nullptr || !state::is_converted(type->type)) {
        raise_value("load: dtype: got " + quoted(word) +
                    "; expected float64, float32, float16 or bfloat16");
    }
    return type->type;
}

nb::list type_names(const std::vector<std::optional<ElementType>>& types) {
    nb::list out;
    for (const auto& type : types) {
        out.append(type ? nb::object(nb::cast(std::string(format::torch_type(*type)->torch)))
                        : nb::none());
    }
    return out;
}

void bind_format(nb::module_& parent) {
    nb::module_ m = parent.def_submodule("_format", "Formats of checkpoints; private.");
    bind_saves(m);
    nb::class_<TensorFileObject>(m, "TensorFile")
        .def(
            "objects",
            [](const TensorFileObject& f, nb::handle storages, bool pickle, nb::handle path,
               bool data) {
                return objects_of(f.reader->torch_file()->tree, storages, pickle, path, data);
            },
            nb::arg("storages"), nb::arg("pickle"), nb::arg("path"), nb::arg("data") = true)
        .def("pickled", places_in<format::pickled_places>)
        .def("unread", places_in<format::unread_places>)
        .def(
            "set_types",
            [](TensorFileObject& f, nb::handle to) {
                return type_names(f.reader->set_types(float_type_of(to)));
            },
            nb::arg("to"), "Of a .pt: see set_types() in state/subtree.hpp.")
        .def("metadata", metadata_of_header)
        .def("tensors", tensors_of)
        .def("places", places_of, "(shard, offset in the file) of each item.")
        .def_prop_ro(
            "end",
            [](const TensorFileObject& f) -> nb::object {
                const auto* const torch = f.reader->torch_file();
                return torch == nullptr ? nb::object(nb::none())
                                        : nb::object(nb::int_(f.reader->begin() + torch->bytes));
            },
            "Of a .pt: where it ends in the file; others may follow. None: at the file's end.")
        .def("read", read_parts, nb::arg("parts").none(), nb::arg("progress").none())
        .def("fill", fill, nb::arg("items"), nb::arg("views"), nb::arg("tensors"), nb::arg("names"),
             nb::arg("begins"), nb::arg("progress").none())
        .def(
            "is_still",
            [](const TensorFileObject& f, bool by_name) {
                const nb::gil_scoped_release nogil;
                return f.reader->is_still(by_name);
            },
            nb::arg("by_name"));
    m.def("open_tensors", open_tensors, nb::arg("file").none(), nb::arg("path"),
          nb::arg("begin").none(), nb::arg("verb"), nb::arg("wanted").none(), nb::arg("as_wanted"),
          nb::arg("one"), nb::arg("cache").none(), nb::arg("unread"));
    nb::class_<FreshObject>(m, "FreshMemory")
        .def(nb::init<nb::handle>(), nb::arg("stretches"),
             "stretches: (offset in the file, bytes) each.")
        .def(
            "part",
            [](FreshObject& f, std::size_t stretch) {
                auto [buffer, at] = f.part(stretch);
                return nb::make_tuple(std::move(buffer), at);
            },
            nb::arg("stretch"));
    m.def(
        "torch_types",
        [](bool all) {
            nb::list out;
            for (const auto& row : format::kTorchTypes) {
                if ((all || row.in_safetensors) && row.torch[0] != 0 && row.bits % 8 == 0) {
                    out.append(nb::make_tuple(std::string(row.name), row.torch));
                }
            }
            return out;
        },
        nb::arg("all") = false,
        "(our name, name in torch) of those that safetensors has, or of all; whose elements are "
        "whole bytes");
    m.def("tensor_bytes", tensor_bytes, nb::arg("type"), nb::arg("shape"));
    m.def("select", select, nb::arg("names"), nb::arg("wanted"), nb::arg("path"));
    m.def(
        "lacking",
        [](nb::handle wanted, const nb::list& names) {
            const std::vector<std::string> texts = texts_of(names);
            const std::vector<std::string_view> views(texts.begin(), texts.end());
            return state::lacking(text(wanted), views);
        },
        nb::arg("wanted"), nb::arg("names"));
    m.def("stretch", stretch_of, nb::arg("view"));
    m.def(
        "kin",
        [](nb::handle item, nb::handle tensor, nb::handle view) {
            return FillTarget(view, tensor).kin(item);
        },
        nb::arg("item"), nb::arg("tensor"), nb::arg("view"));
    m.def("fill_rows", fill_rows, nb::arg("views"), nb::arg("targets"), nb::arg("stored"),
          nb::arg("everybody"));
    m.def("refuse_unfit", refuse_unfit, nb::arg("names"), nb::arg("tensors"), nb::arg("kin"));
}

}  // namespace penstock::python
