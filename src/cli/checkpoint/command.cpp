// SPDX-License-Identifier: Apache-2.0
#include "cli/checkpoint/command.hpp"

#include "base/text/units.hpp"
#include "cli/amount_option.hpp"
#include "cli/number_from.hpp"
#include "report/interrupt.hpp"
#include "report/progress.hpp"

#include <penstock/engine.hpp>

#include <fmt/format.h>
#include <fnmatch.h>

#include <CLI/CLI.hpp>

namespace penstock::cli {

namespace {

constexpr const char* kCheckpointFooter =
    R"(PATH is the folder of a store, one checkpoint in it, or a file: .safetensors, .pt, or the
index.json of a sharded model. Of a store's folder, the newest whole checkpoint is meant,
or the one that --generation names.

Examples:
  penstock checkpoint ls runs/a                  the checkpoints of a store
  penstock checkpoint show runs/a                names, types and shapes of the newest one
  penstock checkpoint verify runs/a              reads it all and checks every byte
  penstock checkpoint diff runs/a runs/b         which tensors differ, and by how much
  penstock checkpoint convert runs/a model.safetensors

With the Python package:
  penstock checkpoint bench /data --model gpt2   how fast a model's state is saved here

`penstock checkpoint COMMAND --help` says more.)";

constexpr const char* kLsFooter =
    R"(The state of a checkpoint is `ok` when its manifest is sound and every file is there with
its size; otherwise the line names the problem. No tensor is read: verify does that.
"written" is what its save wrote; the rest was unchanged and is linked from older ones.

Examples:
  penstock checkpoint ls runs/a
  penstock checkpoint ls runs/a --json -    for machines)";

constexpr const char* kShowFooter =
    R"(No tensor is read. A name is the tensor's place in the state: state['model']['w'] is
model.w.

Examples:
  penstock checkpoint show runs/a                        the newest checkpoint of a store
  penstock checkpoint show runs/a --generation 12        an older one
  penstock checkpoint show model.pt --name 'layers.0.*'  some tensors of a file
  penstock checkpoint show model.safetensors --verbose   with file and offset of each)";

constexpr const char* kVerifyFooter =
    R"(Reads everything from the device, whatever is in the page cache, and compares it with the
checksums that were saved with it. Reports every mismatch with file, tensor and offset. Files
that other programs wrote may have no checksums; verify then says that it could only check that
they can be read.

Exit code: 0 sound, 1 damaged or not readable, 2 wrong usage.

Examples:
  penstock checkpoint verify runs/a          the newest checkpoint of a store
  penstock checkpoint verify runs/a --all    every one
  penstock checkpoint verify model.pt        the CRC of each storage)";

constexpr const char* kDiffFooter =
    R"(Tensors are compared by name: those that only one side has, other types or shapes, other
content. For floating-point tensors it prints the largest absolute difference. Shards that two
checkpoints of a store share are not read. The structure around the tensors is compared too.

Exit code: 0 the same, 1 different, 2 wrong usage or not readable.

Examples:
  penstock checkpoint diff runs/a --generation 12 --generation 13   two of one store
  penstock checkpoint diff runs/a --generation 12                   that and the newest
  penstock checkpoint diff runs/a/00000012-step-100 model.pt
  penstock checkpoint diff model.pt model.safetensors --name '*.weight'
  penstock checkpoint diff runs/a runs/b --json -)";

constexpr const char* kConvertFooter =
    R"(TARGET chooses the form: NAME.pt, NAME.safetensors, NAME.safetensors.index.json (with shards
next to it, each of at most --shard-bytes), or else the folder of a store, which gets one
checkpoint more. A file or an index appears whole and durable under its name, or not at all. A
value that the form cannot hold is an error that names it. Tensors are held in memory; for those
that do not fit, the source is verified first, and then read again as it is written. Of a
checkpoint with tensors in slices, a file is then made from one tensor at a time.

Examples:
  penstock checkpoint convert runs/a model.pt                    torch.load() reads it
  penstock checkpoint convert model.pt runs/a --step 1000        into a store
  penstock checkpoint convert m.pt m.safetensors.index.json --shard-bytes 5GB
  penstock checkpoint convert train.pt w.safetensors --names model  the model out of a state
  penstock checkpoint convert runs/a w.safetensors --tensors-only  without optimizer numbers)";

void add_common(CLI::App& app, CheckpointOptions& options) {
    app.add_option("--json", options.json,
                   "Write everything to FILE (-: stdout, and the text to stderr)")
        ->type_name("FILE");
}

void add_path(CLI::App& app, CheckpointOptions& options, const char* what) {
    app.add_option("path", options.path, what)->required()->type_name("PATH");
}

void add_generation(CLI::App& app, CheckpointOptions& options) {
    app.add_option("--generation", options.generation, "The checkpoint of a store with this number")
        ->check(whole_from(0))
        ->type_name("N");
}

void add_pattern(CLI::App& app, CheckpointOptions& options) {
    app.add_option("--name", options.pattern, "Only tensors whose name matches, as file names do")
        ->type_name("PATTERN");
}

void add_cache(CLI::App& app, CheckpointOptions& options) {
    app.add_option(
           "--cache", options.cache,
           "Read what is in the page cache from there (auto, the default), all of it through "
           "the page cache (cached), or none (direct; required: an error where that cannot "
           "be)")
        ->check(CLI::IsMember({name_of(CachePolicy::kAuto), name_of(CachePolicy::kCached),
                               name_of(CachePolicy::kDirect), name_of(CachePolicy::kRequired)}))
        ->type_name("HOW");
}

}  // namespace

CheckpointCommand::CheckpointCommand(CLI::App& app) {
    app_ = app.add_subcommand("checkpoint", "Look at checkpoints: ls, show, verify, diff, convert");
    app_->require_subcommand(1);
    app_->footer(kCheckpointFooter);
    ls_ = app_->add_subcommand("ls", "List the checkpoints of a store");
    add_path(*ls_, options_, "The folder of a store, or any path that show accepts");
    add_common(*ls_, options_);
    ls_->footer(kLsFooter);
    show_ = app_->add_subcommand("show", "Show the contents of a checkpoint");
    add_path(*show_, options_, "A store, a checkpoint, or a file of tensors");
    add_generation(*show_, options_);
    add_pattern(*show_, options_);
    show_->add_flag("-v,--verbose", options_.verbose, "Say where the bytes of each tensor lie");
    add_common(*show_, options_);
    show_->footer(kShowFooter);
    verify_ = app_->add_subcommand("verify", "Check a checkpoint against its checksums");
    add_path(*verify_, options_, "A store, a checkpoint, or a file of tensors");
    add_generation(*verify_, options_);
    verify_->add_flag("--all", options_.all, "Every checkpoint of a store, the newest first");
    add_common(*verify_, options_);
    verify_->footer(kVerifyFooter);
    diff_ = app_->add_subcommand("diff", "Compare two checkpoints");
    diff_->add_option("a", options_.path, "A store, a checkpoint, or a file of tensors")
        ->required()
        ->type_name("A");
    diff_->add_option("b", options_.other, "Another one to compare with (default: the store A)")
        ->type_name("B");
    diff_
        ->add_option("--generation", options_.generations,
                     "The checkpoint of store A with this number; given again, that of B (default: "
                     "the newest)")
        ->expected(1, 2)
        ->check(whole_from(0))
        ->type_name("N");
    add_pattern(*diff_, options_);
    add_cache(*diff_, options_);
    diff_->add_flag("-v,--verbose", options_.verbose, "Also name the tensors that are the same");
    add_common(*diff_, options_);
    diff_->footer(kDiffFooter);
    convert_ = app_->add_subcommand("convert", "Convert a checkpoint to another form");
    convert_->add_option("source", options_.path, "A store, a checkpoint, or a file of tensors")
        ->required()
        ->type_name("SOURCE");
    convert_
        ->add_option("target", options_.other,
                     "NAME.pt, NAME.safetensors, NAME.safetensors.index.json, "
                     "or a store's folder")
        ->required()
        ->type_name("TARGET");
    add_generation(*convert_, options_);
    convert_
        ->add_option("--step", options_.step,
                     "Step of the new checkpoint in a store (default: the source's)")
        ->check(whole_from(0))
        ->each([this](const std::string&) { options_.step_given = true; })
        ->type_name("N");
    add_cache(*convert_, options_);
    convert_
        ->add_option("--names", options_.names,
                     "Only this part of the state, as load(names=): model, or model.0.weight, or a "
                     "pattern. Given several times: a dict of these parts")
        ->expected(1)
        ->take_all()
        ->type_name("NAME");
    convert_->add_flag("--tensors-only", options_.tensors_only,
                       "Save only the tensors, instead of an error for other values");
    convert_->add_flag("--force", options_.force, "Replace an existing file");
    convert_->add_flag(
        "!--no-verify", options_.verify,
        "Do not verify the source first (stores that fit into memory are verified anyway)");
    takes_size(convert_->add_option("--memory", options_.memory,
                                    "Tensors of more bytes are not held in memory (default: usable "
                                    "memory)"));
    takes_size(convert_->add_option("--shard-bytes", options_.shard_bytes,
                                    "Bytes of tensors in a shard of an index (default: 5GB); a "
                                    "larger tensor has a shard of its own"),
               1);
    add_common(*convert_, options_);
    convert_->footer(kConvertFooter);
}

bool CheckpointCommand::parsed() const {
    return app_->parsed();
}

std::string CheckpointCommand::name() const {
    for (const CLI::App* one : {ls_, show_, verify_, diff_, convert_}) {
        if (one->parsed()) {
            return "checkpoint " + one->get_name();
        }
    }
    return "checkpoint";
}

int CheckpointCommand::run(std::span<const std::string> command) {
    if (ls_->parsed()) {
        return checkpoint_ls(options_, command);
    }
    if (show_->parsed()) {
        return checkpoint_show(options_, command);
    }
    if (verify_->parsed()) {
        return checkpoint_verify(options_, command);
    }
    if (diff_->parsed()) {
        return checkpoint_diff(options_, command);
    }
    return checkpoint_convert(options_, command);
}

penstock::Progress told_by(report::Progress& shown, std::string what) {
    return [&shown, what = std::move(what)](std::uint64_t done, std::uint64_t total) {
        report::check_interrupt();
        if (shown.due()) {
            shown.show(fmt::format("{}: {} of {}", what, base::format_bytes(done),
                                   base::format_bytes(total)));
        }
        return true;
    };
}

bool matches(const std::string& name, const std::string& pattern) {
    return pattern.empty() || ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

std::shared_ptr<Engine> new_engine(const CheckpointOptions& options) {
    EngineOptions engine = Engine::default_options();
    if (!options.cache.empty()) {
        engine.cache = cache_policy_named(options.cache).value_or(engine.cache);
    }
    return std::make_shared<Engine>(engine);
}

std::string counted(std::uint64_t count, const std::string& what) {
    return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

}  // namespace penstock::cli
