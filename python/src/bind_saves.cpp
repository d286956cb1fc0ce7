// SPDX-License-Identifier: Apache-2.0
// Files of formats for penstock/_state/save.py: made of objects, written by the engine or by the
// caller. Private: what users see is save().
#include "arguments.hpp"
#include "bind.hpp"
#include "engine_object.hpp"
#include "errors.hpp"
#include "file_image_object.hpp"
#include "file_object.hpp"
#include "names.hpp"
#include "progress.hpp"
#include "request.hpp"
#include "state.hpp"
#include "state/writing/file_writer.hpp"
#include "state/writing/image_sums.hpp"
#include "state/writing/replace.hpp"
#include "state/writing/write_plan.hpp"
#include "stream/host_windows.hpp"
#include "streams.hpp"
#include "tensor_stream.hpp"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace penstock::python {

namespace {

constexpr std::uint64_t kWriteBytes = 16 * base::kMiB;

stream::Watch watch_of(const std::vector<StorageMemory>& memory, nb::handle changing) {
    const Changing answer = changing_of(changing);
    return {answer, look_of(memory, answer)};
}

void save(FileImageObject& self, nb::handle to, nb::handle progress, bool sync,
          nb::handle changing) {
    const std::string path = path_bytes(to, "path", "");
    const stream::Watch watch = watch_of(self.payloads, changing);
    const std::shared_ptr<Engine> engine = opened(default_engine());
    run_with_progress(progress, [&](const Progress& report) {
        wait_for_streams(self.streams);
        state::save_file(*engine, FileSystem::any(), path, self.image, report, sync, watch);
    });
}

void save_index(nb::handle to, nb::handle tensors, nb::handle metadata, std::uint64_t shard_bytes,
                nb::handle progress, bool sync, nb::handle changing) {
    const std::string path = path_bytes(to, "path", "");
    GivenTensors rows = python::rows_of(tensors, metadata);
    const std::shared_ptr<Engine> engine = opened(default_engine());
    const stream::Watch watch = watch_of(rows.memory, changing);
    std::string note;
    run_with_progress(progress, [&](const Progress& report) {
        wait_for_streams(rows.streams);
        state::save_index(*engine, FileSystem::any(), path, std::move(rows.named),
                          {.shard_bytes = shard_bytes,
                           .sync = sync,
                           .progress = report,
                           .watch = watch,
                           .note = &note});
    });
    warn_of(note);
}

void write_extent(stream::HostWindows& windows, const Extent& extent, nb::handle write) {
    windows.with(extent.memory, [&](std::span<const std::byte> bytes) {
        auto* const begin = reinterpret_cast<char*>(const_cast<std::byte*>(bytes.data()));
        const nb::object view = checked(
            PyMemoryView_FromMemory(begin, static_cast<Py_ssize_t>(bytes.size()), PyBUF_READ));
        write(view);
        view.attr("release")();  // nobody keeps a share of memory that is not Python's
    });
}

// Threads of the sums may wait for the GIL.
struct StopWithoutGil {
    state::ImageSums& sums;
    ~StopWithoutGil() {
        const nb::gil_scoped_release nogil;
        sums.stop();
    }
};

// In the order of the file, to a Python function: for whatever is not a file of the system.
void write_to(FileImageObject& self, nb::handle write, nb::handle progress, nb::handle changing) {
    const std::uint64_t total = self.image.file().total_bytes();
    const std::vector<format::FileRange> ranges =
        format::cut_ranges(total, base::kPageBytes, kWriteBytes);
    state::ImageSums sums(self.image, ranges, watch_of(self.payloads, changing), "");
    const auto without_gil = [&](const auto& work) {
        const nb::gil_scoped_release nogil;
        work();
    };
    without_gil([&] {
        wait_for_streams(self.streams);
        sums.start();
    });
    const StopWithoutGil stop{sums};
    stream::HostWindows windows;
    for (std::size_t i = 0; i < ranges.size(); ++i) {
        sums.ask(i);
        without_gil([&] { sums.wait_ready(i); });
        for (const Extent& extent : sums.extents(i)) {
            write_extent(windows, extent, write);
        }
        sums.ended(i);
        if (!progress.is_none()) {
            progress(ranges[i].end, total);
        }
    }
    without_gil([&] { sums.wait_over(); });
}

// A file that the caller writes, by the name of its temporary file.
class ReplacementObject {
public:
    explicit ReplacementObject(nb::handle path)
        : replacement_(std::in_place, FileSystem::any(), path_bytes(path, "path", "")) {}
    [[nodiscard]] const state::Replacement& get() const {
        if (!replacement_) {
            raise_value("the file is closed");
        }
        return *replacement_;
    }
    void commit() {
        static_cast<void>(get());
        const nb::gil_scoped_release nogil;
        replacement_->commit();
        replacement_.reset();
    }
    void give_up() {
        const nb::gil_scoped_release nogil;
        replacement_.reset();
    }

private:
    std::optional<state::Replacement> replacement_;
};

}  // namespace

void bind_saves(nb::module_& m) {
    nb::class_<FileImageObject>(m, "FileImage")
        .def_prop_ro("total_bytes",
                     [](const FileImageObject& f) { return f.image.file().total_bytes(); })
        .def("save", save, nb::arg("path"), nb::arg("progress").none() = nb::none(),
             nb::arg("sync") = true, nb::arg("changing") = "raise",
             "Puts it under a path, whole, atomic and, with sync, durable. progress: (done, total) "
             "in bytes.")
        .def("write_to", write_to, nb::arg("write"), nb::arg("progress").none() = nb::none(),
             nb::arg("changing") = "raise");
    m.def("image_of_state", image_of_state, nb::arg("object").none(), nb::arg("folder"),
          nb::arg("default").none());
    m.def("image_of_tensors", image_of_tensors, nb::arg("tensors"), nb::arg("metadata"),
          nb::arg("checksums") = true);
    m.def("save_index", save_index, nb::arg("path"), nb::arg("tensors"), nb::arg("metadata"),
          nb::arg("shard_bytes"), nb::arg("progress").none(), nb::arg("sync") = true,
          nb::arg("changing") = "raise");
    m.def("save_stream", save_given, nb::arg("path"), nb::arg("items"), nb::arg("row"),
          nb::arg("like").none(), nb::arg("metadata"), nb::arg("shard_bytes"),
          nb::arg("progress").none(), nb::arg("sync"), nb::arg("changing"),
          "See GivenStream and announced() in tensor_stream.hpp.");
    m.def("update", update_given, nb::arg("path"), nb::arg("rows"), nb::arg("progress").none());
    nb::class_<ReplacementObject>(m, "Replacement")
        .def(nb::init<nb::handle>(), nb::arg("path"))
        .def_prop_ro("temporary",
                     [](const ReplacementObject& r) { return path_object(r.get().temporary()); })
        .def("commit", &ReplacementObject::commit)
        .def("give_up", &ReplacementObject::give_up);
}

}  // namespace penstock::python
