#pragma once

#include <gtest/gtest.h>

#include <algorithm>
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
#include "engine/kv_plan.h"
#include "engine/model_executor.h"
#include "engine/start_engine.h"
#include "model/model.h"
#include "spec/read_spec.h"

// The golden models and an engine that serves one of them with all its adapters.

namespace medley::testing {

namespace fs = std::filesystem;
using nlohmann::json;

inline fs::path golden_dir() {
  const char* root = std::getenv("MEDLEY_SOURCE_DIR");
  return fs::path(root != nullptr ? root : ".") / "tests/golden";
}

inline std::string read_text(const fs::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// Those that hold a file of this name.
inline std::vector<fs::path> sorted_folders(const fs::path& parent, const char* file) {
  std::vector<fs::path> found;
  if (fs::exists(parent)) {
    for (const auto& entry : fs::directory_iterator(parent)) {
      if (fs::exists(entry.path() / file)) found.push_back(entry.path());
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

// The one kind with reference answers that is refused.
inline bool is_dora(const fs::path& adapter) {
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
  struct Options {
    std::unique_ptr<Backend> backend = make_cpu_backend({.num_threads = 2});
    DType dtype = DType::kF32;
    bool enable_prefix_caching = false;
    fs::path adapters = {};  // the folder of their folders; by default the model's "adapters"
    int max_loras = 0;       // by default as many as there are
    size_t pool_bytes = 0;   // as AdapterStoreOptions
    int max_model_len = 128;
  };

  explicit Served(const fs::path& folder) : Served(folder, Options()) {}
  Served(const fs::path& folder, Options options)
      : folder_(folder), backend_(std::move(options.backend)) {
    auto spec = read_model_spec(read_text(folder / "config.json"));
    EXPECT_TRUE(spec.ok()) << spec.error().message;
    auto checkpoint = Checkpoint::open_folder(folder.string());
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.error().message;
    checkpoint_ = std::move(checkpoint).value();
    auto weights = read_model_weights(*spec, *checkpoint_);
    EXPECT_TRUE(weights.ok()) << weights.error().message;
    constexpr int kMaxSeqs = 16;
    const StepDesc step{.max_rows = 48,
                        .max_seqs = kMaxSeqs,
                        .max_pages = kMaxSeqs * ((options.max_model_len + 15) / 16)};
    auto model = Model::create(
        *spec, *weights, *backend_,
        {.dtype = options.dtype, .max_rows = step.max_rows, .max_seqs = step.max_seqs});
    EXPECT_TRUE(model.ok()) << model.error().message;
    const auto adapters = sorted_folders(
        options.adapters.empty() ? folder / "adapters" : options.adapters, "adapter_config.json");
    const int max_loras = options.max_loras > 0
                              ? options.max_loras
                              : std::max<int>(1, static_cast<int>(adapters.size()));
    auto store = AdapterStore::create(*spec, *backend_,
                                      {.max_loras = max_loras,
                                       .pool_bytes = options.pool_bytes,
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
                                       .max_model_len = options.max_model_len,
                                       .enable_prefix_caching = options.enable_prefix_caching};
    auto engine =
        start_engine(engine_options, std::move(executor).value(), store_.get(),
                     [this](std::vector<TokenEvent>&& events) { receive(std::move(events)); });
    EXPECT_TRUE(engine.ok()) << engine.error().message;
    engine_ = std::move(engine).value();
  }

  ~Served() { engine_.reset(); }

  // Those of golden.json files, if the model has them.
  const std::vector<Case>& cases() const { return cases_; }
  AdapterStore& store() { return *store_; }
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
    if (!fs::exists(path)) return;
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

inline std::vector<std::string> golden_models() {
  std::vector<std::string> names;
  for (const auto& folder : sorted_folders(golden_dir(), "golden.json"))
    names.push_back(folder.filename());
  return names;
}

inline std::string golden_test_name(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

}  // namespace medley::testing
