#include "apps/bench_serve.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <thread>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "apps/bench_probes.h"
#include "apps/bench_report.h"
#include "apps/http_target.h"
#include "base/clock.h"

namespace medley::apps {
namespace {

struct Job {
  int adapter = -1;
  int num_prompt_tokens = 0;
  std::string body;
  int64_t due_ns = 0;
};

std::vector<Job> make_jobs(const BenchServeFlags& flags, const std::string& model, int count,
                           Workload& workload) {
  std::vector<Job> jobs(count);
  for (Job& job : jobs) {
    job.adapter = workload.next_adapter();
    const std::vector<int32_t> prompt = workload.next_prompt();
    job.num_prompt_tokens = static_cast<int>(prompt.size());
    job.body = completion_body(job.adapter < 0 ? model : flags.adapters[job.adapter], prompt,
                               flags.output_len);
  }
  return jobs;
}

RequestRecord send(HttpClient& client, const Job& job) {
  std::this_thread::sleep_until(
      std::chrono::steady_clock::now() +
      std::chrono::nanoseconds(std::max<int64_t>(0, job.due_ns - now_ns())));
  RequestRecord record = {
      .adapter = job.adapter, .num_prompt_tokens = job.num_prompt_tokens, .sent_ns = now_ns()};
  const Result<void> sent =
      client.post_stream("/v1/completions", job.body, [&](std::string_view data) {
        const int64_t time_ns = now_ns();
        if (data != "[DONE]") note_chunk(data, time_ns, record);
      });
  if (!sent.ok()) record.error = sent.error().message;
  return record;
}

BenchRun run_once(const BenchServeFlags& flags, const ServerAddress& address,
                  const std::string& model, int concurrency, Workload& workload) {
  const int count = num_requests_of(flags, concurrency);
  BenchRun run = start_run("serve", flags, concurrency, static_cast<int>(flags.adapters.size()));
  std::vector<Job> jobs = make_jobs(flags, model, count, workload);
  run.requests.resize(count);
  std::atomic<int> next = 0;
  std::atomic<int> done = 0;
  std::mutex progress_mutex;
  BenchProgress progress(count);
  const int64_t start_ns = now_ns();
  for (int i = 0; i < count; ++i) {
    jobs[i].due_ns = due_ns(flags, i, start_ns);
  }
  {
    const int num_clients = std::min(concurrency, count);
    std::vector<std::jthread> clients;
    clients.reserve(num_clients);
    for (int c = 0; c < num_clients; ++c) {
      clients.emplace_back([&] {
        HttpClient client(address);
        for (int i; (i = next.fetch_add(1)) < count;) {
          run.requests[i] = send(client, jobs[i]);
          const std::lock_guard lock(progress_mutex);
          progress.update(++done, std::min(concurrency, count - done));
        }
      });
    }
  }
  set_seconds(run, start_ns);
  return run;
}

Result<std::string> first_model(const ServerAddress& address) {
  MEDLEY_TRY_ASSIGN(const std::string body, HttpClient(address).get("/v1/models"));
  const auto json = nlohmann::json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("data") || json["data"].empty() ||
      !json["data"][0].contains("id")) {
    return internal_error(fmt::format("/v1/models names no model: {}", body));
  }
  return json["data"][0]["id"].get<std::string>();
}

}  // namespace

void add_bench_serve_flags(CLI::App& app, BenchServeFlags& flags) {
  app.add_option("--base-url", flags.base_url, "the server")->capture_default_str();
  app.add_option("--model", flags.model, "the base model's name [the first of /v1/models]");
  app.add_option("--adapters", flags.adapters, "names of adapters; without: base model only")
      ->delimiter(',')
      ->expected(-1);
  app.add_option("--vocab-size", flags.vocab_size, "prompts have ids below it")
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 31))
      ->capture_default_str();
  app.add_option("--cold-folder", flags.cold_folder,
                 "of --cold-adapter: an adapter's folder on the server");
  add_workload_flags(app, flags);
  add_probe_flags(app, flags);
}

Result<void> bench_serve(const BenchServeFlags& flags) {
  MEDLEY_TRY_ASSIGN(const ServerAddress address, parse_base_url(flags.base_url));
  std::string model = flags.model;
  if (model.empty()) {
    MEDLEY_TRY_ASSIGN(model, first_model(address));
  }
  const auto num_adapters = static_cast<int>(flags.adapters.size());
  BenchServeFlags warm_up = flags;
  static_cast<WorkloadFlags&>(warm_up) = warm_up_of(flags, num_adapters);
  Workload warm_up_workload(warm_up, num_adapters, flags.vocab_size);
  run_once(warm_up, address, model, *std::ranges::max_element(flags.concurrency), warm_up_workload);
  Workload workload(flags, num_adapters, flags.vocab_size);
  if (flags.num_new_lengths > 0 || !flags.cold_adapter.empty()) {
    HttpTarget target({.address = address, .model = model, .cold_folder = flags.cold_folder});
    return run_probes("serve", flags, flags.adapters, workload, target);
  }
  std::vector<BenchRun> runs;
  for (const int concurrency : flags.concurrency) {
    runs.push_back(run_once(flags, address, model, concurrency, workload));
    print(runs.back());
  }
  return finish(runs, flags.json);
}

}  // namespace medley::apps
