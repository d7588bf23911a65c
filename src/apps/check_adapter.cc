#include "apps/check_adapter.h"

#include <cstdio>

#include "adapter/check.h"
#include "apps/model_folder.h"
#include "weights/checkpoint.h"

namespace medley::apps {

Result<void> check_adapter(const CheckAdapterFlags& flags) {
  MEDLEY_TRY_ASSIGN(const ModelFolder folder, read_model_folder(flags.model));
  MEDLEY_TRY_ASSIGN(const Checkpoint base, Checkpoint::open_folder(flags.model));
  MEDLEY_TRY_ASSIGN(const std::string report,
                    medley::check_adapter(flags.path, folder.spec, &base.tensors()));
  fmt::print("{}", report);
  return {};
}

}  // namespace medley::apps
