#include "server/generation_service.h"

#include <algorithm>
#include <chrono>

#include "api/parse_request.h"
#include "base/clock.h"
#include "base/log.h"
#include "server/replies.h"

namespace medley::server {
namespace {

constexpr size_t kMaxWarnedFields = 100;

int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// SplitMix64 (Steele, Lea, Flood 2014): the seeds of further choices, far from one another.
uint64_t derive_seed(uint64_t seed, int choice) {
  if (choice == 0) return seed;
  uint64_t z = seed + static_cast<uint64_t>(choice) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

}  // namespace

GenerationService::GenerationService(GenerationServiceOptions options,
                                     const GenerationServiceParts& parts)
    : options_(std::move(options)),
      parts_(parts),
      harmony_(options_.harmony ? text::HarmonyTokens::find(parts.tokenizer) : std::nullopt),
      jobs_(options_.queue_capacity),
      random_(options_.seed.value_or(std::random_device{}())) {
  for (int i = 0; i < options_.num_text_workers; ++i) {
    threads_.emplace_back([this] { run(); });
  }
}

GenerationService::~GenerationService() {
  jobs_.close();
  for (std::thread& thread : threads_) thread.join();
}

void GenerationService::submit(api::Shape shape, std::string body,
                               std::shared_ptr<Exchange> exchange) {
  if (!accepting_) {
    return exchange->respond(error_reply({ErrorCode::kUnavailable, "the server is shutting down"}));
  }
  Job job{.shape = shape,
          .body = std::move(body),
          .exchange = std::move(exchange),
          .arrival_ns = now_ns()};
  if (jobs_.try_push(std::move(job))) return;
  // NOLINTNEXTLINE(bugprone-use-after-move): a queue that refuses takes nothing.
  job.exchange->respond(
      error_reply({ErrorCode::kOverloaded,
                   fmt::format("{} requests are waiting already", options_.queue_capacity)}));
}

void GenerationService::run() {
  while (std::optional<Job> job = jobs_.pop()) {
    const Result<void> started = start(*job);
    if (!started.ok()) job->exchange->respond(error_reply(started.error()));
  }
}

Result<void> GenerationService::start(Job& job) {
  MEDLEY_TRY_ASSIGN(api::GenerationRequest request, api::parse_request(job.shape, job.body));
  warn_unknown(request.unknown_fields);
  MEDLEY_TRY_ASSIGN(const std::string adapter, find_adapter(request.model));
  MEDLEY_TRY(check_logit_bias(request));
  MEDLEY_TRY_ASSIGN(std::vector<std::vector<int32_t>> prompts, tokenize(request));
  std::vector<SamplingParams> sampling;
  for (const std::vector<int32_t>& prompt : prompts) {
    MEDLEY_TRY_ASSIGN(SamplingParams params,
                      api::resolve_sampling(request, options_.defaults,
                                            {.prompt_tokens = static_cast<int64_t>(prompt.size()),
                                             .max_model_len = options_.max_model_len}));
    if (!request.seed) params.seed = draw_seed();
    sampling.push_back(std::move(params));
  }
  MEDLEY_TRY_ASSIGN(std::vector<std::string> echo_texts, echoes(request, prompts));

  const uint64_t generation_idx = next_generation_++;
  const RequestId first_id = OutputWorkers::first_id(generation_idx);
  std::string id = request.shape == api::Shape::kChat ? "chatcmpl-" : "cmpl-";
  id += request.request_id.empty() ? fmt::format("{:016x}{:08x}", draw_seed(), generation_idx)
                                   : request.request_id;
  std::vector<Sequence> sequences = make_sequences(request, first_id);
  const size_t num_sequences = sequences.size();
  api::ResponseHead head{.shape = request.shape,
                         .id = std::move(id),
                         .model = request.model,
                         .created = unix_seconds(),
                         .logprobs = request.num_top_logprobs >= 0,
                         .prompt_logprobs = request.num_prompt_logprobs >= 0,
                         .return_token_ids = request.return_token_ids,
                         .return_tokens_as_token_ids = request.return_tokens_as_token_ids};
  const std::shared_ptr<Generation> generation(new Generation{.request = std::move(request),
                                                              .head = std::move(head),
                                                              .adapter = adapter,
                                                              .exchange = job.exchange,
                                                              .arrival_ns = job.arrival_ns,
                                                              .prompts = std::move(prompts),
                                                              .echoes = std::move(echo_texts),
                                                              .sequences = std::move(sequences),
                                                              .num_unfinished = num_sequences});
  parts_.outputs.add(generation);
  submit_sequences(generation, adapter, sampling);
  return {};
}

Result<std::string> GenerationService::find_adapter(std::string& model) {
  if (model.empty()) model = options_.base_names.front();
  if (std::ranges::find(options_.base_names, model) != options_.base_names.end())
    return std::string();
  const Result<void> found = parts_.adapters.resolve(model);
  if (found.ok()) return model;
  if (found.error().code != ErrorCode::kNotFound &&
      found.error().code != ErrorCode::kInvalidArgument) {
    return found.error();
  }
  return not_found(fmt::format("the model `{}` does not exist: {}", model, found.error().message),
                   "model");
}

Result<std::vector<std::vector<int32_t>>> GenerationService::tokenize(
    const api::GenerationRequest& request) const {
  std::vector<std::vector<int32_t>> prompts;
  if (request.shape == api::Shape::kChat) {
    MEDLEY_TRY_ASSIGN(const std::string prompt, parts_.chat.render(request.chat));
    MEDLEY_TRY_ASSIGN(std::vector<int32_t> ids,
                      parts_.tokenizer.encode(prompt, request.add_special_tokens));
    prompts.push_back(std::move(ids));
    return prompts;
  }
  for (const api::Prompt& prompt : request.prompts) {
    if (const auto* text = std::get_if<std::string>(&prompt)) {
      MEDLEY_TRY_ASSIGN(std::vector<int32_t> ids,
                        parts_.tokenizer.encode(*text, request.add_special_tokens));
      prompts.push_back(std::move(ids));
      continue;
    }
    const auto& ids = std::get<std::vector<int32_t>>(prompt);
    for (const int32_t id : ids) {
      if (id >= options_.vocab_size) {
        return invalid_argument(fmt::format("`prompt` has token id {}; the vocabulary ends at {}",
                                            id, options_.vocab_size - 1),
                                "prompt");
      }
    }
    prompts.push_back(ids);
  }
  return prompts;
}

Result<void> GenerationService::check_logit_bias(const api::GenerationRequest& request) const {
  for (const LogitBias& entry : request.logit_bias) {
    if (entry.token_id < options_.vocab_size) continue;
    return invalid_argument(fmt::format("`logit_bias` has token id {}; the vocabulary ends at {}",
                                        entry.token_id, options_.vocab_size - 1),
                            "logit_bias");
  }
  return {};
}

Result<std::vector<std::string>> GenerationService::echoes(
    const api::GenerationRequest& request, const std::vector<std::vector<int32_t>>& prompts) const {
  std::vector<std::string> texts;
  if (!request.echo) return texts;
  for (size_t i = 0; i < prompts.size(); ++i) {
    if (const auto* text = std::get_if<std::string>(&request.prompts[i])) {
      texts.push_back(*text);
      continue;
    }
    MEDLEY_TRY_ASSIGN(std::string text,
                      parts_.tokenizer.decode(prompts[i], request.skip_special_tokens));
    texts.push_back(std::move(text));
  }
  return texts;
}

std::vector<Sequence> GenerationService::make_sequences(const api::GenerationRequest& request,
                                                        RequestId first_id) const {
  std::vector<Sequence> sequences;
  for (size_t i = 0; i < request.num_choices(); ++i) {
    ChoiceText::Options options{.skip_special_tokens = request.skip_special_tokens,
                                .stop = request.stop,
                                .include_stop = request.include_stop_str_in_output};
    if (request.shape == api::Shape::kChat) options.harmony = harmony_;
    sequences.push_back({.id = first_id + i,
                         .prompt_idx = i / static_cast<size_t>(request.n),
                         .text = ChoiceText(parts_.tokenizer.pieces(), std::move(options)),
                         .choice = {.index = static_cast<int>(i)}});
  }
  return sequences;
}

void GenerationService::submit_sequences(const std::shared_ptr<Generation>& generation,
                                         const std::string& adapter,
                                         const std::vector<SamplingParams>& sampling) {
  const RequestId first_id = generation->sequences.front().id;
  const size_t num_sequences = generation->sequences.size();
  const int n = generation->request.n;
  generation->exchange->on_cancel(
      [weak = std::weak_ptr(generation), &engine = parts_.engine, first_id, num_sequences] {
        if (const auto cancelled = weak.lock()) cancelled->cancelled = true;
        for (size_t i = 0; i < num_sequences; ++i) engine.abort(first_id + i);
      });
  for (size_t i = 0; i < num_sequences; ++i) {
    const RequestId id = first_id + i;
    const size_t prompt_idx = i / static_cast<size_t>(n);
    Request request{.id = id,
                    .prompt = generation->prompts[prompt_idx],
                    .adapter = adapter,
                    .sampling = sampling[prompt_idx],
                    .arrival_ns = generation->arrival_ns};
    request.sampling.seed = derive_seed(request.sampling.seed, static_cast<int>(i) % n);
    const Result<void> taken = parts_.engine.submit(std::move(request));
    if (!taken.ok()) parts_.outputs.fail(id, taken.error());
    // A client that left before this sequence was submitted could not abort it.
    if (generation->cancelled) parts_.engine.abort(id);
  }
}

void GenerationService::warn_unknown(const std::vector<std::string>& fields) {
  std::lock_guard lock(mutex_);
  for (const std::string& field : fields) {
    if (warned_fields_.size() >= kMaxWarnedFields || field.size() > 100) continue;
    if (warned_fields_.insert(field).second) log::warn("unknown request field `{}` ignored", field);
  }
}

uint64_t GenerationService::draw_seed() {
  std::lock_guard lock(mutex_);
  return random_();
}

}  // namespace medley::server
