// SPDX-License-Identifier: Apache-2.0
#include "bind.hpp"
#include "file_object.hpp"

#if PENSTOCK_HAS_CLI
#include "cli/run.hpp"
#include "report/output_file.hpp"
#endif

#include <string>
#include <vector>

namespace penstock::python {

namespace {

[[maybe_unused, noreturn]] void no_command_line() {
    throw nb::import_error("this build of penstock has no command line inside");
}

// Words are paths, too, and those need not be UTF-8.
int cli_main(const nb::list& arguments) {
#if PENSTOCK_HAS_CLI
    std::vector<std::string> words;
    for (const nb::handle word : arguments) {
        words.push_back(path_bytes(word, "arguments", ""));
    }
    const nb::gil_scoped_release nogil;
    return cli::run(words);
#else
    static_cast<void>(arguments);
    no_command_line();
#endif
}

std::string environment_json() {
#if PENSTOCK_HAS_CLI
    return cli::environment_json();
#else
    no_command_line();
#endif
}

bool is_json_of_ours(const nb::handle path) {
#if PENSTOCK_HAS_CLI
    return report::is_json_of_ours(path_bytes(path, "path", ""));
#else
    static_cast<void>(path);
    no_command_line();
#endif
}

int write_output(const nb::handle path, const char* text) {
#if PENSTOCK_HAS_CLI
    return report::write_output(path_bytes(path, "path", ""), text);
#else
    static_cast<void>(path);
    static_cast<void>(text);
    no_command_line();
#endif
}

}  // namespace

void bind_cli(nb::module_& m) {
    m.def("cli_main", cli_main, nb::arg("arguments"),
          nb::sig("def cli_main(arguments: list[str]) -> int"),
          "Runs the `penstock` program (without its name in the arguments); its exit status.");
    m.def("environment_json", environment_json,
          "The machine of a measurement (kernel, processor, memory, time), as `penstock bench "
          "--json` writes it.");
    m.def("is_json_of_ours", is_json_of_ours, nb::arg("path"),
          nb::sig("def is_json_of_ours(path: typing.Any) -> bool"),
          "Whether a file begins as the JSON of a command of Penstock.");
    m.def("write_output", write_output, nb::arg("path"), nb::arg("text"),
          nb::sig("def write_output(path: typing.Any, text: str) -> int"),
          "Replaces a file as a whole, and writes to a pipe or device; 0, or the errno.");
}

}  // namespace penstock::python
