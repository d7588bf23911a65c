"""Adapters that come, change and go while the server runs."""
import concurrent.futures
import itertools
import json
import shutil
import threading
import time

import httpx
import openai
import pytest

from conftest import ADAPTERS, MODEL, adapter_names

FLAGS = ["--served-model-name", "base", "--dtype", "float32", "--enable-lora"]


def load(server, name, path, **more) -> httpx.Response:
    return server.http().post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": str(path), **more})


def unload(server, name) -> httpx.Response:
    return server.http().post("/v1/unload_lora_adapter", json={"lora_name": name})


def adapters(server) -> dict:
    listed = server.http().get("/v1/adapters").json()
    assert listed["object"] == "list"
    return {entry["name"]: entry for entry in listed["data"]}


def wait_for_state(server, name, state) -> dict:
    """The engine takes its turn after the answer that set it off."""
    deadline = time.monotonic() + 20
    while (entry := adapters(server)[name])["state"] != state:
        assert time.monotonic() < deadline, entry
        time.sleep(0.01)
    return entry


def ask(server, model, prompt="The parcel", max_tokens=12) -> str:
    """A streamed completion's text; anything but a complete stream fails."""
    text, ended = "", False
    body = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True,
            "stream": True}
    with server.http().stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            if line == "data: [DONE]":
                ended = True
            elif line:
                text += json.loads(line.removeprefix("data: "))["choices"][0]["text"]
    assert ended
    return text


@pytest.fixture
def own(start_server):
    return start_server(*FLAGS)


def test_load_use_unload(own, server):
    assert adapters(own) == {}
    with pytest.raises(openai.NotFoundError):
        own.openai().completions.create(model="mine", prompt="x", max_tokens=1)
    added = load(own, "mine", ADAPTERS / "triage", is_3d_lora_weight=False)
    assert (added.status_code, added.text) == (200, "Success: LoRA adapter 'mine' added successfully.")
    entry = wait_for_state(own, "mine", "on_device")  # before anybody asked for it
    assert entry["residency"] == ["disk", "host", "device"]
    assert entry["rank"] > 0 and entry["bytes"] > 0 and len(entry["hash"]) == 64
    assert entry["path"] == str(ADAPTERS / "triage") and entry["last_used"] is None

    assert ask(own, "mine") == ask(server, "triage") != ask(server, "base")
    entry = adapters(own)["mine"]
    assert entry["state"] == "on_device" and entry["last_used"] > 1.7e9 and entry["num_requests"] == 0
    assert "mine" in [model.id for model in own.openai().models.list().data]

    again = load(own, "mine", ADAPTERS / "triage")
    assert again.status_code == 400 and "already been loaded" in again.json()["error"]["message"]
    removed = unload(own, "mine")
    assert (removed.status_code, removed.text) == (200, "Success: LoRA adapter 'mine' removed successfully.")
    assert adapters(own) == {}
    assert unload(own, "mine").status_code == 404
    with pytest.raises(openai.NotFoundError):
        own.openai().completions.create(model="mine", prompt="x", max_tokens=1)


def test_modules_of_the_start_are_on_the_device(start_server):
    server = start_server(*FLAGS, "--max-loras", "2", "--lora-modules",
                          *[f"{name}={ADAPTERS / name}" for name in ("mood", "reply", "triage")])
    for name, state in (("mood", "on_device"), ("reply", "on_device"), ("triage", "in_host")):
        assert wait_for_state(server, name, state)["last_used"] is None


def test_metrics_per_adapter(own):
    assert load(own, "mine", ADAPTERS / "triage").status_code == 200
    ask(own, "mine", max_tokens=7)
    ask(own, "base", max_tokens=7)
    metrics = own.metrics()
    mine = ("adapter", "mine")
    assert metrics["medley:adapter_generation_tokens_total", mine] == 7
    assert metrics["medley:adapter_requests_total", mine, ("finished_reason", "length")] == 1
    assert metrics["medley:adapter_time_to_first_token_seconds_count", mine] == 1
    assert metrics["medley:adapter_inter_token_latency_seconds_count", mine] == 6
    assert metrics["medley:adapter_state", mine, ("state", "on_device")] == 1
    assert metrics["medley:adapter_bytes", mine] == adapters(own)["mine"]["bytes"]
    for source in ("disk", "host"):
        assert metrics["medley:adapter_loads_total", mine, ("source", source)] == 1
        assert metrics["medley:adapter_load_seconds_count", mine, ("source", source)] == 1
    assert metrics["medley:adapter_load_seconds_sum", mine, ("source", "disk")] > 0
    assert not [key for key in metrics if key[0] == "medley:adapter_errors_total"]
    assert load(own, "mine", ADAPTERS / "none", load_inplace=True).status_code == 404
    assert own.metrics()["medley:adapter_errors_total", mine, ("kind", "load")] == 1
    assert {dict(key[1:]).get("adapter") for key in metrics} == {None, "mine"}
    assert unload(own, "mine").status_code == 200
    assert not [key for key in own.metrics() if key[0] == "medley:adapter_state"]


def test_reload_in_place_changes_new_requests_only(own, server):
    assert load(own, "mine", ADAPTERS / "triage").status_code == 200
    expected, changed = ask(server, "triage", max_tokens=2000), ask(server, "mood")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        running = pool.submit(ask, own, "mine", max_tokens=2000)
        own.wait_for_metric("vllm:num_requests_running", 1)
        assert load(own, "mine", ADAPTERS / "mood", load_inplace=True).status_code == 200
        assert ask(own, "mine") == changed
        assert unload(own, "mine").status_code == 200
        assert not running.done()
        assert running.result() == expected
    assert load(own, "mine", ADAPTERS / "reply").status_code == 200
    assert ask(own, "mine") == ask(server, "reply")


def test_clients_mistakes_change_nothing(own, tmp_path):
    assert load(own, "good", ADAPTERS / "triage").status_code == 200
    broken = tmp_path / "broken"
    shutil.copytree(ADAPTERS / "mood", broken)
    weights = broken / "adapter_model.safetensors"
    raw = weights.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:8 + size])
    tensor = next(name for name in header if name.endswith("lora_A.weight"))
    stray = tensor.replace("lora_A", "lora_X")
    weights.write_bytes(raw[:8 + size].replace(tensor.encode(), stray.encode(), 1) + raw[8 + size:])

    for body, status, words in [
        ({"lora_path": "x"}, 400, "lora_name"),
        ({"lora_name": "x"}, 400, "lora_path"),
        ({"lora_name": "x", "lora_path": 3}, 400, "lora_path"),
        ({"lora_name": "a,b", "lora_path": str(ADAPTERS / "mood")}, 400, "a,b"),
        ({"lora_name": "base", "lora_path": str(ADAPTERS / "mood")}, 400, "base"),
        ({"lora_name": "x", "lora_path": str(tmp_path / "nothing")}, 404, "nothing"),
        ({"lora_name": "x", "lora_path": str(MODEL)}, 404, "adapter_config.json"),
        ({"lora_name": "x", "lora_path": str(broken)}, 400, tensor),
        ({"lora_name": "good", "lora_path": str(broken), "load_inplace": True}, 400, tensor),
        ({"lora_path": str(broken), "dry_run": True}, 400, tensor),
    ]:
        response = own.http().post("/v1/load_lora_adapter", json=body)
        assert response.status_code == status, response.text
        assert words in response.json()["error"]["message"], response.text
    assert own.http().post("/v1/load_lora_adapter", content=b"{").status_code == 400
    assert own.http().get("/v1/load_lora_adapter").status_code == 405
    assert list(adapters(own)) == ["good"]
    ask(own, "good")


def test_dry_run_preload_and_pin(own):
    found = own.http().post("/v1/load_lora_adapter",
                            json={"lora_path": str(ADAPTERS / "mood"), "dry_run": True}).json()
    assert found["valid"] is True and found["rank"] > 0 and len(found["hash"]) == 64
    assert adapters(own) == {}
    assert load(own, "team/later", ADAPTERS / "mood", preload=False, pin=True).status_code == 200
    entry = adapters(own)["team/later"]
    assert entry["state"] == "on_disk" and entry["pinned"] is True and entry["rank"] is None
    ask(own, "team/later")
    assert adapters(own)["team/later"]["hash"] == found["hash"]
    assert own.http().post("/v1/adapters/team/later/unpin").status_code == 200
    assert adapters(own)["team/later"]["pinned"] is False
    assert own.http().post("/v1/adapters/team%2Flater/pin").status_code == 200
    assert adapters(own)["team/later"]["pinned"] is True
    assert own.http().post("/v1/adapters/nobody/pin").status_code == 404


def test_pinned_adapter_keeps_its_slot(start_server):
    server = start_server(*FLAGS, "--max-loras", "2")
    for name in ("mood", "reply", "triage"):
        assert load(server, name, ADAPTERS / name).status_code == 200
    assert server.http().post("/v1/adapters/mood/pin").status_code == 200
    assert server.http().post("/v1/adapters/reply/pin").status_code == 409
    for name in ("mood", "reply", "triage"):
        ask(server, name)
    states = {name: entry["state"] for name, entry in adapters(server).items()}
    assert states == {"mood": "on_device", "reply": "in_host", "triage": "on_device"}


def test_paths_keys_and_servers_without_adapters(start_server, tmp_path):
    shutil.copytree(ADAPTERS / "mood", tmp_path / "root" / "mood")
    server = start_server(*FLAGS, "--adapter-root", str(tmp_path / "root"), "--api-key", "key", api_key="key")
    for path in (ADAPTERS / "mood", tmp_path / "absent", "../root2", "/etc"):
        assert load(server, "x", path).status_code == 403
    assert load(server, "x", "mood").status_code == 200
    assert load(server, "y", tmp_path / "root" / "mood").status_code == 200
    for route in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/adapters/x/pin"):
        assert httpx.post(server.url + route, json={}).status_code == 401
    assert httpx.get(server.url + "/v1/adapters").status_code == 401
    plain = start_server("--served-model-name", "base")
    assert "--enable-lora" in load(plain, "x", ADAPTERS / "mood").json()["error"]["message"]
    assert plain.http().get("/v1/adapters").json()["data"] == []


def test_chats_go_on_while_adapters_come_and_go(server, start_server):
    """64 streams over base and six adapters, for as long as two more names are loaded, replaced and unloaded."""
    models = ["base", *adapter_names()]
    jobs = [(model, f"Customer {i}") for i in (1, 2) for model in models]
    expected = {job: ask(server, *job, max_tokens=24) for job in jobs}
    contents = {path: ask(server, path) for path in ("mood", "triage")}
    own = start_server(*FLAGS, "--max-loras", "4", "--lora-modules",
                       *[f"{name}={ADAPTERS / name}" for name in adapter_names()])
    stop = threading.Event()

    def churn(name):
        for first, second in [("mood", "triage"), ("triage", "mood")]:
            assert load(own, name, ADAPTERS / first).status_code == 200
            assert ask(own, name) == contents[first]
            assert load(own, name, ADAPTERS / second, load_inplace=True).status_code == 200
            assert ask(own, name) == contents[second]
            assert unload(own, name).status_code == 200

    def chat(i):
        num_answers = 0
        for job in itertools.islice(itertools.cycle(jobs), i, None):
            assert ask(own, *job, max_tokens=24) == expected[job], job
            num_answers += 1
            if stop.is_set():
                return num_answers

    with concurrent.futures.ThreadPoolExecutor(64) as pool, concurrent.futures.ThreadPoolExecutor(2) as churners:
        chats = [pool.submit(chat, i) for i in range(64)]
        turns = [churners.submit(churn, name) for name in ("extra-1", "extra-2")]
        try:
            for turn in turns:
                turn.result(timeout=180)
        finally:
            stop.set()
        assert sum(chat.result(timeout=60) for chat in chats) >= 64
    assert sorted(adapters(own)) == adapter_names()
    own.wait_for_metric("vllm:num_requests_running", 0)
    assert own.stop() == 0, own.log
