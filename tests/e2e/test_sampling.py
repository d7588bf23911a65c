"""Fields that shape sampling, and log-probabilities of the prompt, against the real binary."""
import concurrent.futures
import math

import openai
import pytest

from conftest import adapter_names

ADAPTER = adapter_names()[0]
OPEN_PROMPT = "The"  # the demo's model is sure of its answers to tickets, not of how this goes on


@pytest.fixture
def ask(server, tickets):
    """One greedy completion of the first ticket's prompt; returns the choice."""
    client = server.openai()

    def complete(prompt=tickets[0]["prompt_ids"], model="base", max_tokens=24, temperature=0, **more):
        body = {key: more.pop(key) for key in list(more) if key not in ("logprobs", "logit_bias", "echo", "seed", "n")}
        return client.completions.create(
            model=model, prompt=prompt, max_tokens=max_tokens, temperature=temperature,
            extra_body={"return_token_ids": True, **body}, **more).choices[0]

    return complete


def test_logit_bias_forbids_and_forces(ask):
    free = ask().token_ids
    assert free[0] not in ask(logit_bias={str(free[0]): -100}).token_ids
    forced = next(token for token in free if token != free[0])
    assert ask(max_tokens=5, logit_bias={str(forced): 100}, ignore_eos=True).token_ids == [forced] * 5
    assert ask(logit_bias={}).token_ids == free


def test_logit_bias_outside_the_vocabulary_is_refused(server):
    for bias, named in ({"9999999": 1}, "9999999"), ({"5": 101}, "101"), ({"x": 1}, '"x"'):
        with pytest.raises(openai.BadRequestError, match=named):
            server.openai().completions.create(model="base", prompt="x", extra_body={"logit_bias": bias})


def test_min_tokens_rules_the_end_out(ask):
    short = ask(max_tokens=192)
    assert short.finish_reason == "stop"
    end, length = short.token_ids[-1], len(short.token_ids)
    longer = ask(max_tokens=192, min_tokens=length + 5).token_ids
    assert longer[:length - 1] == short.token_ids[:-1]
    assert end not in longer[:length + 5]
    assert len(longer) > length + 5
    assert ask(max_tokens=192, min_tokens=length - 1).token_ids == short.token_ids
    # A stop token of the request is ruled out too.
    stop = short.token_ids[1]
    assert stop not in ask(max_tokens=12, min_tokens=12, stop_token_ids=[stop]).token_ids
    assert ask(max_tokens=192, stop_token_ids=[stop]).stop_reason == stop


def test_ignore_eos(ask):
    short = ask(max_tokens=192)
    ignored = ask(max_tokens=len(short.token_ids) + 3, ignore_eos=True)
    assert ignored.finish_reason == "length"
    assert ignored.token_ids[:len(short.token_ids)] == short.token_ids


@pytest.mark.parametrize("frequency,presence", [(1.7, 0), (0, 2.0), (-0.9, 0), (0.6, 1.1)])
def test_penalties_follow_their_definition(ask, frequency, presence):
    """Each token is the best of the 20 listed once what was output is penalised: the penalties are subtracted, so
    log-probabilities serve as well as logits."""
    choice = ask(OPEN_PROMPT, max_tokens=60, ignore_eos=True, logprobs=20, return_tokens_as_token_ids=True,
                 frequency_penalty=frequency, presence_penalty=presence)
    num_checked = 0
    for i, (token, top) in enumerate(zip(choice.token_ids, choice.logprobs.top_logprobs)):
        listed = {int(name.removeprefix("token_id:")): value for name, value in top.items()}
        output = choice.token_ids[:i]
        penalty = {t: frequency * output.count(t) + presence * (t in output) for t in {*listed, *output}}
        best = max(listed, key=lambda t: listed[t] - penalty[t])
        if listed[best] - penalty[best] <= min(listed.values()) - min(0, *penalty.values()):
            continue  # a token that is not listed may be better
        assert token == best, i
        num_checked += 1
    assert num_checked > 40
    assert choice.token_ids != ask(OPEN_PROMPT, max_tokens=60, ignore_eos=True).token_ids


def test_repetition_penalty_concerns_the_prompt_too(ask, tickets):
    prompt = tickets[0]["prompt_ids"]
    free = ask(max_tokens=8, ignore_eos=True).token_ids
    assert set(free) & set(prompt), "the test needs an answer that repeats the prompt"
    # So strong that no token of prompt or output is left worth taking.
    fresh = ask(max_tokens=8, ignore_eos=True, repetition_penalty=1e6).token_ids
    assert not set(fresh) & set(prompt)
    assert len(set(fresh)) == len(fresh)


def test_prompt_logprobs_are_those_of_generation(server, ask, tickets):
    """What the model said of its own tokens when it chose them, and what it says when it reads them: bit by bit."""
    for model in ("base", ADAPTER):
        prompt = tickets[1]["prompt_ids"]
        made = ask(prompt, model=model, max_tokens=30, ignore_eos=True, logprobs=5, return_tokens_as_token_ids=True)
        read = ask(prompt + made.token_ids, model=model, max_tokens=1, prompt_logprobs=5)
        assert len(read.prompt_logprobs) == len(prompt) + 30
        assert read.prompt_logprobs[0] is None
        for i, token in enumerate(made.token_ids):
            entries = read.prompt_logprobs[len(prompt) + i]
            assert entries[str(token)]["logprob"] == made.logprobs.token_logprobs[i]
            assert {f"token_id:{name}": entry["logprob"] for name, entry in entries.items()} == made.logprobs.top_logprobs[i]
            assert sorted(entry["rank"] for entry in entries.values()) == [1, 2, 3, 4, 5]
            assert entries[str(token)]["rank"] == 1  # greedy


def test_prompt_logprobs_do_not_depend_on_the_batch(ask, tickets, models):
    prompts = [ticket["prompt_ids"] for ticket in tickets[:8]]
    jobs = [(models[i % len(models)], prompts[i % 8]) for i in range(24)]
    score = lambda job: ask(job[1], model=job[0], max_tokens=4, prompt_logprobs=2).prompt_logprobs
    alone = [score(job) for job in jobs]
    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        assert list(pool.map(score, jobs)) == alone


def test_chat_prompt_logprobs(server, tickets):
    answer = server.openai().chat.completions.create(
        model="base", messages=tickets[0]["messages"], max_tokens=1, extra_body={"prompt_logprobs": 0})
    prompt = tickets[0]["prompt_ids"]
    assert len(answer.prompt_logprobs) == len(prompt) == answer.usage.prompt_tokens
    for token, entries in zip(prompt[1:], answer.prompt_logprobs[1:]):
        assert list(entries) == [str(token)]
        assert entries[str(token)]["logprob"] < 0 and entries[str(token)]["rank"] >= 1
    with pytest.raises(openai.BadRequestError, match="prompt_logprobs"):
        server.openai().chat.completions.create(model="base", messages=tickets[0]["messages"], stream=True,
                                                extra_body={"prompt_logprobs": 1})


def test_echo_scores_a_prompt(ask, server):
    """As evaluation harnesses do: max_tokens 0 or 1, echo, logprobs."""
    text = "The printer on the second floor is broken."
    alone = ask(text, max_tokens=0, echo=True, logprobs=1)
    assert alone.text == text and alone.token_ids == [] and alone.finish_reason == "length"
    logprobs = alone.logprobs
    assert logprobs.token_logprobs[0] is None and logprobs.top_logprobs[0] is None
    assert all(value < 0 for value in logprobs.token_logprobs[1:])
    with_one = ask(text, max_tokens=1, echo=True, logprobs=1)
    assert with_one.logprobs.token_logprobs[:-1] == logprobs.token_logprobs
    assert with_one.text.startswith(text)
    assert "".join(with_one.logprobs.tokens[:-1]) == text
    streamed = []
    for chunk in server.openai().completions.create(model="base", prompt=text, max_tokens=1, temperature=0, echo=True,
                                                    logprobs=1, stream=True):
        streamed += chunk.choices[0].logprobs.token_logprobs
    assert streamed == with_one.logprobs.token_logprobs


def test_choices_are_reproducible_and_independent(server, models):
    """Seed, penalties and bias give the same choices alone and in a crowd."""
    client = server.openai()

    def sample(i):
        answer = client.completions.create(
            model=models[i % len(models)], prompt=[i + 5, i + 6, i + 7], temperature=1.2, seed=i, n=3, max_tokens=20,
            frequency_penalty=0.5, presence_penalty=0.3, logit_bias={"5": -3}, extra_body={
                "repetition_penalty": 1.1, "min_tokens": 10, "return_token_ids": True})
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        return [choice.token_ids for choice in answer.choices]

    alone = [sample(i) for i in range(12)]
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        assert list(pool.map(sample, range(12))) == alone
    assert all(len(set(map(tuple, choices))) == 3 for choices in alone)
    assert all(len(ids) > 10 for choices in alone for ids in choices)


def test_logprobs_are_of_the_model_alone(ask):
    plain = ask(max_tokens=1, logprobs=1).logprobs.top_logprobs[0]
    token = ask(max_tokens=1).token_ids[0]
    biased = ask(max_tokens=1, logprobs=1, logit_bias={str(token): -100}, presence_penalty=1.0)
    assert set(plain.items()) <= set(biased.logprobs.top_logprobs[0].items())
    assert biased.logprobs.token_logprobs[0] < max(plain.values())
    assert math.isfinite(biased.logprobs.token_logprobs[0])
