"""From measurements to medians, a table, goals and a picture."""

import statistics

from cases import GOALS, LLAMA, OURS

KEYS = {"prefill_tokens_per_s": "prefill", "decode_tokens_per_s": "decode", "first_token_s": "first token"}


class Medians:
    """Of rows {"case", "engine", measured keys}: the median of each key. A KeyError says that none was measured."""

    def __init__(self, rows):
        values = {}
        for row in rows:
            for key, value in row.items():
                if isinstance(value, (int, float)) and not isinstance(value, bool):
                    values.setdefault((row["case"], row["engine"], key), []).append(value)
        self.values = {key: statistics.median(found) for key, found in values.items()}

    def value(self, case, engine, key):
        return self.values[case, engine, key]

    def engines(self, case, key):
        return [engine for name, engine, known in self.values if name == case and known == key]

    def best(self, case, key, engines):
        """The best engine of `engines` that was measured: highest rate, shortest time."""
        found = [engine for engine in engines if (case, engine, key) in self.values]
        if not found:
            raise KeyError(f"{key} of {', '.join(engines)} in case {case}")
        pick = min if key.endswith("_s") and not key.endswith("per_s") else max
        return pick(found, key=lambda engine: self.values[case, engine, key])

    def ratio(self, case, key, engines):
        """How many times as fast ours is as the best of `engines`."""
        ours, theirs = self.value(case, OURS, key), self.value(case, self.best(case, key, engines), key)
        return ours / theirs if key.endswith("per_s") else theirs / ours


def table(medians, cases):
    """Lines: a case's title, then a row per engine; ratios are ours over that engine."""
    lines = []
    for case in cases:
        keys = [key for key in KEYS if medians.engines(case.name, key)]
        if not keys:
            continue
        lines.append(case.what + (f" ({case.sequences} together)" if case.sequences > 1 else ""))
        for engine in medians.engines(case.name, keys[-1]):
            parts = []
            for key in keys:
                value = medians.value(case.name, engine, key)
                unit = "s" if key == "first_token_s" else "t/s"
                part = f"{KEYS[key]} {value:9.3f} {unit}" if unit == "s" else f"{KEYS[key]} {value:9.1f} {unit}"
                if engine != OURS and (case.name, OURS, key) in medians.values:
                    part += f"  x {medians.ratio(case.name, key, [engine]):6.2f}"
                else:
                    part += " " * 10
                imported = medians.values.get((case.name, engine, "first_token_after_imports_s"))
                if key == "first_token_s" and imported is not None:
                    part += f"   ({imported:.3f} s after its imports)"
                parts.append(part)
            lines.append(f"  {engine:20}" + "   ".join(parts).rstrip())
    return lines


def judged(medians, goals=None):
    """[(goal, value or None where something was not measured)]."""
    result = []
    for goal in GOALS if goals is None else goals:
        try:
            result.append((goal, goal.value(medians)))
        except KeyError:
            result.append((goal, None))
    return result


def goal_lines(medians, goals=None):
    lines = [f"{'goal':58}{'bound':>9}{'got':>9}"]
    for goal, value in judged(medians, goals):
        if value is not None:
            sign = "<=" if goal.at_most else ">="
            verdict = "" if goal.reached(value) else "   MISSED"
            lines.append(f"{goal.what:58}{sign:>3}{goal.bound:6.2f}{value:9.2f}{verdict}")
    return lines


def draw(medians, cases, title, paths):
    """Bars per engine, a panel per case and key."""
    import matplotlib  # pylint: disable=import-outside-toplevel

    matplotlib.use("Agg")
    from matplotlib import pyplot  # pylint: disable=import-outside-toplevel

    panels = [(case, key) for case in cases for key in KEYS
              if len(medians.engines(case.name, key)) > 1 and OURS in medians.engines(case.name, key)]
    if not panels:
        return
    rows = (len(panels) + 2) // 3
    figure, axes = pyplot.subplots(rows, 3, figsize=(15, 2.6 * rows), squeeze=False)
    for axis in axes.flat[len(panels):]:
        axis.axis("off")
    for axis, (case, key) in zip(axes.flat, panels):
        engines = medians.engines(case.name, key)[::-1]
        values = [medians.value(case.name, engine, key) for engine in engines]
        bars = axis.barh(engines, values, color=["#2a7f3f" if engine == OURS else
                                                 "#4878a8" if engine in LLAMA else "#9aa5b1" for engine in engines])
        axis.bar_label(bars, fmt="%.2f" if key == "first_token_s" else "%.0f", padding=3, fontsize=8)
        axis.margins(x=0.15)
        unit = "seconds, less is better" if key == "first_token_s" else "tokens/s"
        axis.set_title(f"{KEYS[key]}: {case.what}\n{unit}", fontsize=8)
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=10)
    figure.tight_layout()
    for path in paths:
        figure.savefig(path, dpi=120)
    pyplot.close(figure)
