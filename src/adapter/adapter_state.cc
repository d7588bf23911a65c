#include "adapter/adapter_state.h"

namespace medley {

const char* to_string(AdapterState state) {
  switch (state) {
    case AdapterState::kOnDisk:
      return "on_disk";
    case AdapterState::kLoading:
      return "loading";
    case AdapterState::kInHost:
      return "in_host";
    case AdapterState::kUploading:
      return "uploading";
    case AdapterState::kOnDevice:
      return "on_device";
    case AdapterState::kFailed:
      return "failed";
  }
  MEDLEY_CHECK(false, "unknown AdapterState");
}

AdapterState next_state(AdapterState state, AdapterEvent event) {
  struct Change {
    AdapterState from;
    AdapterEvent event;
    AdapterState to;
  };
  static constexpr Change kChanges[] = {
      {AdapterState::kOnDisk, AdapterEvent::kLoadStarted, AdapterState::kLoading},
      {AdapterState::kFailed, AdapterEvent::kLoadStarted, AdapterState::kLoading},
      {AdapterState::kLoading, AdapterEvent::kLoaded, AdapterState::kInHost},
      {AdapterState::kLoading, AdapterEvent::kLoadFailed, AdapterState::kFailed},
      {AdapterState::kInHost, AdapterEvent::kUploadStarted, AdapterState::kUploading},
      {AdapterState::kInHost, AdapterEvent::kDropped, AdapterState::kOnDisk},
      {AdapterState::kUploading, AdapterEvent::kUploadFailed, AdapterState::kInHost},
      {AdapterState::kUploading, AdapterEvent::kUploaded, AdapterState::kOnDevice},
      {AdapterState::kOnDevice, AdapterEvent::kEvicted, AdapterState::kInHost},
      {AdapterState::kFailed, AdapterEvent::kRetryAllowed, AdapterState::kOnDisk},
  };
  for (const Change& change : kChanges) {
    if (change.from == state && change.event == event) return change.to;
  }
  MEDLEY_CHECK(false,
               fmt::format("event {} in state {}", static_cast<int>(event), to_string(state)));
}

}  // namespace medley
