// SPDX-License-Identifier: Apache-2.0
#include "fill_targets.hpp"

#include "base/align.hpp"
#include "borrowed_memory.hpp"
#include "errors.hpp"
#include "names.hpp"
#include "state/shared_memory.hpp"
#include "writable.hpp"

#include <penstock/gpu.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace penstock::python {

namespace {

std::string into(nb::handle name) {
    return "into[" + shown(name) + "]";
}

// Without gaps it is as one large element. `is_alone`: it may share memory with no other.
state::ElementLayout layout_of(nb::handle tensor, nb::handle name, bool is_alone) {
    static const Name data_ptr("data_ptr");
    static const Name nbytes("nbytes");
    static const Name element_size("element_size");
    static const Name is_contiguous("is_contiguous");
    state::ElementLayout out;
    out.begin = address_of(tensor);
    if (truth(call(tensor, is_contiguous))) {
        out.element_bytes = number(get(tensor, nbytes));
        return out;
    }
    out.element_bytes = number(call(tensor, element_size));
    out.dimensions = dimensions_of(tensor, out.element_bytes);
    const bool is_expanded = !out.dimensions.empty() && out.dimensions[0].step_bytes == 0;
    if (is_expanded || (is_alone && out.meets_itself())) {
        raise_value("load: " + into(name) +
                    ": several of its elements are one in memory (it is expanded, or a window); "
                    "give a tensor whose elements are its own, clone() makes one; nothing was "
                    "read");
    }
    return out;
}

void refuse_read_only(std::uint64_t address, nb::handle name) {
    if (const auto why = why_not_writable(reinterpret_cast<const void*>(address)); !why.empty()) {
        raise_value("load: " + into(name) + " cannot be written: " + why +
                    "; give a tensor with memory of its own, clone() makes one; nothing was read");
    }
}

}  // namespace

void refuse_past_storage(nb::handle tensor, const std::string& what) {
    static const Name untyped_storage("untyped_storage");
    static const Name data_ptr("data_ptr");
    static const Name nbytes("nbytes");
    static const Name element_size("element_size");
    static const Name numel("numel");
    if (number(call(tensor, numel)) == 0) {
        return;
    }
    const nb::object storage = call(tensor, untyped_storage);
    std::uint64_t begin = 0;
    try {
        begin = number(call(storage, data_ptr));
    } catch (const nb::python_error& error) {
        if (!error.matches(PyExc_RuntimeError)) {
            throw;
        }
        // A subclass without a storage: it has an address of its own, or wraps other tensors.
        if (address_of(tensor) == 0) {
            raise_value(what + " is a " + type_text(tensor) +
                        ", which has no memory of its own; give the tensor that it wraps "
                        "(to_local() or full_tensor() of a DTensor)");
        }
        return;
    }
    const std::uint64_t bytes = number(call(storage, nbytes));
    const std::uint64_t first = address_of(tensor);
    std::uint64_t used = number(call(tensor, element_size));
    for (const auto& dimension : dimensions_of(tensor, used)) {
        used += (dimension.extent - 1) * dimension.step_bytes;
    }
    if (begin == 0 && bytes >= used) {  // of torch's FakeTensorMode
        raise_value(what + " is a " + type_text(tensor) +
                    ", which has no data; give a tensor that has");
    }
    if (first == 0 || first < begin || first - begin > bytes || bytes - (first - begin) < used) {
        raise_value(what + " reaches past its storage, which has " + std::to_string(bytes) +
                    " bytes (it was resized or freed); give a tensor whose memory is there");
    }
}

std::uint64_t address_of(nb::handle tensor) {
    static const Name data_ptr("data_ptr");
    return number(call(tensor, data_ptr));
}

std::uint64_t number(const nb::object& object) {
    const std::uint64_t value = PyLong_AsUnsignedLongLong(object.ptr());
    if (PyErr_Occurred() != nullptr) {
        throw nb::python_error();
    }
    return value;
}

std::vector<state::ElementLayout::Dimension> dimensions_of(nb::handle tensor,
                                                           std::uint64_t element_bytes) {
    static const Name shape("shape");
    static const Name stride("stride");
    std::vector<state::ElementLayout::Dimension> out;
    const nb::object extents = get(tensor, shape);
    const nb::object steps = call(tensor, stride);
    for (std::size_t d = 0; d < nb::len(extents); ++d) {
        if (const std::uint64_t extent = number(extents[d]); extent > 1) {
            out.push_back({number(steps[d]) * element_bytes, extent});
        }
    }
    std::sort(out.begin(), out.end(),
              [](const auto& a, const auto& b) { return a.step_bytes < b.step_bytes; });
    return out;
}

bool is_reached(nb::handle tensor) {
    static const Name is_cpu("is_cpu");
    static const Name is_cuda("is_cuda");
    return truth(get(tensor, is_cpu)) ||
           (truth(get(tensor, is_cuda)) && !torch_has_rocm() && gpu_count() > 0);
}

Memory memory_of(nb::handle tensor, std::uint64_t address, std::uint64_t bytes, nb::handle name) {
    static const Name is_cpu("is_cpu");
    auto* const data = reinterpret_cast<std::byte*>(address);
    if (truth(get(tensor, is_cpu))) {
        return {data, bytes};
    }
    try {
        return device_memory(data, bytes);
    } catch (const Error& error) {
        throw Error(error.reason(), error.system_errno(), "load", "", kNoOffset,
                    "load: " + into(name) + ": " + message_of(error));
    }
}

void refuse_unfit(const nb::list& names, const nb::list& tensors, const std::vector<Kin>& kin) {
    static const Name is_cpu("is_cpu");
    static const Name device("device");
    static const Name numel("numel");
    std::map<std::string, std::uint64_t> devices;
    std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint64_t> kins;
    std::vector<state::ElementLayout> layouts;
    std::vector<nb::handle> named;
    for (std::size_t i = 0; i < nb::len(tensors); ++i) {
        const nb::handle tensor = tensors[i];
        if (number(call(tensor, numel)) == 0) {
            continue;
        }
        refuse_past_storage(tensor, "load: " + into(names[i]));
        const bool is_alone = !kin[i];
        state::ElementLayout layout = layout_of(tensor, names[i], is_alone);
        if (truth(get(tensor, is_cpu))) {
            refuse_read_only(layout.begin, names[i]);
            const std::uint64_t last = layout.end() - 1;
            if (last / base::kPageBytes != layout.begin / base::kPageBytes) {
                refuse_read_only(last, names[i]);
            }
        } else {
            if (is_reached(tensor)) {
                static_cast<void>(
                    memory_of(tensor, layout.begin, layout.end() - layout.begin, names[i]));
            }
            layout.space =
                devices.try_emplace(text(get(tensor, device)), devices.size() + 1).first->second;
        }
        // Those that are alone have odd numbers.
        layout.kin = 2 * i + 1;
        if (!is_alone) {
            layout.kin = 2 * kins.try_emplace(*kin[i], kins.size()).first->second;
        }
        layouts.push_back(std::move(layout));
        named.push_back(names[i]);
    }
    if (const auto found = state::find_shared(layouts)) {
        raise_value("load: " + into(named[found->first]) + " and " + into(named[found->second]) +
                    " share memory, and in what is loaded they do not: one would get the values of "
                    "the other; give them memory of their own; nothing was read");
    }
}

nb::list sharing(const nb::list& tensors) {
    static const Name data_ptr("data_ptr");
    static const Name device("device");
    static const Name element_size("element_size");
    static const Name numel("numel");
    std::map<std::string, std::uint64_t> devices;
    std::vector<state::ElementLayout> layouts;
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < nb::len(tensors); ++i) {
        const nb::handle tensor = tensors[i];
        if (number(call(tensor, numel)) == 0) {
            continue;
        }
        state::ElementLayout layout;
        layout.begin = address_of(tensor);
        layout.element_bytes = number(call(tensor, element_size));
        layout.dimensions = dimensions_of(tensor, layout.element_bytes);
        layout.kin = i;
        layout.space = devices.try_emplace(text(get(tensor, device)), devices.size()).first->second;
        layouts.push_back(std::move(layout));
        places.push_back(i);
    }
    nb::list out;
    for (const std::size_t i : state::find_sharing(layouts)) {
        out.append(places[i]);
    }
    return out;
}

}  // namespace penstock::python
