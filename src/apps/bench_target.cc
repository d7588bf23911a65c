#include "apps/bench_target.h"

#include <fmt/format.h>

#include <utility>

namespace medley::apps {

Result<RequestRecord> answer_of(BenchTarget& target, BenchRequest request, std::string_view whose) {
  MEDLEY_TRY_ASSIGN(const int sent, target.send(std::move(request)));
  RequestRecord record = target.records().wait_for_end(sent);
  if (!record.error.empty()) return internal_error(record.error);
  if (record.token_ns.empty()) return internal_error(fmt::format("{} gave no token", whose));
  return record;
}

}  // namespace medley::apps
