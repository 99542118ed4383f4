#!/usr/bin/env python3
"""Writes tests/golden/jinja_cases.json: small templates, each with what Jinja2 makes of it.

Jinja2 is set up as transformers does for chat templates. Each case holds the template, its
variables and the expected text, or `"fails": true`. The templates are our own; they cover the
language feature by feature. Needs transformers and jinja2.

usage: make_template_golden.py [OUTPUT]
"""

import json
import os
import sys

from transformers.utils import chat_template_utils

VARIABLES = {
    "s": "Hello World",
    "u": "Größe ß Σας 日本 é",
    "empty": "",
    "n": 7,
    "f": 2.5,
    "yes": True,
    "no": False,
    "nil": None,
    "xs": [3, 1, 2],
    "words": ["pear", "Apple", "fig", "apple"],
    "d": {"b": 1, "a": [1, 2.0, None, True], "C": {"x": "it's \"q\" \n"}},
    "people": [
        {"name": "Ann", "age": 30, "at": {"city": "Rome"}},
        {"name": "bob", "age": 25, "at": {"city": "Oslo"}},
        {"name": "Cid", "age": 30, "at": {"city": "rome"}},
    ],
    "text": "  line one\nline two\n\n  line four  ",
    "tree": [{"v": 1, "kids": [{"v": 2, "kids": []}, {"v": 3, "kids": [{"v": 4, "kids": []}]}]}],
    "html": "<a href='x'>\"&\"</a>",
}

WHITE_SPACE = [
    "a\n{% if yes %}\nb\n{% endif %}\nc\n",
    "a\n  {% if yes %}  \nb\n  {%- endif %}\nc",
    "  {%+ if yes %}x{% endif +%}\n y",
    "a  {{- 1 -}}  b\n {{ 2 }}\n",
    "{# gone #}\nx {# gone -#}  \n y",
    "  {# gone #}\nx\n  {#- gone #}\ny\n  {#+ stays +#}\nz",
    "{% raw %}{{ x }} {% if %}{% endraw %}!",
    "  {%- raw -%}  {{ x }}\n  {%- endraw -%}  !",
    "a\n  {% raw %}\n  b\n  {% endraw %}\nc",
    "x\r\n{% if yes %}\r\ny{% endif %}\rz\n\n",
    "{%if yes%}tight{%endif%}{{n}}",
    "\n\n{{ n }}\n\n",
    "{% for i in xs %}\n  {{ i }}\n{% endfor %}\nend",
    "{% for i in xs -%}\n  {{ i }}\n{%- endfor %}\nend",
    "x \t {%- if yes %} y {% endif -%} \t z",
    "\u00a0 {%- if yes %}\u3000{%- endif %}|",
    "{{ '{{' }} {{ '%}' }} { % } }} %} #}",
    "{{ {'a': {'b': 1}} }}{{ {'a': 1}['a'] }}",
    "{% if yes %}   \n   {% endif %}|\n   {{ n }}   \n",
    "{% set x = 1 %}\n\n{{ x }}",
]
LITERALS = [
    "{{ 1 }} {{ 1_000 }} {{ 0x1F }} {{ 0b101 }} {{ 0o17 }} {{ 1.5 }} {{ 1e3 }} {{ 1.5e-7 }} {{ 1E+20 }} {{ 12_3.4_5 }}",
    "{{ 'a\\nb\\t\\\\ \\' \\\" \\x41 \\u00e9 \\U0001F600 \\101 \\q' }}",
    "{{ \"it's\" }} {{ 'a' 'b' \"c\" }}",
    "{{ true }} {{ True }} {{ false }} {{ none }} {{ None }}",
    "{{ [1, 'a', 2.0, none, true,] }} {{ (1,) }} {{ () }} {{ (1, 2) }} {{ 1, 2 }}",
    "{{ {'k': 1, 2: 'v', none: [], } }}",
    "{{ [\"it's\", 'say \"hi\"', 'both \\' and \"', 'tab\\t\\n\\x00\\x7f', 'é日\u00a0\u200b'] }}",
    "{{ 1.0 }} {{ 100000.0 }} {{ 1e15 }} {{ 1e16 }} {{ 0.0001 }} {{ 0.00001 }} {{ 1/3 }} {{ 1e22 }} {{ 123456789.125 }} {{ -0.0 }}",
]
OPERATORS = [
    "{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 2 ** 0.5 }}",
    "{{ 7.5 // 2 }} {{ -7.5 // 2 }} {{ -7.5 % 2 }} {{ 1.5 + 1 }} {{ 3 * 1.5 }} {{ 4 - 0.5 }}",
    "{{ 1 + 2 * 3 - 4 }} {{ (1 + 2) * 3 }} {{ -2 ** 2 }} {{ 2 ** 3 ** 2 }} {{ - 3 }} {{ +3 }} {{ --3 }}",
    "{{ 'a' + 'b' }} {{ 'ab' * 3 }} {{ 2 * 'x' }} {{ [1] + [2] }} {{ [0] * 3 }} {{ (1,) + (2,) }} {{ 'x' * -1 }}|",
    "{{ 1 ~ 'a' ~ none ~ 2.5 ~ missing ~ [1] }} {{ 1 ~ 2 * 3 }}",
    "{{ true + 1 }} {{ true == 1 }} {{ 1 == 1.0 }} {{ '1' == 1 }} {{ none == none }} {{ [1, 2] == [1, 2] }} {{ (1,) == [1] }}",
    "{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 < 2 != 3 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ 2 >= 2.0 }}",
    "{{ 1 in [1, 2] }} {{ 3 not in [1, 2] }} {{ 'ell' in 'Hello' }} {{ 'b' in d }} {{ 'z' in d }} {{ 1 in (1,) }} {{ 1 in missing }}",
    "{{ yes and n }} {{ no or 'x' }} {{ not yes }} {{ nil or empty or 0 }} {{ yes and no or yes }} {{ not no and yes }}",
    "{{ 'y' if yes else 'n' }} {{ 'y' if no else 'n' }} {{ 'y' if no }}| {{ 1 if no else 2 if no else 3 }}",
    "{{ 'a' if yes else 'b' ~ 'c' }} {{ ('a' if no else 'b') ~ 'c' }}",
    "{{ -1 | abs }} {{ -(1) | string ~ '!' }} {{ 1 + 2 | string | length }}",
    "{{ 'Hello %s, %d %5.2f %-4s| %04d %x %%' % ('you', 3, 2.5, 'ab', 42, 255) }} {{ '%s' % 'one' }} {{ '%s' % [1] }} {{ '%(a)s' % {'a': 1} }} {{ '%r' % 'q' }}",
    "{{ missing == missing2 }} {{ missing == none }} {{ missing != 1 }}",
]
ACCESS = [
    "{{ s[0] }} {{ s[-1] }} {{ s[1:3] }} {{ s[:-6] }} {{ s[::-1] }} {{ s[::2] }} {{ s[8:2:-2] }} {{ s[100:] }}|{{ s[5:2] }}|{{ s[-3:] }}",
    "{{ u[2] }} {{ u[-1] }} {{ u[2:5] }} {{ u[::-1] }} {{ u | length }}",
    "{{ xs[0] }} {{ xs[-1] }} {{ xs[1:] }} {{ xs[::-1] }} {{ xs[:1] }} {{ (1, 2, 3)[1:] }} {{ xs[9] }}|{{ xs[9] is defined }}",
    "{{ d.b }} {{ d['b'] }} {{ d.a[1] }} {{ d.C.x }} {{ d.zzz }}| {{ d['zzz'] is defined }} {{ d.a.0 }} {{ people[1].at.city }}",
    "{{ d.get('b') }} {{ d.get('z') }} {{ d.get('z', 5) }} {{ d.items() | list }} {{ d.keys() | list }} {{ d.values() | list }}",
    "{{ d.items() }} {{ d.keys() }} {{ d.values() }}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{{ {'items': 1}['items'] }} {{ {'get': 1}.get('get') }} {{ {'a': {'b': {}}}.a.b }}",
    "{{ range(3) | list }} {{ range(1, 4) | list }} {{ range(5, 0, -2) | list }} {{ range(3) }} {{ range(3)[1] }} {{ range(0) | list }}",
    "{{ dict(a=1, b=2) }} {{ dict([('x', 1)]) }} {{ dict({'q': 1}, r=2) }}",
]
STATEMENTS = [
    "{% if n > 9 %}a{% elif n > 5 %}b{% elif yes %}c{% else %}d{% endif %}",
    "{% for x in xs %}{{ loop.index }}/{{ loop.index0 }}/{{ loop.revindex }}/{{ loop.revindex0 }}/{{ loop.first }}/{{ loop.last }}/{{ loop.length }}/{{ loop.depth }} {% endfor %}",
    "{% for x in xs %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {{ loop.cycle('a', 'b') }} {{ loop.changed(x > 1) }};{% endfor %}",
    "{% for x in [] %}x{% else %}none{% endfor %}{% for x in xs %}{{ x }}{% else %}none{% endfor %}",
    "{% for x in xs if x > 1 %}{{ x }}/{{ loop.length }} {% endfor %}",
    "{% for p in people if p.age == 30 %}{{ loop.index }}{{ p.name }} {% else %}nobody{% endfor %}",
    "{% for node in tree recursive %}{{ node.v }}@{{ loop.depth0 }}({{ loop(node.kids) }}){% endfor %}",
    "{% for c in 'aé日' %}[{{ c }}]{% endfor %}{% for k in d %}{{ k }},{% endfor %}{% for x in missing %}x{% endfor %}",
    "{% for a, b in [(1, 2), [3, 4]] %}{{ a }}-{{ b }} {% endfor %}{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for x in range(10) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 5 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in xs %}{% for y in xs %}{% if y == 1 %}{% break %}{% endif %}{{ x }}{{ y }} {% endfor %}{% endfor %}",
    "{% set x = 1 %}{% for i in xs %}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}",
    "{% set ns = namespace(total=0, seen=[]) %}{% for i in xs %}{% set ns.total = ns.total + i %}{% set ns.seen = ns.seen + [i] %}{% endfor %}{{ ns.total }} {{ ns.seen }} {{ ns.zzz is defined }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set x = 'p', 'q' %}{{ x }}",
    "{% set x %}block {{ n }}{% endset %}[{{ x }}]{% set y | upper | trim %}  up {{ n }} {% endset %}[{{ y }}]",
    "{% if yes %}{% set inner = 5 %}{% endif %}{{ inner }}{% if no %}{% set never = 5 %}{% endif %}[{{ never }}]",
    "{% with a = 1, b = n %}{{ a + b }}{% set c = 3 %}{% endwith %}{{ a is defined }}{{ c is defined }}",
    "{% filter upper %}shout {{ s }}{% endfilter %} {% filter replace('a', 'b') | trim %}  banana {% endfilter %}|",
    "{% macro f(a, b=2, c='x') %}{{ a }},{{ b }},{{ c }};{% endmacro %}{{ f(1) }}{{ f(1, 3) }}{{ f(1, c='z') }}{{ f(b=0, a=9) }}{{ f() }}",
    "{% macro f(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ f(1) }} {{ f(1, 2) }}",
    "{% macro f() %}{{ varargs }} {{ kwargs }}{% endmacro %}{{ f(1, 2, k=3) }}",
    "{% macro rec(n) %}{{ n }}{% if n > 0 %}{{ rec(n - 1) }}{% endif %}{% endmacro %}{{ rec(4) }}",
    "{% macro box(title) %}[{{ title }}: {{ caller() }}]{% endmacro %}{% call box('T') %}body {{ n }}{% endcall %}",
    "{% macro each(items) %}{% for i in items %}{{ caller(i) }}{% endfor %}{% endmacro %}{% call(x) each(xs) %}<{{ x }}>{% endcall %}",
    "{% macro f() %}{{ late }}{% endmacro %}{% set late = 'yes' %}{{ f() }}",
    "{% for i in xs %}{% macro g() %}{{ i }}{% endmacro %}{{ g() }}{% endfor %}",
    "{% macro f(x) %}{{ x | upper }}{% endmacro %}{{ f('a') ~ f('b') | length }} {{ f is callable }}{{ f('q') is string }}",
    "{% generation %}kept {{ n }}{% endgeneration %}!",
    "{% set loop_out = [] %}{% for i in xs %}{{ loop_out + [i] }}{% endfor %}{{ loop_out }}",
    "{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}",
    "{% print n %}{% print 1, 2 %}",
]
FILTERS = [
    "{{ s | upper }} {{ s | lower }} {{ 'hELLO wORLD-x (y' | title }} {{ 'hELLO wORLD' | capitalize }} {{ u | upper }} {{ u | lower }} {{ u | title }}",
    "{{ '  x ' | trim }}| {{ 'xxaxx' | trim('x') }} {{ text | trim }}|",
    "{{ s | length }} {{ xs | length }} {{ d | count }} {{ missing | length }}",
    "{{ xs | join }} {{ xs | join(', ') }} {{ people | join('/', attribute='name') }} {{ [none, 1.5, missing] | join('-') }}",
    "{{ missing | default('x') }} {{ nil | default('x') }} {{ empty | default('x', true) }} {{ missing | default }}| {{ missing | d(3) }} {{ nil | default('b', boolean=true) }}",
    "{{ xs | first }} {{ xs | last }} {{ [] | first }}| {{ 'abc' | first }} {{ 'abc' | last }}",
    "{{ xs | sort }} {{ xs | sort(reverse=true) }} {{ words | sort }} {{ words | sort(case_sensitive=true) }} {{ people | sort(attribute='age') | map(attribute='name') | list }} {{ people | sort(attribute='age,name') | map(attribute='name') | join }}",
    "{{ words | unique | list }} {{ words | unique(true) | list }} {{ people | unique(attribute='age') | map(attribute='name') | list }}",
    "{{ xs | reverse | list }} {{ 'abc' | reverse }} {{ xs | list }} {{ 'abc' | list }} {{ d | list }}",
    "{{ d | dictsort }} {{ d | dictsort(true) }} {{ {'a': 2, 'b': 1} | dictsort(by='value') }} {{ {'a': 2, 'b': 1} | dictsort(reverse=true) }}",
    "{% for k, v in d | items %}{{ k }};{% endfor %}{{ missing | items | list }}",
    "{{ people | map(attribute='at.city') | list }} {{ words | map('upper') | join(' ') }} {{ people | map(attribute='zip', default='?') | list }} {{ words | map('replace', 'p', 'q') | list }}",
    "{{ people | selectattr('age', 'equalto', 30) | map(attribute='name') | list }} {{ people | rejectattr('age', '>', 26) | map(attribute='name') | list }} {{ people | selectattr('zip') | list }} {{ people | selectattr('name', 'defined') | list | length }}",
    "{{ xs | select('odd') | list }} {{ xs | reject('odd') | list }} {{ [0, 1, '', 'a', none] | select | list }} {{ xs | select('in', [1, 2]) | list }} {{ xs | select('greaterthan', 1) | list }}",
    "{{ 'banana' | replace('a', 'o') }} {{ 'banana' | replace('a', 'o', 2) }} {{ 'ab' | replace('', '-') }} {{ 123 | replace(2, 'x') }}",
    "{{ '42' | int }} {{ ' 42 ' | int }} {{ 'x' | int }} {{ 'x' | int(7) }} {{ '4.7' | int }} {{ 4.7 | int }} {{ '0x1f' | int(base=16) }} {{ true | int }} {{ nil | int }} {{ '1_0' | int }}",
    "{{ '2.5' | float }} {{ 'x' | float }} {{ 3 | float }} {{ '1e3' | float }} {{ 'x' | float(1.5) }}",
    "{{ 5 | string }} {{ nil | string }} {{ [1, 'a'] | string }} {{ 2.0 | string ~ 'x' }}",
    "{{ 2.567 | round(2) }} {{ 2.5 | round }} {{ 3.5 | round }} {{ 2.1 | round(method='ceil') }} {{ 2.19 | round(1, 'floor') }} {{ 7 | round }} {{ 2.675 | round(2) }}",
    "{{ text | indent }}|{{ text | indent(2, true) }}|{{ text | indent(2, blank=true) }}|{{ 'a\nb' | indent('> ') }}|{{ 'a\n' | indent }}|",
    "{{ [1, 5, 3] | max }} {{ [1, 5, 3] | min }} {{ words | min }} {{ people | max(attribute='age') }} {{ [] | max }}| {{ xs | sum }} {{ people | sum(attribute='age') }} {{ xs | sum(start=10) }}",
    "{{ range(7) | batch(3) | list }} {{ range(4) | batch(3, 'x') | list }}",
    "{% for city, members in people | groupby('at.city') %}{{ city }}:{{ members | map(attribute='name') | join('+') }} {% endfor %}",
    "{{ '%s-%03d' | format('a', 5) }} {{ 'one two, three' | wordcount }} {{ -3 | abs }} {{ -2.5 | abs }}",
    "{{ html | e }} {{ html | escape }} {{ html | safe }} {{ '<b>' | safe + '<i>' }} {{ '<i>' + ('<b>' | safe) }} {{ ('<b>' | safe) ~ '<i>' }} {{ '<b>' | e | e }}",
    "{{ 'x' is filter }} {{ 'upper' is filter }} {{ 'odd' is test }} {{ 'nope' is test }}",
    "{{ words | map('length') | sum }} {{ words | map('first') | join }} {{ xs | map('string') | join('+') }}",
]
JSON_FILTER = [
    "{{ d | tojson }}",
    "{{ d | tojson(indent=2) }}\n{{ [] | tojson(indent=2) }} {{ {} | tojson(indent=4) }} {{ [[], {}] | tojson(indent=1) }}",
    "{{ d | tojson(sort_keys=true) }} {{ d | tojson(separators=(',', ':')) }} {{ u | tojson }} {{ u | tojson(ensure_ascii=true) }} {{ '😀' | tojson(ensure_ascii=true) }}",
    "{{ \"<a> & 'b' / \\\\ \\x01 \\x7f\" | tojson }} {{ (1, 2) | tojson }} {{ none | tojson }} {{ true | tojson }} {{ 1.0 | tojson }} {{ 1e100 | tojson }} {{ {1: 2, none: 3, true: 4, 1.5: 5} | tojson }}",
    "{{ d | tojson(indent=0) }} {{ xs | tojson(indent='--') }}",
    "{{ xs | map('string') | list | tojson }} {{ (d | tojson | safe) + '<' }}",
]
TESTS = [
    "{{ 1 is odd }} {{ 2 is even }} {{ 9 is divisibleby 3 }} {{ 9 is divisibleby(2) }} {{ 3 is not even }}",
    "{{ missing is defined }} {{ s is defined }} {{ missing is undefined }} {{ nil is none }} {{ nil is defined }} {{ missing is none }} {{ d.q is not defined }}",
    "{% for v in [1, 1.5, 'a', true, none, [1], (1,), {'a': 1}, missing, range(2)] %}{{ v is string }}{{ v is number }}{{ v is integer }}{{ v is float }}{{ v is boolean }}{{ v is mapping }}{{ v is sequence }}{{ v is iterable }}{{ v is true }}{{ v is false }}{{ v is callable }} {% endfor %}",
    "{{ 1 is eq 1 }} {{ 1 is equalto 2 }} {{ 1 is ne 2 }} {{ 1 is lt 2 }} {{ 1 is gt(2) }} {{ 1 is le 1 }} {{ 1 is ge 1 }} {{ 1 is in [1] }} {{ 'a' is in 'abc' }}",
    "{{ 'abc' is lower }} {{ 'ABC' is upper }} {{ 'Abc' is lower }} {{ '12' is upper }} {{ none is sameas none }} {{ true is sameas true }} {{ 'x' | safe is escaped }} {{ 'x' is escaped }}",
    "{{ d.items() is sequence }} {{ d.keys() is iterable }} {{ xs | map('string') is sequence }} {{ d.get is defined }} {{ d.get is callable }} {{ xs.append is defined }} {{ s.strip is defined }}",
    "{{ not 1 is odd }} {{ 1 is odd and 2 is even }} {{ 1 is not odd or yes }} {{ (1 is odd) is true }}",
]
METHODS = [
    "{{ ' x '.strip() }}|{{ ' x '.lstrip() }}|{{ ' x '.rstrip() }}|{{ 'xyax'.strip('xy') }}|{{ '\u3000é\u00a0'.strip() }}|{{ 'abc'.strip(none) }}",
    "{{ 'a,b,,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ ' a b  c '.split(none, 1) }} {{ ' a b  c '.rsplit(none, 1) }} {{ ''.split() }} {{ ''.split(',') }} {{ 'a--b'.split('--')[-1] }} {{ 'aXbXc'.split(sep='X', maxsplit=1) }}",
    "{{ 'a\nb\r\nc\n'.splitlines() }} {{ 'a\n\nb'.splitlines(true) }}",
    "{{ s.startswith('Hell') }} {{ s.endswith('d') }} {{ s.startswith(('x', 'He')) }} {{ s.startswith('lo', 3) }} {{ s.endswith('lo', 0, 5) }} {{ ''.startswith('') }}",
    "{{ s.replace('o', '0') }} {{ s.replace('o', '0', 1) }} {{ 'é日'.replace('', '.') }}",
    "{{ s.upper() }} {{ s.lower() }} {{ \"they're bill's\".title() }} {{ 'hELLO'.capitalize() }} {{ u.upper() }} {{ 'ΑΣ ΑΣΑ'.lower() }} {{ 'ﬁn ǆ'.title() }}",
    "{{ ', '.join(['a', 'b']) }} {{ ''.join([]) }}| {{ '-'.join('abc') }}",
    "{{ s.find('o') }} {{ s.rfind('o') }} {{ s.find('zz') }} {{ s.find('o', 5) }} {{ u.find('日') }} {{ s.index('W') }} {{ s.count('o') }} {{ 'aaa'.count('aa') }} {{ 'ab'.count('') }}",
    "{{ 'a-b-c'.partition('-') }} {{ 'a-b-c'.rpartition('-') }} {{ 'abc'.partition('-') }} {{ 'abc'.rpartition('-') }} {{ 'prefix-x'.removeprefix('prefix-') }} {{ 'x.py'.removesuffix('.py') }}",
    "{{ 'ab'.ljust(4, '.') }} {{ 'ab'.rjust(4) }} {{ 'ab'.center(5, '*') }} {{ 'abc'.center(6, '*') }} {{ '-42'.zfill(5) }} {{ '42'.zfill(1) }}",
    "{{ '123'.isdigit() }} {{ '12a'.isdigit() }} {{ ''.isdigit() }} {{ 'abc'.isalpha() }} {{ 'ab1'.isalnum() }} {{ ' '.isspace() }} {{ 'AB'.isupper() }} {{ 'ab'.islower() }}",
    "{{ '{} {}'.format(1, 'a') }} {{ '{0}{1}{0}'.format('x', 'y') }} {{ '{a} {b.c} {d[0]}'.format(a=1, b={'c': 2}, d=[3]) }} {{ '{{}} {:>5}|{:<5}|{:^5}|{:*^7}'.format('a', 'b', 'c', 'd') }}",
    "{{ '{:05d} {:+d} {:,} {:x} {:#x} {:.2f} {:8.3f} {:e} {:%} {:g} {!r} {:.2}'.format(42, 3, 1234567, 255, 255, 3.14159, 2.5, 12345.678, 0.25, 0.5, 'q', 'abcdef') }}",
    "{{ [1, 2, 1].index(2) }} {{ [1, 2, 1].count(1) }} {{ (1, 2).index(1) }} {{ d.copy() == d }}",
]
FAILURES = [
    "{{ missing.x }}", "{{ missing['x'] }}", "{{ missing() }}", "{{ missing + 1 }}", "{{ 'a' + missing }}", "{{ d.zzz.y }}",
    "{{ 'a' + 1 }}", "{{ 1 + 'a' }}", "{{ none + 'a' }}", "{{ [1] + (1,) }}", "{{ 1 < 'a' }}", "{{ missing < 1 }}", "{{ -'a' }}",
    "{{ 1 / 0 }}", "{{ 1 // 0 }}", "{{ 1 % 0 }}", "{{ 1.0 / 0 }}", "{{ none | length }}", "{{ 5 | length }}", "{{ 1 in 'a' }}", "{{ 1 in 5 }}",
    "{{ xs.append(1) }}", "{{ d.pop('a') }}", "{{ d.update({}) }}", "{% for x in 5 %}{% endfor %}", "{% for x in none %}{% endfor %}",
    "{% for a, b in [1] %}{% endfor %}", "{% for a, b in [(1, 2, 3)] %}{% endfor %}", "{% set a, b = 1 %}", "{% set d.x = 1 %}",
    "{{ raise_exception('no way: ' ~ n) }}", "{{ missing | tojson }}", "{{ range | tojson }}", "{{ xs | map('upper') | list | first + 1 }}",
    "{{ s | nofilter }}", "{{ s is notest }}", "{% if %}{% endif %}", "{% if yes %}", "{% endif %}", "{{ 1 + }}", "{{ (1 }}", "{{ 'a }}",
    "{% for x in xs %}", "{% unknown %}", "{{ 1", "{% macro f(a, b=1, c) %}{% endmacro %}", "{{ f( }}", "{# open", "{% raw %}x",
    "{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", "{% macro f(a) %}{% endmacro %}{{ f(b=1) }}", "{% macro f(a) %}{{ a.x }}{% endmacro %}{{ f() }}",
    "{{ range(1000000) }}", "{{ 'a'.split('') }}", "{{ 'a'.index('b') }}", "{{ ''.__class__ }}{{ ''.__class__.__mro__ }}", "{% set ns = namespace(_x=1) %}",
    "{{ '{}'.format() }}", "{{ '%d' % 'a' }}", "{{ '%s' % () }}", "{{ '%s' % (1, 2) }}", "{{ {[1]: 2} }}", "{{ 1 if }}", "{% set 1 = 2 %}", "{{ a b }}",
    "{% for x in xs recursive %}{{ loop(5) }}{% endfor %}", "{% for x in xs %}{{ loop([1]) }}{% endfor %}", "{{ s.nomethod() }}", "{{ d() }}", "{{ 5.x }}",
    "{{ xs['a'].b }}", "{{ s['upper']['x']['y'] }}", "{% break %}", "{{ xs[1:2:0] }}", "{{ xs['a':] }}", "{{ {'a': 1}.items.x.y }}", "{% call n %}{% endcall %}",
]
SUBTLE = [
    "{{ s['upper']() }} {{ d['get']('b') }} {{ xs['count'](1) }}",
    "{{ namespace(a=1).a }} {{ namespace({'b': 2}).b }} {{ namespace() is mapping }}",
    "{{ ('abc' is string) is true }}",
    "{{ [1, 2, 3] | length > 2 and 'big' or 'small' }}",
    "{{ loop is defined }} {{ caller is defined }} {{ range is defined }} {{ strftime_now is defined }} {{ raise_exception is defined }} {{ zip is defined }}",
    "{{ [missing] }} {{ [none] | string }} {{ {'a': missing} }}",
    "{% set x = missing %}{{ x is defined }}{{ x }}",
    "{{ 'a' ~ 'b' + 'c' }} {{ 1 ~ 2 * 3 }}",
    "{{ d.a is sequence and d.a is not string and d.a is not mapping }}",
    "{{ not missing }} {{ missing or 'x' }} {{ (missing and 1) is defined }}",
    "{{ xs | sort | join(',') if xs else 'none' }}",
    "{% for x in xs %}{% if loop.first %}{% set ns = namespace(y=x) %}{% endif %}{{ ns is defined }}{% endfor %}",
    "{% set q = [] %}{% set q = q + [{'a': 1}] %}{% set q = q + [{'a': 2}] %}{{ q[-1].a }}{{ q | map(attribute='a') | sum }}",
    "{% macro outer() %}{% macro inner(x) %}<{{ x }}>{% endmacro %}{{ inner(1) }}{% endmacro %}{{ outer() }}{{ inner is defined }}",
    "{{ 'x'.join(['<', '>']) }}{{ \"'\" }}{{ '\"' }}",
    "{{ (xs, s)[0][1] }} {{ [[1, 2], [3]][0][-1] }} {{ {'a': [1]}['a'][0] }}",
    "{{ 10 is divisibleby 5 and 'ok' }}",
    "{{ xs | first + xs | last }}",
    "{{ '%s' % missing }}|{{ '{}'.format(missing) }}|{{ missing | string }}|{{ missing | upper }}|{{ [missing] | join }}|",
    "{{ 1.5 | int }} {{ '' | int }} {{ '-5' | int }} {{ '+5' | int }} {{ [] | int }}",
    "{{ True and none }} {{ [] or {} }} {{ 0 or 0.0 }}",
    "{{ d | length }}{{ d == {'C': {'x': 'it\\'s \"q\" \\n'}, 'a': [1, 2, none, true], 'b': 1} }}",
]


def render(template):
    try:
        text = chat_template_utils._cached_compile_jinja_template(template).render(**VARIABLES)
        return {"template": template, "text": text}
    except Exception as error:  # whatever a template can raise in Python
        print(f"fails ({type(error).__name__}: {error}): {template!r}")
        return {"template": template, "fails": True}


def main():
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    path = sys.argv[1] if len(sys.argv) > 1 else os.path.join(root, "tests/golden/jinja_cases.json")
    groups = {
        "white space": WHITE_SPACE, "literals": LITERALS, "operators": OPERATORS, "access": ACCESS,
        "statements": STATEMENTS, "filters": FILTERS, "tojson": JSON_FILTER, "tests": TESTS, "methods": METHODS,
        "failures": FAILURES, "subtle": SUBTLE,
    }
    cases = [dict(group=name, **render(template)) for name, group in groups.items() for template in group]
    document = {"variables": VARIABLES, "cases": cases}
    with open(path, "w", encoding="utf-8") as out:
        json.dump(document, out, ensure_ascii=False, indent=1)
        out.write("\n")
    print(f"{path}: {len(cases)} cases, {sum('fails' in case for case in cases)} fail")


if __name__ == "__main__":
    main()
