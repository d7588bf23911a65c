#pragma once

#include "adapter/store.h"

namespace medley {

// What happens to an adapter.
enum class AdapterEvent : uint8_t {
  kLoadStarted,
  kLoaded,
  kLoadFailed,
  kUploaded,
  kEvicted,
  kRetryAllowed,
};

//   kOnDisk --kLoadStarted--> kLoading --kLoaded--> kInHost --kUploaded--> kOnDevice
//      ^                         |                     ^                      |
//      +------kRetryAllowed--- kFailed <-kLoadFailed-- |  <------kEvicted-----+
//                                 \---kLoadStarted--> kLoading
// Any other change is a bug and aborts.
AdapterState next_state(AdapterState state, AdapterEvent event);

}  // namespace medley
