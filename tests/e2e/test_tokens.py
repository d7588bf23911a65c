"""/tokenize, /detokenize and /load as vLLM has them."""


def test_tokenize_is_what_the_model_gets(server, tickets):
    http = server.http()
    for ticket in tickets[:5]:
        chat = http.post("/tokenize", json={"model": "triage", "messages": ticket["messages"]}).json()
        assert chat["tokens"] == ticket["prompt_ids"]  # the reference's
        assert chat["count"] == len(ticket["prompt_ids"]) and chat["max_model_len"] == 4096
        again = http.post("/detokenize", json={"tokens": chat["tokens"]}).json()["prompt"]
        plain = http.post("/tokenize", json={"prompt": again, "add_special_tokens": False, "return_token_strs": True})
        assert plain.json()["tokens"] == chat["tokens"]
        assert "".join(plain.json()["token_strs"]) == again


def test_tokenize_errors(server):
    http = server.http()
    for route, body, status, words in [
        ("/tokenize", {"model": "nobody", "prompt": "x"}, 404, "nobody"),
        ("/tokenize", {}, 400, "prompt"),
        ("/detokenize", {"tokens": [10**6]}, 400, "1000000"),
        ("/detokenize", {"tokens": "x"}, 400, "tokens"),
    ]:
        response = http.post(route, json=body)
        assert response.status_code == status and words in response.json()["error"]["message"], response.text
    assert http.get("/tokenize").status_code == 405


def test_load_counts_requests(server):
    server.wait_for_metric("vllm:num_requests_running", 0)
    assert server.http().get("/load").json() == {"server_load": 0}
    body = {"model": "base", "prompt": "On and on", "max_tokens": 3000, "ignore_eos": True, "stream": True}
    with server.http().stream("POST", "/v1/completions", json=body):
        server.wait_for_metric("vllm:num_requests_running", 1)
        assert server.http().get("/load").json() == {"server_load": 1}
