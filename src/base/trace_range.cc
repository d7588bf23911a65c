#include "base/trace_range.h"

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>

namespace medley {
namespace {

nvtxDomainHandle_t domain() {
  static const nvtxDomainHandle_t made = nvtxDomainCreateA("medley");
  return made;
}

}  // namespace

TraceRange::TraceRange(const char* name) {
  nvtxEventAttributes_t attributes = {};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
  attributes.message.ascii = name;
  nvtxDomainRangePushEx(domain(), &attributes);
}
TraceRange::~TraceRange() { nvtxDomainRangePop(domain()); }

}  // namespace medley

#else

namespace medley {

TraceRange::TraceRange(const char*) {}
TraceRange::~TraceRange() {}

}  // namespace medley

#endif
