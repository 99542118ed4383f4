#!/usr/bin/env python3
"""Passages, cleaning, generated kinds and the comparison with held-out text."""

import pathlib
import random
import re
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools" / "data"))
import clean  # noqa: E402
import facts  # noqa: E402
import maths  # noqa: E402
import mix  # noqa: E402
import overlap  # noqa: E402
import passages  # noqa: E402
import recall  # noqa: E402
import repeats  # noqa: E402
import sources  # noqa: E402
import talks  # noqa: E402

WORDS = "river stone window garden letter morning harbour winter silver captain market evening".split()


def prose(seed, sentences, paragraph=8):
    rng = random.Random(seed)
    text = ""
    for i in range(sentences):
        words = [f"{rng.choice(WORDS)}{rng.randrange(100)}" for _ in range(rng.randint(6, 18))]
        text += " ".join(words).capitalize() + ("." if i % paragraph else ".\n\n") + " "
    return text.replace("\n\n ", "\n\n").strip()


def pool(seed=1, documents=3, sentences=400):
    return passages.Pool([prose(f"{seed}{i}", sentences) for i in range(documents)])


def sample(make, count=300):
    return [make(passages.seeded("test", i)) for i in range(count)]


class PassagesTest(unittest.TestCase):
    def test_units_join_to_the_text(self):
        for text in (prose(1, 50), "a" * 9000, "x\n\ny", "", "One. Two! \u201cThree?\u201d Four.", "l\n" * 4000):
            units = passages.units_of(text)
            self.assertEqual("".join(units), text)
            self.assertLessEqual(max(map(len, units), default=0), 2 * passages.LONGEST_UNIT)

    def test_sentences(self):
        self.assertEqual(
            passages.sentences('He said so. "Yes." Then e.g. this? No'),
            ["He said so. ", '"Yes." ', "Then e.g. this? ", "No"],
        )

    def test_cut_keeps_all_words_in_order(self):
        text = prose(2, 300)
        cut = passages.cut(passages.units_of(text), lambda: 2000)
        self.assertEqual("".join(cut).split(), text.split())
        self.assertTrue(all(len(p) <= 2000 + passages.LONGEST_UNIT for p in cut))

    def test_pool_draws_neighbours_of_about_the_length(self):
        source = prose(3, 500)
        drawn = passages.Pool([source])
        for i in range(50):
            text = drawn.text(passages.seeded(i), 4000)
            self.assertIn(text, source)
            self.assertGreater(len(text), 2000)
            self.assertLess(len(text), 4000 + passages.LONGEST_UNIT)

    def test_seeded_depends_on_its_parts_alone(self):
        self.assertEqual(passages.seeded(1, "a").random(), passages.seeded(1, "a").random())
        self.assertNotEqual(passages.seeded(1, "a").random(), passages.seeded(1, "b").random())
        self.assertAlmostEqual(passages.seeded("fixed").random(), random.Random("fixed").random())


class CleanTest(unittest.TestCase):
    def test_restructured(self):
        text = """.. _target:

=====
Title
=====

.. currentmodule:: django.db
.. versionadded:: 3.2
   :maxdepth: 2

See :class:`~django.db.Model` and :doc:`the guide </topics/x>`, `a link <http://x>`_ or `other`_::

    code = ``1``

.. toctree::
   :maxdepth: 2

   one
   two

.. note::

    Keep this.

.. code-block:: python

    x = 1

It\\'s \\*args.
"""
        got = clean.restructured(text)
        for gone in ("toctree", "maxdepth", "one\n", ":class:", "</topics", "http", "target", "currentmodule", "`_"):
            self.assertNotIn(gone, got)
        for kept in (
            "Title\n=====",
            "django.db.Model and the guide, a link or other:",
            "    Keep this.",
            "    x = 1",
            "It's *args.",
        ):
            self.assertIn(kept, got)

    def test_tidy(self):
        self.assertEqual(clean.tidy("a\x00b \r\nc\n\n\n\nd\u0065\u0301\n\n"), "ab\nc\n\nd\u00e9\n")

    def test_joined_lines(self):
        self.assertEqual(clean.joined_lines("a\n b\n\n\n  c\nd"), "a b\n\nc d")


class FactsTest(unittest.TestCase):
    def test_statement_holds_what_the_question_asks(self):
        for kind, _ in facts.KINDS:
            for fact in sample(lambda rng: kind(rng, set())):
                self.assertIn(fact.short, fact.statement, kind)
                self.assertIn(fact.short, fact.full, kind)
                self.assertTrue(fact.question.endswith("?") or "key" in fact.question)

    def test_facts_of_one_document_do_not_contradict(self):
        for chosen in sample(lambda rng: facts.draw(rng, 8)):
            answers = {}
            for fact in chosen:
                self.assertEqual(answers.setdefault(fact.question, fact.short), fact.short)

    def test_many_of_a_kind_run_out_of_words_but_not_of_names(self):
        taken, rng = set(), random.Random(1)
        self.assertEqual(len({facts.fresh(rng, facts.PETS, taken) for _ in range(100)}), 100)


class GeneratedTest(unittest.TestCase):
    def setUp(self):
        self.pool = pool()

    def check_turns(self, messages):
        talk = [m["role"] for m in messages if m["role"] != "system"]
        self.assertEqual(talk, ["user", "assistant"] * (len(talk) // 2))
        self.assertTrue(all(m["content"].strip() for m in messages))

    def test_recall_answers_stand_in_the_text(self):
        depths, forms = [], set()
        for i in range(200):
            messages, text = recall.document(passages.seeded("recall", i), self.pool, 6000)
            forms.add(text is None)
            if text is not None:
                continue
            self.check_turns(messages)
            told = " ".join(m["content"] for m in messages if m["role"] == "user")
            answer = messages[-1]["content"]
            keys = re.findall(r"[\w.:'-]+", answer)[-1].rstrip(".")
            self.assertIn(keys, told, answer)
            depths.append(told.find(keys) / len(told))
        self.assertEqual(forms, {True, False})
        self.assertLess(min(depths), 0.15)
        self.assertGreater(max(depths), 0.8)

    def test_recall_plants_each_fact_once_between_sentences(self):
        units = passages.sentences(prose(5, 40))
        for i in range(100):
            rng = passages.seeded("plant", i)
            chosen = facts.draw(rng, 3)
            text = recall.planted(rng, units, chosen)
            rest = text
            for fact in chosen:
                self.assertEqual(text.count(fact.statement.strip()), 1)
                rest = rest.replace(fact.statement.strip(), " ")
            self.assertEqual(rest.split(), "".join(units).split())

    def test_repeats_hold_the_passage_twice(self):
        forms = set()
        for i in range(100):
            messages, text = repeats.document(passages.seeded("repeat", i), self.pool, 15000)
            forms.add(text is None)
            if messages:
                self.check_turns(messages)
                passage, whole = messages[-1]["content"], "".join(m["content"] for m in messages)
                self.assertLess(len(whole), 15000 + 4 * passages.LONGEST_UNIT)
            else:
                whole, passage = text, text.rstrip("\n")[-400:]
            self.assertEqual(whole.count(passage), 2)
            self.assertLessEqual(len(passage), 6000 + passages.LONGEST_UNIT)
        self.assertEqual(forms, {True, False})

    def test_maths_is_right(self):
        for kind in maths.KINDS:
            for question, answer in sample(kind):
                for left, right in re.findall(
                    r"(?<!\d)(?<![\w*/+-] )(\(?-?\d+ [*+-] -?\d+(?: [*+-] -?\d+)*) = (-?\d+)", answer
                ):
                    self.assertEqual(eval(left), int(right), f"{question}\n{answer}")
                for a, b, q in re.findall(r"(-?\d+) / (\d+) = (-?\d+)\b(?! remainder)", answer):
                    self.assertEqual(int(a), int(b) * int(q), f"{question}\n{answer}")

    def test_talks_ask_late_for_what_was_told_early(self):
        turns = '["Hello there", "Hi you", "How are you", "I am well"]'
        chats = [sources.Document(f"dialogue/{i}", "dialogue", "train", turns) for i in range(5)]
        for i in range(100):
            messages = talks.early_facts(passages.seeded("talk", i), chats, self.pool, 5000)
            self.check_turns(messages)
            self.assertGreater(sum(len(m["content"]) for m in messages), 5000)
            answer = messages[-1]["content"].rstrip(".").split()[-1]
            told = [j for j, m in enumerate(messages) if m["role"] == "user" and answer in m["content"]]
            self.assertTrue(told and told[0] < len(messages) - 2, answer)


class OverlapTest(unittest.TestCase):
    def test_finds_equal_runs_of_13_words_whatever_the_case(self):
        text = prose(7, 30)
        words = text.split()
        held_out = overlap.HeldOut([text])
        self.assertEqual(held_out.count(text), len(words) - 12)
        self.assertEqual(held_out.count("New words. " + " ".join(words[20:33]).upper() + ", others"), 1)
        self.assertEqual(held_out.count(" ".join(words[20:32])), 0)

    def test_leaves_out_the_units_that_are_touched(self):
        shared = prose(8, 4)
        held_out = overlap.HeldOut([prose(9, 20) + " " + shared])
        units = [prose(10, 6) + "\n\n", shared + "\n\n", prose(11, 6)]
        kept, lost = held_out.without_shared(units)
        self.assertEqual(kept, [units[0], units[2]])
        self.assertEqual(lost, len(units[1]))
        self.assertEqual(held_out.without_shared([units[0]]), ([units[0]], 0))

    def test_a_run_across_units_takes_both(self):
        words = " ".join(WORDS) + " one two three"
        held_out = overlap.HeldOut([words])
        first, second = words[:40], words[40:]
        self.assertEqual(held_out.without_shared([first, second])[0], [])


class MixTest(unittest.TestCase):
    def test_shares_are_those_wanted(self):
        self.assertAlmostEqual(sum(mix.SHARES.values()), 1)
        self.assertEqual((mix.SHARES["long"], mix.SHARES["repeat"]), (0.60, 0.25))

    def test_every_source_has_a_scale(self):
        for kind in (*sources.PACKAGES, *mix.HELD_OUT_GENERATED):
            self.assertGreater(mix.PER_TOKEN[kind], 1)

    def test_up_to_takes_no_more_than_wanted(self):
        rows = [mix.row(str(i), "x", text="a" * 100) for i in range(50)]
        chosen = mix.up_to(rows, 1000, 1)
        self.assertEqual(len(chosen), 10)
        self.assertEqual(chosen, sorted(chosen, key=lambda r: int(r["id"])))
        self.assertNotEqual(chosen, mix.up_to(rows, 1000, 2))

    def test_dialogues_keep_their_turns(self):
        chats = [sources.Document(f"dialogue/{i}", "dialogue", "train", '["a b", "c", "d", "e"]') for i in range(200)]
        rows = mix.dialogue_rows(chats, 1, 30)
        self.assertTrue(any("text" in r for r in rows) and any("messages" in r for r in rows))
        self.assertEqual(len({r["id"] for r in rows}), len(rows))


if __name__ == "__main__":
    unittest.main()
