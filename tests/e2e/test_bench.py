"""`medley bench` and `medley capacity` on the demo model."""

import json
import shutil
import subprocess

import httpx
import pytest

from conftest import ADAPTERS, BINARY, MODEL, adapter_names


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
        # Of the demo model's 8 experts each token takes 2.
        rows = result["concurrency"]
        assert 2 <= result["experts_per_layer"] <= min(8, 2 * rows)
        assert result["experts_per_layer"] <= result["expert_adapters_per_layer"] <= 2 * rows


def check_cold(out, tier, repeats):
    [result] = json.loads(out.read_text())
    assert result["cold_adapter"] == tier
    assert result["num_repeats"] == repeats
    assert result["warm_ttft_ms"]["p50"] > 0
    assert result["cold_ttft_ms"]["p50"] > 0
    assert result["others_itl_quiet_ms"]["p50"] > 0
    return result


@pytest.mark.parametrize("tier", ["host", "disk"])
def test_offline_cold_adapter(tmp_path, tier):
    out = tmp_path / "cold.json"
    done = run("bench", "offline", MODEL, "--device", "cpu", "--num-adapters", 2, "--adapter-rank", 8, "--input-len", 30,
               "--output-len", 400, "--concurrency", 3, "--cold-adapter", tier, "--repeats", 2, "--json", out)
    assert f"cold adapter ({tier}), 2 users decode, 2 times" in done.stdout
    result = check_cold(out, tier, repeats=2)
    assert 0 < result["load_ms"]["p50"] < result["cold_ttft_ms"]["p50"]


def test_offline_cold_adapter_needs_users_that_last():
    done = run("bench", "offline", MODEL, "--device", "cpu", "--num-adapters", 1, "--input-len", 5, "--output-len", 20,
               "--concurrency", 2, "--cold-adapter", "host", "--repeats", 1, code=1)
    assert "--output-len must be larger" in done.stderr


def test_offline_new_lengths(tmp_path):
    out = tmp_path / "lengths.json"
    arguments = ["bench", "offline", MODEL, "--device", "cpu", "--num-adapters", 1, "--adapter-rank", 8, "--input-len", 30,
                 "--range-ratio", 0.5, "--concurrency", 1, "--output-len", 2]
    run(*arguments, "--new-lengths", 6, "--json", out)
    results = json.loads(out.read_text())
    lengths = [result["num_tokens"] for result in results]
    assert sorted(lengths) == [15, 20, 26, 33, 39, 45]
    assert all(result["first_ttft_ms"] > 0 and len(result["later_ttft_ms"]) == 3 for result in results)
    assert "gives 30 other lengths" in run(*arguments, "--new-lengths", 31, code=1).stderr


def test_serve(server, tmp_path):
    out = tmp_path / "serve.json"
    names = adapter_names()[:2]
    run("bench", "serve", "--base-url", server.url, "--adapters", ",".join(names), "--vocab-size", 500, "--input-len", 20,
        "--output-len", 5, "--concurrency", 3, "--num-requests", 6, "--json", out)
    [result] = json.loads(out.read_text())
    check(result, requests=6, output_len=5)


def test_serve_cold_adapter(server, tmp_path):
    out = tmp_path / "cold.json"
    arguments = ["bench", "serve", "--base-url", server.url, "--adapters", adapter_names()[0], "--vocab-size", 500,
                 "--input-len", 20, "--output-len", 300, "--concurrency", 3, "--repeats", 2]
    cold = tmp_path / "adapter"  # a content that the server does not have yet
    shutil.copytree(ADAPTERS / adapter_names()[1], cold)
    config = json.loads((cold / "adapter_config.json").read_text())
    (cold / "adapter_config.json").write_text(json.dumps(config | {"revision": "cold"}))
    run(*arguments, "--cold-adapter", "disk", "--cold-folder", cold, "--json", out)
    check_cold(out, "disk", repeats=2)
    assert "bench-cold" not in httpx.get(server.url + "/v1/models").text, "left behind"
    assert "--cold-folder" in run(*arguments, "--cold-adapter", "disk", code=1).stderr
    assert "host memory only" in run(*arguments, "--cold-adapter", "host", "--cold-folder", cold, code=1).stderr


def test_serve_says_what_failed(server):
    done = run("bench", "serve", "--base-url", server.url, "--adapters", "nothing", "--concurrency", 1, "--input-len", 3,
               "--output-len", 2, code=1)
    assert "'nothing'" in done.stdout
    assert "not all requests were answered" in done.stderr
    assert "127.0.0.1:1" in run("bench", "serve", "--base-url", "http://127.0.0.1:1", code=1).stderr
    assert "http://HOST:PORT" in run("bench", "serve", "--base-url", "localhost", code=1).stderr


def test_random_adapter(tmp_path):
    run("adapters", "random", tmp_path / "a", "--model", MODEL, "--rank", 12)
    done = run("adapters", "check", tmp_path / "a", "--model", MODEL)
    assert "can be served" in done.stdout
    assert "rank 12" in done.stdout


def test_capacity():
    done = run("capacity", MODEL, "--device-memory-gib", 80, "--max-model-len", 512)
    assert "at once" in done.stdout
    assert "80.00 GiB" in done.stdout
    assert int(done.stdout.split("GiB each: ")[1].split()[0]) > 1000
    done = run("capacity", MODEL, "--device-memory-gib", 80, "--gpu-memory-utilization", 0.01, "--max-num-seqs", 4096,
               "--max-num-batched-tokens", 1000000, code=1)
    assert "--gpu-memory-utilization 0.01" in done.stderr
