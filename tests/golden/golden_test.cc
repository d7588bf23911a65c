// The engine against what transformers and PEFT answer in float32 for the same files: on the CPU
// backend in float32, and with MEDLEY_DEVICE=cuda on a GPU in bfloat16.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sstream>

#include "adapter/store.h"
#include "cpu/cpu_backend.h"
#ifdef MEDLEY_CUDA
#include "cuda/cuda_backend.h"
#endif
#include "engine/kv_plan.h"
#include "engine/model_executor.h"
#include "engine/start_engine.h"
#include "model/model.h"
#include "spec/read_spec.h"

namespace medley {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// What is asked of a backend. Where the reference's two best tokens are closer than twice the
// tolerance of log-probabilities, either is right.
struct Device {
  std::unique_ptr<Backend> (*make)();
  DType dtype;
  double tolerance;
  double min_compared;  // share of positions before the first one that is undecided
  bool is_bitwise;      // a row's result does not depend on its batch
  double min_gap() const { return 2 * tolerance; }
};

const Device& device() {
  static const Device cpu = {.make = [] { return make_cpu_backend({.num_threads = 2}); },
                             .dtype = DType::kF32,
                             .tolerance = 1e-3,
                             .min_compared = 0.9,
                             .is_bitwise = true};
#ifdef MEDLEY_CUDA
  static const Device cuda = {.make = [] { return make_cuda_backend().value(); },
                              .dtype = DType::kBF16,
                              .tolerance = 0.1,
                              .min_compared = 0.3,
                              .is_bitwise = false};
  const char* name = std::getenv("MEDLEY_DEVICE");
  if (name != nullptr && name == std::string("cuda")) return cuda;
#endif
  return cpu;
}

fs::path golden_dir() {
  const char* root = std::getenv("MEDLEY_SOURCE_DIR");
  return fs::path(root != nullptr ? root : ".") / "tests/golden";
}

std::string read_text(const fs::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<fs::path> sorted_folders(const fs::path& parent) {
  std::vector<fs::path> found;
  if (fs::exists(parent)) {
    for (const auto& entry : fs::directory_iterator(parent)) {
      if (fs::exists(entry.path() / "golden.json")) found.push_back(entry.path());
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

// The one kind with reference answers that is refused.
bool is_dora(const fs::path& adapter) {
  return json::parse(read_text(adapter / "adapter_config.json")).value("use_dora", false);
}

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<double> logprobs;
  std::vector<std::vector<TokenLogprob>> tops;
  std::vector<PromptLogprob> prompt_logprobs;
  std::optional<FinishReason> finish;
  std::string error;
};

// One of the reference's prompts, for the base model or one adapter.
struct Case {
  std::string name;
  std::string adapter;
  json prompt;
};

// A model folder, served with all its adapters.
class Served {
 public:
  explicit Served(const fs::path& folder, bool enable_prefix_caching = false) : folder_(folder) {
    auto spec = read_model_spec(read_text(folder / "config.json"));
    EXPECT_TRUE(spec.ok()) << spec.error().message;
    auto checkpoint = Checkpoint::open_folder(folder.string());
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.error().message;
    checkpoint_ = std::move(checkpoint).value();
    auto weights = read_model_weights(*spec, *checkpoint_);
    EXPECT_TRUE(weights.ok()) << weights.error().message;
    backend_ = device().make();
    const StepDesc step{.max_rows = 48, .max_seqs = 16, .max_pages = 16 * 8};
    auto model = Model::create(
        *spec, *weights, *backend_,
        {.dtype = device().dtype, .max_rows = step.max_rows, .max_seqs = step.max_seqs});
    EXPECT_TRUE(model.ok()) << model.error().message;
    const auto adapters = sorted_folders(folder / "adapters");
    auto store =
        AdapterStore::create(*spec, *backend_,
                             {.max_loras = std::max<int>(1, static_cast<int>(adapters.size())),
                              .base_tensors = &checkpoint_->tensors()});
    EXPECT_TRUE(store.ok()) << store.error().message;
    store_ = std::move(store).value();
    collect("", folder / "golden.json");
    for (const auto& adapter : adapters) {
      const std::string name = adapter.filename().string();
      const auto loaded = store_->load(name, adapter.string());
      if (is_dora(adapter)) {
        EXPECT_FALSE(loaded.ok()) << adapter;
        EXPECT_NE(loaded.error().message.find("DoRA is not supported"), std::string::npos)
            << adapter;
        continue;
      }
      EXPECT_TRUE(loaded.ok()) << adapter << ": " << loaded.error().message;
      collect(name, adapter / "golden.json");
    }
    auto executor =
        make_model_executor(*backend_, std::move(model).value(), {.step = step, .num_pages = 1024});
    EXPECT_TRUE(executor.ok()) << executor.error().message;
    const EngineOptions engine_options{.max_num_seqs = step.max_seqs,
                                       .max_num_batched_tokens = step.max_rows,
                                       .max_model_len = 128,
                                       .enable_prefix_caching = enable_prefix_caching};
    auto engine =
        start_engine(engine_options, std::move(executor).value(), store_.get(),
                     [this](std::vector<TokenEvent>&& events) { receive(std::move(events)); });
    EXPECT_TRUE(engine.ok()) << engine.error().message;
    engine_ = std::move(engine).value();
  }

  ~Served() { engine_.reset(); }

  const std::vector<Case>& cases() const { return cases_; }
  EngineStats stats() const { return engine_->stats(); }

  RequestId submit(const Case& c) {
    return submit(c, {.prompt = c.prompt["ids"].get<std::vector<int32_t>>(),
                      .sampling = {.max_tokens = static_cast<int>(c.prompt["tokens"].size())}});
  }

  // The reference's answer read as part of the prompt, all but its last token.
  RequestId submit_to_read(const Case& c) {
    auto ids = c.prompt["ids"].get<std::vector<int32_t>>();
    const auto tokens = c.prompt["tokens"].get<std::vector<int32_t>>();
    ids.insert(ids.end(), tokens.begin(), tokens.end() - 1);
    return submit(c, {.prompt = ids, .sampling = {.max_tokens = 1, .num_prompt_logprobs = 5}});
  }

  RequestId submit(const Case& c, Request request) {
    request.id = ++last_id_;
    request.adapter = c.adapter;
    request.sampling.temperature = 0;
    request.sampling.ignore_eos = true;
    request.sampling.num_top_logprobs = 5;
    const auto taken = engine_->submit(std::move(request));
    EXPECT_TRUE(taken.ok()) << c.name << ": " << taken.error().message;
    return last_id_;
  }

  Answer wait(RequestId id) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return answers_[id].finish.has_value(); });
    return answers_[id];
  }

 private:
  void collect(const std::string& adapter, const fs::path& path) {
    const json golden = json::parse(read_text(path));
    for (const auto& prompt : golden["prompts"]) {
      const std::string label = adapter.empty() ? "base" : adapter;
      cases_.push_back({label + "/" + prompt["name"].get<std::string>(), adapter, prompt});
    }
  }

  void receive(std::vector<TokenEvent>&& events) {
    std::lock_guard lock(mutex_);
    for (auto& event : events) {
      Answer& answer = answers_[event.request_id];
      for (const PromptLogprob& scored : event.prompt_logprobs) {
        answer.prompt_logprobs.push_back(scored);
      }
      if (event.token_id) {
        answer.tokens.push_back(*event.token_id);
        answer.logprobs.push_back(event.logprob);
        answer.tops.push_back(event.top_logprobs);
      }
      if (event.error) answer.error = event.error->message;
      if (event.finish) answer.finish = event.finish;
    }
    changed_.notify_all();
  }

  fs::path folder_;
  std::optional<Checkpoint> checkpoint_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<AdapterStore> store_;
  std::vector<Case> cases_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<RequestId, Answer> answers_;
  RequestId last_id_ = 0;
  std::unique_ptr<Engine> engine_;
};

struct Tally {
  int compared = 0;
  int total = 0;
  double worst = 0;
};

// Tokens equal and log-probabilities within tolerance, up to the first position where the reference
// itself is undecided.
void compare(const Case& c, const Answer& answer, Tally& tally) {
  ASSERT_EQ(answer.error, "") << c.name;
  EXPECT_EQ(*answer.finish, FinishReason::kLength) << c.name;
  const auto tokens = c.prompt["tokens"].get<std::vector<int32_t>>();
  const auto gaps = c.prompt["gaps"].get<std::vector<double>>();
  const auto top_ids = c.prompt["top5_ids"].get<std::vector<std::vector<int32_t>>>();
  const auto top_logprobs = c.prompt["top5_logprobs"].get<std::vector<std::vector<double>>>();
  ASSERT_EQ(answer.tokens.size(), tokens.size()) << c.name;
  tally.total += static_cast<int>(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (gaps[i] <= device().min_gap()) return;
    ASSERT_EQ(answer.tokens[i], tokens[i]) << c.name << " token " << i << ", gap " << gaps[i];
    ASSERT_EQ(answer.tops[i].size(), 5u) << c.name;
    for (int j = 0; j < 5; ++j) {
      // A tie in the list may swap ids; the value at each place may not move.
      const double off = std::abs(answer.tops[i][j].logprob - top_logprobs[i][j]);
      tally.worst = std::max(tally.worst, off);
      ASSERT_LE(off, device().tolerance)
          << c.name << " token " << i << " place " << j << ": id " << answer.tops[i][j].token_id
          << ", the reference has " << top_ids[i][j];
    }
    ASSERT_NEAR(answer.logprobs[i], top_logprobs[i][0], device().tolerance) << c.name;
    ++tally.compared;
  }
}

class Golden : public testing::TestWithParam<std::string> {};

TEST_P(Golden, AloneAndMixedEqualTheReference) {
  Served served(golden_dir() / GetParam());
  if (HasFailure()) return;
  std::vector<Answer> alone;
  Tally tally;
  for (const Case& c : served.cases()) {
    alone.push_back(served.wait(served.submit(c)));
    compare(c, alone.back(), tally);
  }
  std::vector<RequestId> ids;
  for (const Case& c : served.cases()) ids.push_back(served.submit(c));
  for (size_t i = 0; i < ids.size(); ++i) {
    const Answer mixed = served.wait(ids[i]);
    if (!device().is_bitwise) {
      compare(served.cases()[i], mixed, tally);
      continue;
    }
    EXPECT_EQ(mixed.tokens, alone[i].tokens) << served.cases()[i].name;
    EXPECT_EQ(mixed.logprobs, alone[i].logprobs)
        << served.cases()[i].name << ": mixed with others, not bitwise what it is alone";
  }
  std::printf("%s: %zu prompts, %d of %d positions compared, worst log-probability error %.2e\n",
              GetParam().c_str(), ids.size(), tally.compared, tally.total, tally.worst);
  EXPECT_GE(tally.compared, tally.total * device().min_compared);
}

// No choice of the model's comes into it, so every position counts, near ties too.
// All at once, twice: the second time nothing is computed of a prompt but what is behind its last
// full page.
TEST_P(Golden, CachedPrefixesChangeNoBit) {
  constexpr size_t kPageSize = 16;
  Served plain(golden_dir() / GetParam());
  Served caching(golden_dir() / GetParam(), /*enable_prefix_caching=*/true);
  if (HasFailure()) return;
  std::vector<Answer> expected;
  for (const Case& c : plain.cases()) expected.push_back(plain.wait(plain.submit(c)));
  EXPECT_EQ(plain.stats().num_prefix_cache_hits, 0u);
  for (const bool is_again : {false, true}) {
    const uint64_t num_hits_before = caching.stats().num_prefix_cache_hits;
    uint64_t num_cached = 0;
    std::vector<RequestId> ids;
    for (const Case& c : caching.cases()) ids.push_back(caching.submit(c));
    for (size_t i = 0; i < ids.size(); ++i) {
      const Case& c = caching.cases()[i];
      const Answer answer = caching.wait(ids[i]);
      if (device().is_bitwise) {
        EXPECT_EQ(answer.tokens, expected[i].tokens) << c.name;
        EXPECT_EQ(answer.logprobs, expected[i].logprobs) << c.name;
      } else {
        Tally tally;
        compare(c, answer, tally);
      }
      num_cached += (c.prompt["ids"].size() - 1) / kPageSize * kPageSize;
    }
    if (!is_again) continue;
    EXPECT_EQ(caching.stats().num_prefix_cache_hits - num_hits_before, num_cached);
    EXPECT_GT(num_cached, 0u);
  }
}

TEST_P(Golden, PromptLogprobsEqualTheReference) {
  Served served(golden_dir() / GetParam());
  if (HasFailure()) return;
  std::vector<RequestId> read_ids, made_ids;
  for (const Case& c : served.cases()) {
    read_ids.push_back(served.submit_to_read(c));
    made_ids.push_back(served.submit(c));
  }
  double worst = 0;
  for (size_t n = 0; n < read_ids.size(); ++n) {
    const Case& c = served.cases()[n];
    const Answer read = served.wait(read_ids[n]), made = served.wait(made_ids[n]);
    const auto tokens = c.prompt["tokens"].get<std::vector<int32_t>>();
    const auto logprobs = c.prompt["logprobs"].get<std::vector<double>>();
    const auto top_logprobs = c.prompt["top5_logprobs"].get<std::vector<std::vector<double>>>();
    const size_t num_ids = c.prompt["ids"].size();
    ASSERT_EQ(read.prompt_logprobs.size(), num_ids + tokens.size() - 2) << c.name;
    bool as_made =
        true;  // so far the engine made the same tokens: then it says the same, bit by bit
    for (size_t i = 0; i + 1 < tokens.size(); ++i) {
      const PromptLogprob& scored = read.prompt_logprobs[num_ids - 1 + i];
      ASSERT_EQ(scored.token.token_id, tokens[i]) << c.name;
      worst = std::max(worst, std::abs(scored.token.logprob - logprobs[i]));
      ASSERT_NEAR(scored.token.logprob, logprobs[i], device().tolerance)
          << c.name << " token " << i;
      ASSERT_EQ(scored.top.size(), 5u);
      for (int j = 0; j < 5; ++j) {
        ASSERT_NEAR(scored.top[j].logprob, top_logprobs[i][j], device().tolerance)
            << c.name << " token " << i << " place " << j;
      }
      if (!device().is_bitwise) continue;
      as_made = as_made && made.tokens[i] == tokens[i];
      if (!as_made) continue;
      EXPECT_EQ(scored.token.logprob, made.logprobs[i]) << c.name << " token " << i;
      EXPECT_EQ(scored.rank, 1);
    }
  }
  std::printf("%s: %zu answers read, worst log-probability error %.2e\n", GetParam().c_str(),
              read_ids.size(), worst);
}

std::vector<std::string> models() {
  std::vector<std::string> names;
  for (const auto& folder : sorted_folders(golden_dir())) names.push_back(folder.filename());
  return names;
}

INSTANTIATE_TEST_SUITE_P(Models, Golden, testing::ValuesIn(models()), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace medley
