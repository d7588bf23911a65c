#pragma once

#include "adapter/store.h"

namespace medley {

// What happens to an adapter.
enum class AdapterEvent : uint8_t {
  kLoadStarted,
  kLoaded,
  kLoadFailed,
  kUploadStarted,
  kUploadFailed,
  kUploaded,
  kEvicted,
  kDropped,
  kRetryAllowed,
};

//   kOnDisk --kLoadStarted--> kLoading --kLoaded--> kInHost --kUploadStarted--> kUploading
//    ^   ^                       |                  |    ^ ^                      |   |
//    |   +----kRetryAllowed--- kFailed <-kLoadFailed+    | +-----kUploadFailed----+   | kUploaded
//    |                            \---kLoadStarted--> kLoading                        v
//    +-------------------kDropped---------------- kInHost <------kEvicted-------- kOnDevice
// Any other change is a bug and aborts.
AdapterState next_state(AdapterState state, AdapterEvent event);

}  // namespace medley
