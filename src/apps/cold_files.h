#pragma once

#include <string>

#include "base/error.h"
#include "spec/model_spec.h"
#include "weights/dummy_adapter_files.h"

namespace medley::apps {

// Experts as most adapters of the model's family have them.
DummyAdapterFileDesc dummy_adapter_of(const ModelSpec& spec, int rank, uint64_t seed);

// A random adapter in a folder of its own among the temporary files, removed by the destructor. It
// is written when it is first asked for.
class ColdFiles {
 public:
  ColdFiles(const ModelSpec& spec, const DummyAdapterFileDesc& desc) : spec_(spec), desc_(desc) {}
  ~ColdFiles();
  ColdFiles(const ColdFiles&) = delete;
  ColdFiles& operator=(const ColdFiles&) = delete;

  // The folder, whose adapter is another one after each call.
  Result<std::string> next();

 private:
  const ModelSpec& spec_;
  const DummyAdapterFileDesc desc_;
  std::string folder_;  // empty: not yet
  int revision_ = 0;
};

}  // namespace medley::apps
