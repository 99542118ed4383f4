#!/usr/bin/env python3
"""`coppice serve` beside llama-cpp-python's server: one model file, the same threads and requests, in turn.

Eight clients at once stream greedy answers. `prompts`: prompts of 1,000 tokens and answers of 256, full caches on both
sides. `chats`: chats with 6,000 tokens of history; each client has three turns with answers of 64; coppice keeps 512
entries per head, the other server everything and its prompt cache in memory. Both are given the same text; the work
is the tokens of prompts, history counted in every turn, and of answers.

llama-cpp-python's server answers one request after another; it is told not to break off answers for new requests.
`scripts/setup oracle` installs it. Repeats are interleaved; medians and their ratios are printed."""

import http.client
import json
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import serving

CLIENTS = 8
TEXT = (serving.ROOT / "examples/persuasion.txt").read_text(encoding="utf-8")
NO_END = {"0": -100, "2": -100}  # SmolLM2's end tokens: answers have the length that was asked for


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Started:
    """A server process, ready to answer."""

    def __init__(self, command):
        self.port = free_port()
        self.log = tempfile.TemporaryFile()  # pylint: disable=consider-using-with
        self.process = subprocess.Popen([*map(str, command), "--port", str(self.port)], stdout=self.log, stderr=self.log)
        for _ in range(600):
            if self.process.poll() is not None:
                break
            try:
                if self.request("GET", "/v1/models")[0] == 200:
                    return
            except OSError:
                time.sleep(0.2)
        self.log.seek(0)
        sys.exit(f"the server did not start: {self.log.read().decode(errors='replace')[-2000:]}")

    def request(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:  # in the middle of a pass
            self.process.kill()
            self.process.wait()


def stream(port, path, body):
    """(text, moments): of a streamed greedy answer, seconds from its request to each piece of text."""
    begin = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1800)
    data = json.dumps({**body, "stream": True, "temperature": 0, "logit_bias": NO_END})
    connection.request("POST", path, data, {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise RuntimeError(response.read())
    text, moments = "", []
    for line in response:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        if "error" in event:
            raise RuntimeError(event)
        for choice in event["choices"]:
            piece = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
            if piece:
                text += piece
                moments.append(time.perf_counter() - begin)
    connection.close()
    return text, moments


def piece_of_text(client, share, characters):
    start = int(len(TEXT) * (client / CLIENTS + share)) % len(TEXT)
    return (TEXT + TEXT)[start:start + characters]


def prompts_client(port, client, args):
    body = {"prompt": piece_of_text(client, 0, args.characters), "max_tokens": args.new_tokens}
    return [stream(port, "/v1/completions", body)[1]]


def chats_client(port, client, args):
    messages, size = [], args.history_characters // 12
    for i in range(6):
        messages += [{"role": "user", "content": piece_of_text(client, i / 6, size)},
                     {"role": "assistant", "content": piece_of_text(client, i / 6 + 0.05, size)}]
    turns = []
    for question in ("Who is spoken of here?", "And what happens next?", "Say it in a few words."):
        messages.append({"role": "user", "content": question})
        text, moments = stream(port, "/v1/chat/completions", {"messages": messages, "max_tokens": args.turn_tokens})
        messages.append({"role": "assistant", "content": text})
        turns.append(moments)
    return turns


def measure(server, client, work, args, clients):
    """One round of clients, all at once. `work`: tokens of each."""
    begin = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        answers = [turn for turns in pool.map(lambda i: client(server.port, i, args), range(clients)) for turn in turns]
    seconds = time.perf_counter() - begin
    gaps = sorted(after - before for moments in answers for before, after in zip(moments, moments[1:]))
    waits = sorted(moments[0] for moments in answers)
    return {"clients": clients, "seconds": seconds, "tokens_per_s": sum(work[:clients]) / seconds, "gap_p50_ms": 1e3 * statistics.median(gaps),
            "gap_p99_ms": 1e3 * gaps[int(len(gaps) * 0.99)], "first_token_p50_s": statistics.median(waits),
            "first_token_max_s": waits[-1], "longest_gap_ms": 1e3 * gaps[-1], "pieces": sum(map(len, answers))}


def count(server, body):
    return json.loads(server.request("POST", "/tokenize", body)[1])["count"]


def work_of(server, case, args):
    """Tokens of each client, as coppice counts them (the vocabularies are the same)."""
    total = []
    for client in range(CLIENTS):
        if case == "prompts":
            total.append(count(server, {"prompt": piece_of_text(client, 0, args.characters)}) + args.new_tokens)
        else:
            size = args.history_characters // 12
            text = "".join(piece_of_text(client, i / 6 + more, size) for i in range(6) for more in (0, 0.05))
            history = count(server, {"prompt": text})
            total.append(sum(history + turn * (args.turn_tokens + 10) + args.turn_tokens for turn in range(3)))
    return total


def ours(args, case):
    flags = {"prompts": ["--kv-budget", "full", "--kv-pool", "640MiB"],
             "chats": ["--kv-budget", 512, "--kv-pool", "512MiB", "--kv-reuse", "200MiB"]}[case]
    return Started([args.coppice, "serve", "--model", args.model, "--threads", args.threads, "--max-running", CLIENTS, *flags])


def theirs(args, case):
    flags = ["--cache", "True"] if case == "chats" else []
    return Started([args.python, "-m", "llama_cpp.server", "--model", args.model, "--n_ctx", 8192, "--n_threads", args.threads,
                    "--n_threads_batch", args.threads, "--interrupt_requests", "False", "--flash_attn", "True",
                    "--host", "127.0.0.1", *flags])


def turns(args):
    """Seconds to the first token of each of 20 turns of one chat."""
    server = Started([args.coppice, "serve", "--model", args.model, "--threads", args.threads, "--kv-budget", 512])
    try:
        messages, seconds = [], []
        for turn in range(20):
            messages.append({"role": "user", "content": piece_of_text(0, turn / 20, 600)})
            text, moments = stream(server.port, "/v1/chat/completions", {"messages": messages, "max_tokens": 24})
            messages.append({"role": "assistant", "content": text})
            seconds.append(moments[0])
        return seconds
    finally:
        server.stop()


def main():
    parser = serving.parser(__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="interpreter that has llama_cpp.server")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3, help="of `prompts`")
    parser.add_argument("--chat-repeats", type=int, default=1)
    parser.add_argument("--rival-clients", type=int, default=CLIENTS, help="of the other server: it serves one at a time, so fewer "
                        "of them take less time at the same tokens per second")
    parser.add_argument("--only", nargs="*", default=["prompts", "chats", "turns"])
    parser.add_argument("--characters", type=int, default=4400, help="of a prompt: about 1,000 tokens")
    parser.add_argument("--history-characters", type=int, default=26400, help="about 6,000 tokens")
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--turn-tokens", type=int, default=64)
    parser.add_argument("--out", help="JSON file for all measurements")
    args = parser.parse_args()
    serving.use(args)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # servers are stopped on the way out
    rows = {}
    if "turns" in args.only:
        rows["turns"] = [turns(args) for _ in range(3)]
        for turn in (2, 20):
            print(f"turn {turn:2}: {statistics.median(run[turn - 1] for run in rows['turns']):.3f} s to the first token")
    for case, client, repeats in (("prompts", prompts_client, args.repeats), ("chats", chats_client, args.chat_repeats)):
        if case not in args.only:
            continue
        rows[case] = []
        for _ in range(repeats):
            for name, start in (("coppice", ours), ("llama-cpp-python", theirs)):
                server = start(args, case)
                try:
                    if name == "coppice":
                        work = work_of(server, case, args)
                    clients = args.rival_clients if name != "coppice" else CLIENTS
                    rows[case].append({"server": name, **measure(server, client, work, args, clients)})
                finally:
                    server.stop()
                print(case, json.dumps(rows[case][-1]), flush=True)
        medians = {name: {key: statistics.median(row[key] for row in rows[case] if row["server"] == name)
                          for key in rows[case][0] if key != "server"} for name in ("coppice", "llama-cpp-python")}
        for key, value in medians["coppice"].items():
            other = medians["llama-cpp-python"][key]
            print(f"{case:8} {key:20} {value:12.3f} {other:12.3f}   x {value / other:.2f}" if other else "")
    if args.out:
        pathlib.Path(args.out).write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
