"""A server process, a plain HTTP client and what tests of them share: no third-party packages."""

import http.client
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import tiny_gguf

COPPICE = os.environ["COPPICE_BINARY"]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TEXT = "the quick brown fox jumps over the lazy dog, then the hen and the other heron. "


def add_oracle_packages():
    """Lets packages of scripts/setup oracle be imported."""
    cache = os.environ.get("COPPICE_CACHE") or os.path.join(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "coppice")
    sys.path.append(os.path.join(cache, "oracle/lib/python{}.{}/site-packages".format(*sys.version_info)))


def chat(text, **more):
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 12, **more}


def complete(prompt, **more):
    return {"prompt": prompt, "temperature": 0, "max_tokens": 12, **more}


class Server:
    """`coppice serve` on a free port, with its messages in a file."""

    def __init__(self, model, *flags):
        self.log = tempfile.TemporaryFile(mode="w+")
        self.process = subprocess.Popen(
            [COPPICE, "serve", "--model", str(model), "--port", "0", "--json", *map(str, flags)],
            stdout=subprocess.PIPE, stderr=self.log, text=True)
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"the server did not start: {self.messages()}")
        self.ready = json.loads(line)
        self.url = self.ready["url"]
        self.port = int(self.url.rsplit(":", 1)[1])

    def messages(self):
        self.log.seek(0)
        return self.log.read()

    def stop(self, how=signal.SIGTERM, timeout=60):
        """The exit code."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        code = self.process.wait(timeout)
        self.process.stdout.close()
        if code != 0:
            print(self.messages(), file=sys.stderr)
        return code

    def connect(self, timeout=120):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def send(self, method, path, body=None, headers=None):
        """(status, headers, bytes). `body` is bytes, or an object that becomes JSON."""
        connection = self.connect()
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **(headers or {})} if method == "POST" else headers or {}
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        data = response.read()
        connection.close()
        return response.status, dict(response.getheaders()), data

    def post(self, path, body, headers=None):
        status, _, data = self.send("POST", path, body, headers)
        return status, json.loads(data)

    def answer(self, path, body):
        status, result = self.post(path, body)
        if status != 200:
            raise AssertionError(f"{status}: {result}")
        return result

    def stream(self, path, body):
        """The events of a stream, [DONE] checked and left out."""
        status, headers, data = self.send("POST", path, {**body, "stream": True})
        if status != 200:
            raise AssertionError(f"{status}: {data}")
        assert headers["Content-Type"] == "text/event-stream", headers
        events = [line[6:] for line in data.decode().split("\n\n") if line]
        assert events[-1] == "[DONE]", events[-1]
        return [json.loads(event) for event in events[:-1]]

    def metrics(self):
        status, _, data = self.send("GET", "/metrics")
        assert status == 200, status
        return {line.split()[0]: float(line.split()[1]) for line in data.decode().splitlines() if line[0] != "#"}

    def wait_until(self, what, seconds=10):
        """Polls the metrics until `what(metrics)` holds."""
        until = time.time() + seconds
        while time.time() < until:
            if what(self.metrics()):
                return True
            time.sleep(0.002)
        return False

    def resident_bytes(self):
        for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no VmRSS")


class MadeModelTest(unittest.TestCase):
    """One server on a made model for all tests of a class."""

    make, name, flags = staticmethod(tiny_gguf.write), "tiny", ()

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.model = str(pathlib.Path(cls.folder.name) / f"{cls.name}.gguf")
        cls.make(cls.model)
        cls.server = Server(cls.model, *cls.flags)

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        cls.folder.cleanup()
        assert code == 0, cls.server.messages()
