#include <algorithm>
#include <cmath>

#include "coppice/core/error.h"
#include "coppice/study/plots.h"

namespace coppice {
namespace {

constexpr double kWidth = 640, kHeight = 408, kLeft = 62, kRight = 500, kTop = 44, kBottom = 345;

// One axis: values to pixels, straight or by logarithm.
struct Axis {
  double low, high, from, to;
  bool log;
  double at(double value) const {
    const double part =
        log ? std::log(value / low) / std::log(high / low) : (value - low) / (high - low);
    return from + part * (to - from);
  }
};

struct Place {
  const PanelPoint* point;
  double x;
};

std::vector<Place> places(const Panel& panel, const std::string& policy, PlotAgainst against) {
  std::vector<Place> all;
  for (const PanelPoint& point : panel.points) {
    if (point.policy != policy) continue;
    if (against == PlotAgainst::kBudget && point.budget)
      all.push_back({&point, static_cast<double>(*point.budget)});
    if (against == PlotAgainst::kBytes && point.bytes && *point.bytes > 0)
      all.push_back({&point, static_cast<double>(*point.bytes) / (1 << 20)});
  }
  std::ranges::sort(all, {}, &Place::x);
  return all;
}

Axis padded_axis(const Panel& panel, double low, double high) {
  if (panel.higher_is_better && low >= 0 && high <= 1) return {0, 1, kBottom, kTop, false};
  const bool log = low > 0 && high > 2 * low;
  if (log) return {low / 1.03, high * 1.05, kBottom, kTop, true};
  const double margin = std::max((high - low) * 0.06, 1e-6);
  return {low - margin, high + margin, kBottom, kTop, false};
}

// Room for the full cache and for the policies with a colour, or for all where none has one.
Axis value_axis(const Panel& panel, const std::map<std::string, std::string>& colours) {
  const auto counts = [&colours](const PanelPoint& point) {
    return colours.contains(point.policy);
  };
  const bool some = std::ranges::any_of(panel.points, counts);
  std::optional<double> low = panel.full, high = panel.full;
  for (const PanelPoint& point : panel.points) {
    if (some && !counts(point)) continue;
    low = std::min(low.value_or(point.value), point.value);
    high = std::max(high.value_or(point.value), point.value);
  }
  return padded_axis(panel, *low, *high);
}

// Round values inside the axis, about `wanted` of them.
std::vector<double> round_ticks(const Axis& axis, double wanted) {
  std::vector<double> ticks;
  if (axis.log && axis.high > 1.6 * axis.low) {
    // Of each decade; the finer list where the coarser gives too few.
    for (const std::vector<double>& steps : {std::vector<double>{1, 2, 5},
                                             {1, 1.5, 2, 3, 5, 7},
                                             {1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 4}}) {
      ticks.clear();
      for (double decade = std::pow(10.0, std::floor(std::log10(axis.low))); decade <= axis.high;
           decade *= 10)
        for (const double step : steps)
          if (decade * step >= axis.low && decade * step <= axis.high)
            ticks.push_back(decade * step);
      if (static_cast<double>(ticks.size()) >= wanted - 1) break;
    }
    return ticks;
  }
  const double rough = (axis.high - axis.low) / wanted;
  const double decade = std::pow(10.0, std::floor(std::log10(rough)));
  const double step = decade * (rough < 1.5 * decade   ? 1
                                : rough < 3.5 * decade ? 2
                                : rough < 7.5 * decade ? 5
                                                       : 10);
  const auto first = static_cast<int64_t>(std::ceil(axis.low / step - 1e-9));
  const auto last = static_cast<int64_t>(std::floor(axis.high / step + 1e-9));
  for (int64_t i = first; i <= last; ++i) ticks.push_back(static_cast<double>(i) * step);
  return ticks;
}

void draw_frame(Svg& svg, const Panel& panel, const Axis& x, const Axis& y,
                const std::vector<double>& x_ticks, PlotAgainst against) {
  svg.text("f-ink strong", kLeft, 20, "start", panel.title);
  svg.text("f-soft small", kLeft, 36, "start",
           panel.axis + (panel.higher_is_better ? " (higher is better)" : " (lower is better)"));
  for (const double tick : round_ticks(y, 5)) {
    svg.line("s-grid hair", kLeft, y.at(tick), kRight, y.at(tick));
    svg.text("f-soft small", kLeft - 8, y.at(tick) + 4, "end", fmt::format("{:.4g}", tick));
  }
  for (const double tick : x_ticks) {
    svg.line("s-grid hair", x.at(tick), kBottom, x.at(tick), kBottom + 5);
    svg.text("f-soft small", x.at(tick), kBottom + 19, "middle", fmt::format("{:.4g}", tick));
  }
  svg.text("f-soft small", (kLeft + kRight) / 2, kBottom + 40, "middle",
           against == PlotAgainst::kBudget ? "budget: mean entries per KV head"
                                           : "most bytes of KV cache held at once, MiB");
  if (panel.full) {
    svg.line("s-full hair dash", kLeft, y.at(*panel.full), kRight, y.at(*panel.full));
    const double line = y.at(*panel.full);
    svg.text("f-ink small", kLeft + 4, line < kTop + 12 ? line + 13 : line - 5, "start",
             "full cache");
  }
}

void draw_curve(Svg& svg, const std::vector<Place>& curve, const Axis& x, const Axis& y,
                const std::string& colour) {
  std::string data;
  const bool grey = colour == "rest";
  svg.open_group("curve");
  for (const Place& place : curve) {
    data += fmt::format("{}{:.1f} {:.1f}", data.empty() ? "M" : "L", x.at(place.x),
                        y.at(place.point->value));
    if (place.point->interval && !grey) {
      const auto inside = [&y](double value) { return std::clamp(value, y.low, y.high); };
      svg.line("whisker s-" + colour, x.at(place.x), y.at(inside(place.point->interval->low)),
               x.at(place.x), y.at(inside(place.point->interval->high)));
    }
  }
  const char* weight = colour == "ours" ? " thick" : grey ? " thin" : "";
  svg.path("line s-" + colour + weight, data);
  for (const Place& place : curve) {
    std::string hint = fmt::format("{}: {:.3f}", place.point->policy, place.point->value);
    if (place.point->interval)
      hint += fmt::format(" ({:.3f} to {:.3f})", place.point->interval->low,
                          place.point->interval->high);
    svg.circle("f-" + colour, x.at(place.x), y.at(place.point->value), grey ? 2.2 : 3.4, hint);
  }
  svg.close_group();
}

}  // namespace

Svg plot_panel(const Panel& panel, PlotAgainst against,
               const std::map<std::string, std::string>& colours) {
  Svg svg(kWidth, kHeight, panel.title);
  const Axis y = value_axis(panel, colours);
  std::vector<double> ticks;
  for (const std::string& policy : panel.policies())
    for (const Place& place : places(panel, policy, against)) ticks.push_back(place.x);
  if (ticks.empty()) return svg;
  std::ranges::sort(ticks);
  const double low = ticks.front() / 1.15, high = ticks.back() * 1.15;
  const Axis x{low, high, kLeft, kRight, true};
  ticks.erase(std::ranges::unique(ticks).begin(), ticks.end());
  if (against == PlotAgainst::kBytes) {
    ticks = round_ticks(x, 5);
  }
  draw_frame(svg, panel, x, y, ticks, against);

  struct Label {
    double y;
    std::string policy, colour;
  };
  std::vector<Label> labels;
  std::vector<std::string> beyond;
  for (const bool grey : {true, false}) {
    for (const std::string& policy : panel.policies()) {
      const auto found = colours.find(policy);
      const std::string colour = found == colours.end() ? "rest" : found->second;
      std::vector<Place> curve = places(panel, policy, against);
      if ((colour == "rest") != grey) continue;
      const auto outside = [&y](const Place& place) {
        return place.point->value < y.low || place.point->value > y.high;
      };
      if (std::erase_if(curve, outside) > 0) beyond.push_back(policy);
      if (curve.empty()) continue;
      draw_curve(svg, curve, x, y, colour);
      if (!grey) labels.push_back({y.at(curve.back().point->value), policy, colour});
    }
  }
  if (!beyond.empty())
    svg.text("f-soft small", kLeft, kBottom + 56, "start",
             fmt::format("partly or wholly outside: {}", fmt::join(beyond, ", ")));
  std::ranges::sort(labels, {}, &Label::y);
  double before = kTop - 16;
  for (std::size_t i = 0; i < labels.size(); ++i) {  // apart, and leaving room for those below
    const double last = kBottom - 15 * static_cast<double>(labels.size() - 1 - i);
    labels[i].y = std::min(std::max(labels[i].y, before + 15), last);
    before = labels[i].y;
    svg.line("whisker s-" + labels[i].colour, kRight + 2, labels[i].y, kRight + 12, labels[i].y);
    svg.text("strong f-" + labels[i].colour, kRight + 16, labels[i].y + 4, "start",
             labels[i].policy);
  }
  return svg;
}

}  // namespace coppice
