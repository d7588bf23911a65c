"""The real binary, started on a free port with the demo's model and adapters."""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import threading
import time

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "demo" / "model"
ADAPTERS = ROOT / "demo" / "adapters"
REFERENCE = ROOT / "demo" / "reference"
BINARY = os.environ.get("MEDLEY_BINARY", str(ROOT / "build/release/src/apps/medley"))
START_TIMEOUT_S = 120


HAS_BROWSER = bool(shutil.which("chromium") and shutil.which("chromedriver"))
collect_ignore = [] if HAS_BROWSER else ["test_page.py"]


def pytest_report_header():
    return "" if HAS_BROWSER else "test_page.py is left out: chromium and chromedriver are not installed"


def adapter_names() -> list:
    return sorted(folder.name for folder in ADAPTERS.iterdir() if (folder / "adapter_config.json").exists())


class Server:
    """A running `medley serve`; its log is kept for assertions and failures."""

    def __init__(self, *flags: str, model=MODEL, api_key=None):
        self.api_key = api_key
        command = [BINARY, "serve", str(model), "--host", "127.0.0.1", "--port", "0", *flags]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.log = ""
        self.port = None
        self.has_port = threading.Event()
        self.reader = threading.Thread(target=self._read_log, daemon=True)
        self.reader.start()
        if not self.has_port.wait(START_TIMEOUT_S) or self.port is None:
            self.process.kill()
            pytest.fail(f"the server did not start:\n{self.log}")

    def _read_log(self):
        for line in self.process.stderr:
            self.log += line
            found = re.search(r"serving .* on http://127\.0\.0\.1:(\d+)", line)
            if found:
                self.port = int(found[1])
                self.has_port.set()
        self.has_port.set()  # it has ended

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def http(self, timeout=120) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return httpx.Client(base_url=self.url, timeout=timeout, headers=headers)

    def openai(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url + "/v1", api_key=self.api_key or "none", max_retries=0, timeout=300)

    def metrics(self) -> dict:
        """Samples by name, with the labels other than model_name: {(name, (label, value), ...): value}."""
        samples = {}
        for family in text_string_to_metric_families(httpx.get(self.url + "/metrics").text):
            for sample in family.samples:
                labels = tuple(sorted((k, v) for k, v in sample.labels.items() if k != "model_name"))
                samples[(sample.name, *labels)] = sample.value
        return samples

    def wait_for_metric(self, name: str, value: float, timeout_s=20) -> None:
        deadline = time.monotonic() + timeout_s
        while self.metrics()[(name,)] != value:
            assert time.monotonic() < deadline, f"{name} is {self.metrics()[(name,)]}, expected {value}"
            time.sleep(0.02)

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        code = self.process.wait(timeout=60)
        self.reader.join()
        return code


DEMO_FLAGS = ["--served-model-name", "base", "--dtype", "float32",
              "--lora-modules", *[f"{name}={ADAPTERS / name}" for name in adapter_names()]]


@pytest.fixture(scope="session")
def server():
    """Base and all adapters, shared by the tests that leave it as it was."""
    running = Server(*DEMO_FLAGS)
    yield running
    assert running.stop() == 0, running.log


@pytest.fixture
def start_server():
    """Starts servers of a test's own, and ends them."""
    started = []

    def start(*flags, **kwargs) -> Server:
        started.append(Server(*flags, **kwargs))
        return started[-1]

    yield start
    for running in started:
        if running.process.poll() is None:
            running.process.kill()
            running.process.wait()


@pytest.fixture(scope="session")
def tickets() -> list:
    return [json.loads(line) for line in (REFERENCE / "tickets.jsonl").read_text().splitlines()]


@pytest.fixture(scope="session")
def models() -> list:
    return ["base", *adapter_names()]
