#include <algorithm>
#include <cmath>

#include "coppice/core/error.h"
#include "coppice/study/plots.h"
#include "coppice/study/token_kinds.h"

namespace coppice {
namespace {

std::string policy_of(const Json& setting) { return setting.at("policy").get<std::string>(); }

std::string lean_class(double lean) {
  return fmt::format("f-d{}", std::clamp(static_cast<int>(std::lround(lean * 2.5)) + 5, 0, 10));
}

std::string lean_hint(double lean) {
  return fmt::format("{:.2f} times its share", std::exp2(lean));
}

std::vector<const Json*> evicting(const Json& summary) {
  std::vector<const Json*> all;
  for (const Json& setting : summary)
    if (!setting.at("budget").is_null()) all.push_back(&setting);
  return all;
}

double seen_share(const Json& setting, std::size_t kind) {
  double all = 0;
  for (const Json& count : setting.at("seen_kinds")) all += count.get<double>();
  return all > 0 ? setting.at("seen_kinds").at(kind).get<double>() / all : 0.0;
}

// Those that the text had.
std::vector<std::size_t> seen_kinds(const Json& setting) {
  std::vector<std::size_t> kinds;
  for (std::size_t kind = 0; kind < kTokenKinds; ++kind)
    if (seen_share(setting, kind) > 0) kinds.push_back(kind);
  return kinds;
}

void draw_key(Svg& svg, double x, double y, const char* prefix, int steps, const char* low,
              const char* high) {
  svg.text("f-soft small", x - 6, y + 10, "end", low);
  for (int i = 0; i < steps; ++i) svg.rect(fmt::format("f-{}{}", prefix, i), x + 16 * i, y, 16, 12);
  svg.text("f-soft small", x + 16 * steps + 6, y + 10, "start", high);
}

}  // namespace

double kind_lean(const Json& setting, std::size_t kind, int64_t row) {
  double seen = 0, all_seen = 0, kept = 0, all_kept = 0;
  const auto& kinds = setting.at("seen_kinds");
  for (std::size_t k = 0; k < kinds.size(); ++k) {
    const double count = kinds[k].get<double>();
    all_seen += count;
    if (k == kind) seen = count;
  }
  const auto& rows = setting.at("kept_kinds");
  for (std::size_t r = 0; r < rows.size(); ++r) {
    if (row >= 0 && static_cast<std::size_t>(row) != r) continue;
    for (std::size_t k = 0; k < rows[r].size(); ++k) {
      const double count = rows[r][k].get<double>();
      all_kept += count;
      if (k == kind) kept += count;
    }
  }
  if (seen <= 0 || all_kept <= 0) return 0.0;
  return std::log2(std::max(kept / all_kept, 1e-4) / (seen / all_seen));
}

Svg plot_kept_map(const Json& summary) {
  const std::vector<const Json*> all = evicting(summary);
  if (all.empty()) return Svg(10, 10, "nothing kept");
  const auto layers = all.front()->at("layers").get<int64_t>();
  const auto heads = all.front()->at("kv_heads").get<int64_t>();
  const double cell = std::clamp(660.0 / static_cast<double>(layers), 6.0, 24.0);
  const double tall = std::clamp(36.0 / static_cast<double>(heads), 3.0, 12.0);
  const double strip = tall * static_cast<double>(heads) + 12, left = 150, top = 52;
  Svg svg(left + cell * static_cast<double>(layers) + 20,
          top + strip * static_cast<double>(all.size()) + 30, "Entries kept per layer and head");
  svg.text("f-ink strong", 10, 20, "start", "Entries kept, over the budget");
  draw_key(svg, left + 130, 10, "q", 10, "none", "2.25 times and more");
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Json& setting = *all[i];
    const double y = top + strip * static_cast<double>(i);
    svg.text("f-ink", left - 10, y + strip / 2, "end", policy_of(setting));
    const double budget =
        setting.at("budget").get<double>() * setting.at("documents").get<double>();
    for (int64_t layer = 0; layer < layers; ++layer) {
      for (int64_t head = 0; head < heads; ++head) {
        const double part =
            setting.at("kept").at(static_cast<std::size_t>(layer * heads + head)).get<double>() /
            budget;
        svg.rect(fmt::format("f-q{}", std::clamp(static_cast<int>(part * 4), 0, 9)),
                 left + cell * static_cast<double>(layer), y + tall * static_cast<double>(head),
                 cell - 1, tall - 1,
                 fmt::format("{}, layer {}, head {}: {:.2f} of the budget", policy_of(setting),
                             layer, head, part));
      }
    }
  }
  const double foot = top + strip * static_cast<double>(all.size()) + 8;
  svg.text("f-soft small", left, foot, "start", "layer 0");
  svg.text("f-soft small", left + cell * static_cast<double>(layers), foot, "end",
           fmt::format("layer {}", layers - 1));
  return svg;
}

Svg plot_kind_map(const Json& summary) {
  const std::vector<const Json*> all = evicting(summary);
  if (all.empty()) return Svg(10, 10, "nothing kept");
  const std::vector<std::size_t> kinds = seen_kinds(*all.front());
  constexpr double kCell = 86, kTall = 26, kLeft = 150, kTop = 84;
  Svg svg(kLeft + kCell * static_cast<double>(kinds.size()) + 20,
          kTop + kTall * static_cast<double>(all.size()) + 10,
          "Kinds of token that each policy keeps");
  svg.text("f-ink strong", 10, 20, "start", "Share among the kept over share among the seen");
  draw_key(svg, 480, 10, "d", 11, "quarter", "four times");
  svg.text("f-soft small", kLeft - 10, kTop - 10, "end", "of what was read");
  for (std::size_t k = 0; k < kinds.size(); ++k) {
    const double middle = kLeft + kCell * (static_cast<double>(k) + 0.5);
    svg.text("f-ink small", middle, kTop - 25, "middle", kTokenKindNames[kinds[k]]);
    svg.text("f-soft small", middle, kTop - 10, "middle",
             fmt::format("{:.1f} %", 100 * seen_share(*all.front(), kinds[k])));
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    const double y = kTop + kTall * static_cast<double>(i);
    svg.text("f-ink", kLeft - 10, y + 17, "end", policy_of(*all[i]));
    for (std::size_t k = 0; k < kinds.size(); ++k) {
      const double lean = kind_lean(*all[i], kinds[k]);
      const double x = kLeft + kCell * static_cast<double>(k);
      svg.rect(lean_class(lean), x, y, kCell - 2, kTall - 2, lean_hint(lean));
      svg.text(std::abs(lean) > 1.5 ? "f-page small" : "f-ink small", x + kCell / 2, y + 16,
               "middle", fmt::format("{:.2f}", std::exp2(lean)));
    }
  }
  return svg;
}

Svg plot_head_kinds(const Json& setting) {
  const auto rows = static_cast<int64_t>(setting.at("kept").size());
  const auto heads = setting.at("kv_heads").get<int64_t>();
  const std::vector<std::size_t> kinds = seen_kinds(setting);
  const double cell = std::clamp(760.0 / static_cast<double>(rows), 3.0, 24.0);
  constexpr double kTall = 22, kLeft = 110, kTop = 48;
  Svg svg(kLeft + cell * static_cast<double>(rows) + 20,
          kTop + kTall * static_cast<double>(kinds.size()) + 28,
          "Kinds of token that each head keeps");
  svg.text("f-ink strong", 10, 20, "start", policy_of(setting) + ": what each head keeps");
  draw_key(svg, 480, 10, "d", 11, "quarter", "four times");
  for (std::size_t k = 0; k < kinds.size(); ++k) {
    const std::size_t kind = kinds[k];
    const double y = kTop + kTall * static_cast<double>(k);
    svg.text("f-ink small", kLeft - 8, y + 14, "end", kTokenKindNames[kind]);
    for (int64_t row = 0; row < rows; ++row) {
      const double lean = kind_lean(setting, kind, row);
      svg.rect(lean_class(lean), kLeft + cell * static_cast<double>(row), y, cell - 0.4, kTall - 2,
               fmt::format("layer {}, head {}, {}: {}", row / heads, row % heads,
                           kTokenKindNames[kind], lean_hint(lean)));
    }
  }
  const double foot = kTop + kTall * static_cast<double>(kinds.size()) + 14;
  svg.text("f-soft small", kLeft, foot, "start", "layer 0");
  svg.text("f-soft small", kLeft + cell * static_cast<double>(rows), foot, "end",
           fmt::format("layer {}", rows / heads - 1));
  return svg;
}

Svg plot_bars(const Json& summary, const std::string& field, double scale, const std::string& title,
              const std::string& ours) {
  constexpr double kTall = 22, kLeft = 140, kLong = 300, kTop = 36;
  Svg svg(kLeft + kLong + 80, kTop + kTall * static_cast<double>(summary.size()) + 8, title);
  svg.text("f-ink strong", 10, 20, "start", title);
  double most = 1e-12;
  for (const Json& row : summary) most = std::max(most, row.at(field).get<double>() * scale);
  double y = kTop;
  for (const Json& row : summary) {
    const double value = row.at(field).get<double>() * scale;
    svg.text("f-ink", kLeft - 8, y + 14, "end", policy_of(row));
    svg.rect(policy_of(row) == ours ? "f-ours" : "f-bar", kLeft, y + 2, kLong * value / most,
             kTall - 6);
    svg.text("f-soft small", kLeft + kLong * value / most + 6, y + 14, "start",
             fmt::format("{:.{}f}", value, value < 10 ? 2 : 0));
    y += kTall;
  }
  return svg;
}

}  // namespace coppice
