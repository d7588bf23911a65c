"""Records how transformers renders small chat templates that use, one by one, what published templates use.

    python make_templates.py templates.json

The templates are written for this file. The clock is held at NOW, for strftime_now.
"""

import datetime
import json
import platform
import sys

import jinja2
import transformers
from transformers.utils import chat_template_utils

NOW = datetime.datetime(2026, 3, 5, 14, 7, 9)

USER = {"role": "user", "content": "Hi, Zoë 👋"}
MESSAGES = [{"role": "system", "content": "  Be brief. \n"}, USER, {"role": "assistant", "content": "Yes?"},
            {"role": "user", "content": "1 < 2 & 'a' \"b\""}]
TOOL = {"type": "function", "function": {"name": "find", "description": "Find <it>",
        "parameters": {"type": "object", "properties": {
            "q": {"type": "string", "enum": ["é", "b"]}, "n": {"type": "integer", "default": 3},
            "deep": {"type": "array", "items": {"type": "number"}, "nullable": True}}, "required": ["q"]}}}

LOOP = "{% for message in messages %}"
TEMPLATES = {
    "trim_blocks and lstrip_blocks": "{% for message in messages %}\n    {% if message.role == 'user' %}\n"
                                     "U: {{ message.content }}\n    {% endif %}\n{% endfor %}\nend\n",
    "whitespace control": "a  {%- if true -%}  b  {%- endif %}  c {{- ' d ' -}} e\n\n{#- gone -#}\n\nf",
    "filters of strings": "{{ messages[0].content | trim }}|{{ 'aBc' | upper }}|{{ 'aBc' | lower }}|{{ 'ab cd' | title }}|"
                          "{{ 'ab' | length }}|{{ 'a-b' | replace('-', '+') }}|{{ 'x' | default('y') }}|"
                          "{{ missing | default('y') }}|{{ '' | default('z', true) }}|{{ 'ab cd' | capitalize }}",
    "methods of strings": "{{ ' x '.strip() }}|{{ 'xxaxx'.strip('x') }}|{{ '\\n\\na'.lstrip('\\n') }}|{{ 'a  '.rstrip() }}|"
                          "{{ 'a,b,c'.split(',')[-1] }}|{{ 'a,b,c'.split(',', 1)[1] }}|{{ 'abc'.startswith('ab') }}|"
                          "{{ 'abc'.endswith(('x', 'c')) }}|{{ 'aXb'.replace('X', '-') }}|{{ 'abc'.upper() }}|"
                          "{{ 'a b'.title() }}|{{ 'abcabc'.find('c') }}|{{ 'abab'.count('ab') }}|{{ 'a\\nb'.splitlines() | join('+') }}",
    "slices and indices": "{{ messages[1:] | length }}|{{ messages[-1].content }}|{{ messages[::-1][0].role }}|"
                          "{{ 'abcdef'[1:4] }}|{{ 'abcdef'[-2:] }}|{{ 'abcdef'[::2] }}",
    "namespace": "{% set ns = namespace(n=0, last='') %}" + LOOP + "{% if message.role == 'user' %}{% set ns.n = ns.n + 1 %}"
                 "{% set ns.last = message.content %}{% endif %}{% endfor %}{{ ns.n }} {{ ns.last }}",
    "a set in a loop stays inside": "{% set x = 1 %}" + LOOP + "{% set x = x + 1 %}{{ x }}{% endfor %}|{{ x }}",
    "loop variables": LOOP + "{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}"
                      "{{ loop.revindex }}{% if loop.previtem is defined %}<{{ loop.previtem.role }}{% endif %}"
                      "{% if loop.nextitem is defined %}>{{ loop.nextitem.role }}{% endif %};{% endfor %}",
    "break and continue": LOOP + "{% if loop.index == 2 %}{% continue %}{% endif %}{% if loop.index == 4 %}{% break %}"
                          "{% endif %}{{ message.role }},{% endfor %}",
    "loop with a condition and else": "{% for m in messages if m.role == 'tool' %}x{% else %}none{% endfor %}"
                                      "{% for m in messages if m.role == 'user' %}{{ loop.index }}{% endfor %}",
    "macro": "{% macro kind(spec, required=[], nullable=false) %}{% if spec.type == 'array' %}{{ kind(spec['items']) }}[]"
             "{% elif spec.enum %}{{ spec.enum | join(' | ') }}{% else %}{{ spec.type }}{% endif %}"
             "{% if nullable %} | null{% endif %}{% endmacro %}"
             "{% for name, spec in tools[0].function.parameters.properties.items() %}{{ name }}"
             "{{ '' if name in tools[0].function.parameters.required else '?' }}: {{ kind(spec, nullable=spec.nullable) }}\n{% endfor %}",
    "tojson": "{{ tools[0] | tojson }}\n{{ tools[0] | tojson(indent=2) }}\n{{ messages[3].content | tojson }}"
              "{{ '\\u00e9\\u2028</script>' | tojson }}{{ [1, 2.5, 1e30, true, none] | tojson }}",
    "tojson of an object keeps the order of its keys": "{{ {'b': 1, 'a': {'d': 2, 'c': 3}} | tojson }}",
    "printed values": "{{ true }} {{ none }} {{ 1.0 }} {{ 7 // 2 }} {{ 7 / 2 }} {{ 7 % 3 }} {{ 2 ** 5 }} {{ -3 }} {{ 1e3 }}",
    "tests": "{{ x is defined }}{{ messages is defined }}{{ none is none }}{{ 'a' is string }}{{ tools[0] is mapping }}"
             "{{ messages is iterable }}{{ 3 is number }}{{ true is boolean }}{{ messages is sequence }}{{ 'a' is mapping }}"
             "{{ x is not defined }}{{ 3 is odd }}{{ false is false }}{{ 3 is integer }}",
    "operators": "{{ 'a' ~ 1 ~ none }}|{{ 'a' in 'cat' }}|{{ 'role' in messages[0] }}|{{ 'z' not in ['a'] }}|"
                 "{{ not true or 1 and 0 }}|{{ 'x' if false }}|{{ 'a' + 'b' }}|{{ 'ab' * 2 }}|{{ 1 < 2 <= 2 }}|{{ [1] + [2] }}",
    "selecting": "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join(' / ') }}|"
                 "{{ messages | rejectattr('role', 'equalto', 'user') | list | length }}|{{ [3, 1, 2] | sort | join(',') }}|"
                 "{{ messages | map(attribute='role') | unique | join(',') }}|{{ (messages | first).role }}|"
                 "{{ (messages | last).role }}|{{ {'b': 1, 'a': 2} | dictsort }}|{{ [1, 2] | sum }}",
    "dictionaries": "{% for k, v in {'b': 1, 'a': 2}.items() %}{{ k }}={{ v }};{% endfor %}{{ {'a': 1}.get('z', 'no') }}"
                    "{{ {'a': 1}.keys() | list }}{{ {'a': 1}['z'] is defined }}{{ tools[0].function.get('name') }}",
    "set block and unpacking": "{% set text %}<{{ messages[1].content }}>{% endset %}{{ text | upper }}"
                               "{% set a, b = 1, 2 %}{{ a }}{{ b }}",
    "content as text or parts": LOOP + "{% if message.content is string %}{{ message.content }}{% else %}"
                                "{% for part in message.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}"
                                "{% endif %}|{% endfor %}",
    "strftime_now": "{{ strftime_now('%Y-%m-%d') }}|{{ strftime_now('%d %b %Y') }}|{{ strftime_now('%B %-d, %A %H:%M:%S') }}",
    "raise_exception": "{% if messages[0].role == 'system' %}{{ raise_exception('No system role: ' + messages[0].role) }}{% endif %}",
    "undefined name printed": "[{{ nothing }}]",
    "attribute of undefined": "[{{ nothing.more }}]",
    "generation block": LOOP + "{% if message.role == 'assistant' %}{% generation %}{{ message.content }}{% endgeneration %}"
                        "{% else %}{{ message.content }}{% endif %}{% endfor %}",
    "special tokens and flags": "{{ bos_token }}{{ eos_token }}{% if add_generation_prompt %}G{% endif %}"
                                "{% if enable_thinking is defined and enable_thinking is false %}T{% endif %}",
    "raw and comments": "{% raw %}{{ not this }}{% endraw %}{# nor this #}{{ '{{' }}",
    "final newline is kept out": "a\n",
    "no html escaping": "{{ messages[3].content }}{{ '<&>' }}",
}
EXTRA = {"content as text or parts": {"messages": [USER, {"role": "user", "content": [
    {"type": "text", "text": "one "}, {"type": "image"}, {"type": "text", "text": "two"}]}]}}


class HeldClock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


def main(path):
    chat_template_utils.datetime = HeldClock
    variables = {"messages": MESSAGES, "tools": [TOOL], "bos_token": "<s>", "eos_token": "</s>",
                 "add_generation_prompt": True, "enable_thinking": False}
    cases = []
    for name, template in TEMPLATES.items():
        case = {"name": name, "template": template}
        if name in EXTRA:
            case["variables"] = EXTRA[name]
        try:
            compiled = chat_template_utils._compile_jinja_template(template)
            case["text"] = compiled.render(**{**variables, **EXTRA.get(name, {})})
        except (jinja2.TemplateError, TypeError) as error:
            case["error"] = f"{type(error).__name__}: {error}"
        cases.append(case)
    record = {"versions": {"python": platform.python_version(), "transformers": transformers.__version__,
                           "jinja2": jinja2.__version__},
              "now": NOW.isoformat(), "variables": variables, "cases": cases}
    with open(path, "w") as file:
        file.write(json.dumps(record, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(sys.argv[1])
