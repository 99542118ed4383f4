"""How an engine is asked for one measurement: `coppice` in a process per run, rivals in processes that stay."""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

BENCH = pathlib.Path(__file__).resolve().parent


class Failed(Exception):
    """An engine could not be measured; says why."""


class Coppice:
    """Ours. Every run is a process of its own, the first token timed from its start."""

    def __init__(self, program, model, threads, text):
        self.program, self.model, self.threads, self.text = program, model, threads, text

    def command(self, name, case, *more):
        flags = case.ours | {"--model": self.model, "--threads": self.threads}
        return [self.program, name, *map(str, more), *(str(part) for pair in flags.items() for part in pair)]

    def speed(self, case):
        command = self.command("bench", case, "--json", "--text", self.text, "--repeats", 1, "--prompt-tokens",
                               case.prompt, "--new-tokens", case.new, "--sequences", case.sequences)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Failed(f"{' '.join(command)}: {done.stderr.strip()}")
        result = json.loads(done.stdout)["results"][0]
        return result["timing"] | result["memory"]

    def first_token(self, case, text):
        command = self.command("run", case, "--raw", "--ignore-eos", "--max-tokens", 8, text)
        start = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            first = process.stdout.read(1)
            seconds = time.perf_counter() - start
            _, errors = process.communicate()
        if process.returncode != 0 or not first:
            raise Failed(f"{' '.join(command)}: {errors.decode().strip()}")
        return {"first_token_s": seconds}

    def close(self):
        pass


class Rival:
    """A program of rivals/ that answers jobs; it is started when first asked and ended by close()."""

    def __init__(self, script, settings, ids, options):
        self.script, self.settings, self.ids, self.options = script, settings, ids, options
        self.process = None
        self.errors = tempfile.TemporaryFile()  # pylint: disable=consider-using-with

    def start(self):
        self.errors.seek(0)
        self.errors.truncate()
        return subprocess.Popen([sys.executable, str(BENCH / "rivals" / self.script), json.dumps(self.settings)],
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True)

    def last_words(self):
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace").strip()[-2000:] or "it ended without a word"

    def ask(self, process, job):
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
        line = process.stdout.readline()
        result = json.loads(line) if line else {"error": self.last_words()}
        if "error" in result:
            raise Failed(result["error"])
        return result

    def options_of(self, case):
        return self.options | case.rival_options.get(self.script, {})

    def speed(self, case):
        self.process = self.process or self.start()
        job = {"job": "speed", "ids": self.ids[:case.prompt], "new": case.new, "options": self.options_of(case)}
        return self.ask(self.process, job)

    def first_token(self, case, text):
        start = time.perf_counter()
        process = self.start()
        try:
            result = self.ask(process, {"job": "first_token", "text": text, "options": self.options_of(case)})
            return {"first_token_s": time.perf_counter() - start, "first_token_after_imports_s": result["first_token_s"]}
        finally:
            end(process)

    def close(self):
        if self.process:
            end(self.process)
            self.process = None


def end(process):
    """Ends a process that was started here."""
    with contextlib.suppress(OSError):
        process.stdin.close()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextlib.contextmanager
def busy_core(wanted=True):
    """While it lasts, another process computes on the last core that this one may use."""
    if not wanted:
        yield
        return
    core = max(os.sched_getaffinity(0))
    spin = f"import os\nos.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", spin]) as spinner:
        try:
            time.sleep(0.2)
            yield
        finally:
            spinner.kill()
