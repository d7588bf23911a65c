#include "base/trace_range.h"

#include <gtest/gtest.h>
#define NVTX_NO_IMPL
#include <nvtx3/nvToolsExt.h>

#include <string>

// A profiler inside the test, attached as "Injection" in NVTX's nvtxDetail/nvtxInit.h describes.

namespace medley {
namespace {

std::string& trace() {
  static std::string written;
  return written;
}

nvtxDomainHandle_t NVTX_API create_domain(const char* name) {
  trace() += std::string("domain ") + name + "; ";
  return reinterpret_cast<nvtxDomainHandle_t>(&trace());
}
int NVTX_API push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* attributes) {
  EXPECT_EQ(domain, reinterpret_cast<nvtxDomainHandle_t>(&trace()));
  trace() += std::string("(") + attributes->message.ascii + " ";
  return 0;
}
int NVTX_API pop(nvtxDomainHandle_t) {
  trace() += ")";
  return 0;
}

int NVTX_API attach(NvtxGetExportTableFunc_t get_export_table) {
  const auto* callbacks =
      static_cast<const NvtxExportTableCallbacks*>(get_export_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable functions = nullptr;
  unsigned int size = 0;
  if (!callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &functions, &size)) return 0;
  *functions[NVTX_CBID_CORE2_DomainCreateA] = reinterpret_cast<NvtxFunctionPointer>(create_domain);
  *functions[NVTX_CBID_CORE2_DomainRangePushEx] = reinterpret_cast<NvtxFunctionPointer>(push);
  *functions[NVTX_CBID_CORE2_DomainRangePop] = reinterpret_cast<NvtxFunctionPointer>(pop);
  return 1;
}

TEST(TraceRange, AProfilerSeesRangesNestAndEndWithTheirScopes) {
  {
    const TraceRange step("step");
    const TraceRange layer("layer 3");
  }
  const TraceRange next("step");
  EXPECT_EQ(trace(), "domain medley; (step (layer 3 ))(step ");
}

}  // namespace
}  // namespace medley

extern "C" {
NvtxInitializeInjectionNvtxFunc_t InitializeInjectionNvtx2_fnptr = medley::attach;
}
