// SPDX-License-Identifier: Apache-2.0
// Plans reads of a stored tensor straight into tensors of torch that exist, so that their elements
// get their values and no other byte changes.
#include "fill_targets.hpp"
#include "names.hpp"
#include "state/shared_memory.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace penstock::python {

namespace {

using Range = std::pair<std::uint64_t, std::uint64_t>;  // begin and end

bool flag(nb::handle tensor, const Name& name) {
    return truth(call(tensor, name));
}

bool has_plain_bits(nb::handle tensor) {
    static const Name is_conj("is_conj");
    static const Name is_neg("is_neg");
    return !flag(tensor, is_conj) && !flag(tensor, is_neg);
}

bool is_plain(nb::handle tensor) {
    static const Name is_contiguous("is_contiguous");
    return flag(tensor, is_contiguous) && has_plain_bits(tensor);
}

std::uint64_t element_bytes_of(nb::handle tensor) {
    static const Name element_size("element_size");
    return number(call(tensor, element_size));
}

std::uint64_t address_of(nb::handle tensor) {
    static const Name data_ptr("data_ptr");
    return number(call(tensor, data_ptr));
}

std::uint64_t elements_of(nb::handle tensor) {
    static const Name numel("numel");
    return number(call(tensor, numel));
}

state::ElementLayout layout_at(nb::handle tensor, std::uint64_t begin) {
    state::ElementLayout out;
    out.begin = begin;
    out.element_bytes = element_bytes_of(tensor);
    out.dimensions = dimensions_of(tensor, out.element_bytes);
    return out;
}

// Memory as the reader takes it: that of a GPU is (address, bytes).
nb::object memory_at(std::uint64_t address, std::uint64_t bytes, bool on_gpu) {
    if (on_gpu) {
        return nb::make_tuple(address, bytes);
    }
    return checked(PyMemoryView_FromMemory(reinterpret_cast<char*>(address),
                                           static_cast<Py_ssize_t>(bytes), PyBUF_WRITE));
}

// The same bytes as ranges that do not meet.
std::vector<Range> merged(std::vector<Range> ranges) {
    std::sort(ranges.begin(), ranges.end());
    std::vector<Range> out;
    for (const Range& one : ranges) {
        if (!out.empty() && one.first <= out.back().second) {
            out.back().second = std::max(out.back().second, one.second);
        } else {
            out.push_back(one);
        }
    }
    return out;
}

// The stored tensor: what fill_rows() has in `stored`.
struct Stored {
    nb::object name;
    std::uint64_t bytes = 0;
    std::string dtype;  // torch's: "torch.float32"
    nb::object shape;

    [[nodiscard]] bool is(nb::handle view) const {
        static const Name nbytes("nbytes");
        static const Name view_shape("shape");
        static const Name view_dtype("dtype");
        return is_plain(view) && number(get(view, nbytes)) == bytes &&
               get(view, view_shape).equal(shape) && text(get(view, view_dtype)) == dtype;
    }
};

// The targets of one stored tensor, gathered.
class FillRows {
public:
    explicit FillRows(Stored stored) : stored_(std::move(stored)) {}

    /// False: it cannot be filled without fresh memory.
    bool add(nb::handle view, nb::handle target) {
        static const Name nbytes("nbytes");
        static const Name stride("stride");
        if (elements_of(view) == 0) {
            return true;
        }
        static const Name is_cpu("is_cpu");
        const bool on_gpu = !truth(get(target, is_cpu));
        const auto [begin, bytes] = stretch_of(view);
        const state::ElementLayout layout = layout_at(target, address_of(target));
        if (layout.meets_itself() || !is_reached(target)) {
            return false;
        }
        if (FillTarget(view, target).lies_as_view() && number(get(view, nbytes)) == bytes) {
            ranges_[{on_gpu, layout.begin - begin}].emplace_back(begin, begin + bytes);
            return true;
        }
        if (on_gpu || !stored_.is(view) || !has_plain_bits(target)) {
            return false;
        }
        std::vector<std::uint64_t> strides;
        for (const nb::handle step : nb::iter(call(target, stride))) {
            strides.push_back(nb::cast<std::uint64_t>(step) * layout.element_bytes);
        }
        strided_[{layout.begin, std::move(strides)}] = layout.end() - layout.begin;
        return true;
    }

    /// As fill_rows() has it.
    nb::object rows(bool everybody) {
        const std::vector<Range> all{{0, stored_.bytes}};
        nb::object whole = nb::none();
        nb::list out;
        for (auto& [place, ranges] : ranges_) {
            const auto [on_gpu, address] = place;
            ranges = merged(std::move(ranges));
            const bool is_whole = ranges == all;
            if (is_whole && whole.is_none() && !on_gpu) {
                whole = nb::cast(address);
            }
            if (!is_whole && (stored_.dtype != "torch.uint8" || nb::len(stored_.shape) != 1)) {
                return nb::none();
            }
            for (const auto& [begin, end] : ranges) {
                out.append(nb::make_tuple(stored_.name,
                                          memory_at(address + begin, end - begin, on_gpu),
                                          is_whole ? nb::none() : list_of({begin}),
                                          is_whole ? nb::none() : list_of({end}), nb::none()));
            }
        }
        if (!everybody && whole.is_none()) {
            return nb::none();
        }
        for (const auto& [place, bytes] : strided_) {
            out.append(nb::make_tuple(stored_.name, memory_at(place.first, bytes, false),
                                      nb::none(), nb::none(), list_of(place.second)));
        }
        return nb::make_tuple(std::move(out), std::move(whole));
    }

private:
    static nb::object list_of(const std::vector<std::uint64_t>& numbers) {
        nb::list out;
        for (const std::uint64_t one : numbers) {
            out.append(nb::cast(one));
        }
        return out;
    }

    Stored stored_;
    /// By whether it is on a GPU, and where the first byte would be.
    std::map<std::pair<bool, std::uint64_t>, std::vector<Range>> ranges_;
    std::map<std::pair<std::uint64_t, std::vector<std::uint64_t>>, std::uint64_t> strided_;
};

}  // namespace

std::pair<std::uint64_t, std::uint64_t> stretch_of(nb::handle view) {
    static const Name storage_offset("storage_offset");
    if (elements_of(view) == 0) {
        return {0, 0};
    }
    const state::ElementLayout layout = layout_at(view, 0);
    return {number(call(view, storage_offset)) * layout.element_bytes, layout.end()};
}

std::uint64_t FillTarget::address() const {
    return address_of(tensor_);
}

bool FillTarget::lies_as_view() const {
    static const Name is_conj("is_conj");
    static const Name is_neg("is_neg");
    static const Name shape("shape");
    static const Name stride("stride");
    if (flag(tensor_, is_conj) != flag(view_, is_conj) ||
        flag(tensor_, is_neg) != flag(view_, is_neg)) {
        return false;
    }
    const nb::object extents = get(tensor_, shape);
    const nb::object steps = call(tensor_, stride);
    const nb::object others = call(view_, stride);
    bool same = true;
    for (std::size_t d = 0; d < nb::len(extents); ++d) {
        const std::uint64_t extent = number(extents[d]);
        if (extent == 0) {
            return true;
        }
        same = same && (extent == 1 || number(steps[d]) == number(others[d]));
    }
    return same;
}

nb::object FillTarget::kin(nb::handle item) const {
    if (!lies_as_view()) {
        return nb::none();
    }
    return nb::make_tuple(item, address() - stretch_of(view_).first);
}

bool FillTarget::is_all_of(std::uint64_t bytes) const {
    return stretch_of(view_) == std::pair(std::uint64_t{0}, bytes) && is_plain(view_) &&
           is_plain(tensor_) && is_reached(tensor_);
}

Memory FillTarget::place(std::uint64_t bytes, nb::handle name) const {
    return memory_of(tensor_, address(), bytes, name);
}

nb::object fill_rows(const nb::list& views, const nb::list& targets, const nb::tuple& stored,
                     bool everybody) {
    FillRows rows({nb::borrow(stored[0]), nb::cast<std::uint64_t>(stored[1]), text(stored[2]),
                   nb::borrow(stored[3])});
    for (std::size_t i = 0; i < nb::len(views); ++i) {
        if (!rows.add(views[i], targets[i])) {
            return nb::none();
        }
    }
    return rows.rows(everybody);
}

}  // namespace penstock::python
