#!/usr/bin/env python3
"""Thousands of short requests with shared beginnings and random departures; each answer compared with its solo run."""

import json
import time

import serving


def main():
    parser = serving.parser(__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=10000)
    parser.add_argument("--bodies", type=int, default=240, help="different ones among them")
    parser.add_argument("--at-once", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--budget", default="48")
    parser.add_argument("--chunk", default="16")
    parser.add_argument("--pool", default="8MiB")
    parser.add_argument("--policy", default="streaming")
    args = parser.parse_args()
    model, folder = serving.use(args)
    from serve_client import Server  # pylint: disable=import-outside-toplevel
    from serve_soak import Soak, alone, make_bodies, state  # pylint: disable=import-outside-toplevel
    flags = ["--policy", args.policy, "--kv-budget", args.budget, "--chunk", args.chunk, "--kv-pool", args.pool]
    bodies = make_bodies(args.bodies, args.seed)
    quiet = Server(model, *flags, "--kv-reuse", "off")
    answers = alone(quiet, bodies)
    quiet.stop()
    server = Server(model, *flags)
    soak = Soak(server, bodies, answers, args.seed)
    begin = time.monotonic()
    states = [state(server)]
    for part in range(10):
        soak.run(args.requests * part // 10, args.requests * (part + 1) // 10, args.at_once)
        states.append(state(server))
    seconds = time.monotonic() - begin
    metrics = {name: value for name, value in server.metrics().items() if "total" in name}
    code = server.stop()
    print(json.dumps({"requests": args.requests, "seconds": round(seconds, 1), "counts": soak.counts,
                      "reused_tokens": soak.reused, "faults": len(soak.faults), "first_faults": soak.faults[:5],
                      "exit_code": code, "states": states, "metrics": metrics}, indent=1))
    if folder:
        folder.cleanup()
    raise SystemExit(1 if soak.faults or code else 0)


if __name__ == "__main__":
    main()
