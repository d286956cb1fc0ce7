// SPDX-License-Identifier: Apache-2.0
// Plans reads of items straight into tensors of torch that exist.
//
//   without gaps  the elements lie in memory as in the item: its bytes are read directly
//   strided       the item is stored as the view: it is read directly, element by element
//   copied        all others: the item is read whole into new memory, and the elements are copied
#include "arguments.hpp"
#include "fill_targets.hpp"
#include "format/torch_types.hpp"
#include "names.hpp"
#include "source_object.hpp"
#include "state/shared_memory.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
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

bool is_dense(nb::handle tensor) {
    static const Name is_contiguous("is_contiguous");
    return flag(tensor, is_contiguous);
}

std::uint64_t element_bytes_of(nb::handle tensor) {
    static const Name element_size("element_size");
    return number(call(tensor, element_size));
}

state::ElementLayout layout_at(nb::handle tensor, std::uint64_t begin) {
    state::ElementLayout out;
    out.begin = begin;
    out.element_bytes = element_bytes_of(tensor);
    out.dimensions = dimensions_of(tensor, out.element_bytes);
    return out;
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

// A tensor that exists, and the view of an item that it is to be filled with, which has its type
// and shape.
class FillTarget {
public:
    FillTarget(nb::handle of, nb::handle filled, nb::handle called)
        : view(of),
          tensor(filled),
          name(called),
          address(address_of(tensor)),
          stretch(stretch_of(view)),
          is_contiguous(is_dense(tensor)),
          lies_as_view(lies()) {}

    [[nodiscard]] Kin kin(std::size_t item) const {
        return lies_as_view ? Kin({item, address - stretch.first}) : Kin();
    }

    nb::handle view;
    nb::handle tensor;
    nb::handle name;
    std::uint64_t address;
    std::pair<std::uint64_t, std::uint64_t> stretch;
    bool is_contiguous;
    bool lies_as_view;  ///< its elements stand to each other in memory as those of the view

private:
    [[nodiscard]] bool lies() const {
        static const Name is_conj("is_conj");
        static const Name is_neg("is_neg");
        static const Name shape("shape");
        static const Name stride("stride");
        if (flag(tensor, is_conj) != flag(view, is_conj) ||
            flag(tensor, is_neg) != flag(view, is_neg)) {
            return false;
        }
        if (is_contiguous && is_dense(view)) {
            return true;
        }
        const nb::object extents = get(tensor, shape);
        const nb::object steps = call(tensor, stride);
        const nb::object others = call(view, stride);
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
};

// The targets of one item, gathered.
class ItemFill {
public:
    ItemFill(const SourceObject& source, std::size_t item)
        : source_(source), item_(item), bytes_(source.place(item).bytes) {}

    void add(const FillTarget& target) {
        views_.insert(target.view.ptr());
        copies_ = copies_ || !takes(target);
    }
    /// Different tensors of the state that it fills.
    [[nodiscard]] std::size_t views() const { return views_.size(); }

    /// Whether it can be filled without new memory; its reads then. `whole`: becomes the address of
    /// memory of the host that has all of it. `shared`: the rest of the state has to have that.
    bool plan(bool shared, std::vector<ItemRead>& reads, std::uint64_t& whole) {
        std::vector<ItemRead> out;
        for (auto& [place, lying] : lying_) {
            const auto [on_gpu, address] = place;
            for (const auto& [begin, end] : merged(std::move(lying.ranges))) {
                const ItemRange part{item_, begin, end - begin};
                const bool is_whole = part.bytes == bytes_;
                if (!is_whole &&
                    (!source_.stored(item_) || source_.checkable(part).bytes != part.bytes)) {
                    return false;
                }
                out.push_back(
                    {part, memory_of(lying.target, address + begin, part.bytes, lying.name)});
                whole = is_whole && whole == 0 && !on_gpu ? address : whole;
            }
        }
        if (copies_ || (shared && whole == 0)) {
            return false;
        }
        for (const auto& [place, bytes] : strided_) {
            out.push_back({{item_, 0, bytes_},
                           {reinterpret_cast<std::byte*>(place.first), bytes},
                           {},
                           place.second});
        }
        reads.insert(reads.end(), out.begin(), out.end());
        return true;
    }

private:
    struct Lying {
        std::vector<Range> ranges;
        nb::handle target;
        nb::handle name;
    };

    // False: it cannot be filled without new memory.
    bool takes(const FillTarget& target) {
        static const Name is_cpu("is_cpu");
        static const Name nbytes("nbytes");
        static const Name stride("stride");
        const auto [begin, bytes] = target.stretch;
        if (bytes == 0) {
            return true;
        }
        if (!is_reached(target.tensor)) {
            return false;
        }
        const bool on_gpu = !truth(get(target.tensor, is_cpu));
        const state::ElementLayout layout = layout_at(target.tensor, target.address);
        if (!target.is_contiguous && layout.meets_itself()) {
            return false;
        }
        if (target.lies_as_view && number(get(target.view, nbytes)) == bytes) {
            Lying& lying = lying_[{on_gpu, target.address - begin}];
            lying.ranges.emplace_back(begin, begin + bytes);
            lying.target = target.tensor;
            lying.name = target.name;
            return true;
        }
        if (on_gpu || !has_boxes(source_, item_, target.view) || !has_plain_bits(target.tensor)) {
            return false;
        }
        std::vector<std::uint64_t> strides;
        for (const nb::handle step : nb::iter(call(target.tensor, stride))) {
            strides.push_back(nb::cast<std::uint64_t>(step) * layout.element_bytes);
        }
        strided_[{target.address, std::move(strides)}] = layout.end() - layout.begin;
        return true;
    }

    const SourceObject& source_;
    std::size_t item_;
    std::uint64_t bytes_;
    bool copies_ = false;
    std::set<PyObject*> views_;
    /// By whether it is on a GPU, and where the first byte would be.
    std::map<std::pair<bool, std::uint64_t>, Lying> lying_;
    std::map<std::pair<std::uint64_t, std::vector<std::uint64_t>>, std::uint64_t> strided_;
};

}  // namespace

bool has_boxes(const SourceObject& source, std::size_t item, nb::handle view) {
    static const Name shape("shape");
    static const Name dtype("dtype");
    static const Name storage_offset("storage_offset");
    const auto stored = source.stored(item);
    if (!stored || !is_dense(view) || !has_plain_bits(view) ||
        number(call(view, storage_offset)) != 0) {
        return false;
    }
    const format::TorchType* const type = format::torch_type(*element_type_named(stored->dtype));
    const nb::list extents(get(view, shape));
    bool same = type != nullptr && nb::len(extents) == stored->shape.size() &&
                text(get(view, dtype)) == std::string("torch.") + type->torch;
    for (std::size_t d = 0; same && d < stored->shape.size(); ++d) {
        same = number(extents[d]) == stored->shape[d];
    }
    return same;
}

std::pair<std::uint64_t, std::uint64_t> stretch_of(nb::handle view) {
    static const Name storage_offset("storage_offset");
    static const Name nbytes("nbytes");
    static const Name numel("numel");
    if (number(call(view, numel)) == 0) {
        return {0, 0};
    }
    const std::uint64_t begin = number(call(view, storage_offset)) * element_bytes_of(view);
    return {begin, is_dense(view) ? number(get(view, nbytes)) : layout_at(view, 0).end()};
}

namespace {

void add_box(const SourceObject& source, nb::handle box, std::vector<ItemRead>& reads) {
    static const Name numel("numel");
    static const Name stride("stride");
    const auto item = nb::cast<std::size_t>(nb::object(box[0]));
    const nb::object tensor = box[2];
    if (tensor.is_none() || number(call(tensor, numel)) == 0) {
        return;
    }
    const std::uint64_t address = address_of(tensor);
    const state::ElementLayout layout = layout_at(tensor, address);
    ItemRead read{{item, 0, source.place(item).bytes},
                  memory_of(tensor, address, layout.end() - layout.begin, box[5]),
                  {counts_of(box[3], "begin", "elements"), counts_of(box[4], "end", "elements")}};
    if (!is_dense(tensor)) {
        for (const nb::handle step : nb::iter(call(tensor, stride))) {
            read.strides_bytes.push_back(nb::cast<std::uint64_t>(step) * layout.element_bytes);
        }
    }
    reads.push_back(std::move(read));
}

}  // namespace

nb::tuple plan_fill(SourceObject& source, const nb::list& items, const nb::list& views,
                    const nb::list& tensors, const nb::list& names, bool rest,
                    const nb::list& boxes) {
    std::vector<std::size_t> numbers;
    std::vector<FillTarget> targets;
    std::vector<Kin> kin;
    for (std::size_t i = 0; i < nb::len(items); ++i) {
        numbers.push_back(nb::cast<std::size_t>(items[i]));
        kin.push_back(targets.emplace_back(views[i], tensors[i], names[i]).kin(numbers[i]));
    }
    nb::list all_names;
    nb::list all;
    all_names.extend(names);
    all.extend(tensors);
    std::map<std::size_t, std::set<PyObject*>> boxed;  // views of each item
    for (const nb::handle box : boxes) {
        boxed[nb::cast<std::size_t>(nb::object(box[0]))].insert(nb::object(box[1]).ptr());
        if (!nb::object(box[2]).is_none()) {
            all.append(box[2]);
            all_names.append(box[5]);
            kin.emplace_back();
        }
    }
    refuse_unfit(all_names, all, kin);
    std::map<std::size_t, ItemFill> fills;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
        fills.try_emplace(numbers[i], source, numbers[i]).first->second.add(targets[i]);
    }
    const format::ValueTree& tree = source.tree();
    std::vector<std::size_t> counts(tree.storages.size());  // of tensors of the state
    for (const format::TensorValue& tensor : tree.tensors) {
        ++counts[tensor.storage];
    }
    FillPlan plan;
    plan.tensors = all;
    for (const nb::handle box : boxes) {
        add_box(source, box, plan.reads);
    }
    std::set<std::size_t> copied;
    nb::list whole;
    nb::dict shared;
    for (std::size_t item = 0; item < counts.size(); ++item) {
        const auto fill = fills.find(item);
        const auto cut = boxed.find(item);
        const std::size_t views_filled = (fill == fills.end() ? 0 : fill->second.views()) +
                                         (cut == boxed.end() ? 0 : cut->second.size());
        const bool others = rest && views_filled != counts[item];
        std::uint64_t address = 0;
        if (fill != fills.end() && !fill->second.plan(others, plan.reads, address)) {
            copied.insert(item);
            whole.append(item);
        } else if (fill == fills.end() && others) {
            whole.append(item);
        } else if (others) {
            shared[nb::cast(item)] = address;
        }
    }
    nb::list copies;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
        if (copied.count(numbers[i]) != 0) {
            copies.append(i);
        }
    }
    return nb::make_tuple(nb::cast(std::move(plan)), std::move(copies), std::move(whole),
                          std::move(shared));
}

}  // namespace penstock::python
