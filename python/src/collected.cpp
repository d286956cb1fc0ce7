// SPDX-License-Identifier: Apache-2.0
#include "collected.hpp"

#include "arguments.hpp"
#include "errors.hpp"
#include "file_object.hpp"
#include "names.hpp"
#include "request.hpp"
#include "state/structure/structure.hpp"
#include "store/background/collected.hpp"
#include "tensor_stream.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace penstock::python {

namespace {

// Keeps the copies.
nb::object owner_of(std::vector<store::StagedCopy> copies) {
    auto own = std::make_unique<std::vector<store::StagedCopy>>(std::move(copies));
    nb::capsule owner(own.get(), [](void* all) noexcept {
        delete static_cast<std::vector<store::StagedCopy>*>(all);  // NOLINT
    });
    static_cast<void>(own.release());
    return owner;
}

State state_of_copies(store::Collected collected) {
    std::vector<state::StoredTensor> stored;
    std::unordered_map<std::string_view, std::size_t> by_name;
    for (std::size_t i = 0; i < collected.tensors.size(); ++i) {
        const StateTensor& t = collected.tensors[i];
        stored.push_back({t.name, t.dtype, t.shape, t.data.bytes});
        by_name.emplace(t.name, i);
    }
    state::Skeleton skeleton = state::skeleton_of("null", stored);
    const nb::object owner = owner_of(std::move(collected.copies));
    State made;
    for (std::size_t i = 0; i < skeleton.sources.size(); ++i) {
        const ConstMemory data = collected.tensors[by_name.at(skeleton.sources[i])].data;
        StorageMemory memory;
        memory.data = const_cast<std::byte*>(data.data);
        memory.bytes = data.bytes;
        memory.keep = owner;
        memory.copied = true;
        made.storages.push_back(std::move(memory));
        skeleton.tree.storages[i].key = std::to_string(i);
    }
    made.tree = std::move(skeleton.tree);
    return made;
}

}  // namespace

CollectedObject collect(Saver& saver, nb::handle items, nb::handle row, nb::handle changing) {
    const Changing answer = changing_of(changing);
    GivenStream given(items, row);
    const TensorStream stream{.next = [&given] { return given.next(); }};
    store::Collected collected;
    try {
        const nb::gil_scoped_release nogil;
        collected = saver.collect(stream, answer);
    } catch (const Error&) {
        given.raise_failure();
        throw;
    }
    CollectedObject made;
    made.tensors = collected.tensors;
    made.state = std::make_unique<State>(state_of_copies(std::move(collected)));
    return made;
}

bool is_collected(nb::handle object) {
    return nb::isinstance<CollectedObject>(object);
}

State take_collected(nb::handle object) {
    auto& self = nb::cast<CollectedObject&>(object);
    if (self.state == nullptr) {
        raise_value("save: what an iterator gave was saved already");
    }
    State out = std::move(*self.state);
    self.state.reset();
    return out;
}

nb::list rows_of_collected(nb::handle self) {
    const auto& collected = nb::cast<CollectedObject&>(self);
    nb::list rows;
    for (const StateTensor& t : collected.tensors) {
        nb::list shape;
        for (const std::uint64_t extent : t.shape) {
            shape.append(extent);
        }
        rows.append(nb::make_tuple(nb::str(t.name.data(), t.name.size()), t.dtype, shape,
                                   reinterpret_cast<std::uintptr_t>(t.data.data),
                                   nb::borrow(self)));
    }
    return rows;
}

}  // namespace penstock::python
