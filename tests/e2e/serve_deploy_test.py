#!/usr/bin/env python3
"""The server as it is run for others: logs that programs read, and replicas behind deploy/nginx-replicas.conf, where
nginx is installed. Needs no downloads."""

import http.client
import json
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import tiny_gguf  # noqa: E402
from serve_client import CHAT, COMPLETIONS, TEXT, Server, chat, complete  # noqa: E402
from serve_load import settled  # noqa: E402

DEPLOY = pathlib.Path(__file__).resolve().parent.parent.parent / "deploy"
FLAGS = ["--policy", "streaming", "--kv-budget", 48, "--chunk", 16, "--kv-pool", "4MiB"]
NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")


class MadeModel(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.model = f"{self.folder.name}/tiny.gguf"
        tiny_gguf.write(self.model)

    def tearDown(self):
        self.folder.cleanup()


class LogTest(MadeModel):
    def lines(self, environment):
        """(lines of the log, id of a request that was answered, id of one whose client left)."""
        server = Server(self.model, *FLAGS, environment={"COPPICE_LOG": "info", **environment})
        _, headers, _ = server.send("POST", CHAT, chat(TEXT))
        connection = server.connect()
        connection.request("POST", COMPLETIONS, json.dumps(complete(TEXT, max_tokens=400, ignore_eos=True, stream=True)),
                           {"Content-Type": "application/json"})
        response = connection.getresponse()
        left = response.getheader("X-Request-Id")
        response.close()
        connection.close()
        self.assertTrue(settled(server))
        self.assertEqual(server.stop(), 0)
        return server.messages().splitlines(), headers["X-Request-Id"], left

    def test_every_line_is_an_object_that_names_its_request(self):
        lines, answered, left = self.lines({"COPPICE_LOG_FORMAT": "json"})
        events = [json.loads(line) for line in lines]
        for event in events:
            self.assertLessEqual({"time", "level", "message"}, set(event))
            self.assertRegex(event["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
        (event,) = [event for event in events if event.get("request") == answered]
        self.assertEqual((event["message"], event["level"]), ("answered", "info"))
        self.assertEqual(event["usage"]["completion_tokens"], 12)
        self.assertGreater(event["seconds"], 0)
        (event,) = [event for event in events if event.get("request") == left]
        self.assertIn(event["message"], ("ended early", "answered"))  # it may have been too quick

    def test_text_stays_the_default_and_an_unknown_format_is_named(self):
        lines, answered, _ = self.lines({"COPPICE_LOG_FORMAT": "xml"})
        self.assertIn("xml", lines[0])
        self.assertTrue([line for line in lines if line.startswith("info: answered: {") and answered in line], lines)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@unittest.skipIf(NGINX is None, "nginx is not installed: apt install nginx-light")
class ReplicasTest(MadeModel):
    def setUp(self):
        super().setUp()
        self.replicas = [Server(self.model, *FLAGS, "--api-key", "k") for _ in range(2)]
        self.port = free_port()
        text = (DEPLOY / "nginx-replicas.conf").read_text(encoding="utf-8")
        ports = {"8080": self.port, "8081": self.replicas[0].port, "8082": self.replicas[1].port}
        text = re.sub(r"\b808[012]\b", lambda found: str(ports[found.group()]), text)
        at = self.folder.name
        temporary = "".join(f"{kind}_temp_path {at}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        pathlib.Path(at, "nginx.conf").write_text(
            f"user root;\npid {at}/pid;\nerror_log {at}/error.log;\nworker_processes 1;\nevents {{}}\n"
            f"http {{\naccess_log off;\n{temporary}{text}\n}}\n", encoding="utf-8")
        self.nginx = subprocess.Popen([NGINX, "-p", at, "-e", f"{at}/error.log", "-c", f"{at}/nginx.conf", "-g", "daemon off;"],
                                      stderr=subprocess.PIPE)
        for _ in range(200):
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                break
            except OSError:
                self.assertIsNone(self.nginx.poll(), self.nginx.stderr)
                time.sleep(0.05)

    def tearDown(self):
        self.nginx.send_signal(signal.SIGQUIT)
        self.nginx.wait(30)
        self.nginx.stderr.close()
        for replica in self.replicas:
            replica.stop(signal.SIGKILL)
        super().tearDown()

    def send(self, body, session):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", CHAT, json.dumps(body), {"Content-Type": "application/json", "Authorization": "Bearer k",
                                                            "X-Session-Id": session})
        response = connection.getresponse()
        data = response.read()
        connection.close()
        self.assertEqual(response.status, 200, data)
        return data

    def turn(self, chats, session):
        """Reused tokens of the chat's next turn."""
        messages = chats.setdefault(session, [])
        messages.append({"role": "user", "content": f"{session}: {TEXT}"})
        result = json.loads(self.send({"messages": messages, "temperature": 0, "max_tokens": 6}, session))
        messages.append(result["choices"][0]["message"])
        return result["usage"]["kv"]["reused"]

    def answered(self, replica):
        _, _, data = replica.send("GET", "/metrics", None, {"Authorization": "Bearer k"})
        return int(re.search(rb"^coppice_requests_finished_total (\d+)", data, re.MULTILINE).group(1))

    def test_a_conversation_stays_with_the_replica_that_holds_it(self):
        chats, sessions = {}, [f"s{i}" for i in range(8)]
        for session in sessions:
            self.turn(chats, session)
        self.assertGreater(min(map(self.answered, self.replicas)), 0)  # both have some
        for session in sessions:
            self.assertGreaterEqual(self.turn(chats, session), 80, session)  # less than a chunk is read again
        streamed = self.send({"messages": chats["s0"], "temperature": 0, "max_tokens": 6, "stream": True}, "s0")
        self.assertTrue(streamed.endswith(b"data: [DONE]\n\n"))
        self.replicas[0].stop(signal.SIGKILL)
        for session in sessions:
            self.turn(chats, session)  # the other one reads what it has not


if __name__ == "__main__":
    unittest.main()
