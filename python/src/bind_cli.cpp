// SPDX-License-Identifier: Apache-2.0
#include "bind.hpp"
#include "file_object.hpp"
#include "without_gil.hpp"

#if PENSTOCK_HAS_CLI
#include "cli/run.hpp"
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
    const WithoutGil nogil;
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

}  // namespace

void bind_cli(nb::module_& m) {
    m.def("cli_main", cli_main, nb::arg("arguments"),
          nb::sig("def cli_main(arguments: list[str]) -> int"),
          "Runs the `penstock` program (without its name in the arguments); its exit status.");
    m.def("environment_json", environment_json,
          "The machine of a measurement (kernel, processor, memory, time), as `penstock bench "
          "--json` writes it.");
}

}  // namespace penstock::python
