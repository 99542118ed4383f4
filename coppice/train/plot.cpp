#include "coppice/train/plot.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "coppice/core/error.h"
#include "coppice/core/log.h"
#include "coppice/loader/safetensors_file.h"

namespace coppice {
namespace {

constexpr double kWidth = 860, kPanelHeight = 260, kLeft = 70, kRight = 150, kTop = 34,
                 kBottom = 40;

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  // A range with an inside, also for one value or none.
  void settle() {
    if (!(low <= high)) low = 0, high = 1;
    if (high - low < 1e-12) low -= 0.5, high += 0.5;
  }
};

bool drawn(const Panel& panel, double y) { return std::isfinite(y) && (!panel.log_scale || y > 0); }

double on_scale(const Panel& panel, double y) { return panel.log_scale ? std::log10(y) : y; }

// A step of 1, 2 or 5 times a power of ten that gives 4 to 9 marks.
double mark_step(const Range& range) {
  const double rough = (range.high - range.low) / 5;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= rough) return factor * power;
  return 10 * power;
}

// `text` may hold anything: what a file name or a measure's name brings.
std::string escaped(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    if (c == '<')
      safe += "&lt;";
    else if (c == '&')
      safe += "&amp;";
    else
      safe += c;
  }
  return safe;
}

std::string text_at(double x, double y, const char* anchor, const std::string& text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor,
                     escaped(text));
}

std::string line_at(double x1, double y1, double x2, double y2, const char* colour) {
  return fmt::format(
      "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"/>\n", x1, y1, x2,
      y2, colour);
}

class PanelDrawing final {
 public:
  PanelDrawing(const Panel& panel, const Range& x, double top) : panel_(panel), x_(x), top_(top) {
    for (const Curve& curve : panel.curves)
      for (const double y : curve.y)
        if (drawn(panel, y)) y_.add(on_scale(panel, y));
    y_.settle();
  }

  std::string draw() const {
    std::string svg = text_at(kLeft, top_ - 10, "start", panel_.title);
    svg += axes();
    double legend = top_ + 10;
    for (const Curve& curve : panel_.curves) {
      svg += polyline(curve);
      if (curve.name.empty()) continue;
      svg += line_at(kWidth - kRight + 10, legend - 4, kWidth - kRight + 30, legend - 4,
                     curve.colour.c_str());
      svg += text_at(kWidth - kRight + 36, legend, "start", curve.name);
      legend += 16;
    }
    return svg;
  }

 private:
  double column(double x) const {
    return kLeft + (x - x_.low) / (x_.high - x_.low) * (kWidth - kLeft - kRight);
  }
  double row(double scaled) const {
    return top_ + kPanelHeight - (scaled - y_.low) / (y_.high - y_.low) * kPanelHeight;
  }

  std::string axes() const {
    std::string svg;
    for (double step = mark_step(y_), at = std::ceil(y_.low / step) * step;
         at <= y_.high + step * 1e-9; at += step) {
      svg += line_at(kLeft, row(at), kWidth - kRight, row(at), "#ddd");
      const double value = panel_.log_scale ? std::pow(10.0, at) : (at == 0 ? 0.0 : at);
      svg += text_at(kLeft - 6, row(at) + 4, "end", fmt::format("{:.4g}", value));
    }
    for (double step = mark_step(x_), at = std::ceil(x_.low / step) * step;
         at <= x_.high + step * 1e-9; at += step)
      svg += text_at(column(at), top_ + kPanelHeight + 16, "middle", fmt::format("{:.6g}", at));
    svg += line_at(kLeft, top_ + kPanelHeight, kWidth - kRight, top_ + kPanelHeight, "#444");
    svg += line_at(kLeft, top_, kLeft, top_ + kPanelHeight, "#444");
    svg += text_at(kLeft - 6, top_ - 10, "end", panel_.y_name);
    return svg;
  }

  std::string polyline(const Curve& curve) const {
    std::string points;
    for (std::size_t i = 0; i < curve.x.size(); ++i)
      if (drawn(panel_, curve.y[i]))
        points +=
            fmt::format("{:.1f},{:.1f} ", column(curve.x[i]), row(on_scale(panel_, curve.y[i])));
    return fmt::format(
        "<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"1.2\" points=\"{}\"/>\n",
        curve.colour, points);
  }

  const Panel& panel_;
  Range x_, y_;
  double top_;
};

// Means over a window of the run's length / 100 or so.
std::vector<double> smoothed(const std::vector<double>& values) {
  const auto reach = static_cast<std::ptrdiff_t>(values.size() / 200);
  std::vector<double> result;
  for (std::ptrdiff_t i = 0; i < std::ssize(values); ++i) {
    const std::ptrdiff_t from = std::max<std::ptrdiff_t>(0, i - reach);
    const std::ptrdiff_t to = std::min(std::ssize(values), i + reach + 1);
    double sum = 0;
    for (std::ptrdiff_t j = from; j < to; ++j) sum += values[static_cast<std::size_t>(j)];
    result.push_back(sum / static_cast<double>(to - from));
  }
  return result;
}

// From blue (first layer) to red (last).
std::string layer_colour(std::size_t layer, std::size_t layers) {
  const double share =
      layers > 1 ? static_cast<double>(layer) / static_cast<double>(layers - 1) : 0;
  return fmt::format("rgb({:.0f},{:.0f},{:.0f})", 40 + 190 * share,
                     90 + 60 * (1 - std::abs(2 * share - 1)), 220 - 180 * share);
}

}  // namespace

std::string draw_svg(const std::vector<Panel>& panels) {
  Range x;
  for (const Panel& panel : panels)
    for (const Curve& curve : panel.curves)
      for (const double at : curve.x) x.add(at);
  x.settle();
  const double step = kTop + kPanelHeight + kBottom;
  const double height = step * static_cast<double>(panels.size());
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"sans-serif\" font-size=\"11\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
      kWidth, height);
  for (std::size_t i = 0; i < panels.size(); ++i)
    svg += PanelDrawing(panels[i], x, kTop + step * static_cast<double>(i)).draw();
  return svg + "</svg>\n";
}

std::vector<Panel> training_panels(const std::vector<Json>& records) {
  const auto series = [&records](const char* key, const char* colour) {
    Curve curve{key, colour, {}, {}};
    for (const Json& record : records) {
      if (!record.contains(key) || !record[key].is_number() || !record.contains("step")) continue;
      curve.x.push_back(record["step"].get<double>());
      curve.y.push_back(record[key].get<double>());
    }
    curve.y = smoothed(curve.y);
    return curve;
  };
  Panel losses{"Losses; KL is to the full cache, capacity the excess over it", "nats", true, {}};
  for (const auto& [key, colour] : {std::pair{"kl", "#1f6fb4"},
                                    {"capacity", "#c0392b"},
                                    {"survival", "#7d3c98"},
                                    {"pair", "#b9770e"}})
    if (Curve curve = series(key, colour); !curve.x.empty())
      losses.curves.push_back(std::move(curve));
  Panel text{"Prediction of the next token", "nats", false, {series("ntp", "#2e8b57")}};
  Panel kept{"Entries kept per KV head, soft, first layer blue to last red", "entries", true, {}};
  for (const Json& record : records) {
    if (!record.contains("kept_per_layer") || !record["kept_per_layer"].is_array()) continue;
    const Json& layers = record["kept_per_layer"];
    if (kept.curves.empty())
      for (std::size_t l = 0; l < layers.size(); ++l)
        kept.curves.push_back({l == 0 || l + 1 == layers.size() ? fmt::format("layer {}", l) : "",
                               layer_colour(l, layers.size()),
                               {},
                               {}});
    for (std::size_t l = 0; l < std::min(layers.size(), kept.curves.size()); ++l) {
      kept.curves[l].x.push_back(record.value("step", 0.0));
      kept.curves[l].y.push_back(layers[l].is_number() ? layers[l].get<double>() : 0.0);
    }
  }
  for (Curve& curve : kept.curves) curve.y = smoothed(curve.y);
  return {losses, text, kept};
}

void write_plot(const std::string& path, const std::vector<Json>& records) {
  const std::string svg = draw_svg(training_panels(records));
  const auto bytes = std::as_bytes(std::span(svg));
  try {
    write_file_atomically(path, std::span(&bytes, 1));
  } catch (const Error& error) {
    log_warning("the plot: {}", error.what());
  }
}

}  // namespace coppice
