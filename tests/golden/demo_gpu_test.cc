// The demo's model and adapters on a GPU, in bfloat16: the answers recorded from transformers and
// PEFT in float32 (demo/reference), base and adapters in the same batches.

#include <gtest/gtest.h>

#include "cuda/cuda_backend.h"
#include "served.h"

namespace medley {
namespace {

using namespace testing;

constexpr double kCloseGap = 0.05;  // below it bfloat16 may choose the second best token

std::vector<json> read_lines(const fs::path& path) {
  std::vector<json> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(json::parse(line));
  return lines;
}

struct Asked {
  std::string model;
  json expected;  // "ids" and the "gaps" between the best two of each
  RequestId id;
};

TEST(DemoGpu, BaseAndSixAdaptersAnswerAsRecorded) {
  const fs::path demo = golden_dir().parent_path().parent_path() / "demo";
  Served served(demo / "model", {.backend = make_cuda_backend().value(),
                                 .dtype = DType::kBF16,
                                 .adapters = demo / "adapters",
                                 .max_model_len = 320});
  if (HasFailure()) return;
  const std::vector<json> tickets = read_lines(demo / "reference/tickets.jsonl");
  std::vector<std::string> models = {""};
  for (const AdapterInfo& info : served.store().list()) models.push_back(info.name);
  ASSERT_EQ(models.size(), 7u);
  std::map<std::string, std::vector<json>> expected;
  for (const std::string& model : models) {
    expected[model] =
        read_lines(demo / "reference/predictions" / ((model.empty() ? "base" : model) + ".jsonl"));
    ASSERT_EQ(expected[model].size(), tickets.size()) << model;
  }
  // Every ticket by every model before the next ticket: they share batches.
  std::vector<Asked> asked;
  for (size_t i = 0; i < tickets.size(); ++i) {
    for (const std::string& model : models) {
      const json& answer = expected[model][i];
      const auto ids = tickets[answer["ticket"]]["prompt_ids"].get<std::vector<int32_t>>();
      const RequestId id = served.submit(
          {.name = model, .adapter = model},
          {.prompt = ids, .sampling = {.max_tokens = static_cast<int>(answer["ids"].size())}});
      asked.push_back({model, answer, id});
    }
  }
  std::map<std::string, int> num_whole;
  for (const Asked& each : asked) {
    const Answer answer = served.wait(each.id);
    ASSERT_EQ(answer.error, "") << each.model;
    const auto ids = each.expected["ids"].get<std::vector<int32_t>>();
    const auto gaps = each.expected["gaps"].get<std::vector<double>>();
    size_t binding = 0;
    while (binding < ids.size() && gaps[binding] >= kCloseGap) ++binding;
    for (size_t i = 0; i < binding; ++i) {
      ASSERT_EQ(answer.tokens[i], ids[i])
          << each.model << " ticket " << each.expected["ticket"] << " token " << i;
    }
    num_whole[each.model] += answer.tokens == ids ? 1 : 0;
  }
  for (const auto& [model, count] : num_whole) {
    std::printf("%s: %d of %zu answers equal to their end\n",
                model.empty() ? "base" : model.c_str(), count, tickets.size());
    // What the adapters were taught has no near ties.
    if (!model.empty()) {
      EXPECT_EQ(count, static_cast<int>(tickets.size())) << model;
    }
  }
}

}  // namespace
}  // namespace medley
