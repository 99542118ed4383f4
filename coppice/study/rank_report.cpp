#include "coppice/study/rank_report.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "coppice/core/error.h"
#include "coppice/study/panel.h"
#include "coppice/study/plots.h"
#include "coppice/study/ranking.h"
#include "coppice/study/token_kinds.h"

namespace coppice {
namespace {

constexpr const char* kPageCss =
    ":root{color-scheme:light dark;--page:#fff;--ink:#1c2127;--soft:#66707c;--edge:#e4e7eb;"
    "--ours:#d9480f;--card:#f8f9fa}@media(prefers-color-scheme:dark){:root{--page:#15181d;"
    "--ink:#e6e9ee;--soft:#97a1ae;--edge:#2a3038;--ours:#ff8a4c;--card:#1b1f26}}"
    "body{margin:0 auto;max-width:1360px;padding:32px 28px 80px;background:var(--page);"
    "color:var(--ink);font:16px/1.55 system-ui,'Segoe UI','DejaVu Sans',sans-serif}"
    "h1{font-size:30px;margin:0 0 4px}h2{font-size:21px;margin:44px 0 8px}"
    "p.soft{color:var(--soft);margin:4px 0 12px}code{font-size:13px;overflow-wrap:anywhere}"
    ".lead{border-left:4px solid var(--ours);background:var(--card);padding:12px 18px;margin:20px "
    "0}"
    ".plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(560px,100%),1fr));"
    "gap:20px}.plot{overflow-x:auto;min-width:0}.plot svg{max-width:100%;height:auto}"
    "@media(max-width:700px){body{padding:20px 16px 60px}.plot svg{max-width:none}}"
    ".curve:hover .line{stroke-width:4}"
    "table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums}"
    "th,td{padding:4px 14px 4px 0;text-align:left;border-bottom:1px solid var(--edge)}"
    "tr.ours{color:var(--ours);font-weight:600}details{margin:14px 0}.wide{overflow-x:auto}";

using Table = std::vector<std::vector<std::string>>;  // the first row: the heads

std::string html_table(const Table& table, const std::string& ours) {
  std::string html = "<div class=\"wide\"><table>";
  for (std::size_t i = 0; i < table.size(); ++i) {
    const bool mine = std::ranges::count(table[i], ours) > 0;
    html += mine ? "<tr class=\"ours\">" : "<tr>";
    for (const std::string& cell : table[i])
      html += fmt::format("<{0}>{1}</{0}>", i == 0 ? "th" : "td", escape_markup(cell));
    html += "</tr>\n";
  }
  return html + "</table></div>\n";
}

std::string csv(const Table& table) {
  std::string text;
  for (const auto& row : table) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      std::string cell = row[i];
      if (cell.find_first_of(",\"\n") != std::string::npos) {
        for (std::size_t at = 0; (at = cell.find('"', at)) != std::string::npos; at += 2)
          cell.insert(at, 1, '"');
        cell = "\"" + cell + "\"";
      }
      text += (i == 0 ? "" : ",") + cell;
    }
    text += "\n";
  }
  return text;
}

class Writer final {
 public:
  explicit Writer(const RankStudy& study) : study_(study), ours_(own_policy(study)) {}

  RankReport write() {
    for (const RankResult& result : study_.results) {
      if (result.task.shows != "quality") continue;
      for (Panel& panel : make_panels(result.task, result.summary.at("summary"), result.rows))
        panels_.push_back(std::move(panel));
    }
    standings_ = rank_policies(panels_, ours_);
    page(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
        "content=\"width=device-width\"><title>Coppice: a ranking of eviction policies</title>"
        "<style>" +
        std::string(kPageCss) + plot_css() + "</style></head><body>\n");
    const std::string how_many =
        standings_.empty() ? "" : fmt::format(" under {} eviction policies", standings_.size());
    page(fmt::format(
        "<h1>Which entries are worth keeping</h1><p class=\"soft\">{}{}, one engine, equal "
        "budgets{}</p>\n",
        escape_markup(study_.model), how_many,
        study_.quick ? ". A quick run: few texts, so wide intervals and rough ranks" : ""));
    quality();
    for (const RankResult& result : study_.results) {
      if (result.task.shows == "kept") kept(result);
      if (result.task.shows == "cost") cost(result);
    }
    commands();
    page("</body></html>\n");
    return std::move(report_);
  }

 private:
  void page(const std::string& html) { report_.html += html; }

  void plot(const std::string& name, const Svg& svg) {
    page("<div class=\"plot\">" + svg.inside_html() + "</div>");
    report_.plots.emplace_back(name, svg);
  }

  void heading(const std::string& title, const std::string& below) {
    page("<h2>" + escape_markup(title) + "</h2><p class=\"soft\">" + escape_markup(below) +
         "</p>\n");
  }

  // Colours for ours and the best six besides; the rest are grey.
  std::map<std::string, std::string> colours() const {
    std::map<std::string, std::string> chosen = {{ours_, "ours"}};
    for (const Standing& standing : standings_)
      if (chosen.size() < 7)
        chosen.try_emplace(standing.policy, fmt::format("m{}", chosen.size() - 1));
    return chosen;
  }

  void quality() {
    if (panels_.empty()) return;
    const std::vector<std::string> said = findings(panels_, ours_);
    if (!said.empty()) {
      page("<div class=\"lead\"><p>" + escape_markup(said.front()) + "</p><ul>");
      for (std::size_t i = 1; i < said.size(); ++i) page("<li>" + escape_markup(said[i]) + "</li>");
      page("</ul></div>\n");
    }
    standings_table();
    const auto chosen = colours();
    for (const auto& [against, word] :
         {std::pair{PlotAgainst::kBudget, "budget"}, std::pair{PlotAgainst::kBytes, "bytes"}}) {
      heading(std::string("Quality against ") + word,
              "Bars are 95 % intervals. Grey: the policies that rank lower; rest the pointer on a "
              "point to read it.");
      page("<div class=\"plots\">");
      for (std::size_t i = 0; i < panels_.size(); ++i) {
        const bool drawable = std::ranges::any_of(
            panels_[i].points, [](const PanelPoint& point) { return point.bytes.value_or(0) > 0; });
        if (against == PlotAgainst::kBudget || drawable)
          plot(fmt::format("{}-{}-{}", panels_[i].task, word, i + 1),
               plot_panel(panels_[i], against, chosen));
      }
      page("</div>\n");
    }
    quality_table();
  }

  void standings_table() {
    Table table = {{"policy", "mean rank", "comparisons", "best value", "clearly best",
                    "clearly better than " + ours_, "clearly worse than " + ours_}};
    for (const Standing& s : standings_)
      table.push_back({s.policy, fmt::format("{:.2f}", s.mean_rank), fmt::format("{}", s.cells),
                       fmt::format("{}", s.first), fmt::format("{}", s.clearly_first),
                       fmt::format("{}", s.clearly_beats), fmt::format("{}", s.clearly_beaten)});
    heading("Standings",
            "A comparison is one task and length at one budget. Clearly: 95 % "
            "intervals that do not meet.");
    page(html_table(table, ours_));
    report_.tables.emplace_back("standings.csv", csv(table));
  }

  void quality_table() {
    Table table = {{"task", "group", "policy", "budget", "value", "low", "high", "bytes"}};
    for (const Panel& panel : panels_)
      for (const PanelPoint& point : panel.points)
        table.push_back({panel.task, panel.group, point.policy,
                         point.budget ? fmt::format("{}", *point.budget) : "",
                         fmt::format("{:.4f}", point.value),
                         point.interval ? fmt::format("{:.4f}", point.interval->low) : "",
                         point.interval ? fmt::format("{:.4f}", point.interval->high) : "",
                         point.bytes ? fmt::format("{}", *point.bytes) : ""});
    page("<details><summary>Every number</summary>" + html_table(table, ours_) + "</details>\n");
    report_.tables.emplace_back("quality.csv", csv(table));
  }

  void kept(const RankResult& result) {
    const Json& summary = result.summary.at("summary");
    heading(result.task.title,
            "Where the entries are: a strip a policy, layers across, KV heads "
            "down. A policy with a fixed budget per head is one flat colour.");
    plot(result.task.name + "-layers", plot_kept_map(summary));
    heading("Which kinds of token are kept",
            "1 is a fair share: a kind makes up as much of what is kept as of what was read. "
            "Capitalised words are names and starts of sentences.");
    plot(result.task.name + "-kinds", plot_kind_map(summary));
    Table rows = {{"policy", "budget", "layer", "head", "kept"}};
    Table kinds = {{"policy", "budget", "kind", "share_kept_over_share_seen"}};
    for (const Json& setting : summary) {
      const std::string policy = setting.at("policy").get<std::string>();
      const std::string budget = dump_json(setting.at("budget"));
      const auto heads = setting.at("kv_heads").get<std::size_t>();
      for (std::size_t r = 0; r < setting.at("kept").size(); ++r)
        rows.push_back({policy, budget, fmt::format("{}", r / heads), fmt::format("{}", r % heads),
                        dump_json(setting.at("kept").at(r))});
      for (std::size_t k = 0; k < kTokenKinds; ++k)
        kinds.push_back({policy, budget, std::string(kTokenKindNames[k]),
                         fmt::format("{:.4f}", std::exp2(kind_lean(setting, k)))});
      if (policy == ours_) plot(result.task.name + "-heads", plot_head_kinds(setting));
    }
    report_.tables.emplace_back(result.task.name + ".csv", csv(rows));
    report_.tables.emplace_back(result.task.name + "-kinds.csv", csv(kinds));
  }

  void cost(const RankResult& result) {
    const Json& summary = result.summary.at("summary");
    heading(result.task.title,
            "Medians on the machine that ran the study. Rates hold for it and "
            "its load alone; bytes hold everywhere.");
    page("<div class=\"plots\">");
    plot(result.task.name + "-read",
         plot_bars(summary, "prefill_tokens_per_s", 1, "Tokens read a second", ours_));
    plot(result.task.name + "-write",
         plot_bars(summary, "decode_tokens_per_s", 1, "Tokens written a second", ours_));
    plot(result.task.name + "-bytes",
         plot_bars(summary, "bytes_peak", 1.0 / (1 << 20), "Most MiB of KV cache at once", ours_));
    page("</div>\n");
    Table table = {{"policy", "budget", "prefill_tokens_per_s", "decode_tokens_per_s",
                    "evict_share", "bytes_peak"}};
    for (const Json& row : summary) {
      std::vector<std::string> cells = {row.at("policy").get<std::string>()};
      for (std::size_t i = 1; i < table[0].size(); ++i)
        cells.push_back(dump_json(row.at(table[0][i])));
      table.push_back(std::move(cells));
    }
    report_.tables.emplace_back(result.task.name + ".csv", csv(table));
  }

  void commands() {
    heading("How it was made", "This command makes all of it again; one that was ended goes on.");
    page("<p><code>" + escape_markup(study_.command) +
         "</code></p><details><summary>The evaluations "
         "that it ran</summary>");
    for (const RankResult& result : study_.results)
      page("<p><code>" + escape_markup(result.command) + "</code></p>");
    page("</details>\n");
  }

  const RankStudy& study_;
  std::string ours_;
  std::vector<Panel> panels_;
  std::vector<Standing> standings_;
  RankReport report_;
};

}  // namespace

RankReport make_rank_report(const RankStudy& study) { return Writer(study).write(); }

}  // namespace coppice
