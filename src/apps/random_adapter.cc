#include "apps/random_adapter.h"

#include <CLI/CLI.hpp>

#include "apps/cold_files.h"
#include "apps/model_folder.h"

namespace medley::apps {

void add_random_adapter_flags(CLI::App& app, RandomAdapterFlags& flags) {
  app.add_option("path", flags.path, "folder to write")->required();
  app.add_option("--model", flags.model, "folder of its base model")->required();
  app.add_option("--rank", flags.rank, "of all modules")
      ->check(CLI::Range(1, 1 << 12))
      ->capture_default_str();
  app.add_option("--seed", flags.seed, "chooses its values")->capture_default_str();
}

Result<void> random_adapter(const RandomAdapterFlags& flags) {
  MEDLEY_TRY_ASSIGN(const ModelFolder folder, read_model_folder(flags.model));
  return write_dummy_adapter(folder.spec, dummy_adapter_of(folder.spec, flags.rank, flags.seed),
                             flags.path);
}

}  // namespace medley::apps
