"""What the models answer, through the openai client."""
import concurrent.futures
import json

import pytest

from conftest import REFERENCE, adapter_names

CLOSE_GAP = 1e-3  # below this difference of log-probabilities the reference's choice is not binding


def chat(client, model, ticket, **more):
    return client.chat.completions.create(model=model, messages=ticket["messages"], temperature=0, max_tokens=192, **more)


def streamed(client, model, ticket) -> dict:
    text, finish, usage = "", None, None
    for chunk in chat(client, model, ticket, stream=True, stream_options={"include_usage": True}):
        if chunk.usage:
            usage = chunk.usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
    return {"text": text, "finish": finish, "prompt": usage.prompt_tokens, "completion": usage.completion_tokens}


def test_thirty_two_streams_at_once_are_each_as_alone(server, tickets, models):
    client = server.openai()
    jobs = [(models[i % len(models)], tickets[i % 5]) for i in range(32)]
    alone = {}
    for model, ticket in jobs:
        if (model, ticket["ticket"]) not in alone:
            alone[model, ticket["ticket"]] = streamed(client, model, ticket)
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        together = list(pool.map(lambda job: streamed(client, *job), jobs))
    for (model, ticket), got in zip(jobs, together):
        assert got == alone[model, ticket["ticket"]], model
        assert got["prompt"] == len(ticket["prompt_ids"])
        assert got["finish"] == "stop"
    texts = {model: alone[model, 0]["text"] for model in models if (model, 0) in alone}
    assert len(set(texts.values())) == len(texts), "adapters answer differently from one another"


@pytest.mark.parametrize("model", ["base", *adapter_names()])
def test_answers_are_those_of_the_reference(server, tickets, model):
    """transformers + PEFT in float32, example by example, up to the first choice that is a near tie."""
    lines = (REFERENCE / "predictions" / f"{model}.jsonl").read_text().splitlines()
    expected = [json.loads(line) for line in lines]
    client = server.openai()

    def ask(prediction):
        answer = client.completions.create(
            model=model, prompt=tickets[prediction["ticket"]]["prompt_ids"], temperature=0, max_tokens=192,
            extra_body={"return_token_ids": True})
        return answer.choices[0].token_ids

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for prediction, got in zip(expected, pool.map(ask, expected)):
            close = [i for i, gap in enumerate(prediction["gaps"]) if gap < CLOSE_GAP]
            binding = close[0] if close else len(prediction["ids"])
            assert got[:binding] == prediction["ids"][:binding], prediction["ticket"]
            if not close:
                assert got == prediction["ids"]


def test_whole_answer_is_the_streamed_one(server, tickets):
    client = server.openai()
    whole = chat(client, "base", tickets[0])
    parts = streamed(client, "base", tickets[0])
    assert whole.choices[0].message.content == parts["text"]
    assert whole.choices[0].message.role == "assistant"
    assert whole.usage.completion_tokens == parts["completion"]
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens


def test_token_ids(server, tickets):
    client = server.openai()
    answer = chat(client, "base", tickets[0], extra_body={"return_token_ids": True})
    assert answer.prompt_token_ids == tickets[0]["prompt_ids"]
    ids = answer.choices[0].token_ids
    assert len(ids) == answer.usage.completion_tokens
    parts = []
    for i, chunk in enumerate(chat(client, "base", tickets[0], stream=True, extra_body={"return_token_ids": True})):
        if i == 0:
            assert chunk.prompt_token_ids == tickets[0]["prompt_ids"]
        else:
            parts += chunk.choices[0].token_ids
    assert parts == ids


def test_chat_logprobs(server, tickets):
    answer = chat(server.openai(), "base", tickets[0], logprobs=True, top_logprobs=3)
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens
    text = b"".join(bytes(entry.bytes) for entry in content)
    assert text.decode().startswith(answer.choices[0].message.content)
    for entry in content:
        assert len(entry.top_logprobs) == 3
        best = entry.top_logprobs[0]
        assert best.token == entry.token and best.logprob == entry.logprob  # greedy
        assert all(a.logprob >= b.logprob for a, b in zip(entry.top_logprobs, entry.top_logprobs[1:]))
        assert entry.logprob <= 0


def test_completion_logprobs(server):
    answer = server.openai().completions.create(model="base", prompt="The invoice", max_tokens=6, temperature=0, logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == 6
    assert "".join(logprobs.tokens) == answer.choices[0].text
    assert logprobs.text_offset == [len("".join(logprobs.tokens[:i])) for i in range(6)]


def test_seeds_repeat_and_choices_differ(server, tickets):
    client = server.openai()
    ask = lambda seed: [c.message.content for c in client.chat.completions.create(
        model="base", messages=tickets[1]["messages"], temperature=1.5, seed=seed, n=4, max_tokens=24).choices]
    first = ask(5)
    assert first == ask(5)
    assert first != ask(6)
    assert len(set(first)) > 1


def test_stop_and_limits(server, tickets):
    client = server.openai()
    ask = lambda **more: client.completions.create(
        model="base", prompt=tickets[0]["prompt_ids"], temperature=0, **more)
    free = ask(max_tokens=12, extra_body={"ignore_eos": True})
    text = free.choices[0].text
    assert free.choices[0].finish_reason == "length" and free.usage.completion_tokens == 12
    assert ask(extra_body={"ignore_eos": True}).usage.completion_tokens == 16  # OpenAI's default
    word = text.split()[2]
    stopped = ask(max_tokens=12, stop=[word])
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.choices[0].stop_reason == word
    assert stopped.choices[0].text == text[:text.index(word)]
    assert stopped.usage.completion_tokens < 12
    kept = ask(max_tokens=12, stop=[word], extra_body={"include_stop_str_in_output": True})
    assert kept.choices[0].text == text[:text.index(word)] + word
    three = ask(max_tokens=5, n=3)
    assert [choice.text for choice in three.choices] == [ask(max_tokens=5).choices[0].text] * 3
    assert three.usage.completion_tokens == 15
