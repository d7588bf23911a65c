#include "adapter/check.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "adapter/peft_reader.h"

namespace medley {
namespace {

bool is_expert(LoraModule module) {
  return module == LoraModule::kExpertGateUp || module == LoraModule::kExpertDown;
}

std::string_view sharing(bool shares_a, bool shares_b) {
  if (shares_a && shares_b) return "; the experts share A and B";
  if (shares_a) return "; the experts share A";
  return shares_b ? "; the experts share B" : "";
}

}  // namespace

Result<std::string> check_adapter(const std::string& folder, const ModelSpec& spec,
                                  const TensorMap* base) {
  MEDLEY_TRY_ASSIGN(const AdapterWeights weights, read_peft_adapter(folder, spec, base));
  struct Summary {
    int num_layers = 0;
    std::set<int> ranks;
    bool shares_a = false;  // one for all experts
    bool shares_b = false;
  };
  std::map<LoraModule, Summary> summaries;
  for (const LoraModuleWeights& module : weights.modules) {
    Summary& summary = summaries[module.site.module];
    ++summary.num_layers;
    for (const LoraPair& pair : module.pairs) {
      summary.ranks.insert(pair.rank);
      summary.shares_a |= is_expert(module.site.module) && pair.a.size() == 1;
      summary.shares_b |= is_expert(module.site.module) && pair.b.size() == 1;
    }
  }
  std::string report = fmt::format("{}: can be served\n", folder);
  report += fmt::format("  tensors  {} ({} bytes)\n", weights.checkpoint->tensors().size(),
                        weights.num_bytes);
  report += fmt::format("  rank     {}\n", weights.max_rank);
  report += fmt::format("  blake3   {}\n", weights.hash);
  for (const auto& [module, summary] : summaries) {
    report += fmt::format("  {:<15} {} of {} layers, rank {}{}\n", to_string(module),
                          summary.num_layers, spec.num_layers(), fmt::join(summary.ranks, ", "),
                          sharing(summary.shares_a, summary.shares_b));
  }
  for (const std::string& warning : weights.warnings) {
    report += fmt::format("  warning: {}\n", warning);
  }
  return report;
}

}  // namespace medley
