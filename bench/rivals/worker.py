"""What the rival programs have in common: jobs come in as JSON lines on stdin, results go out as JSON lines.

A rival is a class with
    __init__(settings)        {"model": GGUF path, "threads": n, "folder": where it may keep what it converts}
    speed(job) -> dict        {"ids": tokens, "new": n, "options": {...}} -> prefill and decode, tokens/s
    first_token(job) -> dict  the same from a cold start: what is timed begins before the model is opened
A process stays between jobs, so that a model is loaded once; a job of first_token wants a process of its own.
"""

import json
import os
import sys


def serve(rival_class):
    """Answers jobs until stdin ends. What libraries print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    rival = rival_class(json.loads(sys.argv[1]))
    for line in sys.stdin:
        job = json.loads(line)
        try:
            result = getattr(rival, job["job"])(job)
        except Exception as error:  # pylint: disable=broad-exception-caught
            result = {"error": f"{type(error).__name__}: {error}"[:2000]}
        answers.write(json.dumps(result) + "\n")
        answers.flush()


def rates(prompt, prefill_seconds, new, decode_seconds):
    return {"prefill_tokens_per_s": prompt / prefill_seconds, "decode_tokens_per_s": new / decode_seconds}
