#!/usr/bin/env python3
"""Requests of growing length, many at once: cache and process seen from outside, beside the bound and `coppice plan`."""

import json
import subprocess

import serving


def planned(args, model):
    command = [args.coppice, "plan", "--json", "--model", model, "--kv-budget", args.budget, "--kv-pool", args.pool,
               "--max-running", args.at_once]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["bytes"]["total"]


def main():
    parser = serving.parser(__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=50)
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--shortest", type=int, default=20)
    parser.add_argument("--longest", type=int, default=4000)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--budget", default="512")
    parser.add_argument("--pool", default="64MiB")
    args = parser.parse_args()
    model, folder = serving.use(args)
    import serve_load  # pylint: disable=import-outside-toplevel
    from serve_client import Server  # pylint: disable=import-outside-toplevel
    server = Server(model, "--kv-budget", args.budget, "--kv-pool", args.pool, "--max-running", args.at_once)
    start, resident = server.metrics(), server.status_bytes("VmRSS")
    watch, answers = serve_load.run_growing(
        server, serve_load.growing_prompts(server, args.requests, args.shortest, args.longest), args.at_once, args.new_tokens)
    settled = serve_load.settled(server)
    end = server.metrics()
    mib = serve_load.MIB
    free = start["coppice_kv_blocks_free"]
    snapshots = end["coppice_snapshot_bytes"] * free / end["coppice_kv_bytes_bound"]
    print(json.dumps({
        "requests": len(answers), "readings": watch.readings, "readings_above_bound": len(watch.passed),
        "kv_mib": {"bound": end["coppice_kv_bytes_bound"] / mib, "peak": end["coppice_kv_bytes_peak"] / mib},
        "resident_mib": {"start": resident / mib, "peak": watch.resident_peak / mib, "end": server.status_bytes("VmRSS") / mib,
                         "planned": planned(args, model) / mib},
        "blocks": {"free_at_start": free, "free_at_end": end["coppice_kv_blocks_free"], "snapshots": round(snapshots)}}, indent=1))
    code = server.stop()
    if folder:
        folder.cleanup()
    raise SystemExit(0 if settled and code == 0 and not watch.passed else 1)


if __name__ == "__main__":
    main()
