"""Tokenizer, chat format and batches of token ids."""

import json
import os
import random
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

import world

VOCAB_SIZE = 2048
SPECIALS = ["<|endoftext|>", "<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>",
            "<|reserved_0|>", "<|reserved_1|>"]

# The pre-tokenizer pattern of GPT-OSS (o200k).
SPLIT_PATTERN = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
])

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] not in ['system', 'user', 'assistant'] -%}"
    "{{- raise_exception('unknown role: ' + message['role']) -}}"
    "{%- endif -%}"
    "{{- '<|' + message['role'] + '|>' + message['content'] + '<|end|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)


def chat_text(messages, add_generation_prompt=False):
    """The same string that CHAT_TEMPLATE renders."""
    text = "".join(f"<|{m['role']}|>{m['content']}<|end|>" for m in messages)
    return text + ("<|assistant|>" if add_generation_prompt else "")


def train_tokenizer(seed=7, num_docs=20000):
    """Byte-level BPE on training-split text. Digits are left out, so each stays one token."""
    rng = random.Random(seed)
    pool = world.make_pools()["train"]
    texts = []
    for _ in range(num_docs):
        t = world.make_ticket(rng, pool)
        texts += world.tokenizer_texts(t)
        if rng.random() < 0.2:
            doc = world.base_document(rng, pool)
            texts += [doc] if isinstance(doc, str) else [m["content"] for m in doc]
            texts.append(t.masked)
    texts = ["".join(c for c in text if not c.isdigit()) for text in texts]
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT_PATTERN), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(SPECIALS), show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tok.train_from_iterator(texts, trainer)
    tok.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIALS])
    if tok.get_vocab_size() != VOCAB_SIZE:
        raise RuntimeError(f"vocabulary has {tok.get_vocab_size()} entries, wanted {VOCAB_SIZE}")
    return tok


def write_tokenizer(folder):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tok = train_tokenizer()
    tok.save(str(folder / "tokenizer.json"))
    ids = {s: tok.token_to_id(s) for s in SPECIALS}
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    (folder / "special_tokens_map.json").write_text(json.dumps(
        {"eos_token": "<|end|>", "pad_token": "<|pad|>"}, indent=2) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "added_tokens_decoder": {
            str(i): {"content": s, "lstrip": False, "normalized": False, "rstrip": False,
                     "single_word": False, "special": True} for s, i in ids.items()},
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|end|>",
        "pad_token": "<|pad|>",
        "model_max_length": 4096,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }, indent=2) + "\n")
    return tok


def load_tokenizer(folder):
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    return Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))


_state = {}


def init_worker(folder):
    _state["tok"] = load_tokenizer(folder)
    _state["pools"] = world.make_pools()


def encode(tok, text):
    return tok.encode(text, add_special_tokens=False).ids


def base_chunk(job):
    """job = (seed, num_docs) -> list of (ids, first supervised position)."""
    seed, num_docs = job
    rng, tok = random.Random(seed), _state["tok"]
    texts = []
    for _ in range(num_docs):
        doc = world.base_document(rng, _state["pools"]["train"])
        texts.append((doc if isinstance(doc, str) else chat_text(doc)) + "<|endoftext|>")
    return [(np.array(e.ids, dtype=np.int16), 1)
            for e in tok.encode_batch(texts, add_special_tokens=False)]


def task_examples(tok, rng, pool, task, num):
    """[(ids, first supervised position, ticket)]: the answer and its <|end|> are supervised."""
    out = []
    for _ in range(num):
        t = world.make_ticket(rng, pool)
        prompt = encode(tok, chat_text([{"role": "user", "content": t.text}], True))
        ids = prompt + encode(tok, world.answer(task, t) + "<|end|>")
        out.append((np.array(ids, dtype=np.int16), len(prompt), t))
    return out


def task_chunk(job):
    seed, num, task = job
    examples = task_examples(_state["tok"], random.Random(seed), _state["pools"]["train"], task, num)
    return [(ids, start) for ids, start, _ in examples]


def batches(examples, batch_size, rng, pad_id):
    """Batches of like length: (ids (B, S) int64, targets (B, S) int64 with -100 = not scored)."""
    examples = sorted(examples, key=lambda e: len(e[0]))
    groups = [examples[i:i + batch_size] for i in range(0, len(examples), batch_size)]
    rng.shuffle(groups)
    for group in groups:
        length = -(-max(len(ids) for ids, _ in group) // 16) * 16
        ids = np.full((len(group), length), pad_id, dtype=np.int64)
        targets = np.full((len(group), length), -100, dtype=np.int64)
        for row, (doc, start) in enumerate(group):
            ids[row, :len(doc)] = doc
            targets[row, start - 1:len(doc) - 1] = doc[start:]
        yield ids, targets


VERSIONS = {"tokenizers": tokenizers.__version__}

if __name__ == "__main__":
    import sys
    write_tokenizer(sys.argv[1])
