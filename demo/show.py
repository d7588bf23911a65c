#!/usr/bin/env python3
"""Sends one ticket to the demo's base model and all its adapters at the same time and shows the streams side by side.

Usage: demo/show.py --server build/demo/src/apps/medley [--once]   starts the server; --once stops it afterwards
       demo/show.py --url http://127.0.0.1:8000                    a server that runs already

Needs nothing but Python's standard library. Ends with code 0 only if every model has answered.
"""
import argparse
import http.client
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
import urllib.parse

DEMO = pathlib.Path(__file__).resolve().parent
MAX_TOKENS = 192
START_TIMEOUT_S = 180
STREAM_TIMEOUT_S = 300
MIN_COLUMN = 26


class Stream:
    """One model's answer while it arrives. Written by its thread, read by the screen."""

    def __init__(self, model: str):
        self.model = model
        self.text = ""
        self.error = None
        self.first = None  # seconds from the start, which is common to all
        self.end = None
        self.num_tokens = None

    def title(self) -> str:
        if self.error:
            return "failed"
        if self.end is not None:
            return f"{self.num_tokens} tokens, {self.end:.1f} s"
        return "…" if self.first is None else "writing"


def ask(address: tuple, headers: dict, stream: Stream, prompt: str, barrier: threading.Barrier) -> None:
    body = {"model": stream.model, "messages": [{"role": "user", "content": prompt}], "temperature": 0,
            "max_tokens": MAX_TOKENS, "stream": True, "stream_options": {"include_usage": True}}
    try:
        connection = http.client.HTTPConnection(*address, timeout=STREAM_TIMEOUT_S)
        connection.connect()
        barrier.wait()
        start = time.monotonic()
        connection.request("POST", "/v1/chat/completions", json.dumps(body),
                           {**headers, "Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(json.loads(response.read())["error"]["message"])
        finished = False
        for line in response:
            data = line.decode().removeprefix("data: ").strip()
            if not data:
                continue
            if data == "[DONE]":
                break
            event = json.loads(data)
            if "error" in event:
                raise RuntimeError(event["error"]["message"])
            if event.get("usage"):
                stream.num_tokens = event["usage"]["completion_tokens"]
            for choice in event["choices"]:
                text = choice["delta"].get("content") or ""
                if text and stream.first is None:
                    stream.first = time.monotonic() - start
                stream.text += text
                finished = finished or choice["finish_reason"] is not None
        if not finished:
            raise RuntimeError("the stream ended early")
        stream.end = time.monotonic() - start
    except Exception as error:  # whatever it is, it belongs to this model's column
        barrier.abort()
        stream.error = str(error) or type(error).__name__


class Screen:
    """Columns that are redrawn in place on a terminal."""

    def __init__(self, streams: list):
        self.streams = streams
        self.num_lines = 0

    def draw(self) -> None:
        width, height = shutil.get_terminal_size()
        per_row = max(1, min(len(self.streams), width // MIN_COLUMN))
        column = (width - 1) // per_row - 2
        lines = []
        for i in range(0, len(self.streams), per_row):
            lines += self.row(self.streams[i:i + per_row], column)
        lines = lines[:height - 2]
        up = f"\x1b[{self.num_lines}A" if self.num_lines else ""
        sys.stdout.write(up + "\r\x1b[J" + "".join(line + "\n" for line in lines))
        sys.stdout.flush()
        self.num_lines = len(lines)

    @staticmethod
    def row(streams: list, column: int) -> list:
        cells = []
        for stream in streams:
            body = stream.error or stream.text
            wrapped = [part for line in body.splitlines() or [""]
                       for part in textwrap.wrap(line, column) or [""]]
            cells.append([f"\x1b[1m{stream.model[:column]:<{column}}\x1b[0m",
                          f"\x1b[2m{stream.title()[:column]:<{column}}\x1b[0m"]
                         + [f"{line:<{column}}" for line in wrapped])
        num_lines = max(len(cell) for cell in cells)
        for cell in cells:
            cell += [" " * column] * (num_lines - len(cell))
        return ["  ".join(parts) for parts in zip(*cells)] + [""]


def show(address: tuple, headers: dict, prompt: str) -> bool:
    connection = http.client.HTTPConnection(*address, timeout=30)
    connection.request("GET", "/v1/models", headers=headers)
    models = [model["id"] for model in json.loads(connection.getresponse().read())["data"]]
    print("The ticket:\n")
    print("\n".join(textwrap.wrap(prompt, 100, initial_indent="  ", subsequent_indent="  ")))
    print(f"\nSent at the same time to {len(models)} models: {', '.join(models)}\n", flush=True)

    streams = [Stream(model) for model in models]
    barrier = threading.Barrier(len(streams))
    threads = [threading.Thread(target=ask, args=(address, headers, stream, prompt, barrier), daemon=True)
               for stream in streams]
    for thread in threads:
        thread.start()
    if sys.stdout.isatty():
        screen = Screen(streams)
        while any(thread.is_alive() for thread in threads):
            screen.draw()
            time.sleep(0.05)
        screen.draw()
    for thread in threads:
        thread.join()
    if not sys.stdout.isatty():
        for stream in streams:
            first = "" if stream.first is None else f", first text after {stream.first:.2f} s"
            print(f"--- {stream.model} ({stream.title()}{first})")
            print(stream.error or stream.text)
            print()
    failed = [stream for stream in streams if stream.error]
    for stream in failed:
        print(f"{stream.model}: {stream.error}", file=sys.stderr)
    if not failed and max(s.first or 0 for s in streams) < min(s.end for s in streams):
        print("Every answer had begun before the first one ended: they ran in one batch.")
    return not failed


def start_server(binary: str, port: int) -> subprocess.Popen:
    modules = [f"{folder.name}={folder}" for folder in sorted((DEMO / "adapters").iterdir())
               if (folder / "adapter_config.json").exists()]
    command = [binary, "serve", str(DEMO / "model"), "--served-model-name", "base", "--dtype", "float32",
               "--max-num-seqs", "16", "--max-model-len", "2048", "--host", "127.0.0.1", "--port", str(port)]
    if modules:
        command += ["--lora-modules", *modules]
    env = dict(os.environ, MEDLEY_LOG_LEVEL=os.environ.get("MEDLEY_LOG_LEVEL", "warn"))
    return subprocess.Popen(command, env=env, start_new_session=True)


def wait_until_ready(address: tuple, server: subprocess.Popen) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if server is not None and server.poll() is not None:
            sys.exit(f"show.py: the server ended with code {server.returncode}")
        try:
            connection = http.client.HTTPConnection(*address, timeout=5)
            connection.request("GET", "/ready")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        time.sleep(0.05)
    sys.exit("show.py: the server did not get ready")


def choose_ticket(number) -> str:
    lines = (DEMO / "reference" / "tickets.jsonl").read_text().splitlines()
    line = random.choice(lines) if number is None else lines[number]
    return json.loads(line)["messages"][-1]["content"]


def stop(server: subprocess.Popen) -> int:
    if server.poll() is None:
        server.send_signal(signal.SIGTERM)
    return server.wait(timeout=60)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--server", metavar="BINARY", help="start this medley binary with the demo's model and adapters")
    where.add_argument("--url", help="use a server that runs already")
    parser.add_argument("--port", type=int, default=8000, help="of the server to start [8000]")
    parser.add_argument("--once", action="store_true", help="stop the server after the answers")
    parser.add_argument("--ticket", type=int, help="number of a ticket in demo/reference/tickets.jsonl [a random one]")
    parser.add_argument("--prompt", help="a text of your own instead of a ticket")
    parser.add_argument("--api-key", help="of the server at --url")
    args = parser.parse_args()

    prompt = args.prompt or choose_ticket(args.ticket)
    url = urllib.parse.urlsplit(args.url or f"http://127.0.0.1:{args.port}")
    address = (url.hostname, url.port or 80)
    headers = {"Authorization": f"Bearer {args.api_key}"} if args.api_key else {}
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the server must not stay behind
    server = start_server(args.server, args.port) if args.server else None
    try:
        wait_until_ready(address, server)
        good = show(address, headers, prompt)
        if server is not None and good and not args.once:
            print(f"\nThe server stays up: http://{address[0]}:{address[1]}/ has a page to try it. Ctrl-C ends it.",
                  flush=True)
            server.wait()
        if server is not None:
            code = stop(server)
            good = good and code == 0
        return 0 if good else 1
    except KeyboardInterrupt:
        return 0 if server is None else stop(server)
    finally:
        if server is not None and server.poll() is None:
            server.kill()


if __name__ == "__main__":
    sys.exit(main())
