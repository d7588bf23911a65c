"""A model folder without weights, served all the same."""
import shutil

from conftest import MODEL, Server


def test_a_folder_without_weights_is_served(tmp_path):
    for name in ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]:
        if (MODEL / name).exists():
            shutil.copy(MODEL / name, tmp_path / name)
    server = Server("--load-format", "dummy", "--seed", "3", model=tmp_path)
    try:
        with server.http() as client:
            body = {"model": str(tmp_path), "prompt": "To whom does it go?", "max_tokens": 8, "temperature": 0,
                    "ignore_eos": True, "logprobs": 1}
            answers = [client.post("/v1/completions", json=body) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 200]
        assert answers[0].json()["usage"]["completion_tokens"] == 8
        assert answers[0].json()["choices"] == answers[1].json()["choices"]
    finally:
        server.stop()
