#pragma once

#include "apps/serve_flags.h"
#include "base/error.h"

namespace medley::apps {

// Blocks SIGTERM and SIGINT for this thread and those it starts, so that serve() can wait for them.
// To be called before any thread is started.
void block_stop_signals();

// Loads the model, serves until SIGTERM or SIGINT, and drains. An error is one of start-up, or the
// engine's fault while serving.
Result<void> serve(const ServeFlags& flags);

}  // namespace medley::apps
