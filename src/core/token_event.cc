#include "core/token_event.h"

namespace medley {

const char* to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAbort:
      return "abort";
    case FinishReason::kError:
      return "error";
  }
  MEDLEY_CHECK(false, "unknown FinishReason");
}

}  // namespace medley
