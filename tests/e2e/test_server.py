"""The server's manners: errors, limits, metrics, keys, clients that leave, shutting down."""
import concurrent.futures
import json
import signal
import socket
import subprocess
import threading
import time

import httpx
import openai
import pytest

from conftest import ADAPTERS, BINARY, DEMO_FLAGS, MODEL, adapter_names


def test_models_list_base_then_adapters(server, models):
    listed = server.openai().models.list().data
    assert [model.id for model in listed] == models
    assert listed[0].parent is None
    assert listed[0].max_model_len == 4096
    for model in listed[1:]:
        assert model.parent == "base"
        assert model.root == str(ADAPTERS / model.id)
        assert model.medley["rank"] > 0 and model.medley["bytes"] > 0
        assert len(model.medley["hash"]) == 64


def test_openai_clients_errors(server):
    client = server.openai()
    with pytest.raises(openai.NotFoundError, match="nobody") as unknown:
        client.chat.completions.create(model="nobody", messages=[{"role": "user", "content": "x"}])
    assert unknown.value.body["param"] == "model"
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.completions.create(model="base", prompt="x", temperature=-1)
    with pytest.raises(openai.BadRequestError, match="tools"):
        client.chat.completions.create(model="base", messages=[{"role": "user", "content": "x"}],
                                       tools=[{"type": "function", "function": {"name": "f"}}])
    with pytest.raises(openai.BadRequestError, match="5001.*4096"):
        client.completions.create(model="base", prompt=[5] * 5001, max_tokens=1)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff\xfe", b'{"prompt": }', b"{" * 1000])
def test_malformed_bodies(server, body):
    response = server.http().post("/v1/completions", content=body)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "BadRequestError"


def test_routes_and_methods(server):
    http = server.http()
    assert http.get("/health").status_code == 200
    assert http.get("/ping").status_code == 200
    assert http.get("/ready").status_code == 200
    assert http.get("/version").json()["version"]
    assert http.get("/nothing").status_code == 404
    assert http.get("/v1/completions").status_code == 405
    assert "text/html" in http.get("/").headers["content-type"]
    assert http.post("/v1/completions", content=b"x" * (17 << 20)).status_code == 413


def test_event_stream_bytes(server):
    body = {"model": "base", "messages": [{"role": "user", "content": "Hello"}], "stream": True, "max_tokens": 4,
            "temperature": 0, "stream_options": {"include_usage": True}}
    with server.http().stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        raw = b"".join(response.iter_raw()).decode()
    events = raw.split("\n\n")
    assert events[-1] == "" and events[-2] == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert {chunk["id"] for chunk in chunks} == {chunks[0]["id"]}
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] <= 4
    assert chunks[-2]["choices"][0]["finish_reason"] in ("length", "stop")


def test_metrics_count(server):
    before = server.metrics()
    answer = server.openai().completions.create(model="triage", prompt="The parcel", max_tokens=7,
                                                extra_body={"ignore_eos": True})
    after = server.metrics()
    grown = lambda *key: after[key] - before[key]
    assert grown("vllm:prompt_tokens_total") == answer.usage.prompt_tokens
    assert grown("vllm:generation_tokens_total") == 7
    assert grown("vllm:request_success_total", ("finished_reason", "length")) == 1
    assert grown("vllm:time_to_first_token_seconds_count") == 1
    assert grown("vllm:inter_token_latency_seconds_count") == 6
    assert grown("vllm:e2e_request_latency_seconds_count") == 1
    seconds = {name: grown(f"vllm:{name}_seconds_sum") for name in (
        "time_to_first_token", "request_queue_time", "request_prefill_time", "request_decode_time", "inter_token_latency")}
    assert seconds["request_queue_time"] + seconds["request_prefill_time"] == pytest.approx(seconds["time_to_first_token"])
    assert seconds["request_decode_time"] == pytest.approx(seconds["inter_token_latency"])
    assert after[("vllm:num_requests_running",)] == 0
    computed = answer.usage.prompt_tokens - answer.usage.prompt_tokens_details.cached_tokens
    assert grown("vllm:iteration_tokens_total_count") == 7
    assert grown("vllm:iteration_tokens_total_sum") == computed + 6
    assert grown("vllm:iteration_tokens_total_bucket", ("le", "1")) == 6
    assert grown("vllm:iteration_tokens_total_bucket", ("le", "16384")) == 7
    lora = [key for key in after if key[0] == "vllm:lora_requests_info"]
    assert len(lora) == 1
    labels = dict(lora[0][1:])
    assert int(labels["max_lora"]) >= len(adapter_names())
    assert "triage" in labels["running_lora_adapters"].split(",")
    assert any(key[0] == "vllm:cache_config_info" and dict(key[1:])["block_size"] == "16" for key in after)


@pytest.mark.parametrize("streamed", [True, False])
def test_dropped_connection_frees_its_pages(server, streamed):
    server.wait_for_metric("vllm:num_requests_running", 0)
    aborted = server.metrics()[("vllm:request_success_total", ("finished_reason", "abort"))]
    body = json.dumps({"model": "base", "prompt": "On and on", "max_tokens": 4000, "ignore_eos": True, "n": 3,
                       "stream": streamed}).encode()
    connection = socket.create_connection(("127.0.0.1", server.port))
    connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    server.wait_for_metric("vllm:num_requests_running", 3)
    assert server.metrics()[("vllm:kv_cache_usage_perc",)] > 0
    connection.close()
    server.wait_for_metric("vllm:num_requests_running", 0, timeout_s=5)
    server.wait_for_metric("vllm:kv_cache_usage_perc", 0, timeout_s=5)
    assert server.metrics()[("vllm:request_success_total", ("finished_reason", "abort"))] == aborted + 3


def test_thousand_idle_connections(server):
    idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(1000)]
    assert server.openai().completions.create(model="base", prompt="Hello", max_tokens=2).usage.completion_tokens == 2
    idle[500].sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    assert idle[500].recv(100).startswith(b"HTTP/1.1 200")
    for connection in idle:
        connection.close()


def test_api_key(start_server):
    server = start_server("--served-model-name", "base", "--api-key", "right-key", api_key="right-key")
    assert httpx.get(server.url + "/health").status_code == 200
    assert httpx.get(server.url + "/v1/models").status_code == 401
    assert httpx.get(server.url + "/v1/models", headers={"Authorization": "Bearer wrong-key"}).status_code == 401
    assert server.openai().models.list().data[0].id == "base"
    assert server.stop() == 0
    assert "right-key" not in server.log and "wrong-key" not in server.log


def test_sigterm_finishes_what_runs_and_takes_no_more(start_server):
    server = start_server(*DEMO_FLAGS)
    client = server.openai()
    answers = []
    ask = lambda: answers.append(client.completions.create(
        model="triage", prompt="On and on", max_tokens=300, extra_body={"ignore_eos": True}))
    running = threading.Thread(target=ask)
    running.start()
    server.wait_for_metric("vllm:num_requests_running", 1)
    server.process.send_signal(signal.SIGTERM)
    running.join(timeout=60)
    assert answers and answers[0].usage.completion_tokens == 300
    assert server.wait() == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.url + "/health")


def test_second_signal_ends_at_once(start_server):
    server = start_server("--served-model-name", "base")
    client = server.openai()
    running = threading.Thread(target=lambda: pytest.raises(
        openai.APIError, client.completions.create, model="base", prompt="On and on", max_tokens=4000, n=8,
        extra_body={"ignore_eos": True}))
    running.start()
    server.wait_for_metric("vllm:num_requests_running", 8)
    server.process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    server.process.send_signal(signal.SIGINT)
    assert server.wait() == -signal.SIGINT
    running.join(timeout=10)


def test_drain_has_a_limit(start_server):
    server = start_server("--served-model-name", "base", "--shutdown-timeout", "1")
    client = server.openai()
    outcome = []

    def ask():
        try:
            client.completions.create(model="base", prompt="On and on", max_tokens=4000, n=8,
                                      extra_body={"ignore_eos": True})
            outcome.append("answered")
        except openai.APIStatusError as error:
            outcome.append(error.status_code)

    running = threading.Thread(target=ask)
    running.start()
    server.wait_for_metric("vllm:num_requests_running", 8)
    start = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - start < 15
    running.join(timeout=10)
    assert outcome == [503]


def test_adapter_root(start_server):
    server = start_server("--served-model-name", "base", "--dtype", "float32", "--adapter-root", str(ADAPTERS))
    name = adapter_names()[0]
    answer = server.openai().completions.create(model=name, prompt="The parcel", max_tokens=2)
    assert answer.model == name
    for bad in ("nobody", "../model", "..", "/etc"):
        with pytest.raises(openai.NotFoundError):
            server.openai().completions.create(model=bad, prompt="x", max_tokens=1)


def run(*arguments) -> subprocess.CompletedProcess:
    return subprocess.run([BINARY, *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_start_up_errors_are_one_clear_line(server, tmp_path):
    for arguments, words in [
        (["serve", "openai/gpt-oss-20b"], ["openai/gpt-oss-20b", "folder"]),
        (["serve", str(tmp_path)], ["config.json"]),
        (["serve", str(MODEL), "--port", str(server.port), "--host", "127.0.0.1"], [str(server.port), "in use"]),
        (["serve", str(MODEL), "--port", "0", "--lora-modules", f"x={tmp_path}"], ["x", "adapter_config.json"]),
        (["serve", str(MODEL), "--port", "0", "--lora-modules", "x"], ["NAME=FOLDER"]),
        (["serve", str(MODEL), "--port", "0", "--max-model-len", "100000"], ["100000", "4096"]),
        (["serve", str(MODEL), "--port", "0", "--dtype", "int3"], ["int3"]),
        (["serve", str(MODEL), "--port", "0", "--tensor-parallel-size", "4"], ["--tensor-parallel-size"]),
    ]:
        result = run(*arguments)
        assert result.returncode != 0, arguments
        last = result.stderr.strip().splitlines()[-1]
        assert last.startswith("medley: ") and all(word in last for word in words), result.stderr


def test_commands_without_a_server():
    assert "0.1.0" in run("--version").stdout
    assert "--lora-modules" in run("serve", "--help").stdout
    assert run().returncode != 0
    good = run("adapters", "check", str(ADAPTERS / adapter_names()[0]), "--model", str(MODEL))
    assert good.returncode == 0 and "can be served" in good.stdout
    bad = run("adapters", "check", str(MODEL), "--model", str(MODEL))
    assert bad.returncode != 0 and "adapter_config.json" in bad.stderr


def test_many_clients_come_and_go(server):
    """Half of them leave in the middle; the others get what they get alone."""
    def ask(i):
        body = {"model": "base", "prompt": f"Customer {i % 4}", "max_tokens": 40, "temperature": 0, "stream": True}
        text = ""
        with server.http().stream("POST", "/v1/completions", json=body) as response:
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    text += json.loads(line[6:])["choices"][0]["text"]
                    if i % 2:
                        return None
        return i % 4, text

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        texts = [text for text in pool.map(ask, range(64)) if text]
    assert len(texts) == 32
    assert len(set(texts)) == 2  # one text for each of the prompts 0 and 2
    server.wait_for_metric("vllm:num_requests_running", 0)
    server.wait_for_metric("vllm:kv_cache_usage_perc", 0)
