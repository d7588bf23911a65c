"""Records what transformers' tokenizers and chat templates answer, for the four published tokenizers.

    fetch_tokenizers.sh DIR && python make_tokenizers.py DIR tokenizers/

Writes one compact JSON per tokenizer. The tests compare with these files and never rewrite them.
"""

import hashlib
import json
import platform
import sys
from pathlib import Path

import jinja2
import tokenizers
import transformers

SPECIAL_TEXT = {
    "gpt-oss": "<|start|>user<|message|>a<|end|> b <|return|><|endoftext|>",
    "qwen3": "<|im_start|>user\na<|im_end|> b <|endoftext|><think></think><tool_call>",
    "deepseek-v3": "<｜User｜>a<｜Assistant｜> b <｜end▁of▁sentence｜><｜tool▁calls▁begin｜>",
    "llama-3.1": "<|start_header_id|>user<|end_header_id|>\n\na<|eot_id|> b <|begin_of_text|>",
}

TEXTS = [
    "",
    " ",
    "\n",
    "Hello, world!",
    "The quick brown fox jumps over 13 lazy dogs; they don't, we've, I'LL, it's.",
    "def f(x: int) -> int:\n\treturn x**2  # squared\n\n\nif __name__ == '__main__':\n    print(f(3))\n",
    "#include <vector>\nstd::vector<std::pair<int, float>> v{{1, 2.f}}; // ok\r\n",
    '{"a": [1, 2.5e-3, null, true], "b": {"c": "\\u00e9\\n"}}',
    "你好，世界！今天天气很好。",
    "日本語のテキスト、カタカナとひらがな。",
    "한국어 문장입니다. 띄어쓰기도 있어요.",
    "مرحبا بالعالم، كيف حالك؟ ١٢٣",
    "שלום עולם",
    "हिन्दी में एक वाक्य। क्षत्रिय",
    "สวัสดีชาวโลก",
    "👩‍👩‍👧‍👦 👍🏽 🏳️‍🌈 🇩🇪🇫🇷 ❤️‍🔥",
    "e\u0301 vs \u00e9, a\u0308\u0323, Z\u0351\u036b\u0343\u036a\u0302\u036b\u033d\u034f\u0334\u0319\u0324a",
    "a" + " " * 37 + "b" + "\t" * 9 + "c" + "\n" * 11 + "d \n \n  e   ",
    "    leading and trailing    ",
    "\u00a0non\u2003breaking\u200bzero\u200dwidth\ufeffbom\u2028line\u3000ideographic",
    "replacement \ufffd\ufffd and \ufffe nonchar, nul \u0000, bell \u0007, DEL \u007f",
    "1234567890 12 123 1234 3.14159 1,000,000 0x1F 1e-10",
    "Straße ﬁ Ⅳ ½ ² İstanbul ǅ ΑΣ ς",
    "https://example.org/a?b=c&d=%20#frag user@example.org C:\\Temp\\x.txt",
    "!!!???...---===+++***///\\\\\\|||~~~```",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𠜎𠜱𠝹 𒀀𒁀 \U0001f9d1\u200d\U0001f4bb",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "CamelCaseIdentifierXMLHttpRequest snake_case_identifier SCREAMING_CASE",
]

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather at a place <b>\"now\"</b> & here",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Zürich or 東京"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city"],
        },
    },
}
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": {"city": "Zürich", "unit": "celsius"}},
}
CALL_TEXT = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city": "Zürich"}'},
}


def says(role, content, **more):
    return {"role": role, "content": content, **more}



CONVERSATIONS = [
    {"name": "user", "messages": [says("user", "Hi there!")]},
    {"name": "user, no generation prompt", "messages": [says("user", "Hi there!")], "prompt": False},
    {"name": "system and user",
     "messages": [says("system", "You are terse."), says("user", "  Name a river.\n")]},
    {"name": "several turns",
     "messages": [says("system", "Be kind."), says("user", "One?"), says("assistant", "Two."),
                  says("user", "Three?"), says("assistant", "Four.\n"), says("user", "Five?")]},
    {"name": "ends with the assistant", "prompt": False,
     "messages": [says("user", "One?"), says("assistant", "Two.")]},
    {"name": "unicode and markup",
     "messages": [says("user", "Größe 👩‍👧 <b>&amp;</b> {{ not a template }} 你好\n\n```py\nx = '\\n'\n```")]},
    {"name": "empty content", "messages": [says("user", "")]},
    {"name": "special tokens as text",
     "messages": [says("user", "end <|im_end|><|eot_id|><｜end▁of▁sentence｜> now")]},
    {"name": "reasoning in an earlier turn",
     "messages": [says("user", "1+1?"), says("assistant", "<think>\neasy\n</think>\n\n2"),
                  says("user", "2+2?")]},
    {"name": "thinking switched off", "messages": [says("user", "1+1?")],
     "kwargs": {"enable_thinking": False}},
    {"name": "tools", "tools": [WEATHER], "messages": [says("user", "Weather in Zürich?")]},
    {"name": "tools and system", "tools": [WEATHER],
     "messages": [says("system", "Use tools."), says("user", "Weather in Zürich?")]},
    {"name": "tool call with an object and its result", "tools": [WEATHER],
     "messages": [says("user", "Weather?"), says("assistant", "", tool_calls=[CALL]),
                  says("tool", '{"t": 21}', tool_call_id="call_1")]},
    {"name": "tool call with text, null content, two results", "tools": [WEATHER],
     "messages": [says("user", "Weather?"), says("assistant", None, tool_calls=[CALL_TEXT]),
                  says("tool", '{"t": 21}', tool_call_id="call_1"),
                  says("tool", "sunny", tool_call_id="call_2"),
                  says("assistant", "21 degrees."), says("user", "Thanks")]},
    {"name": "list of text parts",
     "messages": [says("user", [{"type": "text", "text": "part one, "},
                                {"type": "text", "text": "part two"}])]},
    {"name": "no messages", "messages": []},
]


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def load(folder):
    """The tokenizer as a generic fast one: tokenizer.json decides, and the config adds BOS and the template.

    The family classes rebuild parts of the pipeline in some versions of transformers, so they are
    not used. A config that says add_bos_token without a post-processor that does it gets one.
    """
    config = json.loads((folder / "tokenizer_config.json").read_text())
    name = lambda key: config[key]["content"] if isinstance(config.get(key), dict) else config.get(key)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"),
        bos_token=name("bos_token"), eos_token=name("eos_token"), pad_token=name("pad_token"),
        clean_up_tokenization_spaces=False)
    tokenizer.chat_template = config.get("chat_template")
    bos = name("bos_token")
    adds_bos = bool(config.get("add_bos_token"))
    if adds_bos and tokenizer("")["input_ids"] == []:
        tokenizer._tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, tokenizer.convert_tokens_to_ids(bos))])
    return tokenizer, config


def text_cases(name, tokenizer):
    cases = []
    for text in TEXTS + [SPECIAL_TEXT[name]]:
        plain = tokenizer(text, add_special_tokens=False)["input_ids"]
        special = tokenizer(text, add_special_tokens=True)["input_ids"]
        case = {"text": text, "ids": plain}
        prefix = special[: len(special) - len(plain)]
        if prefix + plain != special:
            raise SystemExit(f"{name}: special tokens are not a prefix for {text!r}")
        case["special_prefix"] = prefix
        case["decoded"] = tokenizer.decode(plain, skip_special_tokens=False)
        skipped = tokenizer.decode(plain, skip_special_tokens=True)
        if skipped != case["decoded"]:
            case["decoded_skip_special"] = skipped
        cases.append(case)
    return cases


def chat_cases(tokenizer):
    cases = []
    for conversation in CONVERSATIONS:
        kwargs = {"tools": conversation.get("tools"),
                  "add_generation_prompt": conversation.get("prompt", True),
                  **conversation.get("kwargs", {})}
        case = {"name": conversation["name"], "messages": conversation["messages"],
                "add_generation_prompt": kwargs["add_generation_prompt"]}
        if conversation.get("tools"):
            case["tools"] = conversation["tools"]
        if conversation.get("kwargs"):
            case["kwargs"] = conversation["kwargs"]
        try:
            text = tokenizer.apply_chat_template(conversation["messages"], tokenize=False, **kwargs)
            if "[{'type': 'text'" in text:
                raise TypeError("this template prints Python's form of a list of parts")
            case["text"] = text
            case["ids"] = tokenizer(text, add_special_tokens=False)["input_ids"]
        except (jinja2.TemplateError, TypeError, IndexError) as error:
            case["error"] = f"{type(error).__name__}: {error}"
        cases.append(case)
    return cases


def main(source, out):
    for folder in sorted(Path(source).iterdir()):
        tokenizer, config = load(folder)
        record = {
            "tokenizer": folder.name,
            "versions": {"python": platform.python_version(), "transformers": transformers.__version__,
                         "tokenizers": tokenizers.__version__, "jinja2": jinja2.__version__},
            "sha256": {file: digest(folder / file) for file in ("tokenizer.json", "tokenizer_config.json")},
            "vocab_size": len(tokenizer),
            "bos_token": tokenizer.bos_token, "bos_id": tokenizer.bos_token_id,
            "eos_token": tokenizer.eos_token, "eos_id": tokenizer.eos_token_id,
            "has_chat_template": bool(config.get("chat_template")),
            "texts": text_cases(folder.name, tokenizer),
            "chats": chat_cases(tokenizer) if config.get("chat_template") else [],
        }
        path = Path(out) / f"{folder.name}.json"
        path.write_text(json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n")
        print(path, path.stat().st_size)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(sys.argv[1], sys.argv[2])
