// The plots of a ranking: curves of quality, maps of what is kept, bars of what it costs.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "coppice/core/json.h"
#include "coppice/study/panel.h"
#include "coppice/study/svg.h"

namespace coppice {

enum class PlotAgainst { kBudget, kBytes };

// colours: of the policies that stand out; the rest are grey and come first. Bytes: points that
// have none are left out.
Svg plot_panel(const Panel& panel, PlotAgainst against,
               const std::map<std::string, std::string>& colours);

// Summaries of KeptTask, as in kept_task.h.
Svg plot_kept_map(const Json& summary);    // a strip a policy: layers across, heads down
Svg plot_kind_map(const Json& summary);    // policies down, kinds across
Svg plot_head_kinds(const Json& setting);  // one policy: heads across, kinds down
// log2(share of the kept / share of the seen) of a kind; rows: which heads, all if negative.
double kind_lean(const Json& setting, std::size_t kind, int64_t row = -1);

// Summary of CostTask; field: one of its numbers. scale: multiplies it.
Svg plot_bars(const Json& summary, const std::string& field, double scale, const std::string& title,
              const std::string& ours);

}  // namespace coppice
