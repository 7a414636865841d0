"""What the live page, /metrics and traces take from a run: two workers with one thread each train with them and without, by turns.

    python3 docs/measure_page.py target/release/zbelastic [STEPS [ROUNDS]]

With them ten viewers read the page's stream, /metrics is read every five seconds, and a collector receives spans; all three are this
script, on the same processors. Processor time is that of `train` and its processes alone.
"""

import http.client
import http.server
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import urllib.request

VIEWERS = 10
SCRAPE_SECONDS = 5
WARM_UP = 5


SEEN = {"streamed bytes": 0, "scrapes": 0, "requests with spans": 0}


class Collector(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        SEEN["requests with spans"] += 1
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_):
        pass


def view(address, over):
    try:
        stream = urllib.request.urlopen(address + "events", timeout=30)
        while not over.is_set() and (piece := stream.read1(65536)):
            SEEN["streamed bytes"] += len(piece)
    except (OSError, http.client.HTTPException):
        pass  # The run ended.


def scrape(address, over):
    while not over.wait(SCRAPE_SECONDS):
        try:
            SEEN["scrapes"] += bool(urllib.request.urlopen(address + "metrics", timeout=5).read())
        except OSError:
            pass


def children_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def train(program, steps, collector):
    """Milliseconds of each step, and the processor time of the run; watched if there is a collector."""
    before, over = children_seconds(), threading.Event()
    with tempfile.TemporaryDirectory() as folder:
        out, env = os.path.join(folder, "run"), dict(os.environ)
        env = {name: value for name, value in env.items() if not name.startswith("OTEL_")}
        command = [program, "train", "--workers", "2", "--threads", "1", "--steps", str(steps), "--out", out]
        command += ["--set", "train.global_batch=32", "--set", "data.held_out=0", "--set", "checkpoint.every=0"]
        if collector:
            command += ["--ui", "127.0.0.1:0"]
            env["OTEL_EXPORTER_OTLP_ENDPOINT"] = collector
        run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
        for line in run.stdout:
            page = re.search(r"http://127\S+/", line)
            if collector and page:
                threads = [view] * VIEWERS + [scrape]
                for each in threads:
                    threading.Thread(target=each, args=(page.group(0), over), daemon=True).start()
        assert run.wait() == 0, command
        over.set()
        rows = [json.loads(line) for line in open(os.path.join(out, "metrics.jsonl"))]
    return [row["ms"] for row in rows if row["event"] == "step"][WARM_UP:], children_seconds() - before


def main():
    program = sys.argv[1]
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 120
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 8
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    collector = f"http://127.0.0.1:{server.server_port}"
    alone, watched = [], []
    for at in range(rounds):
        for is_watched in (at % 2 == 0, at % 2 == 1):
            times = train(program, steps, collector if is_watched else None)
            (watched if is_watched else alone).append(times)
    assert all(SEEN.values()), f"nothing was watched: {SEEN}"
    seconds = [sum(used for _, used in side) for side in (alone, watched)]
    steps_ms = [statistics.median(ms for times, _ in side for ms in times) for side in (alone, watched)]
    best = [min(statistics.median(times) for times, _ in side) for side in (alone, watched)]
    print(f"processor time of train, watched over alone  {seconds[1] / seconds[0]:.4f}")
    print(f"time of a step, {steps_ms[0]:.1f} ms alone: medians     {steps_ms[1] / steps_ms[0]:.4f}")
    print(f"                           best rounds       {best[1] / best[0]:.4f}")


if __name__ == "__main__":
    main()
