#!/usr/bin/env python3
"""What becomes of measurements of training and of the defaults' ablation. Measures nothing, needs no package."""

import argparse
import math
import pathlib
import sys
import tempfile
import unittest

import defaults
import train_compare
from cases import OURS
from report import Medians, judged
from train_compare import GOALS, RECOMPUTING, RIVAL, TOLERANCE, check_lines, compare_steps, rows_of, table

GIB = 2**30


def step(seconds, student=0.0):
    return {"seconds": seconds, "student_seconds": student}


class TrainCompareTest(unittest.TestCase):
    def setUp(self):
        self.rows = (rows_of("2048", OURS, 2048, [step(99), step(8)], GIB)
                     + rows_of("2048", RIVAL, 2048, [step(99), step(16, 4)], 4 * GIB)
                     + rows_of("4096", OURS, 4096, [step(99), step(16)], 2 * GIB)
                     + rows_of("4096", RECOMPUTING, 4096, [step(99), step(60, 12)], 10 * GIB))

    def test_the_first_step_is_not_timed(self):
        self.assertEqual([row["step_s"] for row in self.rows], [8, 16, 16, 60])

    def test_goals_judge_a_recomputing_rival_without_its_second_pass(self):
        values = [value for _, value in judged(Medians(self.rows), GOALS)]
        self.assertEqual(values, [2.0, 48 / 16, 0.2])

    def test_a_goal_that_was_not_measured_has_no_value(self):
        values = [value for _, value in judged(Medians(self.rows[:2]), GOALS)]
        self.assertEqual(values, [2.0, None, None])

    def test_the_table_has_a_line_for_each(self):
        lines = table(Medians(self.rows))
        self.assertEqual(len(lines), 6)  # a head, four rows, the recomputing one twice
        self.assertIn("3.75", lines[4])
        self.assertIn("3.00", lines[5])

    def test_losses_that_differ_are_marked(self):
        ours = dict.fromkeys(train_compare.CHECKED, 1.0)
        rows = compare_steps([ours], [ours | {"kl": 1.0 + 2 * TOLERANCE}])
        marked = [line for line in check_lines(rows) if "DIFFERS" in line]
        self.assertEqual(len(marked), 1)
        self.assertIn("kl", marked[0])


class DefaultsTest(unittest.TestCase):
    def test_one_setting_at_a_time(self):
        first, *others = defaults.settings(fast=False)
        self.assertEqual(first, (None, None, defaults.DEFAULTS))
        for name, value, flags in others:
            self.assertEqual({key for key in flags if flags[key] != defaults.DEFAULTS[key]}, {name})
            self.assertEqual(flags[name], value)
        self.assertEqual(len(defaults.settings(fast=True)), len(others))

    def test_a_summary_is_over_the_full_cache_and_over_the_defaults(self):
        ratio, change, half = defaults.summary([1.1, 2.2], [1.0, 2.0], [1.1, 2.2])
        self.assertAlmostEqual(ratio, math.exp(0.15))
        self.assertEqual((change, half), (0.0, 0.0))
        self.assertGreater(defaults.summary([1.1, 2.4], [1.0, 2.0], [1.1, 2.2])[2], 0.0)

    def test_the_table_is_markdown(self):
        lines = defaults.table([(None, None, {64: (1.02, 0, 0)}), ("kv-sinks", 0, {64: (1.05, 0.03, 0.01)})], [64])
        self.assertEqual(len(lines), 4)
        self.assertEqual(lines[3], "| sinks | 0 | 1.0500 (+3.00 ± 1.00 %) |")

    def test_what_was_measured_is_not_measured_again(self):
        with tempfile.TemporaryDirectory() as folder:
            gate, out = pathlib.Path(folder) / "gate", pathlib.Path(folder) / "out.jsonl"
            gate.write_bytes(b"gate")
            args = argparse.Namespace(gate=str(gate), context=8, out=str(out))
            runs = defaults.Runs(args)
            runs.measure = lambda *_: 2.5
            self.assertEqual(runs.nll("a", "text", "dbtrimkv", 64, {"chunk": 1}), 2.5)
            out.write_text(out.read_text(encoding="utf-8") + '{"gate": "cut o', encoding="utf-8")
            again = defaults.Runs(args)
            again.measure = lambda *_: self.fail("measured again")
            self.assertEqual(again.nll("a", "text", "dbtrimkv", 64, {"chunk": 1}), 2.5)
            gate.write_bytes(b"another")
            other = defaults.Runs(args)
            other.measure = lambda *_: 3.5
            self.assertEqual(other.nll("a", "text", "dbtrimkv", 64, {"chunk": 1}), 3.5)
            lines = out.read_text(encoding="utf-8").splitlines()
            self.assertEqual([line.endswith("}") for line in lines], [True, False, True])


if __name__ == "__main__":
    sys.exit(unittest.main())
