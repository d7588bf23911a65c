#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "bench/kernel_trace.h"

namespace medley::bench {

// Where the device's time of a step went.
struct StepTable {
  struct Row {
    std::string name;
    double launches = 0;  // a step
    double alone_us = 0;  // a step: of which no kernel before it was running any more
    double idle_us = 0;   // a step: nothing ran until it began
    double mean_us = 0;   // a launch, from its start to its end
  };
  std::vector<Row> rows;      // by falling time
  double num_kernels = 0;     // a step
  double busy_us = 0;         // a step: some kernel, copy or fill was running; the sum of alone_us
  double traced_step_us = 0;  // from a step's first work to the next one's
};

// `work` is that of `num_steps` equal steps, by start. Kernels that wait for their predecessor
// overlap it (dependent launch): such time counts once, for the one that began first.
StepTable make_step_table(std::span<const DeviceWork> work, int num_steps);

// `step_us`: a step's time when nothing is traced. Tracing adds to it (45 us before a graph's first
// kernel, 2 ms before the first work of all), mostly where nothing runs.
void print(const StepTable& table, double step_us);

}  // namespace medley::bench
