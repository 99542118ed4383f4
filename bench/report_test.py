#!/usr/bin/env python3
"""What becomes of measurements: medians, ratios, goals, the table. Measures nothing and needs no package."""

import unittest

from cases import GOALS, LLAMA, OURS, RIVALS, Case, Goal, qwen_cases, smollm2_cases
from report import Medians, goal_lines, judged, table


def row(case, engine, **measured):
    return {"case": case, "engine": engine, **measured}


ROWS = [
    *(row("512", OURS, decode_tokens_per_s=rate, prefill_tokens_per_s=900.0, limit_share=0.7)
      for rate in (300.0, 1.0, 280.0)),
    row("512", "llama.cpp", decode_tokens_per_s=100.0, prefill_tokens_per_s=300.0),
    row("512", "llama.cpp flash", decode_tokens_per_s=140.0, prefill_tokens_per_s=200.0),
    row("first token", OURS, first_token_s=0.5),
    row("first token", "llama.cpp", first_token_s=0.4),
    row("first token", "llama.cpp flash", first_token_s=0.6),
]


class ReportTest(unittest.TestCase):
    def setUp(self):
        self.medians = Medians(ROWS)

    def test_medians_are_per_case_engine_and_key(self):
        self.assertEqual(self.medians.value("512", OURS, "decode_tokens_per_s"), 280.0)
        self.assertEqual(self.medians.engines("512", "decode_tokens_per_s"), [OURS, *LLAMA])
        with self.assertRaises(KeyError):
            self.medians.value("512", "no such engine", "decode_tokens_per_s")

    def test_a_ratio_is_over_the_best_rival_and_above_one_is_faster(self):
        self.assertEqual(self.medians.ratio("512", "decode_tokens_per_s", LLAMA), 2.0)
        self.assertEqual(self.medians.ratio("512", "prefill_tokens_per_s", LLAMA), 3.0)
        self.assertAlmostEqual(self.medians.ratio("first token", "first_token_s", LLAMA), 0.8)
        with self.assertRaises(KeyError):
            self.medians.ratio("512", "decode_tokens_per_s", ["openvino genai"])

    def test_goals_are_judged_and_what_was_not_measured_is_left_out(self):
        found = {goal.what: (goal, value) for goal, value in judged(self.medians)}
        self.assertEqual(len(found), len(GOALS))
        goal, value = found["decode at context 512 / llama.cpp"]
        self.assertTrue(goal.reached(value))
        goal, value = found["time to first token, cold: llama.cpp / ours"]
        self.assertFalse(goal.reached(value))
        self.assertIsNone(found["8 sequences of 512: total decode / one sequence"][1])
        lines = goal_lines(self.medians)
        self.assertEqual(len(lines), 1 + 4)
        self.assertEqual([line.split()[0] for line in lines if "MISSED" in line], ["time"])
        self.assertFalse(Goal("", 0.05, None, at_most=True).reached(0.06))

    def test_the_table_has_a_row_per_engine(self):
        lines = table(self.medians, smollm2_cases(quick=True))
        self.assertEqual(len(lines), 2 * (1 + 3))
        self.assertIn("x   2.00", next(line for line in lines if "flash" in line))

    def test_cases_name_engines_that_exist_and_goals_cases_that_are_measured(self):
        cases = [*smollm2_cases(False), *qwen_cases()]
        for case in [*cases, *smollm2_cases(True)]:
            self.assertLessEqual({*case.rivals, *case.once}, set(RIVALS), case.name)
            self.assertLessEqual(set(case.rival_options), {script for script, _ in RIVALS.values()})
        self.assertEqual(len({case.name for case in cases}), len(cases))
        every = [row(case.name, engine, prefill_tokens_per_s=1.0, decode_tokens_per_s=1.0, first_token_s=1.0,
                     limit_share=1.0, evict_share=0.0)
                 for case in cases for engine in (OURS, *case.rivals)]
        self.assertNotIn(None, [value for _, value in judged(Medians(every))])

    def test_cases_do_not_share_flags(self):
        one, other = Case("a", "a", 1), Case("b", "b", 1)
        one.ours["--gate"] = "none"
        self.assertNotIn("--gate", other.ours)


if __name__ == "__main__":
    unittest.main()
