#pragma once

#include <cupti.h>

#include "base/check.h"

namespace medley::bench {

// A failing call of CUPTI ends the program, with its text.
inline void check_cupti(CUptiResult result, const char* call, const char* file, int line) {
  if (result == CUPTI_SUCCESS) return;
  const char* text = "unknown error";
  cuptiGetResultString(result, &text);
  check_failed(call, file, line, text);
}

}  // namespace medley::bench

#define MEDLEY_CUPTI_CHECK(call) ::medley::bench::check_cupti((call), #call, __FILE__, __LINE__)
