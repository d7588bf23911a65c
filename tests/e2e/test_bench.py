"""`medley bench` and `medley capacity` on the demo model."""

import json
import subprocess

import pytest

from conftest import BINARY, MODEL, adapter_names


def run(*arguments, code=0):
    done = subprocess.run([str(BINARY), *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    return done


def check(result, *, requests, output_len):
    assert result["num_completed"] == requests
    assert result["num_failed"] == 0
    assert result["num_output_tokens"] == requests * output_len
    assert 0 < result["ttft_ms"]["p50"] <= result["ttft_ms"]["p99"] <= result["e2e_ms"]["max"]
    assert result["output_tokens_per_s"] == pytest.approx(requests * output_len / result["seconds"])


def test_offline(tmp_path):
    out = tmp_path / "offline.json"
    done = run("bench", "offline", MODEL, "--device", "cpu", "--num-adapters", 3, "--adapter-rank", 8, "--input-len", 30,
               "--range-ratio", 0.5, "--output-len", 6, "--concurrency", 1, 4, "--num-requests", 5, "--json", out)
    assert "concurrency 4, 5 requests" in done.stdout
    results = json.loads(out.read_text())
    assert [result["concurrency"] for result in results] == [1, 4]
    for result in results:
        check(result, requests=5, output_len=6)
        assert result["num_steps"] >= 6


def test_serve(server, tmp_path):
    out = tmp_path / "serve.json"
    names = adapter_names()[:2]
    run("bench", "serve", "--base-url", server.url, "--adapters", ",".join(names), "--vocab-size", 500, "--input-len", 20,
        "--output-len", 5, "--concurrency", 3, "--num-requests", 6, "--json", out)
    [result] = json.loads(out.read_text())
    check(result, requests=6, output_len=5)


def test_serve_says_what_failed(server):
    done = run("bench", "serve", "--base-url", server.url, "--adapters", "nothing", "--concurrency", 1, "--input-len", 3,
               "--output-len", 2, code=1)
    assert "'nothing'" in done.stdout
    assert "not all requests were answered" in done.stderr
    assert "127.0.0.1:1" in run("bench", "serve", "--base-url", "http://127.0.0.1:1", code=1).stderr
    assert "http://HOST:PORT" in run("bench", "serve", "--base-url", "localhost", code=1).stderr


def test_capacity():
    done = run("capacity", MODEL, "--device-memory-gib", 80, "--max-model-len", 512)
    assert "at once" in done.stdout
    assert "80.00 GiB" in done.stdout
    assert int(done.stdout.split("GiB each: ")[1].split()[0]) > 1000
    done = run("capacity", MODEL, "--device-memory-gib", 80, "--gpu-memory-utilization", 0.01, "--max-num-seqs", 4096,
               "--max-num-batched-tokens", 1000000, code=1)
    assert "--gpu-memory-utilization 0.01" in done.stderr
