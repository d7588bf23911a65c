#include "server/output_worker.h"

#include <algorithm>

#include "api/error_body.h"
#include "base/clock.h"
#include "server/replies.h"

namespace medley::server {
namespace {

size_t count_characters(std::string_view utf8) {
  return static_cast<size_t>(
      std::count_if(utf8.begin(), utf8.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

// A prompt counts once, however many choices continue it.
bool opens_prompt(const Generation& generation, const Sequence& sequence) {
  return sequence.choice.index % generation.request.n == 0;
}

api::Usage usage_of(const Generation& generation) {
  api::Usage usage{.prompt_tokens = generation.num_prompt_tokens()};
  for (const Sequence& sequence : generation.sequences) {
    usage.completion_tokens += sequence.num_tokens;
    if (opens_prompt(generation, sequence)) usage.cached_tokens += sequence.num_cached_tokens;
  }
  return usage;
}

bool is_chat(const Generation& generation) { return generation.request.shape == api::Shape::kChat; }

}  // namespace

OutputWorkers::OutputWorkers(const ffi::TokenPieces& pieces, Metrics& metrics, int num_workers)
    : pieces_(pieces), metrics_(metrics) {
  for (int i = 0; i < num_workers; ++i) workers_.push_back(std::make_unique<Worker>());
  for (const auto& worker : workers_) {
    worker->thread = std::thread([this, raw = worker.get()] { run(*raw); });
  }
}

OutputWorkers::~OutputWorkers() {
  for (const auto& worker : workers_) worker->queue.close();
  for (const auto& worker : workers_) worker->thread.join();
}

TokenEventSink OutputWorkers::sink() {
  return [this](std::vector<TokenEvent>&& events) {
    if (workers_.size() == 1) {
      (void)workers_.front()->queue.push(std::move(events));
      return;
    }
    std::vector<std::vector<TokenEvent>> parts(workers_.size());
    for (TokenEvent& event : events) {
      parts[(event.request_id >> kSequenceBits) % workers_.size()].push_back(std::move(event));
    }
    for (size_t i = 0; i < parts.size(); ++i) {
      if (!parts[i].empty()) (void)workers_[i]->queue.push(std::move(parts[i]));
    }
  };
}

void OutputWorkers::add(std::shared_ptr<Generation> generation) {
  MEDLEY_CHECK_LE(generation->sequences.size(), size_t{1} << kSequenceBits);
  for (Sequence& sequence : generation->sequences) {
    const int32_t first = generation->prompts[sequence.prompt_idx].front();
    add_prompt_token(generation->request, sequence,
                     {.token = logprob_entry(first, 0.0f), .is_first = true});
  }
  Worker& worker = worker_of(generation->sequences.front().id);
  std::lock_guard lock(worker.mutex);
  for (size_t i = 0; i < generation->sequences.size(); ++i) {
    worker.entries[generation->sequences[i].id] = {.generation = generation, .sequence_idx = i};
  }
}

void OutputWorkers::fail(RequestId id, Error error) {
  std::vector<TokenEvent> events(1);
  events.front().request_id = id;
  events.front().finish = FinishReason::kError;
  events.front().error = std::move(error);
  (void)worker_of(id).queue.push(std::move(events));
}

void OutputWorkers::run(Worker& worker) {
  while (std::optional<std::vector<TokenEvent>> events = worker.queue.pop()) {
    for (TokenEvent& event : *events) handle(worker, event);
  }
}

void OutputWorkers::handle(Worker& worker, TokenEvent& event) {
  Entry entry;
  {
    std::lock_guard lock(worker.mutex);
    const auto it = worker.entries.find(event.request_id);
    if (it == worker.entries.end()) return;
    entry = it->second;
    if (event.finish) worker.entries.erase(it);
  }
  Generation& generation = *entry.generation;
  Sequence& sequence = generation.sequences[entry.sequence_idx];
  if (event.finish && !sequence.finished && generation.cancelled) {
    metrics_.on_finish(FinishReason::kAbort, now_ns() - generation.arrival_ns, generation.adapter);
  }
  if (sequence.finished || generation.cancelled) return;

  add_prompt_logprobs(generation.request, sequence, event);
  if (event.token_id) add_token(generation, sequence, event);
  if (event.finish && !sequence.finished) {
    if (*event.finish == FinishReason::kError) {
      abandon(generation, event.error.value_or(internal_error("the engine failed")));
    } else if (*event.finish == FinishReason::kAbort) {
      abandon(generation, {ErrorCode::kUnavailable, "the server is shutting down"});
    } else if (generation.request.is_prompt_only()) {
      finish(generation, sequence, FinishReason::kLength, {});
    } else {
      const auto& stop_ids = generation.request.stop_token_ids;
      api::StopReason reason;
      if (event.stop_token_id &&
          std::ranges::find(stop_ids, *event.stop_token_id) != stop_ids.end()) {
        reason = *event.stop_token_id;
      }
      finish(generation, sequence, *event.finish, std::move(reason));
    }
  }
  if (generation.cancelled) return;
  if (generation.request.stream) send_chunk(generation, sequence);
  if (generation.num_unfinished == 0) end(generation);
}

// The next token of the prompt, wherever it is to be shown.
void OutputWorkers::add_prompt_token(const api::GenerationRequest& request, Sequence& sequence,
                                     api::TokenLogprobs token) const {
  const auto with_top = [&](int num_top) {
    api::TokenLogprobs out = token;
    if (out.top.size() > static_cast<size_t>(num_top)) out.top.resize(num_top);
    return out;
  };
  if (request.num_prompt_logprobs >= 0) {
    sequence.choice.prompt_logprobs.push_back(with_top(request.num_prompt_logprobs));
  }
  if (request.has_echoed_logprobs()) {
    token.text_offset = sequence.num_characters;
    sequence.num_characters += count_characters(token.token.bytes);
    sequence.choice.logprobs.push_back(with_top(request.num_top_logprobs));
  }
}

void OutputWorkers::add_prompt_logprobs(const api::GenerationRequest& request, Sequence& sequence,
                                        const TokenEvent& event) const {
  for (const auto& [token, rank, top] : event.prompt_logprobs) {
    api::TokenLogprobs out{.token = logprob_entry(token.token_id, token.logprob, rank)};
    for (const TokenLogprob& best : top) {
      const int place = static_cast<int>(out.top.size()) + 1;
      out.top.push_back(logprob_entry(best.token_id, best.logprob, place));
    }
    add_prompt_token(request, sequence, std::move(out));
  }
}

void OutputWorkers::add_token(Generation& generation, Sequence& sequence, const TokenEvent& event) {
  const api::GenerationRequest& request = generation.request;
  const int32_t token_id = *event.token_id;
  if (sequence.num_tokens == 0) {
    const size_t num_prompt_tokens =
        opens_prompt(generation, sequence) ? generation.prompts[sequence.prompt_idx].size() : 0;
    metrics_.on_first_token(static_cast<int64_t>(num_prompt_tokens),
                            event.time_ns - generation.arrival_ns, generation.adapter);
    sequence.scheduled_ns = event.scheduled_ns;
    sequence.num_cached_tokens = event.num_cached_tokens;
    sequence.first_token_ns = event.time_ns;
  } else {
    metrics_.on_inter_token(event.time_ns - sequence.last_token_ns, generation.adapter);
  }
  if (request.is_prompt_only()) return;
  metrics_.on_token(1, generation.adapter);
  sequence.last_token_ns = event.time_ns;
  ++sequence.num_tokens;
  if (request.return_token_ids) sequence.choice.token_ids.push_back(token_id);
  if (request.num_top_logprobs >= 0) {
    api::TokenLogprobs logprobs{.token = logprob_entry(token_id, event.logprob),
                                .text_offset = sequence.num_characters};
    for (const TokenLogprob& top : event.top_logprobs) {
      logprobs.top.push_back(logprob_entry(top.token_id, top.logprob));
    }
    sequence.num_characters += count_characters(logprobs.token.bytes);
    sequence.choice.logprobs.push_back(std::move(logprobs));
  }
  // The token that ended the answer is not part of its text unless the client wants it.
  if (event.stop_token_id && !request.include_stop_str_in_output) return;
  const ChoiceText::Delta delta =
      sequence.text.push(token_id, sequence.num_tokens >= request.min_tokens);
  sequence.choice.text += delta.text;
  if (!delta.reasoning.empty() && request.include_reasoning) {
    sequence.choice.reasoning = sequence.choice.reasoning.value_or("") + delta.reasoning;
  }
  if (!delta.stop_idx) return;
  if (!event.finish) engine_->abort(sequence.id);
  finish(generation, sequence, FinishReason::kStop, request.stop[*delta.stop_idx]);
}

void OutputWorkers::finish(Generation& generation, Sequence& sequence, FinishReason reason,
                           api::StopReason stop_reason) {
  const bool by_stop_string = std::holds_alternative<std::string>(stop_reason);
  if (!by_stop_string) {
    const ChoiceText::Delta rest = sequence.text.finish();
    sequence.choice.text += rest.text;
    if (!rest.reasoning.empty() && generation.request.include_reasoning) {
      sequence.choice.reasoning = sequence.choice.reasoning.value_or("") + rest.reasoning;
    }
    if (rest.stop_idx) {
      reason = FinishReason::kStop;
      stop_reason = generation.request.stop[*rest.stop_idx];
    }
  }
  sequence.finished = true;
  sequence.choice.finish_reason = to_string(reason);
  sequence.choice.stop_reason = std::move(stop_reason);
  --generation.num_unfinished;
  if (sequence.num_tokens > 0) {
    metrics_.on_phases({.queue_ns = sequence.scheduled_ns - generation.arrival_ns,
                        .prefill_ns = sequence.first_token_ns - sequence.scheduled_ns,
                        .decode_ns = sequence.last_token_ns - sequence.first_token_ns});
  }
  metrics_.on_finish(reason, now_ns() - generation.arrival_ns, generation.adapter);
}

void OutputWorkers::send_chunk(Generation& generation, Sequence& sequence) {
  const api::GenerationRequest& request = generation.request;
  api::Choice& choice = sequence.choice;
  if (!sequence.first_sent) {
    sequence.first_sent = true;
    if (request.return_token_ids) {
      choice.prompt_token_ids = generation.prompts[sequence.prompt_idx];
    }
    if (is_chat(generation)) {
      generation.exchange->write(api::render_first_chunk(generation.head, choice));
      choice.prompt_token_ids.clear();
    } else if (request.echo) {
      choice.text.insert(0, generation.echoes[sequence.prompt_idx]);
    }
  }
  const bool has_news = !choice.text.empty() || choice.reasoning || !choice.token_ids.empty() ||
                        !choice.logprobs.empty() || choice.finish_reason;
  if (!has_news) return;
  std::optional<api::Usage> usage;
  if (request.continuous_usage_stats) usage = usage_of(generation);
  generation.exchange->write(api::render_chunk(generation.head, choice, usage));
  choice = {.index = choice.index};
}

void OutputWorkers::end(Generation& generation) {
  if (generation.request.stream) {
    if (generation.request.include_usage) {
      generation.exchange->write(api::render_usage_chunk(generation.head, usage_of(generation)));
    }
    generation.exchange->write(api::kDoneEvent);
    generation.exchange->end();
    return;
  }
  std::vector<api::Choice> choices;
  for (Sequence& sequence : generation.sequences) {
    if (generation.request.return_token_ids) {
      sequence.choice.prompt_token_ids = generation.prompts[sequence.prompt_idx];
    }
    if (generation.request.echo) {
      sequence.choice.text.insert(0, generation.echoes[sequence.prompt_idx]);
    }
    choices.push_back(std::move(sequence.choice));
  }
  generation.exchange->respond(
      {.body = api::render_response(generation.head, choices, usage_of(generation))});
}

// One choice can't be had: neither can the answer.
void OutputWorkers::abandon(Generation& generation, const Error& error) {
  generation.cancelled = true;
  metrics_.on_finish(
      error.code == ErrorCode::kUnavailable ? FinishReason::kAbort : FinishReason::kError,
      now_ns() - generation.arrival_ns, generation.adapter);
  for (const Sequence& sequence : generation.sequences) {
    if (!sequence.finished) engine_->abort(sequence.id);
  }
  const bool started = std::ranges::any_of(
      generation.sequences, [](const Sequence& sequence) { return sequence.first_sent; });
  if (!started) return generation.exchange->respond(error_reply(error));
  generation.exchange->write(api::render_error_event(api::render_error(error)));
  generation.exchange->write(api::kDoneEvent);
  generation.exchange->end();
}

api::LogprobEntry OutputWorkers::logprob_entry(int32_t token_id, float logprob, int rank) const {
  return {.token_id = token_id,
          .logprob = logprob,
          .bytes = std::string(pieces_.bytes(static_cast<uint32_t>(token_id))),
          .rank = rank};
}

}  // namespace medley::server
