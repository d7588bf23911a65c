#include "apps/make_backend.h"

#include "cpu/cpu_backend.h"

namespace medley::apps {

Result<std::unique_ptr<Backend>> make_backend(const BackendFlags& flags) {
  MEDLEY_TRY(cpu_backend_supported());
  return make_cpu_backend({.num_threads = flags.num_threads});
}

}  // namespace medley::apps
