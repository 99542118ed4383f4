// A picture of a training run: losses above, entries kept per layer below, over steps. Plain SVG.
#pragma once

#include <string>
#include <vector>

#include "coppice/core/json.h"

namespace coppice {

// A line of a plot. Points whose y is not finite are left out.
struct Curve {
  std::string name;  // empty: not in the legend
  std::string colour;
  std::vector<double> x, y;
};

struct Panel {
  std::string title;
  std::string y_name;
  bool log_scale = false;  // of y; points at 0 or below are left out
  std::vector<Curve> curves;
};

// Panels one below another, one x axis ("step").
std::string draw_svg(const std::vector<Panel>& panels);

// The panels of a training log: KL, NTP and capacity excess, smoothed, and the soft number of
// entries that each layer keeps per head.
std::vector<Panel> training_panels(const std::vector<Json>& records);

// Writes the file; a failure is said on stderr and ends nothing.
void write_plot(const std::string& path, const std::vector<Json>& records);

}  // namespace coppice
