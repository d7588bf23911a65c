#include <cstdio>

#include <CLI/CLI.hpp>

#include "apps/bench_offline.h"
#include "apps/bench_serve.h"
#include "apps/capacity.h"
#include "apps/check_adapter.h"
#include "apps/random_adapter.h"
#include "apps/serve.h"
#include "base/loading_threads.h"
#include "base/log.h"

namespace medley::apps {
namespace {

int report(const Result<void>& result) {
  if (result.ok()) return 0;
  fmt::print(stderr, "medley: {}\n", result.error().message);
  return 1;
}

int run(int argc, char** argv) {
  limit_shared_threads();
  CLI::App app("One base language model and its LoRA adapters behind the OpenAI API.", "medley");
  app.set_version_flag("--version", "medley " MEDLEY_VERSION);
  app.require_subcommand(1);

  ServeFlags serve_flags;
  CLI::App* serve_command = app.add_subcommand("serve", "serve a model and its adapters over HTTP");
  add_serve_flags(*serve_command, serve_flags);

  CLI::App* adapters = app.add_subcommand("adapters", "work with adapters");
  adapters->require_subcommand(1);
  CheckAdapterFlags check_flags;
  CLI::App* check_command =
      adapters->add_subcommand("check", "say whether an adapter can be served, and if not why");
  check_command->add_option("path", check_flags.path, "folder of a PEFT adapter")->required();
  check_command->add_option("--model", check_flags.model, "folder of its base model")->required();

  RandomAdapterFlags random_flags;
  CLI::App* random_command =
      adapters->add_subcommand("random", "write a random adapter, to measure with");
  add_random_adapter_flags(*random_command, random_flags);

  CapacityFlags capacity_flags;
  CLI::App* capacity_command =
      app.add_subcommand("capacity", "say how many tokens and adapters fit on a GPU");
  add_capacity_flags(*capacity_command, capacity_flags);

  CLI::App* bench = app.add_subcommand("bench", "measure speed");
  bench->require_subcommand(1);
  BenchOfflineFlags offline_flags;
  CLI::App* offline_command =
      bench->add_subcommand("offline", "the engine alone, without HTTP, with random adapters");
  add_bench_offline_flags(*offline_command, offline_flags);
  BenchServeFlags bench_serve_flags;
  CLI::App* bench_serve_command =
      bench->add_subcommand("serve", "a server of the OpenAI API, as its clients see it");
  add_bench_serve_flags(*bench_serve_command, bench_serve_flags);

  CLI11_PARSE(app, argc, argv);
  init_logging();
  if (*serve_command) {
    block_stop_signals();
    return report(serve(serve_flags));
  }
  if (*random_command) return report(random_adapter(random_flags));
  if (*capacity_command) return report(capacity(capacity_flags));
  if (*bench_serve_command) return report(bench_serve(bench_serve_flags));
  if (*offline_command) return report(bench_offline(offline_flags));
  return report(check_adapter(check_flags));
}

}  // namespace
}  // namespace medley::apps

int main(int argc, char** argv) { return medley::apps::run(argc, argv); }
