"""Prompts whose beginning was computed before, by the same adapter and by others."""
import concurrent.futures

from conftest import ADAPTERS, DEMO_FLAGS

PAGE_SIZE = 16
MODELS = ["base", "triage", "mood"]


def ask(server, model, prompt) -> tuple:
    """The answer's tokens and log-probabilities, and how many tokens of the prompt were looked up and found."""
    count = lambda samples: [samples[(f"vllm:prefix_cache_{what}_total",)] for what in ("queries", "hits")]
    before = count(server.metrics())
    whole = server.openai().completions.create(model=model, prompt=prompt, temperature=0, max_tokens=24, logprobs=3,
                                               extra_body={"return_token_ids": True, "ignore_eos": True})
    answer = whole.choices[0]
    after = count(server.metrics())
    assert whole.usage.prompt_tokens_details.cached_tokens == after[1] - before[1]
    return (answer.token_ids, answer.logprobs.token_logprobs), after[0] - before[0], after[1] - before[1]


def test_each_adapter_finds_its_own_prefix_only(start_server, tickets):
    prompt = max((ticket["prompt_ids"] for ticket in tickets), key=len)
    full_pages = (len(prompt) - 1) // PAGE_SIZE * PAGE_SIZE
    assert full_pages > 2 * PAGE_SIZE
    server = start_server(*DEMO_FLAGS)
    first = {}
    for model in MODELS:
        first[model], queries, hits = ask(server, model, prompt)
        assert (queries, hits) == (len(prompt), 0), model
    assert first["base"] != first[MODELS[1]] != first[MODELS[2]]
    for model in MODELS:
        again, queries, hits = ask(server, model, prompt)
        assert again == first[model], model
        assert (queries, hits) == (len(prompt), full_pages), model

    # A next turn goes on from prompt and answer, all of which were computed but the answer's last token.
    turn = prompt + first["base"][0] + [5, 6, 7]
    _, _, hits = ask(server, "base", turn)
    assert hits == (len(prompt) + 24 - 1) // PAGE_SIZE * PAGE_SIZE
    server.wait_for_metric("vllm:kv_cache_usage_perc", 0)

    without = start_server(*DEMO_FLAGS, "--no-enable-prefix-caching")
    for model in [*MODELS, *MODELS]:
        answer, queries, hits = ask(without, model, prompt)
        assert answer == first[model], model
        assert (queries, hits) == (0, 0)
    for running, enabled in ((server, "True"), (without, "False")):
        labels = [dict(key[1:]) for key in running.metrics() if key[0] == "vllm:cache_config_info"]
        assert [one["enable_prefix_caching"] for one in labels] == [enabled]
        assert running.stop() == 0


def test_usage_counts_each_prompts_cached_tokens_once(server, tickets):
    prompt = max((ticket["prompt_ids"] for ticket in tickets), key=len)
    full_pages = (len(prompt) - 1) // PAGE_SIZE * PAGE_SIZE
    client = server.openai()
    client.completions.create(model="base", prompt=prompt, max_tokens=1)
    answer = client.completions.create(model="base", prompt=[prompt, prompt], n=2, max_tokens=2)
    assert answer.usage.prompt_tokens == 2 * len(prompt)
    assert answer.usage.prompt_tokens_details.cached_tokens == 2 * full_pages
    chunks = list(client.completions.create(model="base", prompt=prompt, max_tokens=2, stream=True,
                                            stream_options={"include_usage": True}))
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens == full_pages


def test_streams_at_once_share_a_prefix(start_server, tickets):
    prompt = max((ticket["prompt_ids"] for ticket in tickets), key=len)
    prompts = [prompt + [100 + i] for i in range(16)]
    server, without = start_server(*DEMO_FLAGS), start_server(*DEMO_FLAGS, "--no-enable-prefix-caching")

    def answers(running, model) -> list:
        def one(ids):
            return running.openai().completions.create(
                model=model, prompt=ids, temperature=0, max_tokens=12,
                extra_body={"return_token_ids": True}).choices[0].token_ids
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            return list(pool.map(one, prompts))

    ask(server, "triage", prompt)
    before = server.metrics()[("vllm:prefix_cache_hits_total",)]
    assert answers(server, "triage") == answers(without, "triage")
    hits = server.metrics()[("vllm:prefix_cache_hits_total",)] - before
    assert hits == 16 * (len(prompt) // PAGE_SIZE * PAGE_SIZE)


def test_a_replaced_adapter_finds_its_new_contents_prefix(start_server, tickets):
    prompt = max((ticket["prompt_ids"] for ticket in tickets), key=len)
    full_pages = (len(prompt) - 1) // PAGE_SIZE * PAGE_SIZE
    server = start_server(*DEMO_FLAGS)
    triage, _, _ = ask(server, "triage", prompt)

    def replace(folder):
        response = server.http().post("/v1/load_lora_adapter", json={
            "lora_name": "triage", "lora_path": str(ADAPTERS / folder), "load_inplace": True})
        assert response.status_code == 200, response.text

    replace("mood")
    mood, _, hits = ask(server, "triage", prompt)
    assert hits == 0, "pages of the old content"
    assert mood != triage
    again, _, hits = ask(server, "mood", prompt)
    assert (again, hits) == (mood, full_pages), "one content under two names"
    replace("triage")
    again, _, hits = ask(server, "triage", prompt)
    assert (again, hits) == (triage, full_pages), "the old content again"
