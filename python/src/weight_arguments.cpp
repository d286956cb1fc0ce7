// SPDX-License-Identifier: Apache-2.0
#include "weight_arguments.hpp"

#include "arguments.hpp"
#include "file_object.hpp"
#include "names.hpp"

#include <utility>

namespace penstock::python {

std::vector<WeightUnit> units_of(nb::handle list) {
    std::vector<WeightUnit> out;
    for (const nb::handle pair : nb::iter(list)) {
        WeightUnit& unit = out.emplace_back();
        unit.name = word_of(nb::object(pair[0]), "units");
        for (const nb::handle name : nb::iter(nb::object(pair[1]))) {
            unit.tensors.push_back(word_of(name, "units"));
        }
    }
    return out;
}

std::vector<std::string> folders_of(nb::handle paths) {
    std::vector<std::string> out;
    for (const nb::handle path : nb::iter(paths)) {
        out.push_back(path_bytes(path, "folder", ""));
    }
    return out;
}

// From (tensor, offset, bytes).
std::vector<TensorPart> tensor_parts_of(nb::handle list) {
    std::vector<TensorPart> out;
    for (const nb::handle part : nb::iter(list)) {
        out.push_back({word_of(nb::object(part[0]), "parts"),
                       count_of(nb::object(part[1]), "parts", "bytes"),
                       count_of(nb::object(part[2]), "parts", "bytes")});
    }
    return out;
}

// From (name, shape, [(tensor, offset, bytes)]).
std::vector<JoinedTensor> joined_of(nb::handle list) {
    std::vector<JoinedTensor> out;
    for (const nb::handle one : nb::iter(list)) {
        JoinedTensor& joined = out.emplace_back();
        joined.name = word_of(nb::object(one[0]), "joined");
        joined.shape = counts_of(nb::object(one[1]), "joined", "elements");
        joined.parts = tensor_parts_of(nb::object(one[2]));
    }
    return out;
}

WeightFolders joined_folders(const std::shared_ptr<Engine>& engine,
                             const std::vector<std::string>& folders,
                             const std::vector<JoinedTensor>& joined) {
    WeightFolders out = inspect_folders(engine, folders);
    join_tensors(out.table, joined);
    return out;
}

nb::list folder_stats_of(const std::vector<WeightFolderStats>& folders) {
    nb::list out;
    for (const WeightFolderStats& folder : folders) {
        out.append(nb::make_tuple(folder.bytes_per_second, folder.bytes_read, folder.buffered_bytes,
                                  nb::str(folder.buffered_because.c_str())));
    }
    return out;
}

}  // namespace penstock::python
